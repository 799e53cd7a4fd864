"""The nearest code of each query, and whether another one is nearly as near.

For a ratio test it does not matter how far the second nearest is, only whether it is too near. So
what is farther than the nearest code by the ratio is not looked at; and once another is too near,
only what is nearer than both can still pass. With such limits counting stops early; see `slices`.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .lanes import BLOCK
from .llvm import popcount
from .scan import GROUP, list_below
from .slices import ENTRY, LANES, SLAB, find_below, find_cases, find_starts, tabulate_slab

_SAMPLE = 16  # rows that every query is compared with beforehand


@njit(cache=True, nogil=True, boundscheck=False)
def find_nearest(
    blocks: NDArray[np.uint64],
    n_rows: int,
    queries: NDArray[np.uint64],
    limits: NDArray[np.int64],
    limit_of: NDArray[np.int64],
    best: NDArray[np.int64],
    second: NDArray[np.int64],
    rows: NDArray[np.int64],
    words: int,
    entries: tuple[int, ...],
    planes: tuple[int, ...],
) -> None:
    """Find the nearest row of each query among those closer than its limit, the first of equals.

    Parameters
    ----------
    blocks : codes, flat, [block][word][lane]
    queries : shape (n, n_words)
    limits : of each query; they are lowered as rows are found
    limit_of : where the nearest row is at distance d, others at ``limit_of[d]`` or more do not
        matter
    best, second, rows : the two least distances below the limits, and the nearest row; where there
        are none they stay as they are. The nearest is clear if `second` is not below
        ``limit_of[best]``; where it is not, `rows` may be any of those that are too near
    """
    n_queries, n_words = queries.shape
    n_entries, n_chunks = len(entries), n_words // words
    cases = find_cases(queries, words, n_entries)
    bits = np.zeros(n_chunks * n_entries * 3 * LANES, np.uint64)
    tables = np.empty(n_chunks * n_entries * ENTRY, np.uint64)
    counters = np.empty(GROUP * len(planes) * LANES, np.uint64)
    padded = np.zeros(SLAB * n_words, np.uint64)
    starts, found = find_starts(n_words, len(planes)), np.empty(GROUP, np.int64)
    near = np.empty(SLAB + 1, np.int64)
    end = (n_rows + BLOCK - 1) // BLOCK * BLOCK
    _lower(blocks, n_rows, queries, limits, limit_of)
    for base in range(0, n_rows, SLAB):
        tabulate_slab(blocks, base, end, n_words, words, n_entries, padded, bits, tables)
        for group in range(0, n_queries, GROUP):
            some = limits[group : min(group + GROUP, n_queries)]
            n = find_below(
                tables, cases, group, some, starts, n_chunks, counters, found, entries, planes
            )
            for j in range(n):
                q, top = group + found[j], (found[j] * len(planes) + len(planes) - 1) * LANES
                n_near = list_below(base, counters[top : top + LANES], near)
                for i in range(n_near):
                    row = near[i]
                    if row >= n_rows:
                        continue
                    d = _distance(blocks, row, queries[q])
                    if d < best[q]:
                        second[q], best[q], rows[q] = best[q], d, row
                    elif d < second[q]:
                        second[q] = d
                    is_clear = second[q] >= limit_of[best[q]]
                    limits[q] = min(limits[q], limit_of[best[q]] if is_clear else best[q])


@njit(cache=True, nogil=True, boundscheck=False)
def _lower(
    blocks: NDArray[np.uint64],
    n_rows: int,
    queries: NDArray[np.uint64],
    limits: NDArray[np.int64],
    limit_of: NDArray[np.int64],
) -> None:
    """Lower the limits by what a few rows tell, so that not all rows of the first slab are hits."""
    step = max(1, n_rows // _SAMPLE)
    for q in range(len(queries)):
        best = second = np.int64(len(limit_of))
        for row in range(0, n_rows, step):
            d = _distance(blocks, row, queries[q])
            second = min(second, max(d, best))
            best = min(best, d)
        # The nearest row is still to be found, and so is the second nearest if it matters.
        limits[q] = min(limits[q], max(limit_of[best], best + 1), second + 1)


@njit(cache=True, nogil=True, boundscheck=False)
def _distance(blocks: NDArray[np.uint64], row: int, query: NDArray[np.uint64]) -> np.int64:
    n_words, ones = len(query), np.uint64(0)
    start = row // BLOCK * n_words * BLOCK + row % BLOCK
    for word in range(n_words):
        ones += popcount(blocks[start + BLOCK * word] ^ query[word])
    return np.int64(ones)
