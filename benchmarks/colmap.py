"""Reconstruct a scene with COLMAP from its own matches and from matches of codes.

COLMAP extracts the features once. Matching is timed in both directions on all cores, without
geometric verification; encoding is timed separately. COLMAP then verifies the matches of each
database and runs its mapper on them.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from support.harness import arguments, log, report
from support.markdown import machine_note, size, table

from kdiffhash import load_pretrained
from kdiffhash.vision.colmap import match_images, read_images, verify_pairs, write_matches

LENGTHS = (128, 256, 512)


def photo_folder() -> Path:
    """Return the folder of the photographs."""
    return Path(os.environ["KDIFFHASH_PHOTOS"]) / "herz-jesus-p8"


def extract(database: Path) -> None:
    """Extract features into a new COLMAP database."""
    import pycolmap

    pycolmap.extract_features(
        database,
        photo_folder(),
        image_names=sorted(path.name for path in photo_folder().glob("*.jpg")),
        camera_mode=pycolmap.CameraMode.SINGLE,
        device=pycolmap.Device.cpu,
    )


def match_with_colmap(database: Path, verify: bool) -> float:
    """Return the seconds of COLMAP's exhaustive matching."""
    import pycolmap

    options = pycolmap.FeatureMatchingOptions(skip_geometric_verification=not verify)
    start = time.perf_counter()
    pycolmap.match_exhaustive(database, matching_options=options, device=pycolmap.Device.cpu)
    return time.perf_counter() - start


def reconstruct(database: Path, out: Path) -> dict[str, Any]:
    """Run COLMAP's mapper and return the statistics of its largest model."""
    import pycolmap

    out.mkdir()
    pycolmap.set_random_seed(0)
    options = pycolmap.IncrementalPipelineOptions(random_seed=0, num_threads=1)
    models = pycolmap.incremental_mapping(database, photo_folder(), out, options)
    best = max(models.values(), key=lambda model: model.num_reg_images())
    return {
        "registered": best.num_reg_images(),
        "points": best.num_points3D(),
        "reprojection_error": best.compute_mean_reprojection_error(),
        "track_length": best.compute_mean_track_length(),
    }


def descriptor_bytes(database: Path) -> int:
    """Return the size of all descriptors in a database."""
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("SELECT sum(length(data)) FROM descriptors").fetchone()[0])


def colmap_table(result: dict[str, Any]) -> str:
    uncompressed = result["rows"][0]["descriptor_bytes"]
    rows = [
        [
            f"{row['method']}, {row['n_bits']} bits",
            f"{row['registered']} of {result['photos']}",
            f"{row['points']:,}",
            f"{row['reprojection_error']:.3f} px",
            f"{row['ms_per_pair']:.0f} ms",
            f"**{row['times_faster']:.1f}x**",
            f"{row['encoding_seconds']:.1f} s" if row["encoding_seconds"] else "-",
            f"{size(row['descriptor_bytes'])} (1/{uncompressed / row['descriptor_bytes']:.0f})",
        ]
        for row in result["rows"]
    ]
    header = [
        "matching",
        "registered images",
        "3D points",
        "mean reprojection error",
        "matching time per pair",
        "speed relative to COLMAP",
        "encoding, once",
        "size of the descriptors",
    ]
    mean = statistics.mean(result["features"])
    note = (
        f"{mean:,.0f} features per photograph on average. Matching time is the mean over "
        f"all {result['pairs']} pairs of photographs, in both directions, without geometric "
        f"verification, on two cores. {machine_note(result)}. (`python benchmarks/colmap.py`)"
    )
    return note + "\n\n" + table(header, rows)


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"colmap": colmap_table(result)}


def main() -> None:
    import pycolmap

    options = arguments(__doc__, repeats=5)
    pycolmap.logging.minloglevel = 2
    with tempfile.TemporaryDirectory() as scratch:
        scratch_folder = Path(scratch)
        features = scratch_folder / "features.db"
        extract(features)
        codes, encoding = {}, {}
        for n_bits in LENGTHS:
            start = time.perf_counter()
            codes[n_bits] = read_images(features, load_pretrained("rootsift", n_bits))
            encoding[n_bits] = time.perf_counter() - start
            match_images(codes[n_bits][:2])  # warm up
        sizes = [len(image.codes) for image in codes[256]]
        seconds: dict[Any, list[float]] = {"colmap": [], **{n: [] for n in LENGTHS}}
        for _ in range(options.repeats):
            copy = scratch_folder / "colmap.db"
            shutil.copy(features, copy)
            seconds["colmap"].append(match_with_colmap(copy, verify=False))
            for n_bits in LENGTHS:
                start = time.perf_counter()
                match_images(codes[n_bits])
                seconds[n_bits].append(time.perf_counter() - start)
            log({name: f"{times[-1]:.2f} s" for name, times in seconds.items()})
        n_pairs = len(sizes) * (len(sizes) - 1) // 2
        verified = scratch_folder / "verified.db"
        shutil.copy(features, verified)
        match_with_colmap(verified, verify=True)
        rows = [
            {
                "method": "COLMAP",
                "n_bits": 1024,
                **reconstruct(verified, scratch_folder / "colmap"),
                "ms_per_pair": 1000 * statistics.median(seconds["colmap"]) / n_pairs,
                "times_faster": 1.0,
                "encoding_seconds": 0.0,
                "descriptor_bytes": descriptor_bytes(features),
            }
        ]
        log(rows[-1])
        for n_bits in LENGTHS:
            database = scratch_folder / f"{n_bits}.db"
            shutil.copy(features, database)
            write_matches(database, verify_pairs(match_images(codes[n_bits])))
            ratios = [a / b for a, b in zip(seconds["colmap"], seconds[n_bits])]
            rows.append(
                {
                    "method": "kdiffhash",
                    "n_bits": n_bits,
                    **reconstruct(database, scratch_folder / str(n_bits)),
                    "ms_per_pair": 1000 * statistics.median(seconds[n_bits]) / n_pairs,
                    "times_faster": statistics.median(ratios),
                    "encoding_seconds": encoding[n_bits],
                    "descriptor_bytes": sum(image.codes.nbytes for image in codes[n_bits]),
                }
            )
            log(rows[-1])
    result = {"photos": len(sizes), "features": sizes, "pairs": n_pairs, "rows": rows}
    report("colmap", result, options)


if __name__ == "__main__":
    main()
