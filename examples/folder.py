"""Train on a folder of files that may be larger than memory.

Only the rows in training pairs and a few random samples are read.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from kdiffhash import KernelDiffHash, draw_pairs
from kdiffhash.shards import open_shards

rng = np.random.default_rng(0)
objects = rng.normal(size=(2_000, 16))
with tempfile.TemporaryDirectory() as folder:
    for number in range(5):  # real files may have gigabytes: .npy, .npz, .parquet or .h5
        y = rng.integers(2_000, size=1_600)
        X = objects[y] + 0.3 * rng.normal(size=(1_600, 16))
        np.save(Path(folder) / f"rows-{number}.npy", X.astype(np.float32))
        np.save(Path(folder) / f"rows-{number}.labels.npy", y)

    rows = open_shards(folder)  # (8000, 16), on disk
    hasher = KernelDiffHash(n_bits=64, n_basis=500, random_state=0).fit(rows)
    codes = [hasher.transform(chunk) for chunk in rows.chunks(1_000)]  # each (1000, 8) uint8
    pairs, similar = draw_pairs(rows.labels(), 2_000, 4_000, random_state=1)
    result = hasher.calibrate_threshold(rows[:], pairs, similar, fpr=0.01)

print(f"{sum(len(chunk) for chunk in codes)} rows encoded")
print(f"threshold {result.distance} of 64: recall {result.tpr:.1%} at {result.fpr:.2%} FPR")
