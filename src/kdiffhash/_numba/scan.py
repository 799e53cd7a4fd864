"""One pass over codes in blocks, for the k nearest of each query or for all within a limit.

It is made in two ways with the same results: `by_lanes` for few queries, which reads memory as
fast as it comes, and `by_slices` for many, whose work on a slab of codes all queries share.

Rows are taken in order and have rising ids, so of equal distances the first is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .lanes import BLOCK, find_block
from .llvm import lowest_one, popcount, prefetch
from .slices import ENTRY, LANES, SLAB, find_below, find_cases, find_starts, tabulate_slab

_TILE = 16384  # bytes of codes that one query after the other is compared with
GROUP = 64  # queries whose counters are kept at a time
MARGIN = SLAB * GROUP  # hits that one step can have, at most


class Rows(NamedTuple):
    """Codes to look at: rows `first` to `last`, where `first` begins a block."""

    blocks: NDArray[np.uint64]  # flat, [block][word][lane]
    kept: NDArray[np.uint8]  # a bit for each row that counts, lowest first; empty if all do
    n_words: int
    first: int
    last: int


class Sink(NamedTuple):
    """What was found so far.

    For the k nearest, each query has its own line of distances and rows, in which those of the
    lately lowered limit are dropped when their room is needed. For all within the limits, k is
    zero, and hits of all queries follow each other in line 0, with their queries in `owners`.
    """

    k: int
    limits: NDArray[np.int64]  # of each query: only what is closer counts
    below: NDArray[np.int64]  # rows closer than the limit, less than k
    sizes: NDArray[np.int64]  # rows in each line
    counts: NDArray[np.int32]  # rows at each distance
    distances: NDArray[np.int32]
    rows: NDArray[np.int64]
    owners: NDArray[np.int64]


@njit(cache=True, nogil=True, boundscheck=False)
def by_lanes(
    codes: Rows,
    queries: NDArray[np.uint64],
    sink: Sink,
    start: int,
    start_query: int,
    together: tuple[int, ...],
    unrolled: tuple[int, ...],
) -> tuple[int, int]:
    """Compare block by block; ``len(together)`` blocks and ``len(unrolled)`` words at once.

    Returns the row and the query to go on with when the sink is full, or the last row.
    """
    n_queries, step = len(queries) // codes.n_words, len(together)
    tile = max(1, _TILE // (64 * codes.n_words * step)) * step
    end = (codes.last + BLOCK - 1) // BLOCK
    if n_queries == 1 and sink.k > 0:
        tile = end
    block, first_query = start // BLOCK, start_query
    near = np.empty(64, np.int64)
    while block < end:
        stop = min(block + tile, end)
        whole = block + (stop - block) // step * step
        for q in range(first_query, n_queries):
            if sink.k == 0 and len(sink.owners) - sink.sizes[0] < MARGIN:
                return block * BLOCK, q
            _visit_blocks(codes, block, whole, queries, q, sink, near, together, unrolled)
            _visit_blocks(codes, whole, stop, queries, q, sink, near, (0,), unrolled)
        block, first_query = stop, 0
    return codes.last, 0


@njit(cache=True, nogil=True, boundscheck=False)
def _visit_blocks(
    codes: Rows,
    block: int,
    stop: int,
    queries: NDArray[np.uint64],
    q: int,
    sink: Sink,
    near: NDArray[np.int64],
    together: tuple[int, ...],
    unrolled: tuple[int, ...],
) -> None:
    """Give the rows of some blocks that are close to a query to the sink."""
    while block < stop:
        block, mask = find_block(
            codes.blocks, block, stop, queries, q, codes.n_words, sink.limits[q], together, unrolled
        )
        n = 0
        while mask != np.uint64(0):
            near[n] = block * BLOCK + lowest_one(mask)
            mask &= mask - np.uint64(1)
            n += 1
        if n:
            _take(codes, near[:n], queries, q, sink)
        block += len(together)


@njit(cache=True, nogil=True, boundscheck=False)
def by_slices(
    codes: Rows,
    queries: NDArray[np.uint64],
    sink: Sink,
    start: int,
    start_query: int,
    words: int,
    entries: tuple[int, ...],
    planes: tuple[int, ...],
) -> tuple[int, int]:
    """Compare slab by slab, in chunks of `words`; see `slices`.

    Returns the row and the query to go on with when the sink is full, or the last row.
    """
    n_words, n_entries = codes.n_words, len(entries)
    n_queries, n_chunks = len(queries) // n_words, n_words // words
    cases = find_cases(queries.reshape(n_queries, n_words), words, n_entries)
    bits = np.zeros(n_chunks * n_entries * 3 * LANES, np.uint64)
    tables = np.empty(n_chunks * n_entries * ENTRY, np.uint64)
    counters = np.empty(GROUP * len(planes) * LANES, np.uint64)
    padded = np.zeros(SLAB * n_words, np.uint64)
    starts, found = find_starts(n_words, len(planes)), np.empty(GROUP, np.int64)
    near = np.empty(SLAB + 1, np.int64)
    end = (codes.last + BLOCK - 1) // BLOCK * BLOCK
    first_group = start_query
    for base in range(start, codes.last, SLAB):
        tabulate_slab(codes.blocks, base, end, n_words, words, n_entries, padded, bits, tables)
        for word in range(min(base + SLAB, end) * n_words, min(base + 2 * SLAB, end) * n_words, 8):
            prefetch(codes.blocks, word)
        for group in range(first_group, n_queries, GROUP):
            if sink.k == 0 and len(sink.owners) - sink.sizes[0] < MARGIN:
                return base, group
            limits = sink.limits[group : min(group + GROUP, n_queries)]
            n = find_below(
                tables, cases, group, limits, starts, n_chunks, counters, found, entries, planes
            )
            for j in range(n):
                top = (found[j] * len(planes) + len(planes) - 1) * LANES
                n_near = list_below(base, counters[top : top + LANES], near)
                _take(codes, near[:n_near], queries, group + found[j], sink)
        first_group = 0
    return codes.last, 0


@njit(cache=True, nogil=True, boundscheck=False)
def list_below(base: int, reached: NDArray[np.uint64], near: NDArray[np.int64]) -> np.int64:
    """Write the rows of a slab that have not reached the limit, in order; how many."""
    some = ~(reached[0] & reached[1] & reached[2] & reached[3])
    n = np.int64(0)
    while some != np.uint64(0):
        bit = lowest_one(some)
        some &= some - np.uint64(1)
        for lane in range(LANES):
            near[n] = base + LANES * bit + lane
            n += np.int64(~reached[lane] >> np.uint64(bit) & np.uint64(1))
    return n


@njit(cache=True, nogil=True, boundscheck=False)
def _take(
    codes: Rows, near: NDArray[np.int64], queries: NDArray[np.uint64], q: int, sink: Sink
) -> None:
    """Give rows to the sink, in order, if they count and are closer than the limit is by then.

    For the k nearest, a row lowers the limit when k are closer. This is one long function because
    calls that hand on a `Sink` take longer than what they would do here.
    """
    blocks, kept, n_words = codes.blocks, codes.kept, codes.n_words
    k, line = sink.k, q if sink.k else 0
    distances, rows, counts = sink.distances[line], sink.rows[line], sink.counts[line]
    limit, below, size = sink.limits[q], sink.below[line], sink.sizes[line]
    for i in range(len(near)):
        row = near[i]
        if row >= codes.last or (len(kept) and not kept[row >> 3] >> (row & 7) & 1):
            continue
        start, ones = row // BLOCK * n_words * BLOCK + row % BLOCK, np.uint64(0)
        for j in range(n_words):
            ones += popcount(blocks[start + BLOCK * j] ^ queries[q * n_words + j])
        d = np.int64(ones)
        if d >= limit:
            continue
        if k == 0:
            sink.owners[size] = q
        elif size == len(distances):  # drop what has come to lie above the limit
            ties, size = k - below, 0
            for j in range(len(distances)):
                if distances[j] < limit or (distances[j] == limit and ties > 0):
                    ties -= distances[j] == limit
                    distances[size], rows[size] = distances[j], rows[j]
                    size += 1
        distances[size], rows[size] = d, row
        size += 1
        if k:
            counts[d] += 1
            below += 1
            while below >= k:
                limit -= 1
                below -= counts[limit]
    sink.limits[q], sink.below[line], sink.sizes[line] = limit, below, size


@njit(cache=True, nogil=True, boundscheck=False)
def sort_nearest(
    sink: Sink,
    out_distances: NDArray[np.int32],
    out_rows: NDArray[np.int64],
    out_sizes: NDArray[np.int64],
) -> None:
    """Write the k nearest rows of each query by distance, then row, and how many there are."""
    starts = np.empty(sink.counts.shape[1] + 1, np.int64)
    for q in range(len(sink.limits)):
        starts[:] = 0
        for i in range(sink.sizes[q]):
            starts[sink.distances[q, i] + 1] += 1
        for d in range(1, len(starts)):
            starts[d] += starts[d - 1]
        for i in range(sink.sizes[q]):
            d = sink.distances[q, i]
            place = starts[d]
            starts[d] += 1
            if place < sink.k:
                out_distances[q, place], out_rows[q, place] = d, sink.rows[q, i]
        out_sizes[q] = min(sink.sizes[q], sink.k)


@njit(cache=True, nogil=True, boundscheck=False)
def merge_nearest(
    a_distances: NDArray[np.int32],
    a_ids: NDArray[np.int64],
    a_sizes: NDArray[np.int64],
    b_distances: NDArray[np.int32],
    b_ids: NDArray[np.int64],
    b_sizes: NDArray[np.int64],
    out_distances: NDArray[np.int32],
    out_ids: NDArray[np.int64],
    out_sizes: NDArray[np.int64],
) -> None:
    """Merge two lists for each query, sorted by distance, then id, and cut them to the room."""
    for q in range(len(a_sizes)):
        i, j, n = 0, 0, 0
        while n < out_distances.shape[1] and (i < a_sizes[q] or j < b_sizes[q]):
            if j == b_sizes[q]:
                from_a = True
            elif i == a_sizes[q]:
                from_a = False
            else:
                da, db = a_distances[q, i], b_distances[q, j]
                from_a = da < db or (da == db and a_ids[q, i] < b_ids[q, j])
            if from_a:
                out_distances[q, n], out_ids[q, n] = a_distances[q, i], a_ids[q, i]
                i += 1
            else:
                out_distances[q, n], out_ids[q, n] = b_distances[q, j], b_ids[q, j]
                j += 1
            n += 1
        out_sizes[q] = n
