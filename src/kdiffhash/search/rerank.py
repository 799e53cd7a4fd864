"""Re-ranking: sort the candidates of a query by its projections or by distances of the caller."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._core import weighted_distances
from .._util.threads import run_tiles
from .segment import Ids, Segment, words_by_id

_MAX_SUM = 3e38  # distances must be finite as float32
Distances = Callable[[int, Ids], ArrayLike]  # of candidates, from the query's index and their ids


def check_projections(
    projections: ArrayLike, shape: tuple[int | None, int], name: str
) -> tuple[NDArray[np.float32], bool]:
    """Return projections as float32, and whether a single row was given.

    `shape` is the expected number of rows, None for any, and of bits.
    """
    given = np.asarray(projections)
    if given.dtype.kind not in "fiu":
        raise ValueError(
            f"{name} must be numbers, got {given.dtype}; use hasher.project(rows), not codes"
        )
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(np.atleast_2d(given), np.float32)
    n, n_bits = shape
    if array.ndim != 2 or array.shape != (len(array) if n is None else n, n_bits):
        expected = f"(n, {n_bits}) or ({n_bits},)" if n is None else shape
        raise ValueError(
            f"{name} must have shape {expected}, got {given.shape}; use hasher.project(rows)"
        )
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, but contain NaN or infinity")
    if array.size and np.abs(array).sum(axis=1, dtype=np.float64).max() > _MAX_SUM:
        raise ValueError(
            f"{name} are too large: the absolute values of a row must not add up to more than "
            f"{_MAX_SUM:.0e}; scale them down, which does not change their order"
        )
    return array, given.ndim == 1


def check_factor(factor: int) -> int:
    """Return the number of candidates per result, after checking it."""
    if not isinstance(factor, int | np.integer) or factor < 1:
        raise ValueError(f"rerank_factor must be an integer of at least 1, got {factor!r}")
    return int(factor)


def rerank(
    segments: list[Segment],
    projections: NDArray[np.float32],
    ids: Ids,
    k: int,
    n_jobs: int | None,
) -> tuple[NDArray[np.float32], Ids]:
    """Return the k candidates with the smallest sum of |projection| over differing bits.

    `ids` holds the candidates of each query, shape (n, n_candidates).
    """
    n, n_candidates = ids.shape
    distances, chosen = np.empty((n, k), np.float32), np.empty((n, k), np.int64)

    def work(start: int, stop: int) -> None:
        candidates = ids[start:stop]
        words, _ = words_by_id(segments, projections.shape[1], candidates.reshape(-1))
        weights = np.empty(candidates.shape, np.float32)
        weighted_distances(words.reshape(*candidates.shape, -1), projections[start:stop], weights)
        order = np.lexsort((candidates, weights))[:, :k]
        distances[start:stop] = np.take_along_axis(weights, order, axis=1)
        chosen[start:stop] = np.take_along_axis(candidates, order, axis=1)

    if n and n_candidates:
        run_tiles(lambda: work, n, 64, n_jobs, blas=False)
    return distances, chosen


def rerank_by(function: Distances, ids: Ids, k: int) -> tuple[NDArray[np.float64], Ids]:
    """Return the k candidates with the smallest distances according to a function."""
    n, n_candidates = ids.shape
    distances, chosen = np.empty((n, k)), np.empty((n, k), np.int64)
    for q, candidates in enumerate(ids):
        own = np.asarray(function(q, candidates.copy()), np.float64)
        if own.shape != (n_candidates,) or np.isnan(own).any():
            raise ValueError(
                f"rerank must return one distance, not NaN, for each of the {n_candidates} ids; "
                f"for query {q} it returned shape {own.shape}"
            )
        order = np.lexsort((candidates, own))[:k]
        distances[q], chosen[q] = own[order], candidates[order]
    return distances, chosen
