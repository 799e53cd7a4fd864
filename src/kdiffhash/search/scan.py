"""Linear scans over segments, split between threads.

The compiled core has two kernels: `lanes` compares whole codes and is faster for few queries;
`slices` transposes the bits of a slab of codes first, which pays off for many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._util.threads import n_threads, run_plain
from .segment import Ids, Segment, Words

_SLAB = 512  # most rows that `slices` counts together
_STATE_BYTES = 2**26  # memory per thread for the intermediate results of a group of queries
_INTERRUPT_NS = 2e9  # estimated work between two chances to handle Ctrl-C
_THREAD_NS = 400_000  # estimated work that justifies waking another thread
_RANGE_QUERIES = 4096  # queries per pass of a range search
_HITS = 2**20  # results of a range search buffered at a time
# Estimated nanoseconds to compare a 64-bit word of a code with a query.
_SLICES_NS, _LANES_NS = 0.1, 0.4
# Number of queries from which `slices` is faster, by the words of a code (benchmarks/search.py).
_CROSSOVER = {
    "base": {1: 2},
    "avx2": {1: 5},
    "avx512": {1: 10, 2: 18, 3: 8, 4: 40, 6: 8, 8: 48},
}
_DEFAULT_CROSSOVER = {"base": 2, "avx2": 6, "avx512": 10}

Distances = NDArray[np.int32]
Nearest = tuple[Distances, Ids, Ids]  # distances, ids, and the number of valid entries per query


@dataclass(frozen=True)
class RowRange:
    """Rows `first` to `last` of a segment; `first` is the first row of a block."""

    segment: Segment
    first: int
    last: int


def nearest(
    segments: list[Segment], queries: Words, k: int, n_jobs: int | None
) -> tuple[Distances, Ids]:
    """Return distances and ids of the k nearest kept rows, ordered by distance, then id.

    There must be at least k kept rows.
    """
    n, width = queries.shape
    distances, ids = np.empty((n, k), np.int32), np.empty((n, k), np.int64)
    if not n or not k:
        return distances, ids
    state = 12 * (3 * k + 64) + 5 * 64 * width  # bytes per query
    n_rows = sum(segment.n_rows for segment in segments)
    interruptible = int(_INTERRUPT_NS / (_SLICES_NS * n_rows * width))
    group = max(1, min(n, _STATE_BYTES // state, max(interruptible, 256)))
    ranges = [RowRange(segment, 0, segment.n_rows) for segment in segments]
    workers = threads_that_pay(n_rows, width, n, n_jobs)
    chunks = _split(ranges, workers)
    if len(chunks) < workers:  # too few rows to split: split the queries instead
        chunks, group = [ranges], min(group, max(_crossover(width), -(-n // workers)))

    results: dict[tuple[int, int], Nearest] = {}

    def search(start: int, number: int) -> None:
        results[start, number] = _nearest_in(chunks[number], queries[start : start + group], k)

    def collect(starts: range) -> None:
        run_plain([partial(search, start, i) for start in starts for i in range(len(chunks))])
        for start in starts:
            best = results.pop((start, 0))
            for i in range(1, len(chunks)):
                best = _merge(best, results.pop((start, i)))
            distances[start : start + group], ids[start : start + group] = best[:2]

    step = group if len(chunks) > 1 else group * workers
    for start in range(0, n, step):
        collect(range(start, min(start + step, n), group))
    return distances, ids


def _nearest_in(ranges: list[RowRange], queries: Words, k: int) -> Nearest:
    """Return up to k nearest rows of some ranges, and how many each query has."""
    n, width = queries.shape
    slices = use_slices(width, n)
    best: Nearest | None = None
    for rows_of in ranges:
        bounds = np.full(n, 64 * width + 1, np.int64)  # only rows below the bound matter
        if best is not None:
            # A later range may have lower ids, which win at equal distance.
            full = best[2] == k
            bounds[full] = best[0][full, -1] + 1
        distances, rows = np.zeros((n, k), np.int32), np.zeros((n, k), np.int64)
        sizes = np.empty(n, np.int64)
        segment = rows_of.segment
        codes = (segment.flat, segment.n_rows, segment.kept, rows_of.first, rows_of.last)
        _core.nearest(*codes, queries, slices, bounds, distances, rows, sizes)
        new = (distances, segment.ids_of(rows), sizes)
        best = new if best is None else _merge(best, new)
    if best is None:
        raise ValueError("there are no rows to search")
    return best


def merge_found(found: list[tuple[Distances, Ids]], k: int) -> tuple[Distances, Ids]:
    """Merge results of searches for the same queries in disjoint sets of codes into the k best."""
    m = min(k, sum(distances.shape[1] for distances, _ in found))

    def padded(distances: Distances, ids: Ids) -> Nearest:
        n, there = distances.shape
        width = ((0, 0), (0, m - there))
        return np.pad(distances, width), np.pad(ids, width), np.full(n, there, np.int64)

    return reduce(_merge, [padded(*one) for one in found])[:2]


def _merge(a: Nearest, b: Nearest) -> Nearest:
    """Merge two sorted lists per query into one of the same length."""
    out = (np.empty_like(a[0]), np.empty_like(a[1]), np.empty_like(a[2]))
    _core.merge_nearest(*a, *b, *out)
    return out


def scan_radius(
    rows: RowRange, queries: Words, radius: int, n_jobs: int | None
) -> Iterator[tuple[Ids, Ids, Distances]]:
    """Yield query index, row and distance of all kept rows within a radius, unordered."""
    n, width = queries.shape
    if not n:
        return
    workers = threads_that_pay(rows.last - rows.first, width, n, n_jobs)
    chunks = [chunk[0] for chunk in _split([rows], workers)]
    for start in range(0, n, _RANGE_QUERIES):
        group = queries[start : start + _RANGE_QUERIES]
        scans = [_RangeScan(chunk, group, radius) for chunk in chunks]
        while unfinished := [scan for scan in scans if scan.row < scan.rows.last]:
            run_plain([scan.resume for scan in unfinished])
            for scan in unfinished:
                query_index, found, distances = scan.results()
                yield query_index + start, found, distances


class _RangeScan:
    """A range search that stops when its buffers are full and can be resumed."""

    def __init__(self, rows: RowRange, queries: Words, radius: int) -> None:
        self.rows, self.queries = rows, queries
        self.bounds = np.full(len(queries), radius + 1, np.int64)
        self.row, self.query, self.size = rows.first, 0, 0
        capacity = _HITS + _core.max_hits_per_step
        self.query_index, self.found = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        self.distances = np.empty(capacity, np.int32)

    def resume(self) -> None:
        """Scan until the buffers are full or the range is done."""
        segment, slices = self.rows.segment, use_slices(*self.queries.shape[::-1])
        codes = (segment.flat, segment.n_rows, segment.kept, self.rows.last)
        position, found = (self.row, self.query), (self.query_index, self.found)
        self.row, self.query, self.size = _core.range_search(
            *codes, self.queries, slices, self.bounds, *position, *found, self.distances
        )

    def results(self) -> tuple[Ids, Ids, Distances]:
        """Return copies of what the last call of `resume` found."""
        size = self.size
        return (
            self.query_index[:size].copy(),
            self.found[:size].copy(),
            self.distances[:size].copy(),
        )


def threads_that_pay(n_rows: int, width: int, n_queries: int, n_jobs: int | None) -> int:
    """Return how many threads are worth waking to compare rows of `width` words with queries."""
    per_word = _SLICES_NS if use_slices(width, n_queries) else _LANES_NS
    work = n_rows * width * n_queries * per_word
    return max(1, min(n_threads(n_jobs), int(work / _THREAD_NS)))


def _split(ranges: list[RowRange], n_chunks: int) -> list[list[RowRange]]:
    """Split rows into chunks of similar size; fewer chunks if there are few rows."""
    total = sum(rows.last - rows.first for rows in ranges)
    n_chunks = max(1, min(n_chunks, total // (8 * _SLAB)))
    size = -(-total // n_chunks)
    chunks: list[list[RowRange]] = [[]]
    room = size
    for rows in ranges:
        first = rows.first
        while first < rows.last:
            if room < _SLAB and len(chunks) < n_chunks:
                chunks.append([])
                room = size
            last = rows.last
            if len(chunks) < n_chunks:
                last = min(last, first + -(-room // _SLAB) * _SLAB)
            chunks[-1].append(RowRange(rows.segment, first, last))
            room, first = room - (last - first), last
    return chunks


def use_slices(width: int, n_queries: int) -> bool:
    """Return whether `slices` is the faster kernel for codes of `width` words."""
    return n_queries >= _crossover(width)


def _crossover(width: int) -> int:
    return _CROSSOVER[_core.level].get(width, _DEFAULT_CROSSOVER[_core.level])
