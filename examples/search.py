"""From rows to an index on disk: the nearest, all within a calibrated distance, near duplicates."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from kdiffhash import HammingIndex, KernelLDAHash, draw_pairs

X, y = load_digits(return_X_y=True)
train, held_out, stored = slice(0, 600), slice(600, 900), slice(900, 1700)
queries = slice(1700, 1797)

# Learn from some digits; ask others for the distance at which one pair in a hundred is wrong.
hasher = KernelLDAHash(n_bits=16, n_basis=300, random_state=0).fit(X[train], y[train])
pairs, similar = draw_pairs(y[held_out], 5_000, 20_000, random_state=0)
calibration = hasher.calibrate_threshold(X[held_out], pairs, similar, fpr=0.01)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.index"
    with HammingIndex.open(path, "a", n_bits=16, model=hasher) as index:
        index.add(hasher.transform(X[stored]), ids=np.arange(900, 1700))

    index = HammingIndex.open(path, model=hasher)  # what another process would do
    asked = hasher.transform(X[queries])
    distances, ids = index.search(asked, k=5)
    right = (y[ids] == y[queries][:, None]).mean()
    print(f"{right:.0%} of the five nearest show the same digit")

    radius = calibration.distance
    lims, distances, ids = index.search_radius(asked, radius)
    query_index = np.repeat(np.arange(len(asked)), np.diff(lims))
    right = (y[ids] == y[queries][query_index]).mean()
    print(f"within {radius} bits: {len(ids) / len(asked):.0f} a query, {right:.0%} of them right")

    twins, _ = index.duplicates(0)
    print(f"{len(twins)} pairs have the same code")
    index.close()
