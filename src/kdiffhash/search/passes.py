"""Passes over segments, by lanes for few queries and by slices for many, shared by threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..parallel import n_threads, run_plain
from .segment import Ids, Segment, Words

_SLAB = 512  # rows that slices count together, at most
FEW = 16  # queries below which the work on slabs does not pay
_STATE = 2**26  # bytes of what is kept for a group of queries, on each thread
_REACTION = 2e9  # nanoseconds of work, about, between two looks at what else happens
_WORTH = 400_000  # nanoseconds of work for which a thread is woken
_GROUP = 4096  # queries of a pass for all within a limit
_HITS = 2**20  # hits that are gathered at a time
# Queries from which slices are faster than lanes, by the words of a code (benchmarks/search.py).
_FEWEST_FOR_SLICES = {
    "base": {1: 2},
    "avx2": {1: 5},
    "avx512": {1: 10, 2: 18, 3: 8, 4: 40, 6: 8, 8: 48},
}
_ELSE = {"base": 2, "avx2": 6, "avx512": 10}

Distances = NDArray[np.int32]
Place = tuple[int, int]  # a row and a query to go on with
Nearest = tuple[Distances, Ids, Ids]  # distances, ids, and how many of them each query has


@dataclass(frozen=True)
class Piece:
    """Some rows of a segment, from the first row of a block on."""

    segment: Segment
    first: int
    last: int


def nearest(
    segments: list[Segment], queries: Words, k: int, n_jobs: int | None
) -> tuple[Distances, Ids]:
    """The k nearest kept rows of each query, as distances and ids, by distance, then id.

    There must be at least k kept rows.
    """
    n, bits = len(queries), 64 * queries.shape[1]
    distances, ids = np.empty((n, k), np.int32), np.empty((n, k), np.int64)
    if not n or not k:
        return distances, ids
    state = 12 * (3 * k + 64) + 5 * bits  # bytes that are kept for a query
    n_rows = sum(segment.n_rows for segment in segments)
    soon = int(_REACTION / (0.1 * n_rows * queries.shape[1]))  # queries, so that Ctrl-C is heard
    group = max(1, min(n, _STATE // state, max(soon, 256)))
    pieces = [Piece(segment, 0, segment.n_rows) for segment in segments]
    workers = _workers(pieces, n, n_jobs)
    parts = _split(pieces, workers)
    if len(parts) < workers:  # few rows: threads share the queries instead
        parts, group = [pieces], min(group, max(FEW, -(-n // workers)))

    results: dict[Place, Nearest] = {}

    def search(start: int, number: int) -> None:
        results[start, number] = _nearest_of(parts[number], queries[start : start + group], k)

    def collect(starts: range) -> None:
        tasks = [partial(search, start, i) for start in starts for i in range(len(parts))]
        run_plain(tasks)
        for start in starts:
            best = results.pop((start, 0))
            for i in range(1, len(parts)):
                best = _merge(best, results.pop((start, i)))
            distances[start : start + group], ids[start : start + group] = best[:2]

    at_once = group if len(parts) > 1 else group * workers
    for start in range(0, n, at_once):
        collect(range(start, min(start + at_once, n), group))
    return distances, ids


def _nearest_of(pieces: list[Piece], queries: Words, k: int) -> Nearest:
    """The nearest rows in some pieces, and how many each query has, up to k."""
    n, width = queries.shape
    slices = use_slices(width, n)
    best: Nearest | None = None
    for piece in pieces:
        limits = np.full(n, 64 * width + 1, np.int64)
        if best is not None:
            # A later piece may have lower ids, which come first at the same distance.
            full = best[2] == k
            limits[full] = best[0][full, -1] + 1
        distances, rows = np.zeros((n, k), np.int32), np.zeros((n, k), np.int64)
        sizes = np.empty(n, np.int64)
        segment = piece.segment
        codes = (segment.flat, segment.n_rows, segment.kept, piece.first, piece.last)
        _core.nearest(*codes, queries, slices, limits, distances, rows, sizes)
        new = (distances, segment.ids_of(rows), sizes)
        best = new if best is None else _merge(best, new)
    if best is None:
        raise ValueError("there is nothing to search")
    return best


def merge_found(found: list[tuple[Distances, Ids]], k: int) -> tuple[Distances, Ids]:
    """The k nearest of what several searches for the same queries found in different codes."""
    m = min(k, sum(distances.shape[1] for distances, _ in found))

    def padded(distances: Distances, ids: Ids) -> Nearest:
        n, there = distances.shape
        width = ((0, 0), (0, m - there))
        return np.pad(distances, width), np.pad(ids, width), np.full(n, there, np.int64)

    return reduce(_merge, [padded(*one) for one in found])[:2]


def _merge(a: Nearest, b: Nearest) -> Nearest:
    """Two sorted lists for each query as one of the same length."""
    out = (np.empty_like(a[0]), np.empty_like(a[1]), np.empty_like(a[2]))
    _core.merge_nearest(*a, *b, *out)
    return out


def within_piece(
    piece: Piece, queries: Words, limits: NDArray[np.int64], n_jobs: int | None
) -> Iterator[tuple[Ids, Ids, Distances]]:
    """All kept rows closer than the limit of each query: number of the query, row, distance.

    They come in batches, in no order.
    """
    if not len(queries):
        return
    parts = [some[0] for some in _split([piece], _workers([piece], len(queries), n_jobs))]
    for start in range(0, len(queries), _GROUP):
        some = slice(start, start + _GROUP)
        passes = [_RangePass(part, queries[some], limits[some]) for part in parts]
        while left := [one for one in passes if one.row < one.piece.last]:
            run_plain([one.go_on for one in left])
            for one in left:
                yield one.numbers[: one.size] + start, *one.rows_and_distances()


class _RangePass:
    """A range search over a piece that stops when its room is full, and can go on."""

    def __init__(self, piece: Piece, queries: Words, limits: NDArray[np.int64]) -> None:
        self.piece, self.queries, self.limits = piece, queries, limits
        self.row, self.query, self.size = piece.first, 0, 0
        room = _HITS + _core.margin
        self.numbers, self.rows = np.empty(room, np.int64), np.empty(room, np.int64)
        self.distances = np.empty(room, np.int32)

    def go_on(self) -> None:
        """Find rows until the room is full, or all."""
        segment, slices = self.piece.segment, use_slices(*self.queries.shape[::-1])
        codes = (segment.flat, segment.n_rows, segment.kept, self.piece.last)
        place, found = (self.row, self.query), (self.numbers, self.rows)
        self.row, self.query, self.size = _core.within(
            *codes, self.queries, slices, self.limits, *place, *found, self.distances
        )

    def rows_and_distances(self) -> tuple[Ids, Distances]:
        """Copies of what was found."""
        return self.rows[: self.size].copy(), self.distances[: self.size].copy()


def _workers(pieces: list[Piece], n_queries: int, n_jobs: int | None) -> int:
    n_words = sum((piece.last - piece.first) * piece.segment.n_words for piece in pieces)
    return threads_that_pay(n_words, n_queries, n_jobs)


def threads_that_pay(n_words: int, n_queries: int, n_jobs: int | None) -> int:
    """Threads for comparing words of codes with queries: waking one takes as long as some work."""
    work = n_words * n_queries * (0.1 if n_queries >= FEW else 0.4)  # nanoseconds, about
    return max(1, min(n_threads(n_jobs), int(work / _WORTH)))


def _split(pieces: list[Piece], n_parts: int) -> list[list[Piece]]:
    """The rows in parts of about the same size; fewer parts if there are few rows."""
    total = sum(piece.last - piece.first for piece in pieces)
    n_parts = max(1, min(n_parts, total // (8 * _SLAB)))
    size = -(-total // n_parts)
    parts: list[list[Piece]] = [[]]
    room = size
    for piece in pieces:
        first = piece.first
        while first < piece.last:
            if room < _SLAB and len(parts) < n_parts:
                parts.append([])
                room = size
            last = piece.last
            if len(parts) < n_parts:
                last = min(last, first + -(-room // _SLAB) * _SLAB)
            parts[-1].append(Piece(piece.segment, first, last))
            room, first = room - (last - first), last
    return parts


def use_slices(width: int, n_queries: int) -> bool:
    """Whether so many queries are faster by slices than by lanes."""
    return n_queries >= _FEWEST_FOR_SLICES[_core.level].get(width, _ELSE[_core.level])
