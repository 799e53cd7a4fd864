"""Linear scans over segments, split between threads.

The compiled core has two kernels: `lanes` compares whole codes and is faster for few queries;
`slices` transposes the bits of a slab of codes first, which pays off for many queries.

Only kept rows are searched: rows that have not been removed and, in a search among allowed ids, are
allowed.

Float queries are searched by a loop of their own (`FloatQueries`). Their distances are never
negative, so they have the same order as their bits read as integers. The results of all queries are
compared and merged as int32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._util.threads import n_threads, run_concurrently
from .segment import Ids, Segment, Words

_SLAB = 512  # rows of the largest slab that `slices` compares at a time
_STATE_BYTES = 2**26  # memory per thread for the intermediate results of a batch of queries
_INTERRUPT_NS = 2e9  # estimated work between two chances to handle Ctrl-C
_THREAD_NS = 400_000  # estimated work that justifies waking another thread
_RANGE_QUERIES = 4096  # queries per batch of a range search
_FLOAT_QUERIES = 256  # float queries per batch, so that their tables stay in the cache
_RESULT_BUFFER = 2**20  # results of a range search that a thread buffers at a time
# Estimated nanoseconds to compare a 64-bit word of a code with a query.
_SLICES_NS, _LANES_NS, _FLOAT_NS = 0.1, 0.4, 0.3
# Number of queries from which `slices` is faster, by instruction set and number of words of a code.
# It was measured once; no benchmark compares the two kernels.
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
    """Rows `start` to `stop` (exclusive) of a segment; `start` is a multiple of 8."""

    segment: Segment
    start: int
    stop: int

    @property
    def arguments(self) -> tuple[Words, int, NDArray[np.uint8] | None, int, int]:
        """The rows as arguments of the core."""
        return self.segment.flat, self.segment.n_rows, self.segment.kept, self.start, self.stop


class QuerySet(Protocol):
    """Queries, and the loop of the core that compares them with codes."""

    @property
    def n_words(self) -> int:
        """Number of 64-bit words of the codes that they are compared with."""

    @property
    def ns(self) -> float:
        """Estimated nanoseconds to compare a query with a word of a code."""

    @property
    def min_batch(self) -> int:
        """Number of queries below which a batch should not be split between threads."""

    @property
    def max_bound(self) -> int:
        """Bound that all distances are below."""

    def max_batch(self, k: int) -> int:
        """Return the number of queries whose intermediate results fit into memory."""

    def __len__(self) -> int: ...

    def batch(self, start: int, stop: int) -> Self:
        """Return some of the queries."""

    def search(self, rows: RowRange, bounds: Ids, k: int) -> tuple[Distances, Ids, Ids]:
        """Return the k nearest rows below the bounds: distances, positions and their number."""


@dataclass(frozen=True)
class CodeQueries:
    """Queries that are codes, compared by Hamming distance; `words` has shape (n, n_words)."""

    words: Words

    @property
    def n_words(self) -> int:
        return int(self.words.shape[1])

    @property
    def ns(self) -> float:
        return _SLICES_NS if use_slices(self.n_words, len(self)) else _LANES_NS

    @property
    def min_batch(self) -> int:
        return _crossover(self.n_words)

    @property
    def max_bound(self) -> int:
        return 64 * self.n_words + 1

    def max_batch(self, k: int) -> int:
        # Bytes per query while the core runs: 2k + 64 hits, k results of this segment and k of
        # those before, a histogram of distances, the query in two forms, and four numbers.
        width = self.n_words
        state = 16 * (2 * k + 64) + 2 * 12 * k + 4 * (64 * width + 2) + (32 + 8) * width + 32
        return _STATE_BYTES // state

    def __len__(self) -> int:
        return len(self.words)

    def batch(self, start: int, stop: int) -> CodeQueries:
        return CodeQueries(self.words[start:stop])

    def search(self, rows: RowRange, bounds: Ids, k: int) -> Nearest:
        found = (np.zeros((len(self), k), np.int32), *_room(len(self), k))
        slices = use_slices(self.n_words, len(self))
        if (cells := rows.segment.cells) is None:
            _core.nearest(*rows.arguments, self.words, slices, bounds, *found)
        else:
            own = (*rows.arguments, *cells.order, self.words, slices, bounds, *found)
            _core.nearest_by_position(*own)
        return found


@dataclass(frozen=True)
class FloatQueries:
    """Float queries: projections of shape (n, n_bits), compared by weighted distance."""

    projections: NDArray[np.float32]

    ns = _FLOAT_NS
    min_batch = 8
    max_bound = int(np.float32(np.inf).view(np.int32))

    @property
    def n_words(self) -> int:
        return -(-int(self.projections.shape[1]) // 64)

    def max_batch(self, k: int) -> int:
        # Bytes per query: k hits and results, tables of 256 bytes and weights of 256 bytes a word.
        return min(_FLOAT_QUERIES, _STATE_BYTES // (28 * k + 520 * self.n_words))

    def __len__(self) -> int:
        return len(self.projections)

    def batch(self, start: int, stop: int) -> FloatQueries:
        return FloatQueries(self.projections[start:stop])

    def search(self, rows: RowRange, bounds: Ids, k: int) -> Nearest:
        distances, others = np.zeros((len(self), k), np.float32), _room(len(self), k)
        limits = bounds.astype(np.int32).view(np.float32)
        cells = rows.segment.cells
        order = (None, None, None) if cells is None else cells.order
        own = (*rows.arguments, *order, self.projections, limits, distances, *others)
        _core.nearest_weighted(*own)
        return (distances.view(np.int32), *others)


def _room(n: int, k: int) -> tuple[Ids, Ids]:
    """Return arrays for rows and sizes."""
    return np.zeros((n, k), np.int64), np.empty(n, np.int64)


def nearest(
    segments: list[Segment], queries: QuerySet, k: int, n_jobs: int | None
) -> tuple[Distances, Ids]:
    """Return distances and ids of the k nearest kept rows, ordered by distance, then id.

    There must be at least k kept rows.
    """
    n, width = len(queries), queries.n_words
    distances, ids = np.empty((n, k), np.int32), np.empty((n, k), np.int64)
    if not n or not k:
        return distances, ids
    n_rows = sum(segment.n_rows for segment in segments)
    max_queries_per_pass = max(256, int(_INTERRUPT_NS / (_SLICES_NS * n_rows * width)))
    batch_size = max(1, min(n, queries.max_batch(k), max_queries_per_pass))
    ranges = [RowRange(segment, 0, segment.n_rows) for segment in segments]
    workers = _n_workers(n_rows * width * n * queries.ns, n_jobs)
    shares = _split(ranges, workers)
    if len(shares) < workers:  # too few rows to split: split the queries instead
        shares = [ranges]
        batch_size = min(batch_size, max(queries.min_batch, -(-n // workers)))

    results: dict[tuple[int, int], Nearest] = {}

    def search(start: int, share: int) -> None:
        batch = queries.batch(start, start + batch_size)
        results[start, share] = nearest_in(shares[share], batch, k)

    def search_batches(starts: range) -> None:
        run_concurrently(
            [partial(search, start, share) for start in starts for share in range(len(shares))]
        )
        for start in starts:
            best = results.pop((start, 0))
            for share in range(1, len(shares)):
                best = _merge(best, results.pop((start, share)))
            distances[start : start + batch_size], ids[start : start + batch_size] = best[:2]

    step = batch_size if len(shares) > 1 else batch_size * workers
    for start in range(0, n, step):
        search_batches(range(start, min(start + step, n), batch_size))
    return distances, ids


def nearest_in(
    ranges: list[RowRange], queries: QuerySet, k: int, best: Nearest | None = None
) -> Nearest:
    """Return at most k nearest rows per query in these ranges, and their number.

    They are merged with the best of other rows.
    """
    for row_range in ranges:
        # Only rows below the bound matter.
        bounds = np.full(len(queries), queries.max_bound, np.int64)
        if best is not None:
            # Ids are not ordered across segments: a later row at the k-th distance may still win,
            # so include that distance.
            full = best[2] == k
            bounds[full] = best[0][full, -1] + 1
        distances, positions, sizes = queries.search(row_range, bounds, k)
        new = (distances, row_range.segment.ids_at(positions), sizes)
        best = new if best is None else _merge(best, new)
    if best is None:
        raise ValueError("there are no rows to search")
    return best


def merge_results(results: list[tuple[Distances, Ids]], k: int) -> tuple[Distances, Ids]:
    """Merge results of searches for the same queries in disjoint sets of codes into the k best."""
    m = min(k, sum(distances.shape[1] for distances, _ in results))

    def padded(distances: Distances, ids: Ids) -> Nearest:
        n, n_found = distances.shape
        width = ((0, 0), (0, m - n_found))
        return np.pad(distances, width), np.pad(ids, width), np.full(n, n_found, np.int64)

    return reduce(_merge, [padded(*result) for result in results])[:2]


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
    workers = n_useful_threads(rows.stop - rows.start, width, n, n_jobs)
    ranges = [share[0] for share in _split([rows], workers)]
    for start in range(0, n, _RANGE_QUERIES):
        batch = queries[start : start + _RANGE_QUERIES]
        scans = [_RangeScan(row_range, batch, radius) for row_range in ranges]
        while unfinished := [scan for scan in scans if scan.row < scan.rows.stop]:
            run_concurrently([scan.resume for scan in unfinished])
            for scan in unfinished:
                query_index, found, distances = scan.results()
                yield query_index + start, found, distances


class _RangeScan:
    """A range search that stops when its buffers are full and can be resumed."""

    def __init__(self, rows: RowRange, queries: Words, radius: int) -> None:
        self.rows, self.queries = rows, queries
        self.bounds = np.full(len(queries), radius + 1, np.int64)
        self.row, self.query, self.size = rows.start, 0, 0
        capacity = _RESULT_BUFFER + _core.max_hits_per_step
        self.query_index, self.found = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        self.distances = np.empty(capacity, np.int32)

    def resume(self) -> None:
        """Scan until the buffers are full or the range is done."""
        segment, slices = self.rows.segment, use_slices(*self.queries.shape[::-1])
        codes = (segment.flat, segment.n_rows, segment.kept, self.rows.stop)
        position, found = (self.row, self.query), (self.query_index, self.found)
        self.row, self.query, self.size = _core.range_search(
            *codes, self.queries, slices, self.bounds, *position, *found, self.distances
        )

    def results(self) -> tuple[Ids, Ids, Distances]:
        """Return copies of the results of the last call of `resume`."""
        size = self.size
        return (
            self.query_index[:size].copy(),
            self.found[:size].copy(),
            self.distances[:size].copy(),
        )


def n_useful_threads(n_rows: int, width: int, n_queries: int, n_jobs: int | None) -> int:
    """Return how many threads are worth using to compare rows of `width` words with queries."""
    per_word = _SLICES_NS if use_slices(width, n_queries) else _LANES_NS
    return _n_workers(n_rows * width * n_queries * per_word, n_jobs)


def _n_workers(ns: float, n_jobs: int | None) -> int:
    """Return how many threads are worth using for work of this many nanoseconds."""
    return max(1, min(n_threads(n_jobs), int(ns / _THREAD_NS)))


def _split(ranges: list[RowRange], n_shares: int) -> list[list[RowRange]]:
    """Split rows into shares of similar size; a share is the ranges that one thread scans.

    There are fewer shares than `n_shares` if there are few rows.
    """
    total = sum(rows.stop - rows.start for rows in ranges)
    n_shares = max(1, min(n_shares, total // (8 * _SLAB)))
    size = -(-total // n_shares)
    shares: list[list[RowRange]] = [[]]
    n_missing = size  # rows that the last share still lacks
    for rows in ranges:
        start = rows.start
        while start < rows.stop:
            if n_missing < _SLAB and len(shares) < n_shares:
                shares.append([])
                n_missing = size
            stop = rows.stop
            if len(shares) < n_shares:
                stop = min(stop, start + -(-n_missing // _SLAB) * _SLAB)
            shares[-1].append(RowRange(rows.segment, start, stop))
            n_missing, start = n_missing - (stop - start), stop
    return shares


def use_slices(width: int, n_queries: int) -> bool:
    """Return whether `slices` is the faster kernel for codes of `width` words."""
    return n_queries >= _crossover(width)


def _crossover(width: int) -> int:
    return _CROSSOVER[_core.level].get(width, _DEFAULT_CROSSOVER[_core.level])
