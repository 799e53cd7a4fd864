"""Search an index on disk: nearest neighbours, range search at a given FPR, and duplicates."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from kdiffhash import HammingIndex, KernelLDAHash, draw_pairs

X, y = load_digits(return_X_y=True)
train, held_out, stored = slice(0, 600), slice(600, 900), slice(900, 1700)
queries = slice(1700, 1797)

# Train on some digits; on others, find the distance threshold for an FPR of 1 %.
hasher = KernelLDAHash(n_bits=16, n_basis=300, random_state=0).fit(X[train], y[train])
pairs, similar = draw_pairs(y[held_out], 5_000, 20_000, random_state=0)
calibration = hasher.calibrate_threshold(X[held_out], pairs, similar, fpr=0.01)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.index"
    with HammingIndex.open(path, "a", n_bits=16, model=hasher) as index:
        index.add(hasher.transform(X[stored]), ids=np.arange(900, 1700))

    index = HammingIndex.open(path, model=hasher)  # as another process would open it
    query_codes = hasher.transform(X[queries])
    distances, ids = index.search(query_codes, k=5)
    precision = (y[ids] == y[queries][:, None]).mean()
    print(f"nearest neighbours: {precision:.0%} of the first five show the same digit")

    radius = calibration.distance
    lims, distances, ids = index.search_radius(query_codes, radius)
    query_index = np.repeat(np.arange(len(query_codes)), np.diff(lims))
    precision = (y[ids] == y[queries][query_index]).mean()
    per_query = len(ids) / len(query_codes)
    print(f"radius {radius}: {per_query:.0f} results per query, precision {precision:.0%}")

    pairs, _ = index.duplicates(0)
    print(f"duplicates: {len(pairs)} pairs have the same code")
    index.close()
