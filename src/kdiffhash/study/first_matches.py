"""First matches: for queries, the closest other patches of a scene; and what a comparison costs."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.threads import one_blas_thread
from ..codes import Codes
from ..search import HammingIndex

N_FIRST = 5
_AT_ONCE = 50


def draw_queries(points: NDArray[np.int64], n_queries: int, seed: int) -> NDArray[np.int64]:
    """Patches to look for, at most one of a point, of points that have another patch."""
    order = np.argsort(points, kind="stable")
    _, start, count = np.unique(points[order], return_index=True, return_counts=True)
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(np.flatnonzero(count > 1))[:n_queries]
    return np.asarray(order[start[chosen] + rng.integers(count[chosen])])


def first_by_codes(codes: Codes, queries: NDArray[np.int64]) -> tuple[Any, Any]:
    """Rows and distances of the first matches by Hamming distance; ties by the lower row."""
    distances, rows = HammingIndex(codes).search(codes[queries], N_FIRST + 1)
    others = np.argsort(rows == queries[:, None], axis=1, kind="stable")[:, :N_FIRST]
    return np.take_along_axis(rows, others, axis=1), np.take_along_axis(distances, others, axis=1)


def first_by_rows(rows: NDArray[Any], queries: NDArray[np.int64]) -> tuple[Any, Any]:
    """Rows and distances of the first matches by Euclidean distance."""
    plain = rows.astype(np.float32)
    squares = np.einsum("ij,ij->i", plain, plain)
    found, distances = [], []
    for i in range(0, len(queries), _AT_ONCE):
        some = queries[i : i + _AT_ONCE]
        gap = np.maximum(squares[some][:, None] + squares - 2 * plain[some] @ plain.T, 0)
        gap[np.arange(len(some)), some] = np.inf
        found.append(np.argsort(gap, axis=1, kind="stable")[:, :N_FIRST])
        distances.append(np.sqrt(np.take_along_axis(gap, found[-1], axis=1)))
    return np.concatenate(found), np.concatenate(distances)


def precision(
    points: NDArray[np.int64], queries: NDArray[np.int64], found: NDArray[np.int64]
) -> NDArray[np.float64]:
    """For each query: the share of its first matches that show its point.

    A point with fewer other patches than that cannot fill them; it counts by those it has.
    """
    right = (points[found] == points[queries][:, None]).sum(axis=1)
    _, which, count = np.unique(points, return_inverse=True, return_counts=True)
    return np.asarray(right / np.minimum(N_FIRST, count[which[queries]] - 1))


def time_comparisons(rows: NDArray[Any], lengths: list[int], seed: int = 0) -> dict[str, float]:
    """Nanoseconds to compare two rows, each of 2000 with each of 4000, on one thread.

    Euclidean distances are made the quickest way there is, by a matrix product.
    """
    rng = np.random.default_rng(seed)
    some = rows[rng.integers(len(rows), size=4000)].astype(np.float32)

    def by_product() -> None:
        squares = np.einsum("ij,ij->i", some, some)
        gap = some[:2000] @ some.T
        gap *= -2
        gap += squares
        gap += squares[:2000, None]

    works: dict[str, Callable[[], object]] = {"euclidean": by_product}
    for length in lengths:
        codes = rng.integers(256, size=(4000, -(-length // 8)), dtype=np.uint8)
        index = HammingIndex(codes)
        works[str(length)] = partial(index.search, codes[:2000], 1, n_jobs=1)
    with one_blas_thread():
        times = {name: min(timeit.repeat(work, number=1, repeat=8)) for name, work in works.items()}
    return {name: 1e9 * seconds / 8e6 for name, seconds in times.items()}
