"""Passes over segments: the way that is quicker is chosen, compiled, and shared by threads."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial, reduce

import numpy as np
from numpy.typing import NDArray

from .._numba import scan
from .._numba.lanes import BLOCK, blocks_at_once
from .._numba.llvm import has
from .._numba.scan import Rows, Sink
from .._numba.slices import SLAB, chunk_entries, chunk_words, n_planes
from ..parallel import n_threads, run_plain
from .segment import Ids, Segment, Words, read_only

_UNROLLED = 8  # words up to which a query is held in registers
FEW = 16  # queries below which the work on slabs does not pay
_STATE = 2**26  # bytes of what is kept for a group of queries, on each thread
_REACTION = 2e9  # nanoseconds of work, about, between two looks at what else happens
_WORTH = 400_000  # nanoseconds of work for which a thread is woken
_GROUP = 4096  # queries of a pass for all within a limit
_HITS = 2**20  # hits that are gathered at a time
_EVERYTHING = np.empty(0, np.uint8)

Distances = NDArray[np.int32]
Place = tuple[int, int]  # a row and a query to go on with
Nearest = tuple[Distances, Ids, Ids]  # distances, ids, and how many of them each query has
log = logging.getLogger("kdiffhash")


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
    get_ready(queries.shape[1], group, k)
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
    n, bits = len(queries), 64 * queries.shape[1]
    best: Nearest | None = None
    for piece in pieces:
        sink = _empty_sink(n, k, bits)
        if best is not None:
            # A later piece may have lower ids, which come first at the same distance.
            full = best[2] == k
            sink.limits[full] = best[0][full, -1] + 1
        _pass(piece, queries, sink, 0, 0)
        distances, rows = np.zeros((n, k), np.int32), np.zeros((n, k), np.int64)
        sizes = np.empty(n, np.int64)
        scan.sort_nearest(sink, distances, rows, sizes)
        new = (distances, piece.segment.ids_of(rows), sizes)
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
    scan.merge_nearest(*a, *b, *out)
    return out


def within_piece(
    piece: Piece, queries: Words, limits: NDArray[np.int64], n_jobs: int | None
) -> Iterator[tuple[Ids, Ids, Distances]]:
    """All kept rows closer than the limit of each query: number of the query, row, distance.

    They come in batches, in no order.
    """
    if not len(queries):
        return
    get_ready(queries.shape[1], min(len(queries), _GROUP), 0)
    parts = [some[0] for some in _split([piece], _workers([piece], len(queries), n_jobs))]
    for start in range(0, len(queries), _GROUP):
        some = slice(start, start + _GROUP)
        places = [(part.first, 0) for part in parts]
        sinks = [_hits_sink(limits[some]) for _ in parts]

        def go_on(i: int, some: slice, places: list[Place], sinks: list[Sink]) -> None:
            places[i] = _pass(parts[i], queries[some], sinks[i], *places[i])

        while left := [i for i, part in enumerate(parts) if places[i][0] < part.last]:
            run_plain([partial(go_on, i, some, places, sinks) for i in left])
            for sink in (sinks[i] for i in left):
                size = int(sink.sizes[0])
                owners, rows = sink.owners[:size] + start, sink.rows[0, :size].copy()
                yield owners, rows, sink.distances[0, :size].copy()
                sink.sizes[0] = 0


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
    n_parts = max(1, min(n_parts, total // (8 * SLAB)))
    size = -(-total // n_parts)
    parts: list[list[Piece]] = [[]]
    room = size
    for piece in pieces:
        first = piece.first
        while first < piece.last:
            if room < SLAB and len(parts) < n_parts:
                parts.append([])
                room = size
            last = piece.last
            if len(parts) < n_parts:
                last = min(last, first + -(-room // SLAB) * SLAB)
            parts[-1].append(Piece(piece.segment, first, last))
            room, first = room - (last - first), last
    return parts


def _empty_sink(n: int, k: int, bits: int) -> Sink:
    capacity = 2 * k + 64
    return Sink(
        k,
        limits=np.full(n, bits + 1, np.int64),
        below=np.zeros(n, np.int64),
        sizes=np.zeros(n, np.int64),
        counts=np.zeros((n, bits + 2), np.int32),
        distances=np.empty((n, capacity), np.int32),
        rows=np.empty((n, capacity), np.int64),
        owners=np.empty(0, np.int64),
    )


def _hits_sink(limits: NDArray[np.int64]) -> Sink:
    return Sink(
        0,
        limits=limits,
        below=np.zeros(1, np.int64),
        sizes=np.zeros(1, np.int64),
        counts=np.zeros((1, 1), np.int32),
        distances=np.empty((1, _HITS + scan.MARGIN), np.int32),
        rows=np.empty((1, _HITS + scan.MARGIN), np.int64),
        owners=np.empty(_HITS + scan.MARGIN, np.int64),
    )


def _pass(piece: Piece, queries: Words, sink: Sink, start: int, start_query: int) -> Place:
    """Go over a piece from a row and a query on, by the quicker way."""
    kept = piece.segment.kept
    width = piece.segment.n_words
    rows = Rows(
        piece.segment.flat,
        _EVERYTHING if kept is None else kept,
        width,
        piece.first,
        piece.last,
    )
    way = _by_slices if use_slices(width, len(queries), sink.k) else _by_lanes
    flat = np.ascontiguousarray(queries).reshape(-1)
    return way(rows, flat, sink, max(start, piece.first), start_query)


def _by_lanes(
    rows: Rows, queries: NDArray[np.uint64], sink: Sink, start: int, start_query: int
) -> Place:
    together = (0,) * blocks_at_once(rows.n_words)
    unrolled = (0,) * (rows.n_words if rows.n_words <= _UNROLLED else 0)
    place: Place = scan.by_lanes(rows, queries, sink, start, start_query, together, unrolled)
    return place


def _by_slices(
    rows: Rows, queries: NDArray[np.uint64], sink: Sink, start: int, start_query: int
) -> Place:
    words = chunk_words(rows.n_words)
    entries, planes = (0,) * chunk_entries(words), (0,) * n_planes(rows.n_words)
    place: Place = scan.by_slices(rows, queries, sink, start, start_query, words, entries, planes)
    return place


# -- which way, and compiling it ----------------------------------------------------------------


def use_slices(width: int, n_queries: int, k: int) -> bool:
    """Whether many queries are quicker by slices; with `k` 0 all within a limit are wanted."""
    if n_queries < FEW:
        return False
    # Without an instruction that counts ones, slices always win. They also may stop early, which
    # random codes do not show.
    if not has("avx512vpopcntdq") or (width >= 4 and 0 < k <= 2):
        return True
    return _slices_win(width)


@cache
def _slices_win(width: int) -> bool:
    """Time both ways once on random codes, in a few milliseconds."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 2**64, (64 * SLAB // BLOCK, width, BLOCK), np.uint64)
    queries = rng.integers(0, 2**64, 64 * width, np.uint64)
    rows = Rows(read_only(blocks.reshape(-1)), _EVERYTHING, width, 0, 64 * SLAB)
    seconds = {}
    for way in (_by_lanes, _by_slices):
        _compile(way, width)
        times = []
        for _ in range(3):
            sink = _empty_sink(64, 10, 64 * width)
            start = time.perf_counter()
            way(rows, queries, sink, 0, 0)
            times.append(time.perf_counter() - start)
        seconds[way] = min(times)
    return seconds[_by_slices] < seconds[_by_lanes]


def get_ready(width: int, n_queries: int, k: int) -> None:
    """Compile what a search needs, or load it from the cache, and say so if it takes long."""
    _compile(_by_slices if use_slices(width, n_queries, k) else _by_lanes, width)


_compiling = threading.Lock()
_compiled: set[tuple[str, int]] = set()


def _compile(way: Callable[..., Place], width: int) -> None:
    def work() -> None:
        rows = Rows(read_only(np.zeros(BLOCK * width, np.uint64)), _EVERYTHING, width, 0, 1)
        way(rows, np.zeros(width, np.uint64), _empty_sink(1, 1, 64 * width), 0, 0)

    compile_once(f"search{way.__name__.replace('_', ' ')}", width, work)


def compile_once(what: str, width: int, work: Callable[[], object]) -> None:
    """Do some work, which compiles what it calls, unless it has been done for this width.

    If that takes more than a moment, it is said on a terminal, and in the log.
    """
    if (what, width) in _compiled:
        return
    message = f"compiling {what} for codes of {64 * width} bits, once"

    def say() -> None:
        log.info(message)
        if sys.stderr.isatty():
            print(f"kdiffhash: {message} ...", file=sys.stderr)

    with _compiling:
        timer = threading.Timer(0.5, say)
        timer.daemon = True
        timer.start()
        try:
            work()
            _compiled.add((what, width))
        finally:
            timer.cancel()
