"""Range search: by a linear scan, or by lookup tables where they are faster.

The tables are multi-index hashing. A code is split into s substrings. If two codes differ in at
most ``r = s * a + b`` bits (``b < s``), then one of the first b + 1 substrings differs in at most
a bits, or one of the others in at most a - 1. So each substring of a query is looked up with that
many bits flipped, and the candidates found are compared in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._util.threads import n_threads, run
from ..codes import n_bytes
from .scan import RowRange, scan_radius, use_slices
from .segment import BLOCK, Ids, LookupTables, Segment, Words, n_words

_WIDTHS = range(8, 25)  # bits of a substring
_MIN_ROWS = 2**13  # below this a scan is always fast enough
_MEMORY = 2**30  # bytes that all tables of an index may take
_SAMPLE = 4096  # rows from which bucket sizes are estimated
# Estimated nanoseconds (benchmarks/range_search.py): to look up a bucket, to compare a candidate,
# to insert a row into a table, and to scan a word of a code by either kernel.
_BUCKET, _CANDIDATE, _INSERT, _SLICES, _LANES = 50.0, 60.0, 80.0, 0.12, 0.45
_HITS = 2**18  # results buffered at a time
_QUERIES = 4096  # queries per task

Found = tuple[Ids, Ids, NDArray[np.int32]]


class Flips(NamedTuple):
    """Bit masks to flip per substring: ``masks[firsts[s] : firsts[s] + counts[s]]``."""

    masks: NDArray[np.uint32]
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]  # 0 where a substring need not be looked up
    radii: NDArray[np.int64]  # most bits flipped in each substring


def search_radius(
    segments: list[Segment],
    queries: Words,
    radius: int,
    n_bits: int,
    n_jobs: int | None,
    all_segments: list[Segment] | None = None,
) -> Iterator[Found]:
    """Yield query index, id and distance of all rows within a radius, unordered.

    The tables of `all_segments`, the segments of an index, share the memory for tables.
    """
    for segment in segments:
        rows = RowRange(segment, 0, segment.n_rows)
        after = np.full(len(queries), -1, np.int64)
        memory = _memory_left(all_segments or segments)
        for query_index, found, distances in _search(
            rows, queries, after, radius, n_bits, memory, n_jobs
        ):
            yield query_index, segment.ids_of(found), distances


def concatenate(found: Iterator[Found]) -> Found:
    """Return the results of a generator as three arrays."""
    batches = [*found, (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))]
    first, second, distances = zip(*batches)
    return np.concatenate(first), np.concatenate(second), np.concatenate(distances)


def duplicates(
    segments: list[Segment], radius: int, n_bits: int, n_jobs: int | None
) -> Iterator[Found]:
    """Yield both ids and the distance of all pairs of rows within a radius, unordered."""
    for number, segment in enumerate(segments):
        prepare_tables(segments, number, radius, n_bits, n_jobs)
        for start in range(0, segment.n_rows, 16 * _QUERIES):
            rows = segment.kept_rows(start, min(start + 16 * _QUERIES, segment.n_rows))
            for first, second, distances in later_neighbours(
                segments, number, rows, radius, n_bits, n_jobs
            ):
                yield segment.ids_of(first), segment.ids_of(second), distances
            words, ids = segment.words_of(rows), segment.ids_of(rows)
            for query_index, others, distances in search_radius(
                segments[number + 1 :], words, radius, n_bits, n_jobs, segments
            ):
                yield ids[query_index], others, distances


def prepare_tables(
    segments: list[Segment], number: int, radius: int, n_bits: int, n_jobs: int | None
) -> None:
    """Build the tables of a segment if they are faster when each of its rows is a query."""
    segment, memory = segments[number], _memory_left(segments)
    if n_substrings := choose_substrings(segment, radius, n_bits, segment.n_rows, memory):
        _build_tables(segment, n_substrings, n_bits, n_jobs)


def later_neighbours(
    segments: list[Segment], number: int, rows: Ids, radius: int, n_bits: int, n_jobs: int | None
) -> Iterator[Found]:
    """Yield row, later row and distance of pairs within a radius in one segment, unordered.

    The first row of each pair is one of `rows`, which must be ascending.
    """
    if not len(rows):
        return
    segment = segments[number]
    rest = RowRange(segment, int(rows[0]) // BLOCK * BLOCK, segment.n_rows)
    words, memory = segment.words_of(rows), _memory_left(segments)
    for query_index, others, distances in _search(
        rest, words, rows, radius, n_bits, memory, n_jobs
    ):
        yield rows[query_index], others, distances


def _memory_left(segments: list[Segment]) -> int:
    """Return the bytes that further tables may take."""
    built = [tables for segment in segments for tables in segment.tables.values()]
    return _MEMORY - sum(tables.starts.nbytes + tables.rows.nbytes for tables in built)


def _search(
    rows: RowRange,
    queries: Words,
    after: Ids,
    radius: int,
    n_bits: int,
    memory: int,
    n_jobs: int | None,
) -> Iterator[Found]:
    """Yield query index, row and distance; query i only gets rows after ``after[i]``."""
    segment = rows.segment
    if n_substrings := choose_substrings(segment, radius, n_bits, len(queries), memory):
        tables = _build_tables(segment, n_substrings, n_bits, n_jobs)
        yield from _look_up(segment, tables, queries, after, radius, n_jobs)
        return
    for query_index, found, distances in scan_radius(rows, queries, radius, n_jobs):
        later = found > after[query_index]
        yield query_index[later], found[later], distances[later]


def choose_substrings(
    segment: Segment, radius: int, n_bits: int, n_queries: int, memory: int = _MEMORY
) -> int:
    """Return into how many substrings to split codes, or 0 where a scan is faster.

    Tables that are not built yet may take up to `memory` bytes.
    """
    n = segment.n_rows
    best = cheapest_substrings(n, n_bits, radius, n_queries, frozenset(segment.tables), memory)
    if best:  # buckets of real codes differ in size: estimate them from a sample
        widths = _widths(n_bits, best)
        if best not in segment.collision_rates:
            segment.collision_rates[best] = _sample_collision_rates(segment, widths)
        cost = _lookup_cost(widths, radius, segment.collision_rates[best], n) * n_queries
        cost += 0 if best in segment.tables else _INSERT * n * best
        if cost > _scan_cost(n, n_bits, radius, n_queries):
            return 0
    return best


def cheapest_substrings(
    n: int,
    n_bits: int,
    radius: int,
    n_queries: int,
    built: frozenset[int] = frozenset(),
    memory: int = _MEMORY,
) -> int:
    """Return the same as `choose_substrings`, assuming buckets of equal size.

    Tables for the numbers of substrings in `built` cost nothing to build.
    """
    if n < _MIN_ROWS or n >= 2**32 or not n_queries:
        return 0
    best_cost, best = _scan_cost(n, n_bits, radius, n_queries), 0
    for n_substrings in sorted({max(1, 8 * n_bytes(n_bits) // width) for width in _WIDTHS}):
        widths = _widths(n_bits, n_substrings)
        size = n_substrings * 4 * (n + 2 ** max(widths))
        if max(widths) not in _WIDTHS or (size > memory and n_substrings not in built):
            continue
        cost = _lookup_cost(widths, radius, [2.0**-width for width in widths], n) * n_queries
        cost += 0 if n_substrings in built else _INSERT * n * n_substrings
        if cost < best_cost:
            best_cost, best = cost, n_substrings
    return best


def _scan_cost(n: int, n_bits: int, radius: int, n_queries: int) -> float:
    """Return the nanoseconds of a scan; `slices` skips slabs in which all codes are too far."""
    width = n_words(n_bits)
    if not use_slices(width, n_queries):
        return _LANES * n * width * n_queries
    return _SLICES * n * min(width, max(2, radius // 16)) * n_queries


def _lookup_cost(widths: list[int], radius: int, collision_rates: list[float], n: int) -> float:
    """Return the nanoseconds of a query, given the share of all rows in an average bucket."""
    cost = 0.0
    for width, flipped, rate in zip(widths, _radii(len(widths), radius), collision_rates):
        n_buckets = sum(comb(width, i) for i in range(flipped + 1))
        cost += n_buckets * (_BUCKET + _CANDIDATE * rate * n)
    return cost


def _sample_collision_rates(segment: Segment, widths: list[int]) -> list[float]:
    """Estimate, per substring, the probability that two rows agree in it."""
    rows = np.linspace(0, segment.n_rows - 1, min(_SAMPLE, segment.n_rows)).astype(np.int64)
    rates, begin, flat = [], 0, segment.flat
    for width in widths:
        values = np.empty(len(rows), np.int64)
        _core.substring_values(flat, segment.n_words, segment.n_rows, rows, begin, width, values)
        counts = np.unique(values, return_counts=True)[1].astype(float)
        same = (counts * (counts - 1)).sum() / (len(rows) * (len(rows) - 1))
        rates.append(max(same, 2.0**-width))
        begin += width
    return rates


def _build_tables(
    segment: Segment, n_substrings: int, n_bits: int, n_jobs: int | None
) -> LookupTables:
    """Return the tables of a segment, which caches them."""
    if n_substrings in segment.tables:
        return segment.tables[n_substrings]
    widths = np.array(_widths(n_bits, n_substrings), np.int64)
    firsts = np.concatenate([[0], np.cumsum(2**widths + 1)]).astype(np.int64)
    tables = LookupTables(
        begins=np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(np.int64),
        widths=widths,
        firsts=firsts[:-1],
        starts=np.empty(firsts[-1], np.uint32),
        rows=np.empty((n_substrings, segment.n_rows), np.uint32),
    )
    flat = segment.flat

    def fill(s: int) -> None:
        starts = tables.starts[firsts[s] : firsts[s + 1]]
        begin, width = int(tables.begins[s]), int(widths[s])
        _core.build_table(flat, segment.n_words, begin, width, starts, tables.rows[s])

    run([partial(fill, s) for s in range(n_substrings)], n_jobs, blas=False)
    segment.tables[n_substrings] = tables
    return tables


def _look_up(
    segment: Segment,
    tables: LookupTables,
    queries: Words,
    after: Ids,
    radius: int,
    n_jobs: int | None,
) -> Iterator[Found]:
    """Yield query index, row and distance; no more than `_HITS` per thread are held at a time."""
    flips = _flips([int(width) for width in tables.widths], radius)

    def resume(queue: list[slice], results: list[Found]) -> None:
        """Look up queries of the first slice until all are done or the buffer is full."""
        chunk = queue[0]
        words, later = np.ascontiguousarray(queries[chunk]), after[chunk]
        capacity, done = _HITS, 0
        while not done:
            query_index, rows = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
            distances = np.empty(capacity, np.int32)
            done, size = _core.look_up(
                *(segment.flat, segment.kept, *tables, *flips, radius),
                *(words, later, 0, query_index, rows, distances),
            )
            capacity *= 2  # if a single query has more results than the buffer holds
        hits = (query_index[:size] + chunk.start, rows[:size].copy(), distances[:size].copy())
        results.append(hits)
        queue[0] = slice(chunk.start + done, chunk.stop)

    step = _QUERIES * n_threads(n_jobs)
    for begin in range(0, len(queries), step):
        end = min(begin + step, len(queries))
        size = max(1, -(-(end - begin) // n_threads(n_jobs)))
        queues = [[slice(i, min(i + size, end))] for i in range(begin, end, size)]
        while queues := [queue for queue in queues if queue[0].start < queue[0].stop]:
            results: list[Found] = []
            run([partial(resume, queue, results) for queue in queues], n_jobs, blas=False)
            yield from results


def _widths(n_bits: int, n_substrings: int) -> list[int]:
    """Return the bits of each substring, as even as possible; spare bits of the code count."""
    n_bits = 8 * n_bytes(n_bits)
    return [n_bits // n_substrings + (i < n_bits % n_substrings) for i in range(n_substrings)]


def _radii(n_substrings: int, radius: int) -> list[int]:
    """Return the bits to flip in each substring; -1 where it need not be looked up."""
    most, rest = divmod(radius, n_substrings)
    return [most if i <= rest else most - 1 for i in range(n_substrings)]


def _flips(widths: list[int], radius: int) -> Flips:
    radii = _radii(len(widths), radius)
    masks = [_masks(width, most) for width, most in zip(widths, radii)]
    counts = np.array([len(values) for values in masks], np.int64)
    firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return Flips(np.concatenate(masks), firsts, counts, np.array(radii, np.int64))


@cache
def _masks(width: int, most: int) -> NDArray[np.uint32]:
    """Return all values of `width` bits with at most `most` ones."""
    positions = range(width)
    ones = [chosen for n in range(most + 1) for chosen in combinations(positions, n)]
    return np.array([sum(1 << position for position in chosen) for chosen in ones], np.uint32)
