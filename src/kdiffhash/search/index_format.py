"""Index files: batches of codes behind each other, mapped into memory and never written twice.

A file begins with a head of 4096 bytes: what it is (1024 bytes, checksummed: version, length of the
codes, fingerprint of their model), two slots of 1024 bytes, and 1024 zero bytes. Segments follow,
each a header of 64 bytes and a payload whose length is a multiple of 64: rows (ids where they are
listed, then blocks) or ids that are removed. All numbers are little-endian; every byte is covered
by a CRC-32.

A batch is added by writing its segment behind the others, syncing, then writing the older slot,
which tells where the file now ends, and syncing again. Until the slot is there the batch does not
exist; a slot that was torn by a crash fails its checksum, and the other one counts. Opening reads
the slots and the headers of the segments, whatever the size of the file.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .._util.errors import KdiffhashError
from .segment import BLOCK, n_words

VERSION = 2  # 1 has no fingerprint of a model; it stays readable, and is appended to as it is
MAX_BITS = 4096
HEADER_SIZE = 64
FOLLOWING, LISTED, REMOVED = 1, 2, 3  # kinds of segments
_MAGIC = b"kdiffhash index\n"
_HEAD, _SECTION = 4096, 1024
_FIRST = struct.Struct("<16sII128s")  # magic, version, n_bits, fingerprint of the model or zeros
_SLOT = struct.Struct("<QQQq")  # sequence, end, number of segments, next id
_HEADER = struct.Struct("<4sIQQqQI")  # magic, kind, sequence, n, first id, payload, its CRC
_SEGMENT_MAGIC = b"part"
_CRC = struct.Struct("<I")
BINARY = getattr(os, "O_BINARY", 0)  # Windows


class IndexFileError(KdiffhashError, ValueError):
    """A file is not an index, or is damaged, or its version is unknown."""


class Head(NamedTuple):
    """What a file is."""

    version: int
    n_bits: int
    model: str | None


class Slot(NamedTuple):
    """What the file held after some batch."""

    sequence: int
    end: int
    n_batches: int
    next_id: int


@dataclass(frozen=True)
class Batch:
    """One segment as its header tells it."""

    start: int
    kind: int
    n: int
    first_id: int
    size: int
    checksum: int

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.start + HEADER_SIZE + self.size


def damage(path: Path) -> Iterator[str]:
    """Check every byte of a file: a sentence for each damage."""
    file = os.open(path, os.O_RDONLY | BINARY)
    try:
        try:
            n_bits = read_head(file, path).n_bits
        except IndexFileError as error:
            yield str(error)
            return
        for number in (1, 2):
            content = read_bytes(file, _SECTION, _SECTION * number)
            if _read_slot(content) is None and any(content):
                at = _SECTION * number
                yield f"the slot at byte {at} fails its checksum; the other one is used"
        if any(read_bytes(file, _SECTION, 3 * _SECTION)):
            yield f"bytes {3 * _SECTION} to {_HEAD} should be zero"
        try:
            slot, batches = read_batches(file, path, n_bits)
        except IndexFileError as error:
            yield str(error)
            return
        newest = max((s.end for s in _read_slots(file)), default=0)
        if newest > slot.end:
            yield f"the file was cut: it ends before byte {newest}, so its last batch is missing"
        for batch in batches:
            found, place = 0, batch.start + HEADER_SIZE
            while place < batch.end:
                piece = read_bytes(file, min(2**24, batch.end - place), place)
                found, place = zlib.crc32(piece, found), place + len(piece)
            if found != batch.checksum:
                yield f"the batch of {batch.n} rows at byte {batch.start} fails its checksum"
    finally:
        os.close(file)


def empty_file(n_bits: int, model: str | None = None, next_id: int = 0) -> bytes:
    """The content of an index file that holds nothing."""
    first = _sealed(_FIRST.pack(_MAGIC, VERSION, n_bits, (model or "").encode()), _SECTION)
    return first + _slot_bytes(Slot(0, _HEAD, 0, next_id)) + bytes(2 * _SECTION)


# -- reading what may be damaged ----------------------------------------------------------------


def read_head(file: int, path: Path) -> Head:
    """Check what a file says it is."""
    content = read_bytes(file, _SECTION, 0)
    if content[: len(_MAGIC)] != _MAGIC:
        raise IndexFileError(f"{path} is not a kdiffhash index (see `kdiffhash index build`)")
    if not _is_whole(content):
        raise IndexFileError(f"{path} is damaged in its head; restore it from a copy")
    _, version, n_bits, model = _FIRST.unpack_from(content)
    if not 1 <= version <= VERSION:
        raise IndexFileError(
            f"{path} has format version {version}, this kdiffhash reads up to {VERSION}; upgrade it"
        )
    if not 1 <= n_bits <= MAX_BITS:
        raise IndexFileError(f"{path} is damaged: codes of {n_bits} bits")
    return Head(version, n_bits, model.rstrip(b"\0").decode("ascii", "replace") or None)


def read_batches(file: int, path: Path, n_bits: int) -> tuple[Slot, list[Batch]]:
    """The newest state that is there as a whole."""
    slots = sorted(_read_slots(file), reverse=True)
    where, size = "its slots are damaged", os.fstat(file).st_size
    for slot in slots:
        if slot.end > size:  # the last batch was cut off; the older slot knows nothing of it
            where = f"it ends at byte {size} instead of {slot.end}"
            continue
        batches, where = _walk(file, slot, n_bits)
        if batches is None:
            break
        if len(slots) == 1:
            slot, batches = _roll_forward(file, slot, batches, n_bits)
        return slot, batches
    raise IndexFileError(
        f"{path} is damaged: {where}; restore it from a copy, or build it again from the codes"
    )


def _read_slots(file: int) -> list[Slot]:
    slots = (_read_slot(read_bytes(file, _SECTION, _SECTION * number)) for number in (1, 2))
    return [slot for slot in slots if slot is not None]


def _read_slot(content: bytes) -> Slot | None:
    return Slot(*_SLOT.unpack_from(content)) if _is_whole(content) else None


def _walk(file: int, slot: Slot, n_bits: int) -> tuple[list[Batch] | None, str]:
    """The batches up to a slot's end, or None and what is wrong."""
    batches: list[Batch] = []
    place = _HEAD
    while place < slot.end:
        batch = _read_batch(file, place, len(batches) + 1, n_bits)
        if batch is None or batch.end > slot.end:
            return None, f"the batch at byte {place} has a bad header"
        batches.append(batch)
        place = batch.end
    if len(batches) != slot.n_batches:
        return None, f"it has {len(batches)} batches instead of {slot.n_batches}"
    return batches, ""


def _roll_forward(
    file: int, slot: Slot, batches: list[Batch], n_bits: int
) -> tuple[Slot, list[Batch]]:
    """Take a whole batch that follows, if the slot that told of it was hit.

    The batch had been synced before that slot was touched.
    """
    if not any(read_bytes(file, _SECTION, _SECTION * (1 + (slot.sequence + 1) % 2))):
        return slot, batches  # that slot was never written
    batch = _read_batch(file, slot.end, slot.sequence + 1, n_bits)
    if batch is None or batch.end > os.fstat(file).st_size:
        return slot, batches
    payload = read_bytes(file, batch.size, batch.start + HEADER_SIZE)
    if zlib.crc32(payload) != batch.checksum:
        return slot, batches
    next_id = slot.next_id
    if batch.kind == FOLLOWING:
        next_id = max(next_id, batch.first_id + batch.n)
    elif batch.kind == LISTED:
        next_id = max(next_id, int(np.frombuffer(payload, "<i8", batch.n)[-1]) + 1)
    return Slot(slot.sequence + 1, batch.end, slot.n_batches + 1, next_id), [*batches, batch]


def clean_slots(file: int, slot: Slot) -> None:
    """Before a writer starts: let the slots on the disk tell of this state and no other.

    A torn slot would otherwise be the only other one when the next commit is torn, and one that
    tells of a batch that was cut off might come to fit the next batch.
    """
    number = slot.sequence % 2
    if _read_slot(read_bytes(file, _SECTION, _SECTION * (1 + number))) != slot:
        write_slot(file, slot)
    content = read_bytes(file, _SECTION, _SECTION * (2 - number))
    other = _read_slot(content)
    if any(content) and (other is None or other.sequence > slot.sequence):
        write_bytes(file, bytes(_SECTION), _SECTION * (2 - number))
        os.fsync(file)


def _read_batch(file: int, place: int, sequence: int, n_bits: int) -> Batch | None:
    content = read_bytes(file, HEADER_SIZE, place)
    if not _is_whole(content, HEADER_SIZE):
        return None
    magic, kind, number, n, first_id, size, checksum = _HEADER.unpack_from(content)
    if magic != _SEGMENT_MAGIC or number != sequence or kind not in (FOLLOWING, LISTED, REMOVED):
        return None
    rows = 64 * n_words(n_bits) * -(-n // BLOCK)
    wanted = {FOLLOWING: rows, LISTED: padded(8 * n) + rows, REMOVED: padded(8 * n)}[kind]
    if n < 1 or size != wanted or first_id + n > 2**63:
        return None
    return Batch(place, kind, n, first_id, size, checksum)


# -- bytes --------------------------------------------------------------------------------------


def header_bytes(batch: Batch, sequence: int) -> bytes:
    fields = (batch.kind, sequence, batch.n, batch.first_id, batch.size, batch.checksum)
    return _sealed(_HEADER.pack(_SEGMENT_MAGIC, *fields), HEADER_SIZE)


def _slot_bytes(slot: Slot) -> bytes:
    return _sealed(_SLOT.pack(*slot), _SECTION)


def write_slot(file: int, slot: Slot) -> None:
    write_bytes(file, _slot_bytes(slot), _SECTION * (1 + slot.sequence % 2))
    os.fsync(file)


def _sealed(content: bytes, size: int) -> bytes:
    """Content, zeros, and the checksum of both, `size` bytes together."""
    content = content.ljust(size - _CRC.size, b"\0")
    return content + _CRC.pack(zlib.crc32(content))


def _is_whole(content: bytes, size: int = _SECTION) -> bool:
    if len(content) != size:
        return False
    body, end = content[: -_CRC.size], content[-_CRC.size :]
    return any(body) and _CRC.pack(zlib.crc32(body)) == end


def read_bytes(file: int, size: int, place: int) -> bytes:
    """Up to `size` bytes from a place on; fewer at the end of the file."""
    pieces: list[bytes] = []
    while size:
        if hasattr(os, "pread"):
            piece = os.pread(file, min(size, 2**26), place)
        else:  # Windows
            os.lseek(file, place, os.SEEK_SET)
            piece = os.read(file, min(size, 2**26))
        if not piece:
            break
        pieces.append(piece)
        size, place = size - len(piece), place + len(piece)
    return b"".join(pieces)


def padded(size: int) -> int:
    return -(-size // 64) * 64


def write_bytes(file: int, content: bytes | memoryview, place: int) -> int:
    """Write all of it; where the next byte goes."""
    os.lseek(file, place, os.SEEK_SET)
    view = memoryview(content)
    while len(view):
        written = os.write(file, view[: 2**26])
        place, view = place + written, view[written:]
    return place
