"""SIFT of patches relative to an OpenCV loop, the embedded set, and a scene from photographs.

Photographs come from KDIFFHASH_PHOTOS, scenes from KDIFFHASH_SCENES.
"""

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


def opencv_loop(patches: np.ndarray) -> np.ndarray:
    """Compute SIFT of each patch in a Python loop."""
    import cv2

    sift, keypoint = cv2.SIFT_create(), cv2.KeyPoint(31.5, 31.5, 128 / 15, 0, 0, 257)
    out = np.empty((len(patches), 128), np.uint8)
    for i, patch in enumerate(patches):
        out[i] = sift.compute(patch, [keypoint])[1][0]
    return out


def measure_sift(repeats: int) -> list[dict]:
    """Time `describe_patches`, and compare its descriptors with those stored in scenes."""
    scene = load_scene("brighton-beach")
    patches = np.asarray(scene.patches)
    times = interleaved(
        {"loop": lambda: opencv_loop(patches), "kdiffhash": lambda: describe_patches(patches)},
        repeats,
    )
    rows = [
        {
            "task": "SIFT of patches",
            "n": len(patches),
            "loop_seconds": times["loop"],
            "seconds": times["kdiffhash"],
            "ratio_to_loop": times["loop"] / times["kdiffhash"],
        }
    ]
    for name in ("brighton-beach", "boruszyn", "castle-p30", "herz-jesus-p25"):
        scene = load_scene(name)
        difference = np.abs(describe_patches(scene.patches).astype(int) - scene.descriptors)
        rows.append(
            {
                "task": "SIFT of a scene",
                "scene": name,
                "sheets": next(scene.path.glob("patches0000.*")).suffix[1:],
                "equal_rows": float((difference == 0).all(axis=1).mean()),
                "median_distance": float(np.median(np.linalg.norm(difference, axis=1))),
            }
        )
    return rows


def euclidean(scene: Scene, pairs: np.ndarray, kind: str | None) -> np.ndarray:
    """Return the Euclidean distances of pairs of descriptors."""
    rows = preprocess_rows(np.asarray(scene.descriptors), kind)
    return np.linalg.norm(rows[pairs[:, 0]] - rows[pairs[:, 1]], axis=1)


def measure_views() -> list[dict]:
    """Time the making of the embedded set, and measure error rates on it."""
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
        rows = [{"task": "views", **sizes}]
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
            row = {"task": "views", "method": method, "n_bits": n_bits}
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
    """Return K at half the size, rotation from world to camera, and centre."""
    lines = [np.array(line.split(), float) for line in path.read_text().splitlines() if line]
    return np.diag([0.5, 0.5, 1]) @ np.array(lines[:3]), np.array(lines[4:7]).T, lines[7]


def epipolar(scene: Scene, cameras: list, pairs: np.ndarray) -> np.ndarray:
    """Return the distance of each pair's second point to the epipolar line of its first."""
    keypoints = np.loadtxt(scene.path / "interest.txt")
    distances = []
    for a, b in pairs:
        (K, R, centre), (K2, R2, centre2) = (cameras[int(keypoints[row, 0])] for row in (a, b))
        ray = R.T @ np.linalg.solve(K, [*keypoints[a, 1:3], 1])
        line = np.cross(K2 @ R2 @ (centre - centre2), K2 @ R2 @ (centre + ray - centre2))
        distances.append(abs(line @ [*keypoints[b, 1:3], 1]) / np.hypot(line[0], line[1]))
    return np.array(distances)


def measure_build() -> list[dict]:
    """Build a scene from photographs, and check its pairs against the published cameras."""
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
            "task": "build",
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


def rows_of(result: dict[str, Any], task: str) -> list[dict[str, Any]]:
    return [row for row in result["rows"] if row["task"] == task]


def views_table(result: dict[str, Any]) -> str:
    size, *methods = rows_of(result, "views")
    rows = []
    for row in methods:
        difference = "-"
        if "codes_minus_this" in row:
            difference = with_interval(*row["codes_minus_this"])
        rows.append([row["method"], str(row["n_bits"]), rates(row), difference])
    header = [
        "method",
        "bits",
        "FNR % at 0.1 % FPR (FPR95 %)",
        "FNR of the codes minus FNR of this row, points (95 % confidence interval)",
    ]
    note = (
        f"{size['n_patches']:,} patches of {size['n_points']:,} points, made in "
        f"{size['seconds']:.0f} s on two cores. Trained on the training images, tested on the test "
        "images with a million negatives."
    )
    return note + "\n\n" + table(header, rows)


def build_text(result: dict[str, Any]) -> str:
    (row,) = rows_of(result, "build")
    return (
        f"On the {row['photos_given']} photographs of `{row['photos']}`, 1536 pixels wide: "
        f"{row['photos_placed']} registered, {row['n_points']:,} points, "
        f"{row['n_patches']:,} patches, {100 * row['share_added']:.0f} % of them added by "
        f"projection, in {row['seconds']:.0f} s on two cores. "
        f"{100 * row['share_within_2_px']:.1f} % of its positive pairs lie within 2 pixels of the "
        "epipolar lines of the published cameras. FPR95 of SIFT on it is "
        f"{100 * row['sift_fpr95']:.1f} %. COLMAP is multithreaded, so these figures vary a little "
        "from run to run. (`python benchmarks/scenes.py`)"
    )


def patches_table(result: dict[str, Any]) -> str:
    (speed_row,) = rows_of(result, "SIFT of patches")
    rows = [
        [
            row["scene"],
            row["sheets"],
            f"{100 * row['equal_rows']:.0f} %",
            f"{row['median_distance']:.1f}",
        ]
        for row in rows_of(result, "SIFT of a scene")
    ]
    note = (
        f"On {speed_row['n']:,} patches and two cores, `describe_patches` has "
        f"{speed_row['ratio_to_loop']:.2f} times the throughput of a Python loop over OpenCV. "
        "(`python benchmarks/scenes.py`)"
    )
    header = ["scene", "sheets", "rows equal to `sift.npy`", "median distance (length 512)"]
    return note + "\n\n" + table(header, rows)


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {
        "views": views_table(result),
        "build": build_text(result),
        "patches": patches_table(result),
    }


def main() -> None:
    options = arguments(__doc__, repeats=9)
    rows = measure_sift(options.repeats) + measure_views() + measure_build()
    report("scenes", {"rows": rows}, options)


if __name__ == "__main__":
    main()
