"""First matches: for queries, the closest other patches of a scene; and what a comparison costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core import all_distances
from ..codes import Codes, as_words
from ..parallel import one_blas_thread

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
    words = as_words(codes)
    columns = np.ascontiguousarray(words.T)

    def compare(some: NDArray[np.int64]) -> NDArray[Any]:
        out = np.empty((len(some), len(codes)), np.uint16)
        all_distances(words[some], columns, out)
        return out.astype(np.int64)

    return _first(compare, queries)


def first_by_rows(rows: NDArray[Any], queries: NDArray[np.int64]) -> tuple[Any, Any]:
    """Rows and distances of the first matches by Euclidean distance."""
    plain = rows.astype(np.float32)
    squares = np.einsum("ij,ij->i", plain, plain)

    def compare(some: NDArray[np.int64]) -> NDArray[Any]:
        gap = squares[some][:, None] + squares - 2 * plain[some] @ plain.T
        return np.asarray(np.maximum(gap, 0))

    found, distances = _first(compare, queries)
    return found, np.sqrt(distances)


def _first(
    compare: Callable[[NDArray[np.int64]], NDArray[Any]], queries: NDArray[np.int64]
) -> tuple[Any, Any]:
    """The closest others, for some queries at a time, whose distances fit into memory."""
    found, kept = [], []
    for i in range(0, len(queries), _AT_ONCE):
        some = queries[i : i + _AT_ONCE]
        distances = compare(some)
        largest = np.iinfo(np.int64).max if distances.dtype.kind == "i" else np.inf
        distances[np.arange(len(some)), some] = largest
        order = np.argsort(distances, axis=1, kind="stable")[:, :N_FIRST]
        found.append(order)
        kept.append(np.take_along_axis(distances, order, axis=1))
    return np.concatenate(found), np.concatenate(kept)


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
    out: dict[str, float] = {}
    codes = rng.integers(0, 256, (4000, -(-max(lengths) // 8))).astype(np.uint8)
    distances = np.empty((2000, 4000), np.uint16)

    def by_product() -> None:
        squares = np.einsum("ij,ij->i", some, some)
        gap = some[:2000] @ some.T
        gap *= -2
        gap += squares
        gap += squares[:2000, None]

    with one_blas_thread():
        out["euclidean"] = _best_of(by_product)
        for length in lengths:
            words = as_words(codes[:, : -(-length // 8)])
            columns = np.ascontiguousarray(words.T)
            out[str(length)] = _best_of(
                lambda a=words[:2000], b=columns: all_distances(a, b, distances)
            )
    return {name: 1e9 * seconds / 8e6 for name, seconds in out.items()}


def _best_of(work: Any, repeats: int = 7) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
