"""String ids: each is stored once, with a number by which segments and searches know it.

Numbers ascend in the order in which ids were added. Strings lie one after the other as UTF-8, and
are looked up by a hash of 64 bits, so a file of them is memory-mapped and never read as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .index_error import REPAIR, IndexFileError
from .segment import Ids

MAX_BYTES = 65_535  # of one id as UTF-8
_BATCH = 2**16  # strings that are gathered or compared at a time
_MERGED = 2**20  # ids of a block that is merged from others

Strings: TypeAlias = NDArray[np.object_]


class Texts(NamedTuple):
    """Strings as UTF-8: string i is ``text[offsets[i] : offsets[i + 1]]``."""

    text: NDArray[np.uint8]
    offsets: Ids

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of(cls, strings: list[str]) -> Texts:
        """Encode strings that `checks.check_strings` has accepted."""
        encoded = [string.encode() for string in strings]
        offsets = np.zeros(len(strings) + 1, np.int64)
        np.cumsum([len(one) for one in encoded], out=offsets[1:])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), offsets)

    def take(self, rows: Ids) -> Texts:
        """Copy the strings of some rows."""
        starts, ends = self.offsets[rows], self.offsets[rows + 1]
        lengths = ends - starts
        if len(rows) and not (
            (starts.min() >= 0 and ends.max() <= len(self.text))
            and (lengths.min() >= 1 and lengths.max() <= MAX_BYTES)
        ):
            raise _damaged()
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        text = np.empty(offsets[-1], np.uint8)
        for first in range(0, len(rows), _BATCH):
            last = min(first + _BATCH, len(rows))
            shift = np.repeat((starts - offsets[:-1])[first:last], lengths[first:last])
            text[offsets[first] : offsets[last]] = self.text[
                shift + np.arange(offsets[first], offsets[last])
            ]
        return Texts(text, offsets)

    def to_list(self) -> list[str]:
        """Decode all strings."""
        text, offsets = self.text.tobytes(), self.offsets.tolist()
        try:
            return [text[a:b].decode() for a, b in pairwise(offsets)]
        except UnicodeDecodeError:
            raise _damaged() from None

    def hashes(self) -> NDArray[np.uint64]:
        """Return 64 bits of the BLAKE2b hash of each string."""
        text, offsets = self.text.tobytes(), self.offsets.tolist()
        digests = [hashlib.blake2b(text[a:b], digest_size=8).digest() for a, b in pairwise(offsets)]
        return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64, copy=False)


@dataclass(frozen=True)
class IdBlock:
    """String ids with consecutive numbers, and their hashes in ascending order.

    Attributes
    ----------
    first : int
        Number of the first id.
    texts : Texts
        The ids, by number.
    hashes : uint64 array of shape (n,)
        Ascending.
    order : uint32 array of shape (n,)
        For each hash, the row of its id in `texts`.
    mapped : bool
        Whether the arrays are memory-mapped from a file.
    """

    first: int
    texts: Texts
    hashes: NDArray[np.uint64]
    order: NDArray[np.uint32]
    mapped: bool = False

    @classmethod
    def of(cls, first: int, texts: Texts, hashes: NDArray[np.uint64]) -> IdBlock:
        """Return a block, given the hash of each id."""
        order = np.argsort(hashes, kind="stable").astype(np.uint32)
        return cls(first, texts, hashes[order], order)

    @property
    def end(self) -> int:
        """The number after the last."""
        return self.first + len(self.texts)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in (*self.texts, self.hashes, self.order))

    def hashes_by_row(self) -> NDArray[np.uint64]:
        """Return the hash of each id, in the order of numbers."""
        hashes = np.empty(len(self.texts), np.uint64)
        hashes[self._rows(self.order)] = self.hashes
        return hashes

    def find(self, texts: Texts, hashes: NDArray[np.uint64]) -> tuple[Ids, Ids]:
        """Return which of the strings are in this block, and their rows; a string may be twice."""
        begins = np.searchsorted(self.hashes, hashes, "left")
        counts = np.searchsorted(self.hashes, hashes, "right") - begins
        query = np.repeat(np.arange(len(texts)), counts)
        place = np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts - begins, counts)
        row = self._rows(self.order[place])
        same = np.empty(len(query), bool)
        for start in range(0, len(query), _BATCH):
            part = slice(start, start + _BATCH)
            same[part] = _equal(texts, query[part], self.texts, row[part])
        return query[same], row[same]

    def _rows(self, order: NDArray[np.uint32]) -> Ids:
        rows = order.astype(np.int64)
        if len(rows) and rows.max() >= len(self.texts):
            raise _damaged()
        return rows


def _equal(a: Texts, a_rows: Ids, b: Texts, b_rows: Ids) -> NDArray[np.bool_]:
    """Return which strings of `a` equal those of `b`, row by row; those of `a` are not empty."""
    a_lengths = a.offsets[a_rows + 1] - a.offsets[a_rows]
    same: NDArray[np.bool_] = a_lengths == b.offsets[b_rows + 1] - b.offsets[b_rows]
    left, right = a.take(a_rows[same]), b.take(b_rows[same])
    if len(left):
        differing = left.text != right.text
        same[same] = ~np.logical_or.reduceat(differing, left.offsets[:-1])
    return same


class StringIds(NamedTuple):
    """All string ids of an index; immutable, blocks with ascending numbers."""

    blocks: tuple[IdBlock, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in self.blocks)

    def with_block(self, block: IdBlock) -> StringIds:
        """Append a block, merged with those in memory that are not much larger."""
        blocks = list(self.blocks)
        if blocks and block.first < blocks[-1].end:
            raise _damaged()
        while (
            blocks
            and len(blocks[-1].texts) <= min(2 * len(block.texts), _MERGED)
            and blocks[-1].end == block.first
            and not (blocks[-1].mapped or block.mapped)
        ):
            block = _merged([blocks.pop(), block])
        return StringIds((*blocks, block))

    def find(self, strings: list[str]) -> tuple[Ids, Ids]:
        """Return the strings that have numbers, as rows of `strings`, and these numbers.

        A string that was removed and added again has several numbers.
        """
        texts = Texts.of(strings)
        hashes = texts.hashes()
        found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        for block in self.blocks:
            query, row = block.find(texts, hashes)
            found.append((query, row + block.first))
        queries, numbers = (np.concatenate(column) for column in zip(*found))
        return queries, numbers

    def take(self, numbers: Ids) -> Texts:
        """Return the ids with these numbers, which must be one-dimensional."""
        places = [np.empty(0, np.int64)]
        pieces: list[Texts] = []
        for block, here in self._by_block(numbers):
            places.append(here)
            pieces.append(block.texts.take(numbers[here] - block.first))
        if len(pieces) == 1:
            return pieces[0]
        return _concatenated(pieces).take(np.argsort(np.concatenate(places)))

    def has(self, numbers: Ids) -> NDArray[np.bool_]:
        """Return which numbers have an id."""
        has = np.zeros(len(numbers), bool)
        for block in self.blocks:
            has |= (numbers >= block.first) & (numbers < block.end)
        return has

    def _by_block(self, numbers: Ids) -> Iterator[tuple[IdBlock, Ids]]:
        """Yield blocks and where their numbers are, in ascending order."""
        which = np.searchsorted([block.first for block in self.blocks], numbers, "right") - 1
        for i in np.unique(which).tolist():
            block, here = self.blocks[i], np.flatnonzero(which == i)
            if i < 0 or numbers[here].max() >= block.end:
                raise IndexFileError(f"codes have no string id: the index is damaged; {REPAIR}")
            yield block, here

    def strings(self, numbers: Ids) -> Strings:
        """Return the ids with these numbers as Python strings, in an array of the same shape."""
        strings = np.empty(numbers.size, object)
        flat = numbers.reshape(-1)
        for start in range(0, len(flat), _BATCH):
            strings[start : start + _BATCH] = self.take(flat[start : start + _BATCH]).to_list()
        return strings.reshape(numbers.shape)

    def renumbered(self, first: int, numbers: Ids) -> IdBlock:
        """Return the ids with these numbers as a block whose numbers start at `first`."""
        hashes = np.empty(len(numbers), np.uint64)
        for block, here in self._by_block(numbers):
            hashes[here] = block.hashes_by_row()[numbers[here] - block.first]
        return IdBlock.of(first, self.take(numbers), hashes)


def new_block(first: int, strings: list[str]) -> IdBlock:
    """Return a block of new ids whose numbers start at `first`."""
    texts = Texts.of(strings)
    return IdBlock.of(first, texts, texts.hashes())


def _merged(blocks: list[IdBlock]) -> IdBlock:
    texts = _concatenated([block.texts for block in blocks])
    return IdBlock.of(
        blocks[0].first, texts, np.concatenate([block.hashes_by_row() for block in blocks])
    )


def _concatenated(pieces: list[Texts]) -> Texts:
    lengths = [np.diff(texts.offsets) for texts in pieces]
    offsets = np.append(0, np.cumsum(np.concatenate([np.empty(0, np.int64), *lengths])))
    text = [np.empty(0, np.uint8), *(t.text[t.offsets[0] : t.offsets[-1]] for t in pieces)]
    return Texts(np.concatenate(text), offsets)


def _damaged() -> IndexFileError:
    return IndexFileError(f"the string ids of the index are damaged; {REPAIR}")
