"""Exact nearest neighbours of float queries, by matrix products over blocks of queries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import Codes, unpack

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
    left, right = _unit(queries), _unit(documents)
    if left.shape[1] != right.shape[1]:
        raise ValueError(
            f"queries have {left.shape[1]} columns and documents {right.shape[1]}; cosine "
            "similarity needs the same number"
        )
    return _best(left, right.T, k)


def nearest_by_projection(
    projections: NDArray[np.float32], codes: Codes, k: int
) -> NDArray[np.int64]:
    """Return the row numbers of the k codes that agree best with the projections of each query.

    A bit of a code counts the query's projection, positive where both have the same sign. This
    ranks codes as the sum of |projection| over differing bits does.
    """
    signs = 2 * unpack(codes, projections.shape[1]).astype(np.float32) - 1
    return _best(projections, np.ascontiguousarray(signs.T), k)


def _best(left: NDArray[np.float32], right: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Return the columns of the k highest entries in each row of a product, highest first."""
    m = right.shape[1]
    step = max(1, _SCORES // max(m, 1))
    blocks = [_top(left[i : i + step] @ right, min(k, m)) for i in range(0, len(left), step)]
    return np.concatenate([*blocks, np.empty((0, min(k, m)), np.int64)])


def _top(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
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


def _unit(rows: Any) -> NDArray[np.float32]:
    array = np.asarray(rows, np.float32)
    if array.ndim != 2 or not np.isfinite(array).all():
        raise ValueError(f"rows must be finite and of shape (n, d), got the shape {array.shape}")
    norms = np.linalg.norm(array, axis=1, keepdims=True)
    norms[norms == 0] = 1
    return np.asarray(array / norms, np.float32)
