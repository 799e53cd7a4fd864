"""All codes within a distance: by a pass over all, or by tables where that is quicker.

Tables are multi-index hashing. A code of n bits is cut into s parts. If two codes differ in at most
``r = s * a + b`` bits (``b < s``), then one of the first b + 1 parts differs in at most a, or one
of the others in at most a - 1. So a query looks up each part with that many bits flipped, and the
rows it meets are compared in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._core import list_rows, look_up, part_values
from ..codes import n_bytes
from ..parallel import n_threads, run
from .passes import FEW, Piece, within_piece
from .segment import Ids, Segment, Tables, Words, n_words

_WIDTHS = range(8, 25)  # bits of a part
_FEWEST = 2**13  # rows below which a pass is always quick enough
_MEMORY = 2**30  # bytes that the tables of an index may take
_SAMPLE = 4096  # rows from which the sizes of buckets are estimated
# Nanoseconds (benchmarks/radius.py): to look up a bucket, to compare a row of it, to list a row in
# a table, and to pass over a word of a code, in a batch of queries or for few.
_BUCKET, _ROW, _LISTED, _WORD, _WORD_ALONE = 50.0, 60.0, 80.0, 0.12, 0.45
_HITS = 2**18  # rows found that are gathered at a time
_QUERIES = 4096  # queries of a task

Found = tuple[Ids, Ids, NDArray[np.int32]]


class Flips(NamedTuple):
    """Bits to flip in each part: ``flips[firsts[p] : firsts[p] + counts[p]]``, `most` ones each."""

    flips: NDArray[np.uint32]
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]  # 0 where a part need not be looked up
    most: NDArray[np.int64]


def within(
    segments: list[Segment],
    queries: Words,
    radius: int,
    n_bits: int,
    n_jobs: int | None,
    all_segments: list[Segment] | None = None,
) -> Iterator[Found]:
    """Number of the query, id and distance of all rows within a radius, in no order.

    The lookup tables of `all_segments`, those of an index, share the memory that tables may take.
    """
    for segment in segments:
        whole = Piece(segment, 0, segment.n_rows)
        after = np.full(len(queries), -1, np.int64)
        room = _room(all_segments or segments)
        for owners, rows, distances in _within(whole, queries, after, radius, n_bits, room, n_jobs):
            yield owners, segment.ids_of(rows), distances


def concatenate(found: Iterator[Found]) -> Found:
    """What was found in batches, as three arrays."""
    batches = [*found, (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))]
    first, second, distances = zip(*batches)
    return np.concatenate(first), np.concatenate(second), np.concatenate(distances)


def pairs_within(
    segments: list[Segment], radius: int, n_bits: int, n_jobs: int | None
) -> Iterator[Found]:
    """Two ids and the distance of all pairs of rows within a radius, in no order."""
    for number, segment in enumerate(segments):
        if n_parts := choose_parts(segment, radius, n_bits, segment.n_rows, _room(segments)):
            _make_tables(segment, n_parts, n_bits, n_jobs)
        for start in range(0, segment.n_rows, 16 * _QUERIES):
            rows = segment.kept_rows(start, min(start + 16 * _QUERIES, segment.n_rows))
            words, ids = segment.words_of(rows), segment.ids_of(rows)
            rest = Piece(segment, start, segment.n_rows)
            room = _room(segments)
            for owners, others, distances in _within(
                rest, words, rows, radius, n_bits, room, n_jobs
            ):
                yield ids[owners], segment.ids_of(others), distances
            for owners, others, distances in within(
                segments[number + 1 :], words, radius, n_bits, n_jobs, segments
            ):
                yield ids[owners], others, distances


def _room(segments: list[Segment]) -> int:
    """Bytes that are left for tables."""
    made = [tables for segment in segments for tables in segment.tables.values()]
    return _MEMORY - sum(tables.starts.nbytes + tables.rows.nbytes for tables in made)


def _within(
    piece: Piece,
    queries: Words,
    after: Ids,
    radius: int,
    n_bits: int,
    room: int,
    n_jobs: int | None,
) -> Iterator[Found]:
    """Number of the query, row and distance of rows after `after`."""
    segment = piece.segment
    if n_parts := choose_parts(segment, radius, n_bits, len(queries), room):
        tables = _make_tables(segment, n_parts, n_bits, n_jobs)
        yield from _look_up(segment, tables, queries, after, radius, n_jobs)
        return
    limits = np.full(len(queries), radius + 1, np.int64)
    for owners, rows, distances in within_piece(piece, queries, limits, n_jobs):
        later = rows > after[owners]
        yield owners[later], rows[later], distances[later]


def choose_parts(
    segment: Segment, radius: int, n_bits: int, n_queries: int, room: int = _MEMORY
) -> int:
    """Number of parts with which tables are quicker than a pass, or 0; they take up to `room`."""
    n = segment.n_rows
    best = cheapest_parts(n, n_bits, radius, n_queries, frozenset(segment.tables), room)
    if best:  # buckets of real codes are not even
        widths = _widths(n_bits, best)
        if best not in segment.shares:
            segment.shares[best] = _sampled_shares(segment, widths)
        cost = _cost(widths, radius, segment.shares[best], n) * n_queries
        cost += 0 if best in segment.tables else _LISTED * n * best
        if cost > _pass_cost(n, n_bits, radius, n_queries):
            return 0
    return best


def cheapest_parts(
    n: int,
    n_bits: int,
    radius: int,
    n_queries: int,
    made: frozenset[int] = frozenset(),
    room: int = _MEMORY,
) -> int:
    """The same for even buckets; tables with the numbers of parts in `made` are there already."""
    if n < _FEWEST or n >= 2**32 or not n_queries:
        return 0
    best, best_parts = _pass_cost(n, n_bits, radius, n_queries), 0
    for n_parts in sorted({max(1, 8 * n_bytes(n_bits) // width) for width in _WIDTHS}):
        widths = _widths(n_bits, n_parts)
        size = n_parts * 4 * (n + 2 ** max(widths))
        if max(widths) not in _WIDTHS or (size > room and n_parts not in made):
            continue
        cost = _cost(widths, radius, [2.0**-width for width in widths], n) * n_queries
        cost += 0 if n_parts in made else _LISTED * n * n_parts
        if cost < best:
            best, best_parts = cost, n_parts
    return best_parts


def _pass_cost(n: int, n_bits: int, radius: int, n_queries: int) -> float:
    """Nanoseconds of a pass for some queries; batches stop where all codes are too far."""
    if n_queries < FEW:
        return _WORD_ALONE * n * n_words(n_bits) * n_queries
    return _WORD * n * min(n_words(n_bits), max(2, radius // 16)) * n_queries


def _cost(widths: list[int], radius: int, shares: list[float], n: int) -> float:
    """Nanoseconds for one query; `shares` of the rows lie in a bucket of each part."""
    cost = 0.0
    for width, flipped, share in zip(widths, _radii(len(widths), radius), shares):
        n_buckets = sum(comb(width, i) for i in range(flipped + 1))
        cost += n_buckets * (_BUCKET + _ROW * share * n)
    return cost


def _sampled_shares(segment: Segment, widths: list[int]) -> list[float]:
    """Share of rows that have the same part as a row, on average over rows."""
    rows = np.linspace(0, segment.n_rows - 1, min(_SAMPLE, segment.n_rows)).astype(np.int64)
    shares, begin, flat = [], 0, segment.flat
    for width in widths:
        values = np.empty(len(rows), np.int64)
        part_values(flat, segment.n_words, segment.n_rows, rows, begin, width, values)
        counts = np.unique(values, return_counts=True)[1].astype(float)
        same = (counts * (counts - 1)).sum() / (len(rows) * (len(rows) - 1))
        shares.append(max(same, 2.0**-width))
        begin += width
    return shares


def _make_tables(segment: Segment, n_parts: int, n_bits: int, n_jobs: int | None) -> Tables:
    """The tables of a segment, which keeps them."""
    if n_parts in segment.tables:
        return segment.tables[n_parts]
    widths = np.array(_widths(n_bits, n_parts), np.int64)
    firsts = np.concatenate([[0], np.cumsum(2**widths + 1)]).astype(np.int64)
    tables = Tables(
        begins=np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(np.int64),
        widths=widths,
        firsts=firsts[:-1],
        starts=np.empty(firsts[-1], np.uint32),
        rows=np.empty((n_parts, segment.n_rows), np.uint32),
    )
    flat = segment.flat

    def fill(p: int) -> None:
        starts = tables.starts[firsts[p] : firsts[p + 1]]
        begin, width = int(tables.begins[p]), int(widths[p])
        list_rows(flat, segment.n_words, begin, width, starts, tables.rows[p])

    run([partial(fill, p) for p in range(n_parts)], n_jobs, blas=False)
    segment.tables[n_parts] = tables
    return tables


def _look_up(
    segment: Segment,
    tables: Tables,
    queries: Words,
    after: Ids,
    radius: int,
    n_jobs: int | None,
) -> Iterator[Found]:
    flips = _flips([int(width) for width in tables.widths], radius)

    def search(some: slice, results: list[Found]) -> None:
        words = np.ascontiguousarray(queries[some])
        room, first = _HITS, 0
        while first < some.stop - some.start:
            owners, rows = np.empty(room, np.int64), np.empty(room, np.int64)
            distances = np.empty(room, np.int32)
            start = first
            first, size = look_up(
                *(segment.flat, segment.kept, *tables, *flips, radius),
                *(words, after[some], first, owners, rows, distances),
            )
            if first == start:
                room *= 2  # one query has more rows than there is room for
                continue
            hits = (owners[:size] + some.start, rows[:size].copy(), distances[:size].copy())
            results.append(hits)

    at_once = _QUERIES * n_threads(n_jobs)
    for begin in range(0, len(queries), at_once):
        results: list[Found] = []
        end = min(begin + at_once, len(queries))
        size = max(1, -(-(end - begin) // n_threads(n_jobs)))
        tasks = [slice(i, min(i + size, end)) for i in range(begin, end, size)]
        run([partial(search, some, results) for some in tasks], n_jobs, blas=False)
        yield from results


def _widths(n_bits: int, n_parts: int) -> list[int]:
    """Bits of each part, as even as can be; spare bits of the last byte count, too."""
    n_bits = 8 * n_bytes(n_bits)
    return [n_bits // n_parts + (i < n_bits % n_parts) for i in range(n_parts)]


def _radii(n_parts: int, radius: int) -> list[int]:
    """Bits that may be flipped in each part; -1 where a part need not be looked up."""
    most, rest = divmod(radius, n_parts)
    return [most if i <= rest else most - 1 for i in range(n_parts)]


def _flips(widths: list[int], radius: int) -> Flips:
    """What to flip in each part."""
    radii = _radii(len(widths), radius)
    cases = [_values(width, most) for width, most in zip(widths, radii)]
    counts = np.array([len(values) for values in cases], np.int64)
    firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return Flips(np.concatenate(cases), firsts, counts, np.array(radii, np.int64))


@cache
def _values(width: int, most: int) -> NDArray[np.uint32]:
    """All values of `width` bits with at most so many ones."""
    places = range(width)
    ones = [chosen for n in range(most + 1) for chosen in combinations(places, n)]
    return np.array([sum(1 << place for place in chosen) for chosen in ones], np.uint32)
