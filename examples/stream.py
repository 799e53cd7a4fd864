"""Learn from more data than fits in memory: two passes over the same batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kdiffhash import KernelDiffHash, draw_pairs


def batches() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Rows with their pairs; a real program would read them from files."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        y = np.repeat(np.arange(400), 4)
        X = rng.normal(size=(400, 16))[y] + 0.3 * rng.normal(size=(1600, 16))
        yield X.astype(np.float32), *draw_pairs(y, 2_000, 4_000, random_state=seed)


hasher = KernelDiffHash(n_bits=64, n_basis=500, random_state=0)
for X, pairs, similar in batches():
    hasher.partial_fit_pairs(X, pairs, similar)  # adds up moments, (n_basis, n_basis) numbers
for X, pairs, similar in batches():
    hasher.partial_fit_thresholds(X, pairs, similar)

X, pairs, similar = next(batches())
found = hasher.calibrate_threshold(X, pairs, similar, fpr=0.01)
print(f"distance {found.distance} of 64: finds {found.tpr:.1%} at {found.fpr:.2%} false positives")
