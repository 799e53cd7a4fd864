"""First matches (the nearest other patches of a scene), and the cost of a comparison."""

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
_BATCH = 50


def draw_queries(points: NDArray[np.int64], n_queries: int, seed: int) -> NDArray[np.int64]:
    """Draw query patches, at most one per point, from points with at least two patches."""
    order = np.argsort(points, kind="stable")
    _, start, count = np.unique(points[order], return_index=True, return_counts=True)
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(np.flatnonzero(count > 1))[:n_queries]
    return np.asarray(order[start[chosen] + rng.integers(count[chosen])])


def first_by_codes(codes: Codes, queries: NDArray[np.int64]) -> tuple[Any, Any]:
    """Return rows and distances of the first matches by Hamming distance; ties by lower row."""
    distances, rows = HammingIndex(codes).search(codes[queries], N_FIRST + 1)
    others = np.argsort(rows == queries[:, None], axis=1, kind="stable")[:, :N_FIRST]
    return np.take_along_axis(rows, others, axis=1), np.take_along_axis(distances, others, axis=1)


def first_by_rows(rows: NDArray[Any], queries: NDArray[np.int64]) -> tuple[Any, Any]:
    """Return rows and distances of the first matches by Euclidean distance."""
    plain = rows.astype(np.float32)
    squares = np.einsum("ij,ij->i", plain, plain)
    found, distances = [], []
    for i in range(0, len(queries), _BATCH):
        some = queries[i : i + _BATCH]
        gap = np.maximum(squares[some][:, None] + squares - 2 * plain[some] @ plain.T, 0)
        gap[np.arange(len(some)), some] = np.inf
        found.append(np.argsort(gap, axis=1, kind="stable")[:, :N_FIRST])
        distances.append(np.sqrt(np.take_along_axis(gap, found[-1], axis=1)))
    return np.concatenate(found), np.concatenate(distances)


def precision(
    points: NDArray[np.int64], queries: NDArray[np.int64], found: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return for each query the share of its first matches that show the same point.

    A point with fewer than five other patches is measured on as many matches as it has patches.
    """
    correct = (points[found] == points[queries][:, None]).sum(axis=1)
    _, which, count = np.unique(points, return_inverse=True, return_counts=True)
    return np.asarray(correct / np.minimum(N_FIRST, count[which[queries]] - 1))


def time_comparisons(rows: NDArray[Any], lengths: list[int], seed: int = 0) -> dict[str, Any]:
    """Time the comparison of 2000 rows with 4000 others, on one thread.

    Euclidean distances come from a matrix product, the fastest way to compute them.

    Returns
    -------
    times : dict
        `ns`: nanoseconds per comparison, the best of eight repetitions, for "euclidean" and each
        length. `ratios`: for each length the median, smallest and largest ratio of a Euclidean
        comparison to one of codes, over the repetitions.
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
        seconds = {name: timeit.repeat(work, number=1, repeat=8) for name, work in works.items()}
    ratios = {n: np.divide(seconds["euclidean"], seconds[str(n)]) for n in lengths}
    return {
        "ns": {name: 1e9 * min(each) / 8e6 for name, each in seconds.items()},
        "ratios": {
            str(n): [float(np.median(one)), float(one.min()), float(one.max())]
            for n, one in ratios.items()
        },
    }
