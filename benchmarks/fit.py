"""Time of a complete fit relative to its matrix products, and its peak memory.

The products are computed in float32 by NumPy's BLAS on all threads, into preallocated buffers:
kernel features of the distinct rows (n x d x l), one Gram matrix of the differences of each pair
set (pairs x l x l), projections of the distinct rows (n x l x m). Each case runs in a new process,
because the recorded peak memory of a process never decreases.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from support.harness import arguments, interleaved, report

N, D, N_BITS = 100_000, 128, 512
POSITIVES, NEGATIVES = 100_000, 200_000


def make_data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return SIFT-like rows, two noisy copies of 50,000 objects, and pairs that use every row."""
    rng = np.random.default_rng(0)
    centres = rng.gamma(0.6, 30, (N // 2, D))
    noisy = np.concatenate([centres, centres]) + rng.normal(0, 12, (N, D))
    rows = np.clip(noisy, 0, 255).astype(np.uint8)
    first = rng.permutation(np.tile(np.arange(N // 2), POSITIVES // (N // 2)))
    positives = np.stack([first, first + N // 2], axis=1)
    negatives = rng.integers(N, size=(NEGATIVES, 2))
    negatives[:, 1] += (negatives[:, 1] % (N // 2) == negatives[:, 0] % (N // 2)).astype(int)
    negatives %= N
    similar = np.arange(POSITIVES + NEGATIVES) < POSITIVES
    return rows, np.concatenate([positives, negatives]), similar


def matrix_products(n_basis: int) -> dict[str, Callable[[], None]]:
    """Return functions that compute the products of a fit."""
    rng = np.random.default_rng(0)
    block = 4096
    rows = rng.random((block, D), np.float32)
    basis = rng.random((D, n_basis), np.float32)
    features = rng.random((block, n_basis), np.float32)
    square = np.empty((n_basis, n_basis), np.float32)
    last = rng.random((n_basis, N_BITS), np.float32)
    projections = np.empty((block, N_BITS), np.float32)

    def repeat(n_rows: int, product) -> None:
        for _ in range(round(n_rows / block)):
            product()

    return {
        "features": lambda: repeat(N, lambda: np.matmul(rows, basis, out=features)),
        "gram": lambda: repeat(
            POSITIVES + NEGATIVES, lambda: np.matmul(features.T, features, out=square)
        ),
        "projection": lambda: repeat(N, lambda: np.matmul(features, last, out=projections)),
    }


def run_case(n_basis: int) -> dict[str, float]:
    """Measure one case in this process."""
    from kdiffhash import KernelDiffHash

    rows, pairs, similar = make_data()
    hasher = KernelDiffHash(N_BITS, n_basis=n_basis, preprocess="hellinger", random_state=0)
    small = np.concatenate([np.flatnonzero(similar)[:500], np.flatnonzero(~similar)[:500]])
    KernelDiffHash(8, n_basis=16).fit_pairs(rows, pairs[small], similar[small])  # warm up
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    hasher.fit_pairs(rows, pairs, similar)
    seconds = [time.perf_counter() - start]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    products = []
    for _ in range(2):
        products.append(sum(interleaved(matrix_products(n_basis), 1).values()))
        start = time.perf_counter()
        hasher.fit_pairs(rows, pairs, similar)
        seconds.append(time.perf_counter() - start)
    return {
        "n_basis": n_basis,
        "n_bits": N_BITS,
        "ratio_to_matmul": float(np.median(seconds) / np.median(products)),
        "seconds": float(np.median(seconds)),
        "matmul_seconds": float(np.median(products)),
        "peak_mb": peak / 1024,
        "added_mb": (peak - before) / 1024,
    }


def table_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return the rows for the table that `encode.py` writes."""
    return [
        [
            f"fit, {case['n_basis']} basis rows, {case['n_bits']} bits, 300,000 pairs",
            f"{case['ratio_to_matmul']:.2f}x the time of its matrix products",
            f"{case['seconds']:.1f} s, peak {case['peak_mb']:.0f} MB",
        ]
        for case in result["cases"]
    ]


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "--case":
        print(json.dumps(run_case(int(sys.argv[2]))))
        return
    options = arguments(__doc__)
    cases = []
    for n_basis in (1000, 2000):
        command = [sys.executable, __file__, "--case", str(n_basis)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        cases.append(json.loads(output))
    report("fit", {"n_rows": N, "d": D, "n_pairs": POSITIVES + NEGATIVES, "cases": cases}, options)


if __name__ == "__main__":
    main()
