"""Segments: immutable runs of codes with ascending ids, in memory or memory-mapped.

An index is a list of segments, and every search runs over them. Codes lie in blocks of eight, word
by word, so that vector instructions compare eight codes at a time.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..codes import Codes, n_bytes

if TYPE_CHECKING:
    from .cells import Cells

Words = NDArray[np.uint64]
Ids = NDArray[np.int64]

BLOCK = 8  # codes per block
_MERGED_ROWS = 2**20  # rows of a segment that is merged from others


class LookupTables(NamedTuple):
    """Lookup tables of multi-index hashing: rows by substrings of their codes.

    Substring s has bits ``begins[s]`` to ``begins[s] + widths[s]``, counted through the words from
    the lowest bit. Rows whose substring has value v are ``rows[s, starts[i] : starts[i + 1]]``,
    where i is ``firsts[s] + v``.
    """

    begins: NDArray[np.int64]
    widths: NDArray[np.int64]
    firsts: NDArray[np.int64]
    starts: NDArray[np.uint32]
    rows: NDArray[np.uint32]


class IdRuns(NamedTuple):
    """Ascending ids as runs of consecutive ids: run i has ids from ``firsts[i]`` on.

    Its rows are ``starts[i]`` to ``starts[i + 1]``.
    """

    firsts: Ids
    starts: Ids  # one more than there are runs; the last is the number of rows

    @classmethod
    def of(cls, ids: Ids) -> IdRuns:
        """Return the runs of ascending ids."""
        starts = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 2) != 1)
        return cls(ids[starts], np.append(starts, len(ids)))

    def ids_of(self, rows: Ids) -> Ids:
        """Return the ids of rows."""
        run = np.searchsorted(self.starts, rows, "right") - 1
        return self.firsts[run] + (rows - self.starts[run])

    def rows_of(self, ids: Ids) -> Ids:
        """Return the rows of ids; -1 for ids that are in no run."""
        run = np.maximum(np.searchsorted(self.firsts, ids, "right") - 1, 0)
        with np.errstate(over="ignore"):
            rows = ids - self.firsts[run] + self.starts[run]
        there = (ids >= self.firsts[run]) & (rows >= self.starts[run])
        there &= rows < self.starts[run + 1]
        return np.where(there, rows, -1)


class SegmentIds(NamedTuple):
    """Ascending ids, as a segment stores them; see `Segment`."""

    first: int
    listed: Ids | None = None
    runs: IdRuns | None = None

    @classmethod
    def joined(cls, parts: list[IdRuns]) -> SegmentIds:
        """Return the ids of several parts, each of which is above the one before."""
        firsts = np.concatenate([part.firsts for part in parts])
        lengths = np.concatenate([np.diff(part.starts) for part in parts])
        begins = np.ones(len(firsts), bool)
        begins[1:] = firsts[1:] != firsts[:-1] + lengths[:-1]
        at = np.flatnonzero(begins)
        runs = IdRuns(firsts[at], np.append(0, np.cumsum(np.add.reduceat(lengths, at))))
        first, n = int(firsts[0]), int(runs.starts[-1])
        if len(at) == 1:
            return cls(first)
        if 2 * len(at) < n:
            return cls(first, runs=runs)
        return cls(first, runs.ids_of(np.arange(n)))

    @property
    def are_positions(self) -> bool:
        """Whether the ids are 0, 1, ..."""
        return self.first == 0 and self.listed is None and self.runs is None

    def at(self, positions: Ids) -> Ids:
        """Return the ids at positions."""
        if self.runs is not None:
            return self.runs.ids_of(positions)
        return self.first + positions if self.listed is None else self.listed[positions]

    def last(self, n: int) -> int:
        """Return the last of n ids."""
        return int(self.at(np.array([n - 1]))[0])

    def positions(self, ids: Ids, n: int) -> Ids:
        """Return the positions of ids; -1 for ids that are not among the n."""
        if self.runs is not None:
            return self.runs.rows_of(ids)
        if self.listed is not None:
            found = np.searchsorted(self.listed, ids)
            return np.where(self.listed[np.minimum(found, n - 1)] == ids, found, -1)
        with np.errstate(over="ignore"):
            found = ids - self.first
        return np.where((ids >= self.first) & (ids <= self.last(n)), found, -1)


@dataclass(frozen=True)
class Segment:
    """Codes with their ids; never changed in place.

    Rows are in ascending order of their ids, unless there are cells. The position of a row is its
    rank among the ids, even if rows have been removed.

    Attributes
    ----------
    blocks : uint64 array of shape (ceil(n_rows / 8), n_words, 8)
        ``blocks[b, w, l]`` is word w of row 8b + l; rows after the last are zero.
    n_rows : int
    first_id : int
        Lowest id; the ids are consecutive unless `listed` or `runs` is given.
    listed : int64 array of shape (n_rows,), or None
        The ids by position, if they have gaps.
    runs : IdRuns or None
        The ids, if they have gaps and were read from a file that stores them as runs.
    kept : uint8 array of shape (ceil(n_rows / 8),), or None
        Bitmap of the rows that have not been removed, lowest bit first; None if all are there.
    mapped : bool
        Whether the blocks are memory-mapped from a file.
    tables : dict
        Cached lookup tables, by number of substrings.
    collision_rates : dict
        Estimated probability that two rows agree in each substring, by number of substrings.
    cells : Cells or None
        The cells that the rows are ordered by.
    """

    blocks: Words
    n_rows: int
    first_id: int
    listed: Ids | None = None
    kept: NDArray[np.uint8] | None = None
    mapped: bool = False
    tables: dict[int, LookupTables] = field(default_factory=dict)
    collision_rates: dict[int, list[float]] = field(default_factory=dict)
    runs: IdRuns | None = None
    cells: Cells | None = None

    @property
    def n_words(self) -> int:
        """Number of 64-bit words per code."""
        return int(self.blocks.shape[1])

    @property
    def flat(self) -> Words:
        """The blocks as a one-dimensional array."""
        return self.blocks.reshape(-1)

    @property
    def last_id(self) -> int:
        """The highest id, even if its row has been removed."""
        return self.id_map.last(self.n_rows)

    @cached_property
    def n_kept(self) -> int:
        """Number of rows that have not been removed."""
        return self.n_rows if self.kept is None else int(np.bitwise_count(self.kept).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, of ids that are not consecutive, and of cells."""
        arrays = (self.blocks, self.listed, *(self.runs or ()))
        cells = 0 if self.cells is None else self.cells.nbytes
        return cells + sum(int(array.nbytes) for array in arrays if array is not None)

    def ids_of(self, rows: Ids) -> Ids:
        """Return the ids of rows."""
        return self.ids_at(rows if self.cells is None else self.cells.positions_of(rows))

    def ids_at(self, positions: Ids) -> Ids:
        """Return the ids at positions."""
        if self.cells is not None:
            self.cells.check(int(positions.max(initial=-1)))
        return self.id_map.at(positions)

    @property
    def id_map(self) -> SegmentIds:
        """The ids by position."""
        return SegmentIds(self.first_id, self.listed, self.runs)

    def rows_of(self, ids: Ids) -> Ids:
        """Return the rows of ids; -1 for ids that are missing or removed."""
        rows = self.id_map.positions(ids, self.n_rows)
        if self.cells is not None and np.any(rows >= 0):
            rows[rows >= 0] = self.cells.rows_of(rows[rows >= 0])
        if self.kept is not None:
            removed = self.kept[np.maximum(rows, 0) >> 3] >> (rows & 7) & 1 == 0
            rows = np.where(removed, -1, rows)
        return rows

    def kept_rows(self, first: int = 0, last: int | None = None) -> Ids:
        """Return the rows from `first` to `last` that have not been removed."""
        last = self.n_rows if last is None else last
        if self.kept is None:
            return np.arange(first, last)
        bits = np.unpackbits(self.kept[first >> 3 : (last + 7) >> 3], bitorder="little")
        return np.flatnonzero(bits[first & 7 :][: last - first]) + first

    def release_pages(self) -> None:
        """Give back the memory of pages of the file that have been read; they can be read again."""
        base: object = self.blocks
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            base.madvise(mmap.MADV_DONTNEED)

    def kept_in_order(self, first: int, last: int) -> Ids:
        """Return the rows at positions `first` to `last` that have not been removed."""
        if self.cells is None:
            return self.kept_rows(first, last)
        rows = self.cells.rows_of(np.arange(first, last))
        if self.kept is None:
            return rows
        kept: Ids = rows[(self.kept[rows >> 3] >> (rows & 7) & 1).astype(bool)]
        return kept

    def words_of(self, rows: Ids) -> Words:
        """Return the codes of rows as words, shape (n, n_words)."""
        return self.blocks[rows // BLOCK, :, rows % BLOCK]

    def without(self, rows: Ids) -> Segment:
        """Return a copy with some rows removed; searches running on this one are not affected."""
        if self.kept is None:
            kept = np.packbits(np.ones(self.n_rows, bool), bitorder="little")
        else:
            kept = self.kept.copy()
        np.bitwise_and.at(kept, rows >> 3, ~(1 << (rows & 7)).astype(np.uint8))
        return replace(self, kept=kept)


def make_segment(words: Words, ids: Ids) -> Segment:
    """Return a segment of codes, sorted by id."""
    if np.any(ids[1:] <= ids[:-1]):
        order = np.argsort(ids, kind="stable")
        words, ids = words[order], ids[order]
    n, first = len(ids), int(ids[0])
    consecutive = int(ids[-1]) - first == n - 1
    return Segment(to_blocks(words), n, first, None if consecutive else ids)


def with_rows(segments: list[Segment], segment: Segment) -> list[Segment]:
    """Append a segment, merged with those in memory that are not much larger."""
    segments = list(segments)
    while (
        segments
        and segments[-1].n_rows <= min(2 * segment.n_rows, _MERGED_ROWS)
        and not (segments[-1].mapped or segment.mapped)
        and segments[-1].cells is None
    ):
        segment = next(merge([segments.pop(), segment], size=2**62))
    return [*segments, segment]


def without_ids(segments: list[Segment], ids: Ids) -> list[Segment]:
    """Remove ids from segments; segments without any rows left are dropped."""
    left = []
    for segment in segments:
        rows = segment.rows_of(ids)
        if np.any(rows >= 0):
            segment = segment.without(rows[rows >= 0])
        if segment.n_kept:
            left.append(segment)
    return left


class Removals(NamedTuple):
    """Removals of a file: ascending ids, and the number of the last batch that removes each."""

    ids: Ids
    last: Ids

    @classmethod
    def of(cls, batches: list[tuple[int, Ids]]) -> Removals:
        """Merge batches of removed ids, given with their numbers in ascending order."""
        if not batches:
            return cls(np.empty(0, np.int64), np.empty(0, np.int64))
        ids = np.concatenate([ids for _, ids in batches])
        numbers = np.repeat([number for number, _ in batches], [len(ids) for _, ids in batches])
        unique, at = np.unique(ids[::-1], return_index=True)
        return cls(unique, numbers[::-1][at])

    def apply(self, segment: Segment, number: int) -> Segment:
        """Return the segment of batch `number` without the rows that later batches remove."""
        first = np.searchsorted(self.ids, segment.first_id)
        end = np.searchsorted(self.ids, segment.last_id, "right")
        later = self.ids[first:end][self.last[first:end] > number]
        rows = segment.rows_of(later)
        rows = rows[rows >= 0]
        return segment.without(rows) if len(rows) else segment


def all_ids(segments: list[Segment]) -> Ids:
    """Return the ids of all kept rows, ascending."""
    ids = [segment.ids_of(segment.kept_rows()) for segment in segments]
    return np.sort(np.concatenate(ids)) if ids else np.empty(0, np.int64)


def only_ids(segments: list[Segment], ids: Ids) -> list[Segment]:
    """Restrict segments to the rows with these ids, which must be ascending."""
    chosen = []
    for segment in segments:
        rows = segment.rows_of(ids)
        rows = rows[rows >= 0]
        if not len(rows):
            continue
        if 2 * len(rows) < segment.n_rows:  # copying them is faster than scanning past the others
            chosen.append(make_segment(segment.words_of(rows), segment.ids_of(rows)))
        else:
            bits = np.zeros(segment.n_rows, bool)
            bits[rows] = True
            chosen.append(replace(segment, kept=np.packbits(bits, bitorder="little")))
    return chosen


def merge(
    segments: list[Segment], number: int = 0, of: int = 1, size: int = _MERGED_ROWS
) -> Iterator[Segment]:
    """Copy the kept rows into segments of up to `size` rows.

    With `of` above 1, only chunk `number` of that many chunks of similar size.
    """
    n_rows = sum(segment.n_rows for segment in segments)
    first, last = n_rows * number // of, n_rows * (number + 1) // of
    words: list[Words] = []
    ids: list[Ids] = []
    for segment in segments:
        for start in range(max(first, 0), min(last, segment.n_rows), size):
            rows = segment.kept_in_order(start, min(start + size, last, segment.n_rows))
            words.append(segment.words_of(rows))
            ids.append(segment.ids_of(rows))
            if sum(map(len, ids)) >= size:
                yield make_segment(np.concatenate(words), np.concatenate(ids))
                words, ids = [], []
        first, last = first - segment.n_rows, last - segment.n_rows
    if sum(map(len, ids)):
        yield make_segment(np.concatenate(words), np.concatenate(ids))


def words_by_id(segments: list[Segment], n_bits: int, ids: Ids) -> tuple[Words, NDArray[np.bool_]]:
    """Return the codes with these ids as words, and which of the ids are stored."""
    words = np.zeros((len(ids), n_words(n_bits)), np.uint64)
    found = np.zeros(len(ids), bool)
    for segment in segments:
        rows = segment.rows_of(ids)
        here = rows >= 0
        words[here] = segment.words_of(rows[here])
        found |= here
    return words, found


def n_words(n_bits: int) -> int:
    """Return the number of 64-bit words of a code."""
    return -(-n_bits // 64)


def to_codes(words: Words, n_bits: int) -> Codes:
    """Convert words to packed codes; the inverse of `as_words`."""
    wide = np.ascontiguousarray(words, "<u8").view(np.uint8)
    return wide[:, : n_bytes(n_bits)].copy()


def aligned_zeros(*shape: int) -> Words:
    """Return words that begin at a cache line, so that no vector extends over two."""
    n_bytes = 8 * int(np.prod(shape))
    buffer = np.zeros(n_bytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + n_bytes].view(np.uint64).reshape(shape)


def to_blocks(words: Words) -> Words:
    """Arrange words of codes in blocks of eight codes, word by word."""
    n, width = words.shape
    blocks = aligned_zeros(-(-n // BLOCK), width, BLOCK)
    whole = n // BLOCK
    blocks[:whole] = words[: whole * BLOCK].reshape(whole, BLOCK, width).transpose(0, 2, 1)
    if n % BLOCK:
        blocks[whole, :, : n % BLOCK] = words[whole * BLOCK :].T
    return blocks
