"""Re-ranking: sort the candidates of a query by its real-valued projections."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._core import weighted_distances
from .._util.threads import run_tiles
from .segment import Ids, Segment, words_by_id


def check_rerank(
    projections: ArrayLike, factor: int, shape: tuple[int, int]
) -> NDArray[np.float32]:
    """Return the projections of queries as float32, after checking shape and values."""
    array = np.ascontiguousarray(np.atleast_2d(np.asarray(projections, np.float32)))
    if array.shape != shape:
        raise ValueError(
            f"rerank_projections must have shape {shape}, got {np.shape(projections)}; "
            "use hasher.project(rows) on the same rows as the queries"
        )
    if not np.isfinite(array).all():
        raise ValueError("rerank_projections must be finite, but contain NaN or infinity")
    if not isinstance(factor, int | np.integer) or factor < 1:
        raise ValueError(f"rerank_factor must be an integer of at least 1, got {factor!r}")
    return array


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
