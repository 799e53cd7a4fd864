"""Repair: copy the whole batches of a damaged index file to a new one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import Codes
from . import index_format as disk
from . import index_payload as payloads
from .index import HammingIndex
from .index_format import Head
from .index_lock import creating
from .index_payload import HEADER_SIZE, ROWS, STRINGS, Batch
from .segment import Ids, to_codes
from .string_ids import IdBlock, StringIds

_STEP = 64  # batches begin at multiples of this
_CHUNK = 2**20  # bytes searched at a time for the next batch


def repair(path: Path, out: Path) -> dict[str, Any]:
    """Copy the whole batches of an index file to a new one.

    Parameters
    ----------
    path : path
        The index file, damaged or not; it is not changed. Its first 1024 bytes must be intact.
    out : path
        File to create.

    Returns
    -------
    result : dict
        ``codes`` in the new file, whole ``batches`` that were copied, and ``lost_bytes``, the
        bytes between them. If a removal is lost, its codes are there again. With string ids also
        ``without_id``, the number of codes that were left out because their ids are lost.
    """
    file = disk.open_file(path)
    try:
        head, slots = disk.read_head(file, path), disk.read_slots(file)
        next_id = max((slot.next_id for slot in slots), default=0)
        batches, lost = _whole_batches(file, head)
        with creating(out) as temporary:
            version = max(head.version, disk.PLAIN_VERSION)
            empty = disk.empty_file_of(
                head._replace(version=version), 0 if head.string_ids else next_id
            )
            temporary.write_bytes(empty)
            with HammingIndex.open(temporary, "a") as index:
                copy = _CopyStrings(index) if head.string_ids else _Copy(index)
                for batch in batches:
                    payload = disk.read_bytes(file, batch.size, batch.start + HEADER_SIZE)
                    copy.apply(batch, np.frombuffer(payload, np.uint8))
                n_codes = len(index)
    finally:
        os.close(file)
    result = {"codes": n_codes, "batches": len(batches), "lost_bytes": lost}
    return result | ({"without_id": copy.n_without_id} if head.string_ids else {})


def _whole_batches(file: int, head: Head) -> tuple[list[Batch], int]:
    """Return the batches with a valid header and payload, and the number of bytes between them."""
    end = _end(file)
    batches: list[Batch] = []
    lost, offset = 0, disk.HEAD_SIZE
    while offset < end:
        batch = disk.read_batch(file, offset, head)
        if batch is not None and batch.end <= end and disk.is_whole(file, batch):
            batches.append(batch)
            offset = batch.end
            continue
        following = _next_header(file, offset + _STEP, end)
        lost, offset = lost + following - offset, following
    return batches, lost


def _end(file: int) -> int:
    """Return where batches end: at the end of the newest slot, or of the file.

    Bytes after the end are a batch that was never committed, unless a slot is damaged.
    """
    slots, size = disk.read_slots(file), os.fstat(file).st_size
    if len(slots) == 2 or (slots and slots[0].sequence == 0):
        return max(slots).end
    return size


def _next_header(file: int, offset: int, end: int) -> int:
    """Return the offset of the next intact header, or the end."""
    while offset < end:
        content = disk.read_bytes(file, min(_CHUNK, end - offset), offset)
        if not content:
            return end
        for at in range(0, len(content), _STEP):
            if disk.is_header(content[at : at + HEADER_SIZE]):
                return offset + at
        offset += _CHUNK
    return end


class _Copy:
    """Applies batches to a new index."""

    def __init__(self, index: HammingIndex) -> None:
        self.index, self.n_without_id = index, 0

    def apply(self, batch: Batch, payload: NDArray[np.uint8]) -> None:
        """Apply a batch."""
        removed = payloads.removed_ids(batch, payload)
        if len(removed):
            self._remove(removed)
        if batch.kind == STRINGS:
            self._add_strings(payloads.to_id_block(batch, payload))
        elif batch.kind in ROWS:
            segment = payloads.to_segment(batch, payload, self.index.n_bits)
            rows = segment.kept_rows()
            codes = to_codes(segment.words_of(rows), self.index.n_bits)
            self._add(codes, segment.ids_of(rows).astype(np.int64))

    def _remove(self, ids: Ids) -> None:
        self.index.remove(ids[self.index._snapshot.stored(ids)])

    def _add(self, codes: Codes, ids: Ids) -> None:
        self._remove(ids)  # if the batch that removed them is lost
        self.index.add(codes, ids)

    def _add_strings(self, block: IdBlock) -> None:
        """Keep the string ids of the rows that follow."""


class _CopyStrings(_Copy):
    """Applies batches of an index with string ids to a new one, which numbers them anew."""

    _strings = StringIds()

    def _add_strings(self, block: IdBlock) -> None:
        self._strings = self._strings.with_block(block)

    def _remove(self, ids: Ids) -> None:
        texts = self._strings.strings(ids[self._strings.has(ids)])
        numbers, _ = self.index._snapshot.numbers(texts)
        self.index.remove(texts[numbers >= 0])

    def _add(self, codes: Codes, ids: Ids) -> None:
        known = self._strings.has(ids)
        self.n_without_id += int(np.count_nonzero(~known))
        self.index.upsert(codes[known], self._strings.strings(ids[known]))
