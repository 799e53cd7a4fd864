"""Re-ranking of a shortlist: by projections of the queries, or by a column of float vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._core import weighted_distances
from ..codes import Codes, as_words
from ..search.rerank import check_factor, check_projections
from ..search.segment import Ids

METRICS = ("cosine", "euclidean", "inner_product")
_QUERIES = 64  # queries at a time

Floats = NDArray[np.float32]


class Reranking(NamedTuple):
    """How to re-rank: by projections, or by the vectors of queries and the column to compare."""

    factor: int
    projections: Floats | None
    vectors: Floats | None
    column: str
    metric: str


def check_reranking(
    n_queries: int,
    n_bits: int,
    projections: ArrayLike | None,
    vectors: ArrayLike | None,
    column: str | None,
    metric: str,
    factor: int,
) -> Reranking | None:
    """Return the checked arguments of a search that begin with ``rerank_``; None without any."""
    if (vectors is None) != (column is None):
        raise ValueError(
            "rerank_vectors and rerank_column belong together: the vectors of the queries, and the "
            "column that holds those of the codes"
        )
    if projections is None and vectors is None:
        return None
    if projections is not None and vectors is not None:
        raise ValueError("pass rerank_projections or rerank_vectors, not both")
    if projections is not None:
        checked, _ = check_projections(projections, (n_queries, n_bits), "rerank_projections")
        return Reranking(check_factor(factor), checked, None, "", metric)
    if metric not in METRICS:
        raise ValueError(f"rerank_metric must be one of {', '.join(METRICS)}, got {metric!r}")
    given = np.asarray(vectors)
    if given.dtype.kind not in "fiu":
        raise ValueError(f"rerank_vectors must be numbers, got {given.dtype}")
    with np.errstate(over="ignore"):  # infinity is refused below
        array = np.atleast_2d(given.astype(np.float32))
    if array.ndim != 2 or len(array) != n_queries or not array.shape[1]:
        raise ValueError(
            f"rerank_vectors must have one row for each of the {n_queries} queries, got shape "
            f"{array.shape}"
        )
    if not np.isfinite(array).all():
        raise ValueError("rerank_vectors must be finite, but contain NaN or infinity")
    return Reranking(check_factor(factor), None, array, str(column), metric)


def rerank_by_projections(
    codes_of: Callable[[Ids], Codes],
    projections: Floats,
    found: tuple[NDArray[Any], Ids],
    k: int,
) -> tuple[Floats, Ids]:
    """Return the k candidates with the smallest sum of |projection| over differing bits.

    `found` holds Hamming distances and ids of the candidates, shape (n, m); a distance of -1 marks
    an entry without a candidate. `codes_of` returns the codes of distinct ids.
    """

    def compare(codes: Codes, rows: Ids, start: int, stop: int) -> Floats:
        words = as_words(codes)[rows]
        weights = np.empty(rows.shape, np.float32)
        weighted_distances(np.ascontiguousarray(words), projections[start:stop], weights)
        return weights

    return _rerank(codes_of, compare, found, k)


def rerank_by_vectors(
    vectors_of: Callable[[Ids], Floats],
    vectors: Floats,
    metric: str,
    found: tuple[NDArray[Any], Ids],
    k: int,
) -> tuple[Floats, Ids]:
    """Return the k candidates whose vectors are nearest; those without a vector come last.

    `vectors_of` returns the vectors of distinct ids, NaN for those without.
    """

    def compare(stored: Floats, rows: Ids, start: int, stop: int) -> Floats:
        distances = vector_distances(vectors[start:stop, None], stored[rows], metric)
        return np.nan_to_num(distances, nan=np.inf, posinf=np.inf, neginf=-np.inf)

    return _rerank(vectors_of, compare, found, k)


def vector_distances(a: Floats, b: Floats, metric: str) -> Floats:
    """Return distances along the last axis: cosine, Euclidean, or the negative inner product."""
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    distances: NDArray[np.float64]
    if metric == "euclidean":
        distances = np.linalg.norm(wide_a - wide_b, axis=-1)
    else:
        distances = -np.sum(wide_a * wide_b, axis=-1)
    if metric == "cosine":
        norms = np.linalg.norm(wide_a, axis=-1) * np.linalg.norm(wide_b, axis=-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            distances = 1 + distances / norms
    return distances.astype(np.float32)


def _rerank(
    values_of: Callable[[Ids], Any],
    compare: Callable[[Any, Ids, int, int], Floats],
    found: tuple[NDArray[Any], Ids],
    k: int,
) -> tuple[Floats, Ids]:
    """Sort candidates by `compare`, a function of values, rows of the candidates, and queries."""
    hamming, ids = found
    n, k = len(ids), min(k, ids.shape[1])
    distances, chosen = np.full((n, k), -1, np.float32), np.full((n, k), -1, np.int64)
    for start in range(0, n if k else 0, _QUERIES):
        part = slice(start, min(start + _QUERIES, n))
        candidates, is_found = ids[part], hamming[part] >= 0
        distinct = np.unique(candidates[is_found])
        if not len(distinct):
            continue
        rows = np.minimum(np.searchsorted(distinct, candidates), len(distinct) - 1)
        weights = compare(values_of(distinct), rows, part.start, part.stop)
        order = np.lexsort((candidates, weights, ~is_found))[:, :k]
        kept = np.take_along_axis(is_found, order, axis=1)
        distances[part][kept] = np.take_along_axis(weights, order, axis=1)[kept]
        chosen[part][kept] = np.take_along_axis(candidates, order, axis=1)[kept]
    return distances, chosen
