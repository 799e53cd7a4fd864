"""Exact nearest neighbours of float queries, by matrix products over blocks of queries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_SCORES = 2**24  # scores held in memory at a time


def nearest_by_cosine(queries: ArrayLike, documents: ArrayLike, k: int) -> NDArray[np.int64]:
    """Return the row numbers of the k documents with the highest cosine similarity.

    Parameters
    ----------
    queries : array of shape (n, d)
        Rows of the queries.
    documents : array of shape (m, d)
        Rows of the documents.
    k : int
        Number of documents.

    Returns
    -------
    ids : int64 array of shape (n, min(k, m))
        Best first; at equal similarity the lower row number comes first.

    Examples
    --------
    >>> from kdiffhash.evaluate import nearest_by_cosine
    >>> nearest_by_cosine([[1, 1]], [[0, 1], [2, 2], [1, 0]], k=3)
    array([[1, 0, 2]])
    """
    if not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k must be an integer of at least 1, got {k!r}")
    left, right = _unit(queries, "queries"), _unit(documents, "documents")
    if left.shape[1] != right.shape[1]:
        raise ValueError(
            f"queries have {left.shape[1]} columns and documents {right.shape[1]}; cosine "
            "similarity needs the same number"
        )
    m = len(right)
    if not m:
        return np.empty((len(left), 0), np.int64)
    step = max(1, _SCORES // m)
    blocks = [_top(left[i : i + step] @ right.T, min(k, m)) for i in range(0, len(left), step)]
    return np.concatenate([*blocks, np.empty((0, min(k, m)), np.int64)])


def _top(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Return the columns of the k highest scores in each row, highest first."""
    n, m = scores.shape
    last = np.partition(scores, m - k, axis=1)[:, m - k, None]
    candidates = scores >= last
    # Where the k-th score occurs several times, keep the lowest columns.
    for row in np.flatnonzero(candidates.sum(axis=1) > k):
        order = np.argsort(-scores[row], kind="stable")[:k]
        candidates[row] = False
        candidates[row, order] = True
    columns = np.nonzero(candidates)[1].reshape(n, k)
    order = np.argsort(-np.take_along_axis(scores, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1)


def _unit(rows: Any, name: str) -> NDArray[np.float32]:
    """Return rows scaled to length 1; rows of zeros are kept."""
    array = np.asarray(rows)
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise ValueError(
            f"{name} must be numbers of shape (n, d), got {array.dtype} of shape {array.shape}"
        )
    exact = np.result_type(array.dtype, np.float32)
    highest, lowest = (f(axis=1, initial=0, keepdims=True) for f in (array.max, array.min))
    largest = np.maximum(highest.astype(exact), -lowest.astype(exact))
    if not np.isfinite(largest).all():
        row = int(np.argmin(np.isfinite(largest[:, 0])))
        raise ValueError(f"{name} contain NaN or infinity in row {row}; remove or repair such rows")
    largest[largest == 0] = 1
    scaled = (array / largest).astype(np.float32)  # so that squares neither overflow nor vanish
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    norms[norms == 0] = 1
    return np.asarray(scaled / norms, np.float32)
