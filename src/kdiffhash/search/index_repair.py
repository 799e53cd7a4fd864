"""Repair: copy the whole batches of a damaged index file to a new one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from . import index_format as disk
from .index import HammingIndex
from .index_format import REMOVED, Batch
from .index_lock import creating
from .segment import to_codes

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
        bytes between them. If a removal is lost, its codes are there again.
    """
    file = disk.open_file(path)
    try:
        head, slots = disk.read_head(file, path), disk.read_slots(file)
        next_id = max((slot.next_id for slot in slots), default=0)
        batches, lost = _whole_batches(file, head.n_bits)
        with creating(out) as temporary:
            temporary.write_bytes(disk.empty_file(head.n_bits, head.model, next_id))
            with HammingIndex.open(temporary, "a") as index:
                for batch in batches:
                    _copy(file, batch, index)
                n_codes = len(index)
    finally:
        os.close(file)
    return {"codes": n_codes, "batches": len(batches), "lost_bytes": lost}


def _whole_batches(file: int, n_bits: int) -> tuple[list[Batch], int]:
    """Return the batches with a valid header and payload, and the number of bytes between them."""
    end = _end(file)
    batches: list[Batch] = []
    lost, offset = 0, disk.HEAD_SIZE
    while offset < end:
        batch = disk.read_batch(file, offset, n_bits)
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
            if disk.is_header(content[at : at + disk.HEADER_SIZE]):
                return offset + at
        offset += _CHUNK
    return end


def _copy(file: int, batch: Batch, index: HammingIndex) -> None:
    """Apply a batch to an index."""
    start = batch.start + disk.HEADER_SIZE
    payload = np.frombuffer(disk.read_bytes(file, batch.size, start), np.uint8)
    if batch.kind == REMOVED:
        removed = payload[: 8 * batch.n].view("<i8").astype(np.int64)
        index.remove(removed[index._stored(removed)])
        return
    segment = disk.to_segment(batch, payload, index.n_bits)
    rows = segment.kept_rows()
    ids = segment.ids_of(rows).astype(np.int64)
    index.remove(ids[index._stored(ids)])  # the batch that removed them is lost
    index.add(to_codes(segment.words_of(rows), index.n_bits), ids)
