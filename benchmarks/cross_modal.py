"""Cross-modal retrieval of patches: SIFT descriptors on one side, pixels on the other.

Trained on herz-jesus-p25, tested on castle-p30 in both directions: a query of one modality against
a database of the other. A patch is relevant if it shows the same 3D point, in the same photograph
or another. The baseline is CCA with signs: canonical directions of matching rows with thresholds at
the mean, at the same code length.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import scipy.linalg
from support.harness import arguments, log, report
from support.markdown import table

from kdiffhash import CrossDiffHash, DiffHash, KernelDiffHash, hamming, pack
from kdiffhash.datasets import load_scene
from kdiffhash.learn.preprocess import preprocess_rows

TRAIN, TEST = "herz-jesus-p25", "castle-p30"
BITS = (32, 64, 128)
N_QUERIES = 2000
PRINTED = "two maps as printed in the paper"


def read(name: str, n_points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return SIFT, pixels (16 x 16 block means minus their mean) and point ids of some patches."""
    scene = load_scene(name)
    points = np.asarray(scene.points)
    chosen = np.random.default_rng(0).permutation(np.unique(points))[:n_points]
    rows = np.flatnonzero(np.isin(points, chosen))
    patches = np.concatenate(
        [np.asarray(scene.patches[chunk]) for chunk in np.array_split(rows, 50)], dtype=np.float32
    )
    pixels = patches.reshape(len(rows), 16, 4, 16, 4).mean(axis=(2, 4)).reshape(len(rows), -1)
    pixels -= pixels.mean(axis=1, keepdims=True)
    return np.asarray(scene.descriptors[rows]), pixels, points[rows]


def cca(x: np.ndarray, y: np.ndarray, n_bits: int) -> tuple[Any, Any]:
    """Return one encoder per modality: the signs of the canonical variates."""
    rows = [preprocess_rows(x, "hellinger"), preprocess_rows(y, "unit")]
    means = [data.mean(axis=0, dtype=np.float64) for data in rows]
    x, y = (data - mean for data, mean in zip(rows, means))
    whitening = []
    for data in (x, y):
        covariance = data.T @ data / len(data)
        covariance += 1e-3 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        whitening.append(np.linalg.inv(scipy.linalg.cholesky(covariance, lower=True)))
    correlation = whitening[0] @ (x.T @ y / len(x)) @ whitening[1].T
    left, _, right = np.linalg.svd(correlation, full_matrices=False)
    maps = [whitening[0].T @ left[:, :n_bits], whitening[1].T @ right[:n_bits].T]

    def encoder(side: int, kind: Any) -> Any:
        return lambda data: pack((preprocess_rows(data, kind) - means[side]) @ maps[side] > 0)

    return encoder(0, "hellinger"), encoder(1, "unit")


def two_maps_as_printed(
    x: np.ndarray, y: np.ndarray, points: np.ndarray, n_bits: int
) -> tuple[Any, Any]:
    """Return one encoder per modality: the paper's two-map problem, taken literally.

    Its maps p and q of unit length minimise p'(C_N - 25 C_P) q: singular vectors, without the
    whitening, weighting and rotation of `CrossDiffHash`. Thresholds are at the mean.
    """
    rows = [preprocess_rows(x, "hellinger"), preprocess_rows(y, "unit")]
    means = [data.mean(axis=0, dtype=np.float64) for data in rows]
    x, y = (data - mean for data, mean in zip(rows, means))
    partner = np.random.default_rng(0).permutation(len(x))
    negative = points != points[partner]
    cross = x[negative].T @ y[partner][negative] / negative.sum() - 25 * x.T @ y / len(x)
    left, _, right = np.linalg.svd(cross, full_matrices=False)
    maps = [-left[:, :n_bits], right[:n_bits].T]

    def encoder(side: int, kind: Any) -> Any:
        return lambda data: pack((preprocess_rows(data, kind) - means[side]) @ maps[side] > 0)

    return encoder(0, "hellinger"), encoder(1, "unit")


def mean_average_precision(
    queries: np.ndarray, database: np.ndarray, query_points: np.ndarray, points: np.ndarray
) -> float:
    """Return mAP of a ranking by Hamming distance; tied codes share the mean of their ranks."""
    precisions = []
    for batch in np.array_split(np.arange(len(queries)), 40):
        batch_distances = hamming(queries[batch][:, None], database)
        for distances, point in zip(batch_distances, query_points[batch]):
            relevant = points == point
            counts = np.bincount(distances, minlength=distances.max() + 1)
            hits = np.bincount(distances[relevant], minlength=len(counts))
            before, hits_before = np.cumsum(counts) - counts, np.cumsum(hits) - hits
            nonzero = hits > 0
            rank = before[nonzero] + (counts[nonzero] + 1) / 2
            hit_rank = hits_before[nonzero] + (hits[nonzero] + 1) / 2
            precisions.append((hits[nonzero] * hit_rank / rank).sum() / relevant.sum())
    return float(np.mean(precisions))


def cross_table(result: dict[str, Any]) -> str:
    lines = [
        [
            row["method"],
            str(row["n_bits"]),
            f"{row['map_sift_to_pixels']:.3f}",
            f"{row['map_pixels_to_sift']:.3f}",
        ]
        for row in result["rows"]
    ]
    note = (
        "Mean average precision of retrieval between SIFT descriptors and 16 x 16 pixels of the "
        f"same patches. Trained on {result['train']}; {result['n_queries']:,} queries among "
        f"{result['n_database']:,} patches of {result['test']}. "
        "(`python benchmarks/cross_modal.py`)"
    )
    header = ["method", "bits", "SIFT queries, pixel database", "pixel queries, SIFT database"]
    return note + "\n\n" + table(header, lines)


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"cross": cross_table(result)}


def main() -> None:
    options = arguments(__doc__, points=6000)
    sift, pixels, _ = train = read(TRAIN, options.points)
    test_sift, test_pixels, points = read(TEST, 2500)
    log(f"{len(train[0])} training patches, {len(points)} test patches")
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
        kernelised = CrossDiffHash(
            n_bits,
            x=KernelDiffHash(preprocess="hellinger", **kernel),
            y=KernelDiffHash(preprocess="unit", **kernel),
            random_state=0,
        )
        for method in ("CCA + sign", PRINTED, "cross diff-hash", "kernel cross diff-hash"):
            start = time.perf_counter()
            if method == "CCA + sign":
                encode_x, encode_y = cca(sift, pixels, n_bits)
            elif method == PRINTED:
                encode_x, encode_y = two_maps_as_printed(*train, n_bits)
            else:
                cross = (linear if method == "cross diff-hash" else kernelised).fit(*train)
                encode_x, encode_y = cross.x_.transform, cross.y_.transform
            seconds = time.perf_counter() - start
            x, y = encode_x(test_sift), encode_y(test_pixels)
            sift_to_pixels = mean_average_precision(x[chosen], y, points[chosen], points)
            pixels_to_sift = mean_average_precision(y[chosen], x, points[chosen], points)
            rows.append(
                {
                    "method": method,
                    "n_bits": n_bits,
                    "map_sift_to_pixels": sift_to_pixels,
                    "map_pixels_to_sift": pixels_to_sift,
                    "fit_seconds": seconds,
                }
            )
            log(rows[-1])
    result = {"train": TRAIN, "test": TEST, "n_database": len(points), "n_queries": N_QUERIES}
    report("cross_modal", {**result, "rows": rows}, options)


if __name__ == "__main__":
    main()
