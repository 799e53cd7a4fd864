"""What the batches of an index file hold: rows, ids that are removed, and string ids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import cells_payload
from .index_error import REPAIR, IndexFileError
from .segment import BLOCK, IdRuns, Ids, Segment, n_words
from .string_ids import IdBlock, Texts

HEADER_SIZE = 64
FOLLOWING, LISTED, REMOVED, RUNS, STRINGS, CELLS = 1, 2, 3, 4, 5, 6
ROWS = (FOLLOWING, LISTED, RUNS, CELLS)  # consecutive ids, listed ids, runs of ids; then blocks
_LAST = 2**63


@dataclass(frozen=True)
class Batch:
    """One batch, as described by its header.

    Rows replace those of `n_removed` ids, which the payload begins with.
    """

    start: int
    kind: int
    n: int
    first_id: int
    size: int
    checksum: int
    n_removed: int = 0

    @property
    def end(self) -> int:
        """Offset of the first byte after the batch."""
        return self.start + HEADER_SIZE + self.size

    @property
    def n_ids_removed(self) -> int:
        """Number of ids at the beginning of the payload whose earlier rows are removed."""
        return self.n if self.kind == REMOVED else self.n_removed

    def id_bytes(self, n_bits: int) -> int:
        """Bytes of the ids of rows, between the removed ids and the blocks."""
        blocks = 64 * n_words(n_bits) * -(-self.n // BLOCK)
        return self.size - padded(8 * self.n_removed) - blocks

    def is_possible(self, n_bits: int, version: int) -> bool:
        """Return whether kind, numbers and size agree with each other."""
        if self.n < 1 or self.first_id + self.n > _LAST:
            return False
        if version < 4 and (self.n_removed or self.kind in (STRINGS, CELLS)):
            return False
        if self.kind == REMOVED:
            return self.size == padded(8 * self.n) and not self.n_removed
        if self.kind == STRINGS:
            return self.size > sum(_string_parts(self.n)) and not self.n_removed
        ids_size = self.id_bytes(n_bits)
        if self.kind == CELLS:  # the rest is checked by `read_cells`
            return ids_size >= cells_payload.HEAD_SIZE and ids_size % 64 == self.n_removed == 0
        if self.kind == RUNS:
            return ids_size > 0 and ids_size % 64 == 0
        expected = {FOLLOWING: 0, LISTED: padded(8 * self.n)}
        return ids_size == expected.get(self.kind)


def padded(size: int) -> int:
    """Round up to a multiple of 64."""
    return -(-size // 64) * 64


def removed_ids(batch: Batch, payload: NDArray[np.uint8]) -> Ids:
    """Return the ids whose earlier rows a batch removes."""
    return payload[: 8 * batch.n_ids_removed].view("<i8").astype(np.int64)


def to_segment(
    batch: Batch, payload: NDArray[np.uint8], n_bits: int, mapped: bool = False
) -> Segment:
    """Return the rows in the payload of a batch, without copying them."""
    if batch.kind == CELLS:
        segment = cells_payload.read_cells(payload, batch.n, batch.first_id, n_bits, batch.start)
        return replace(segment, mapped=mapped)
    n_ids = batch.id_bytes(n_bits)
    payload = payload[padded(8 * batch.n_removed) :]
    listed = runs = None
    if batch.kind == LISTED:
        listed = payload[: 8 * batch.n].view("<i8")
    elif batch.kind == RUNS:
        firsts, lengths = payload[:n_ids].view("<i8").reshape(-1, 2).T
        used = lengths > 0  # runs of length 0 are padding
        runs = IdRuns(firsts[used].copy(), np.append(0, np.cumsum(lengths[used])))
        if runs.starts[-1] != batch.n:
            raise IndexFileError(f"the batch at byte {batch.start} has wrong ids; {REPAIR}")
    shape = (-(-batch.n // BLOCK), n_words(n_bits), BLOCK)
    blocks = payload[n_ids:].view("<u8").reshape(shape)
    return Segment(blocks, batch.n, batch.first_id, listed, mapped=mapped, runs=runs)


def from_segment(segment: Segment, version: int) -> tuple[int, list[NDArray[Any]]]:
    """Return the kind of a batch of rows and the arrays of its payload."""
    blocks = np.ascontiguousarray(segment.blocks, "<u8")
    if segment.listed is None:
        return FOLLOWING, [blocks]
    runs = IdRuns.of(segment.listed)
    if version >= 3 and 2 * len(runs.firsts) < segment.n_rows:
        stored = np.stack([runs.firsts, np.diff(runs.starts)], axis=1)
        return RUNS, [stored.astype("<i8", copy=False), blocks]
    return LISTED, [segment.listed.astype("<i8", copy=False), blocks]


def to_id_block(batch: Batch, payload: NDArray[np.uint8], mapped: bool = False) -> IdBlock:
    """Return the string ids in the payload of a batch, without copying them."""
    n = batch.n
    parts = np.split(payload, np.cumsum(_string_parts(n)))
    offsets, hashes = parts[0][: 8 * (n + 1)].view("<i8"), parts[1][: 8 * n].view("<u8")
    order, text = parts[2][: 4 * n].view("<u4"), parts[3]
    if offsets[0] != 0 or not 0 < offsets[-1] <= len(text):
        raise IndexFileError(f"the batch at byte {batch.start} has wrong string ids; {REPAIR}")
    return IdBlock(batch.first_id, Texts(text[: offsets[-1]], offsets), hashes, order, mapped)


def from_id_block(block: IdBlock) -> list[NDArray[Any]]:
    """Return the arrays of the payload of a batch of string ids."""
    offsets = block.texts.offsets.astype("<i8", copy=False)
    hashes, order = block.hashes.astype("<u8", copy=False), block.order.astype("<u4", copy=False)
    return [offsets, hashes, order, block.texts.text]


def _string_parts(n: int) -> list[int]:
    """Return the bytes of offsets, hashes and order of n string ids; the text follows."""
    return [padded(8 * (n + 1)), padded(8 * n), padded(4 * n)]
