"""Retrieval across two kinds of descriptors of patches: SIFT on one side, pixels on the other.

Learned from herz-jesus-p25, tested on castle-p30, both ways: a query of one kind against a database
of the other, relevant is what shows the same 3D point in another photograph or the same one. The
peer is CCA with signs: canonical directions of matching rows, cut at the mean, of the same length.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import scipy.linalg
from support.harness import arguments, report, say
from support.markdown import table

from kdiffhash import CrossDiffHash, DiffHash, KernelDiffHash, hamming, pack
from kdiffhash.datasets import load_scene
from kdiffhash.learn.preprocess import preprocess_rows

TRAIN, TEST = "herz-jesus-p25", "castle-p30"
BITS = (32, 64, 128)
N_QUERIES = 2000


def read(name: str, n_points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """SIFT, pixels (16 x 16 means, brightness taken out) and points of some patches."""
    scene = load_scene(name)
    points = np.asarray(scene.points)
    chosen = np.random.default_rng(0).permutation(np.unique(points))[:n_points]
    rows = np.flatnonzero(np.isin(points, chosen))
    patches = np.concatenate(
        [np.asarray(scene.patches[part]) for part in np.array_split(rows, 50)], dtype=np.float32
    )
    small = patches.reshape(len(rows), 16, 4, 16, 4).mean(axis=(2, 4)).reshape(len(rows), -1)
    small -= small.mean(axis=1, keepdims=True)
    return np.asarray(scene.descriptors[rows]), small, points[rows]


def cca(x: np.ndarray, y: np.ndarray, n_bits: int) -> tuple[Any, Any]:
    """Functions from rows to codes: signs of the canonical variates."""
    rows = [preprocess_rows(x, "hellinger"), preprocess_rows(y, "unit")]
    means = [data.mean(axis=0, dtype=np.float64) for data in rows]
    x, y = (data - mean for data, mean in zip(rows, means))
    roots = []
    for data in (x, y):
        spread = data.T @ data / len(data)
        spread += 1e-3 * np.trace(spread) / len(spread) * np.eye(len(spread))
        roots.append(np.linalg.inv(scipy.linalg.cholesky(spread, lower=True)))
    left, _, right = np.linalg.svd(roots[0] @ (x.T @ y / len(x)) @ roots[1].T, full_matrices=False)
    maps = [roots[0].T @ left[:, :n_bits], roots[1].T @ right[:n_bits].T]

    def encoder(side: int, kind: Any) -> Any:
        return lambda data: pack((preprocess_rows(data, kind) - means[side]) @ maps[side] > 0)

    return encoder(0, "hellinger"), encoder(1, "unit")


def mean_average_precision(
    queries: np.ndarray, database: np.ndarray, relevant: np.ndarray, ids: np.ndarray
) -> float:
    """Ties are counted at the mean of their places."""
    total = []
    for part in np.array_split(np.arange(len(queries)), 40):
        far = hamming(queries[part][:, None], database)
        for distances, point in zip(far, relevant[part]):
            is_right = ids == point
            counts = np.bincount(distances, minlength=distances.max() + 1)
            right = np.bincount(distances[is_right], minlength=len(counts))
            before, right_before = np.cumsum(counts) - counts, np.cumsum(right) - right
            where = right > 0
            place = before[where] + (counts[where] + 1) / 2
            found = right_before[where] + (right[where] + 1) / 2
            total.append((right[where] * found / place).sum() / is_right.sum())
    return float(np.mean(total))


def cross_table(found: dict[str, Any]) -> str:
    lines = [
        [
            row["method"],
            str(row["n_bits"]),
            f"{row['map_sift_to_pixels']:.3f}",
            f"{row['map_pixels_to_sift']:.3f}",
        ]
        for row in found["rows"]
    ]
    note = (
        "SIFT on one side, 16 x 16 pixels of the same patches on the other; learned from "
        f"{found['train']}, {found['n_queries']:,} queries among {found['n_database']:,} patches "
        f"of {found['test']}. Mean average precision. (`python benchmarks/cross_modal.py`)"
    )
    header = ["method", "bits", "SIFT finds pixels", "pixels find SIFT"]
    return note + "\n\n" + table(header, lines)


def tables(found: dict[str, Any]) -> dict[str, str]:
    return {"cross": cross_table(found)}


def main() -> None:
    options = arguments(__doc__, points=6000)
    sift, pixels, _ = train = read(TRAIN, options.points)
    test_sift, test_pixels, points = read(TEST, 2500)
    say(f"{len(train[0])} patches to learn from, {len(points)} to find")
    chosen = np.random.default_rng(0).choice(len(points), N_QUERIES, replace=False)
    rows = []
    for n_bits in BITS:
        kernel = {"n_basis": 1000, "gamma": "median/3"}
        linear = CrossDiffHash(
            n_bits,
            x=DiffHash(preprocess="hellinger"),
            y=DiffHash(preprocess="unit"),
            random_state=0,
        )
        bent = CrossDiffHash(
            n_bits,
            x=KernelDiffHash(preprocess="hellinger", **kernel),
            y=KernelDiffHash(preprocess="unit", **kernel),
            random_state=0,
        )
        for method in ("CCA + sign", "cross diff-hash", "kernel cross diff-hash"):
            start = time.perf_counter()
            if method == "CCA + sign":
                to_x, to_y = cca(sift, pixels, n_bits)
            else:
                cross = (linear if method == "cross diff-hash" else bent).fit(*train)
                to_x, to_y = cross.x_.transform, cross.y_.transform
            seconds = time.perf_counter() - start
            x, y = to_x(test_sift), to_y(test_pixels)
            there = mean_average_precision(x[chosen], y, points[chosen], points)
            back = mean_average_precision(y[chosen], x, points[chosen], points)
            rows.append(
                {
                    "method": method,
                    "n_bits": n_bits,
                    "map_sift_to_pixels": there,
                    "map_pixels_to_sift": back,
                    "fit_seconds": seconds,
                }
            )
            say(rows[-1])
    result = {"train": TRAIN, "test": TEST, "n_database": len(points), "n_queries": N_QUERIES}
    report("cross_modal", {**result, "rows": rows}, options)


if __name__ == "__main__":
    main()
