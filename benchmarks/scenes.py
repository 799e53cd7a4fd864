"""SIFT of patches beside a plain OpenCV loop, the embedded set, a scene from photographs."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from support.harness import arguments, interleaved, report
from support.markdown import rates, table, with_interval

from kdiffhash import KernelLDAHash, bootstrap_difference, load_views, roc
from kdiffhash.datasets import Scene, build_scene, describe_patches, load_scene
from kdiffhash.learn.preprocess import preprocess_rows


def plain_loop(patches: np.ndarray) -> np.ndarray:
    import cv2

    sift, keypoint = cv2.SIFT_create(), cv2.KeyPoint(31.5, 31.5, 128 / 15, 0, 0, 257)
    out = np.empty((len(patches), 128), np.uint8)
    for i, patch in enumerate(patches):
        out[i] = sift.compute(patch, [keypoint])[1][0]
    return out


def measure_sift(repeats: int) -> list[dict]:
    scene = load_scene("brighton-beach")
    patches = np.asarray(scene.patches)
    times = interleaved(
        {"plain": lambda: plain_loop(patches), "ours": lambda: describe_patches(patches)},
        repeats,
    )
    rows = [
        {
            "what": "SIFT of patches",
            "n": len(patches),
            "plain_seconds": times["plain"],
            "seconds": times["ours"],
            "ratio_to_plain_loop": times["plain"] / times["ours"],
        }
    ]
    for name in ("brighton-beach", "boruszyn", "castle-p30", "herz-jesus-p25"):
        scene = load_scene(name)
        gap = np.abs(describe_patches(scene.patches).astype(int) - scene.descriptors)
        rows.append(
            {
                "what": "SIFT of a scene",
                "scene": name,
                "sheets": next(scene.path.glob("patches0000.*")).suffix[1:],
                "equal_rows": float((gap == 0).all(axis=1).mean()),
                "median_distance": float(np.median(np.linalg.norm(gap, axis=1))),
            }
        )
    return rows


def euclidean(scene: Scene, pairs: np.ndarray, kind: str | None) -> np.ndarray:
    rows = preprocess_rows(np.asarray(scene.descriptors), kind)
    return np.linalg.norm(rows[pairs[:, 0]] - rows[pairs[:, 1]], axis=1)


def measure_views() -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KDIFFHASH_CACHE"] = folder
        start = time.perf_counter()
        train, test = load_views()
        seconds = time.perf_counter() - start
        sizes = {
            "n_patches": len(train) + len(test),
            "n_points": len(np.unique(train.points)) + len(np.unique(test.points)),
            "seconds": seconds,
        }
        rows = [{"what": "views", **sizes}]
        pairs, similar = train.draw_pairs(random_state=0)
        hasher = KernelLDAHash(256, preprocess="hellinger", random_state=0)
        hasher.fit_pairs(train.descriptors, pairs, similar)
        pairs, similar = test.test_pairs(1_000_000)
        objects = test.points[pairs]
        codes = hasher.pair_distance(test.descriptors, pairs)
        distances = {
            "SIFT, Euclidean": (1024, euclidean(test, pairs, None)),
            "RootSIFT, Euclidean": (1024, euclidean(test, pairs, "hellinger")),
            "kernel LDA-hash, RootSIFT": (256, codes),
        }
        for method, (n_bits, values) in distances.items():
            curve = roc(values, similar)
            row = {"what": "views", "method": method, "n_bits": n_bits}
            row |= {"fnr_at_1e-3": curve.fnr_at(1e-3), "fpr95": curve.fpr95}
            if values is not codes:
                difference = bootstrap_difference(
                    lambda r: r.fnr_at(1e-3),
                    codes,
                    values,
                    similar,
                    objects,
                    n_resamples=200,
                    random_state=0,
                )
                row["codes_minus_this"] = [difference.value, difference.low, difference.high]
            rows.append(row)
        del train, test
    return rows


def camera(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """K at half the size, rotation from world to camera, centre."""
    lines = [np.array(line.split(), float) for line in path.read_text().splitlines() if line]
    return np.diag([0.5, 0.5, 1]) @ np.array(lines[:3]), np.array(lines[4:7]).T, lines[7]


def epipolar(scene: Scene, cameras: list, pairs: np.ndarray) -> np.ndarray:
    """Pixels from the second place of a pair to the line that the first one gives."""
    table = np.loadtxt(scene.path / "interest.txt")
    out = []
    for a, b in pairs:
        (K, R, centre), (K2, R2, centre2) = (cameras[int(table[row, 0])] for row in (a, b))
        ray = R.T @ np.linalg.solve(K, [*table[a, 1:3], 1])
        line = np.cross(K2 @ R2 @ (centre - centre2), K2 @ R2 @ (centre + ray - centre2))
        out.append(abs(line @ [*table[b, 1:3], 1]) / np.hypot(line[0], line[1]))
    return np.array(out)


def measure_build() -> list[dict]:
    photos = Path(os.environ["KDIFFHASH_PHOTOS"]) / "herz-jesus-p8"
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        scene = build_scene(photos, Path(folder) / "scene")
        seconds = time.perf_counter() - start
        meta = json.loads((scene.path / "meta.json").read_text())
        pairs, similar = scene.test_pairs()
        cameras = [camera(path) for path in sorted(photos.glob("*.camera"))]
        distances = epipolar(scene, cameras, pairs[similar][:20_000])
        row = {
            "what": "build",
            "photos": photos.name,
            "photos_given": meta["photos_given"],
            "photos_placed": len(meta["photos"]),
            "n_points": meta["points"],
            "n_patches": meta["patches"],
            "share_added": meta["share_added_by_projection"],
            "share_within_2_px": float((distances < 2).mean()),
            "sift_fpr95": roc(euclidean(scene, pairs, None), similar).fpr95,
            "seconds": seconds,
        }
        del scene
    return [row]


def rows_about(found: dict[str, Any], what: str) -> list[dict[str, Any]]:
    return [row for row in found["rows"] if row["what"] == what]


def views_table(found: dict[str, Any]) -> str:
    size, *methods = rows_about(found, "views")
    rows = []
    for row in methods:
        gap = "-"
        if "codes_minus_this" in row:
            gap = with_interval(*row["codes_minus_this"])
        rows.append([row["method"], str(row["n_bits"]), rates(row), gap])
    header = [
        "on the test pictures",
        "bits",
        "FNR % at 0.1 % FPR (FPR95 %)",
        "codes minus this, 95 %",
    ]
    note = (
        f"{size['n_patches']:,} patches of {size['n_points']:,} points, made in "
        f"{size['seconds']:.0f} s on two cores. Learned from the training pictures; a million "
        "negatives."
    )
    return note + "\n\n" + table(header, rows)


def build_text(found: dict[str, Any]) -> str:
    (row,) = rows_about(found, "build")
    return (
        f"On the {row['photos_given']} photographs of `{row['photos']}`, 1536 pixels wide: "
        f"{row['photos_placed']} placed, {row['n_points']:,} points, {row['n_patches']:,} patches, "
        f"{100 * row['share_added']:.0f} % of them added by projection, in {row['seconds']:.0f} s "
        f"on two cores. {100 * row['share_within_2_px']:.1f} % of its positive pairs lie within 2 "
        "pixels of the epipolar lines of the published cameras. FPR95 of SIFT on it is "
        f"{100 * row['sift_fpr95']:.1f} %. COLMAP's threads make these figures vary a little from "
        "run to run. (`python benchmarks/scenes.py`)"
    )


def patches_table(found: dict[str, Any]) -> str:
    (speed_row,) = rows_about(found, "SIFT of patches")
    rows = [
        [
            row["scene"],
            row["sheets"],
            f"{100 * row['equal_rows']:.0f} %",
            f"{row['median_distance']:.1f}",
        ]
        for row in rows_about(found, "SIFT of a scene")
    ]
    note = (
        f"`describe_patches` describes {speed_row['n']:,} patches on two cores "
        f"{speed_row['ratio_to_plain_loop']:.2f} times as quickly as a plain loop over OpenCV."
    )
    header = ["scene", "sheets", "rows equal to `sift.npy`", "median distance (length 512)"]
    return note + "\n\n" + table(header, rows)


def tables(found: dict[str, Any]) -> dict[str, str]:
    return {
        "views": views_table(found),
        "build": build_text(found),
        "patches": patches_table(found),
    }


def main() -> None:
    options = arguments(__doc__, repeats=9)
    rows = measure_sift(options.repeats) + measure_views() + measure_build()
    report("scenes", {"rows": rows}, options)


if __name__ == "__main__":
    main()
