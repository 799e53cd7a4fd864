"""Multi-index hashing: rows listed by the bits in parts of their codes.

Two codes that differ in few bits differ in very few, or none, in at least one part. A part is a run
of up to 24 bits, and a table lists the rows for each value that it can have.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .lanes import BLOCK
from .llvm import popcount


class Tables(NamedTuple):
    """Rows by parts of their codes.

    Part p has bits ``begins[p]`` to ``begins[p] + widths[p]``, counted through the words from their
    lowest bits. Rows whose part has value v are ``rows[p, starts[i] : starts[i + 1]]``, where i is
    ``firsts[p] + v``.
    """

    begins: NDArray[np.int64]
    widths: NDArray[np.int64]
    firsts: NDArray[np.int64]
    starts: NDArray[np.uint32]
    rows: NDArray[np.uint32]


class Flips(NamedTuple):
    """Bits to flip in each part: ``flips[firsts[p] : firsts[p] + counts[p]]``, `most` ones each."""

    flips: NDArray[np.uint32]
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]  # 0 where a part need not be looked up
    most: NDArray[np.int64]


@njit(cache=True, nogil=True, boundscheck=False, inline="always")
def _part(low: np.uint64, high: np.uint64, begin: int, width: int) -> np.int64:
    """`width` bits from place ``begin % 64`` on, of a word and the one after it."""
    shift = np.uint64(begin % 64)
    value = low >> shift
    if begin % 64 + width > 64:
        value |= high << (np.uint64(64) - shift)
    return np.int64(value & ((np.uint64(1) << np.uint64(width)) - np.uint64(1)))


@njit(cache=True, nogil=True, boundscheck=False)
def _part_of_row(blocks: NDArray[np.uint64], row: int, n_words: int, begin: int, width: int) -> Any:
    place = row // BLOCK * n_words * BLOCK + row % BLOCK + begin // 64 * BLOCK
    more = begin // 64 + 1 < n_words
    return _part(blocks[place], blocks[place + BLOCK] if more else np.uint64(0), begin, width)


@njit(cache=True, nogil=True, boundscheck=False)
def parts_of_rows(
    blocks: NDArray[np.uint64], rows: NDArray[np.int64], n_words: int, begin: int, width: int
) -> NDArray[np.int64]:
    """The value of one part in some rows."""
    out = np.empty(len(rows), np.int64)
    for i in range(len(rows)):
        out[i] = _part_of_row(blocks, rows[i], n_words, begin, width)
    return out


@njit(cache=True, nogil=True, boundscheck=False)
def list_rows(
    blocks: NDArray[np.uint64],
    n_words: int,
    begin: int,
    width: int,
    starts: NDArray[np.uint32],
    rows: NDArray[np.uint32],
) -> None:
    """Fill one table: rows by the value of a part, in order; `starts` has 2**width + 1 entries."""
    n = len(rows)
    values = np.empty(n, np.uint32)
    starts[:] = 0
    for row in range(n):
        value = _part_of_row(blocks, row, n_words, begin, width)
        values[row] = value
        starts[value + 1] += np.uint32(1)
    for value in range(1, len(starts)):
        starts[value] += starts[value - 1]
    places = starts.copy()
    for row in range(n):
        value = values[row]
        rows[places[value]] = row
        places[value] += np.uint32(1)


@njit(cache=True, nogil=True, boundscheck=False)
def look_up(
    blocks: NDArray[np.uint64],
    kept: NDArray[np.uint8],
    n_words: int,
    tables: Tables,
    radius: int,
    flips: Flips,
    queries: NDArray[np.uint64],
    after: NDArray[np.int64],
    first: int,
    owners: NDArray[np.int64],
    rows: NDArray[np.int64],
    distances: NDArray[np.int32],
) -> tuple[int, int]:
    """Find the rows within `radius` of the queries from `first` on.

    Only rows after ``after[q]`` count. Returns the query to go on with when the room is full, and
    how many rows were found.
    """
    n_queries, n_parts, size = len(after), len(tables.begins), 0
    for q in range(first, n_queries):
        before = size
        for p in range(n_parts):
            if flips.counts[p] == 0:
                continue
            start = q * n_words + tables.begins[p] // 64
            more = tables.begins[p] // 64 + 1 < n_words
            value = _part(
                queries[start],
                queries[start + 1] if more else np.uint64(0),
                tables.begins[p],
                tables.widths[p],
            )
            for f in range(flips.firsts[p], flips.firsts[p] + flips.counts[p]):
                place = tables.firsts[p] + (value ^ np.int64(flips.flips[f]))
                for i in range(tables.starts[place], tables.starts[place + 1]):
                    row = np.int64(tables.rows[p, i])
                    if row <= after[q]:
                        continue
                    if len(kept) and not kept[row >> 3] >> (row & 7) & 1:
                        continue
                    d = _distance_within(blocks, row, queries, q, n_words, radius)
                    if d > radius or _found_before(
                        blocks, row, n_words, tables, p, flips, queries, q
                    ):
                        continue
                    if size == len(owners):
                        return q, before
                    owners[size], rows[size], distances[size] = q, row, d
                    size += 1
    return n_queries, size


@njit(cache=True, nogil=True, boundscheck=False)
def _distance_within(
    blocks: NDArray[np.uint64],
    row: int,
    queries: NDArray[np.uint64],
    q: int,
    n_words: int,
    radius: int,
) -> np.int64:
    """The distance of a row to a query, or a part of it that is above the radius already."""
    start, d, word = row // BLOCK * n_words * BLOCK + row % BLOCK, np.int64(0), 0
    while word < n_words and d <= radius:
        d += np.int64(popcount(blocks[start + BLOCK * word] ^ queries[q * n_words + word]))
        word += 1
    return d


@njit(cache=True, nogil=True, boundscheck=False)
def _found_before(
    blocks: NDArray[np.uint64],
    row: int,
    n_words: int,
    tables: Tables,
    part: int,
    flips: Flips,
    queries: NDArray[np.uint64],
    q: int,
) -> bool:
    """Whether an earlier part led to this row already."""
    for p in range(part):
        if flips.counts[p] == 0:
            continue
        begin, width = tables.begins[p], tables.widths[p]
        start = q * n_words + begin // 64
        high = queries[start + 1] if begin // 64 + 1 < n_words else np.uint64(0)
        own = _part(queries[start], high, begin, width)
        other = _part_of_row(blocks, row, n_words, begin, width)
        if np.int64(popcount(np.uint64(own ^ other))) <= flips.most[p]:
            return True
    return False
