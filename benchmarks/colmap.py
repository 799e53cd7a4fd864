"""COLMAP with codes and with its own matching, from photographs to points.

Features are extracted once by COLMAP. The matching step is timed without verification, both ways,
on all cores; encoding is told apart. Then each database is verified and mapped by COLMAP.
"""

from __future__ import annotations

import shutil
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from matching import folder
from support.harness import arguments, report, say
from support.markdown import machine_note, size, table

from kdiffhash import load_pretrained
from kdiffhash.vision.colmap import match_images, read_images, verify_pairs, write_matches

LENGTHS = (128, 256, 512)


def extract(database: Path) -> None:
    import pycolmap

    pycolmap.extract_features(
        database,
        folder(),
        image_names=sorted(path.name for path in folder().glob("*.jpg")),
        camera_mode=pycolmap.CameraMode.SINGLE,
        device=pycolmap.Device.cpu,
    )


def match_own(database: Path, verify: bool) -> float:
    """Seconds of COLMAP's own exhaustive matching."""
    import pycolmap

    options = pycolmap.FeatureMatchingOptions(skip_geometric_verification=not verify)
    start = time.perf_counter()
    pycolmap.match_exhaustive(database, matching_options=options, device=pycolmap.Device.cpu)
    return time.perf_counter() - start


def map_it(database: Path, out: Path) -> dict[str, Any]:
    """What COLMAP's mapper makes of a database."""
    import pycolmap

    out.mkdir()
    pycolmap.set_random_seed(0)
    options = pycolmap.IncrementalPipelineOptions(random_seed=0, num_threads=1)
    found = pycolmap.incremental_mapping(database, folder(), out, options)
    best = max(found.values(), key=lambda scene: scene.num_reg_images())
    return {
        "registered": best.num_reg_images(),
        "points": best.num_points3D(),
        "reprojection_error": best.compute_mean_reprojection_error(),
        "track_length": best.compute_mean_track_length(),
    }


def descriptor_bytes(database: Path) -> int:
    with closing(sqlite3.connect(database)) as lines:
        return int(lines.execute("SELECT sum(length(data)) FROM descriptors").fetchone()[0])


def colmap_table(found: dict[str, Any]) -> str:
    whole = found["rows"][0]["descriptor_bytes"]
    lines = [
        [
            f"{row['method']}, {row['n_bits']} bits",
            f"{row['registered']} of {found['photos']}",
            f"{row['points']:,}",
            f"{row['reprojection_error']:.3f} px",
            f"{row['ms_per_pair']:.0f} ms",
            f"**{row['times_faster']:.1f} x**",
            f"{row['encoding_seconds']:.1f} s" if row["encoding_seconds"] else "-",
            f"{size(row['descriptor_bytes'])} ({whole / row['descriptor_bytes']:.0f} x smaller)",
        ]
        for row in found["rows"]
    ]
    header = [
        "matching",
        "registered",
        "points",
        "mean reprojection error",
        "matching a pair",
        "times as fast",
        "encoding, once",
        "descriptors",
    ]
    mean = statistics.mean(found["features"])
    note = (
        f"{mean:,.0f} features a photograph, all {found['pairs']} pairs, both ways, without "
        f"verification, on both cores. {machine_note(found)}. (`python benchmarks/colmap.py`)"
    )
    return note + "\n\n" + table(header, lines)


def tables(found: dict[str, Any]) -> dict[str, str]:
    return {"colmap": colmap_table(found)}


def main() -> None:
    import pycolmap

    options = arguments(__doc__, turns=5)
    pycolmap.logging.minloglevel = 2
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        start = home / "start.db"
        extract(start)
        sizes = []
        codes, encoding = {}, {}
        for n_bits in LENGTHS:
            before = time.perf_counter()
            codes[n_bits] = read_images(start, load_pretrained("rootsift", n_bits))
            encoding[n_bits] = time.perf_counter() - before
            match_images(codes[n_bits][:2])  # warm up
        sizes = [len(picture.codes) for picture in codes[256]]
        seconds: dict[Any, list[float]] = {"own": [], **{n: [] for n in LENGTHS}}
        for _ in range(options.turns):
            copy = home / "own.db"
            shutil.copy(start, copy)
            seconds["own"].append(match_own(copy, verify=False))
            for n_bits in LENGTHS:
                before = time.perf_counter()
                match_images(codes[n_bits])
                seconds[n_bits].append(time.perf_counter() - before)
            say({name: f"{times[-1]:.2f} s" for name, times in seconds.items()})
        n_pairs, whole = len(sizes) * (len(sizes) - 1) // 2, descriptor_bytes(start)
        own = home / "verified.db"
        shutil.copy(start, own)
        match_own(own, verify=True)
        rows = [
            {
                "method": "COLMAP's own",
                "n_bits": 1024,
                **map_it(own, home / "own"),
                "ms_per_pair": 1000 * statistics.median(seconds["own"]) / n_pairs,
                "times_faster": 1.0,
                "encoding_seconds": 0.0,
                "descriptor_bytes": whole,
            }
        ]
        say(rows[-1])
        for n_bits in LENGTHS:
            database = home / f"{n_bits}.db"
            shutil.copy(start, database)
            write_matches(database, verify_pairs(match_images(codes[n_bits])))
            ratios = [a / b for a, b in zip(seconds["own"], seconds[n_bits])]
            rows.append(
                {
                    "method": "kdiffhash",
                    "n_bits": n_bits,
                    **map_it(database, home / str(n_bits)),
                    "ms_per_pair": 1000 * statistics.median(seconds[n_bits]) / n_pairs,
                    "times_faster": statistics.median(ratios),
                    "encoding_seconds": encoding[n_bits],
                    "descriptor_bytes": sum(picture.codes.nbytes for picture in codes[n_bits]),
                }
            )
            say(rows[-1])
    result = {"photos": len(sizes), "features": sizes, "pairs": n_pairs, "rows": rows}
    report("colmap", result, options)


if __name__ == "__main__":
    main()
