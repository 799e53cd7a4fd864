"""Format of index files: batches of codes, appended and never overwritten.

A file begins with a head of 4096 bytes: an identification of 1024 bytes (format version, length of
the codes, fingerprint of their model, random id of the file), two slots of 1024 bytes, and 1024
zero bytes. Batches follow, each with a header of 64 bytes and a payload whose length is a multiple
of 64 (`index_payload.py`). All numbers are little-endian, and every byte is covered by a CRC-32.

A batch is appended in two steps. First the batch is written after the last one and synced. Then the
older slot is overwritten with the new end of the file and synced. Without the second step the batch
does not exist. A slot torn by a crash fails its checksum, and the other slot is valid. What a valid
slot describes was on disk before the slot was, so a file that lacks some of it is damaged. Opening
a file reads the slots, the headers of the batches, and batches that are too small to be mapped.
"""

from __future__ import annotations

import os
import secrets
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .index_error import REPAIR, IndexFileError
from .index_payload import HEADER_SIZE, ROWS, STRINGS, Batch, to_segment

VERSION = 4  # the newest, for string ids and batches that replace rows
PLAIN_VERSION = 3  # of other new files; 1 has no fingerprint, 1 and 2 no file id and no runs of ids
MAX_BITS = 4096
_MAGIC = b"kdiffhash index\n"
HEAD_SIZE, _SECTION = 4096, 1024
_FIRST = struct.Struct("<16sII128s16sI")  # magic, version, n_bits, fingerprint, file id, string ids
_SLOT = struct.Struct("<QQQq")  # sequence, end, number of batches, next id
# Magic, kind, sequence, n, first id, payload size and CRC, number of ids that are removed first.
_HEADER = struct.Struct("<4sIQQqQIQ")
_BATCH_MAGIC = b"part"
_CRC = struct.Struct("<I")


class Head(NamedTuple):
    """Identification of a file: format version, code length, fingerprint of the model, file id.

    The file id is random in every new file, and zero in files of versions 1 and 2. Files with
    string ids have version 4.
    """

    version: int
    n_bits: int
    model: str | None
    file_id: bytes = bytes(16)
    string_ids: bool = False


class Slot(NamedTuple):
    """State of the file after a batch: its sequence number, the end, and the next new id."""

    sequence: int
    end: int
    n_batches: int
    next_id: int


def damage(path: Path) -> Iterator[str]:
    """Check every byte of a file, and yield a sentence for each problem."""
    file = open_file(path)
    try:
        try:
            head = read_head(file, path)
        except IndexFileError as error:
            yield str(error)
            return
        for number in (1, 2):
            content = read_bytes(file, _SECTION, _SECTION * number)
            if _read_slot(content) is None and any(content):
                at = _SECTION * number
                yield f"the slot at byte {at} fails its checksum"
        if any(read_bytes(file, _SECTION, 3 * _SECTION)):
            yield f"bytes {3 * _SECTION} to {HEAD_SIZE} should be zero"
        try:
            _, batches = read_batches(file, path, head)
        except IndexFileError as error:
            yield str(error)
            return
        for batch in batches:
            if not is_whole(file, batch):
                yield f"the batch of {batch.n} rows at byte {batch.start} fails its checksum"
    finally:
        os.close(file)


def is_whole(file: int, batch: Batch) -> bool:
    """Return whether the payload of a batch is there and has the right checksum."""
    checksum, offset = 0, batch.start + HEADER_SIZE
    while offset < batch.end:
        piece = read_bytes(file, min(2**24, batch.end - offset), offset)
        if not piece:
            return False
        checksum, offset = zlib.crc32(piece, checksum), offset + len(piece)
    return checksum == batch.checksum


def empty_file(n_bits: int, model: str | None = None, next_id: int = 0) -> bytes:
    """Return the content of an empty index file of the plain version, with a new file id."""
    return empty_file_of(Head(PLAIN_VERSION, n_bits, model), next_id)


def empty_file_of(head: Head, next_id: int = 0) -> bytes:
    """Return the content of an empty index file with this head, but a new file id."""
    fields = (head.version, head.n_bits, (head.model or "").encode(), secrets.token_bytes(16))
    slot = _slot_bytes(Slot(0, HEAD_SIZE, 0, next_id))
    first = _FIRST.pack(_MAGIC, *fields, head.string_ids)
    return _sealed(first, _SECTION) + slot + bytes(2 * _SECTION)


# -- reading and checking -----------------------------------------------------------------------


def read_head(file: int, path: Path) -> Head:
    """Read and check the identification of a file."""
    content = read_bytes(file, _SECTION, 0)
    if content[: len(_MAGIC)] != _MAGIC:
        raise IndexFileError(f"{path} is not a kdiffhash index (see `kdiffhash index build`)")
    if not _is_intact(content):
        raise IndexFileError(f"{path} has a damaged head; restore it from a copy")
    _, version, n_bits, model, file_id, string_ids = _FIRST.unpack_from(content)
    if not 1 <= version <= VERSION:
        raise IndexFileError(
            f"{path} has format version {version}, but this version reads formats up to {VERSION}; "
            "upgrade kdiffhash"
        )
    if not 1 <= n_bits <= MAX_BITS:
        raise IndexFileError(f"{path} is damaged: its head gives a code length of {n_bits} bits")
    if string_ids > (version >= 4):
        raise IndexFileError(f"{path} is damaged: its head gives ids of unknown kind {string_ids}")
    name = model.rstrip(b"\0").decode("ascii", "replace") or None
    return Head(version, n_bits, name, file_id, bool(string_ids))


def read_batches(file: int, path: Path, head: Head) -> tuple[Slot, list[Batch]]:
    """Return the newest state of a file, and its batches."""
    slots = read_slots(file)
    if not slots:
        raise IndexFileError(f"{path} is damaged: both of its slots are; {REPAIR}")
    slot, size = max(slots), os.fstat(file).st_size
    if slot.end > size:
        raise IndexFileError(
            f"{path} is damaged: it ends at byte {size} instead of {slot.end}; {REPAIR}"
        )
    batches, problem = _walk(file, slot, head)
    if not problem and len(slots) == 1:
        slot, batches, problem = _roll_forward(file, slot, batches, head)
    if problem:
        raise IndexFileError(f"{path} is damaged: {problem}; {REPAIR}")
    return slot, batches


def read_slots(file: int) -> list[Slot]:
    """Return the slots that are intact."""
    slots = (_read_slot(read_bytes(file, _SECTION, _SECTION * number)) for number in (1, 2))
    return [slot for slot in slots if slot is not None]


def _read_slot(content: bytes) -> Slot | None:
    return Slot(*_SLOT.unpack_from(content)) if _is_intact(content) else None


def _walk(file: int, slot: Slot, head: Head) -> tuple[list[Batch], str]:
    """Return the batches up to the end given by a slot, and the problem, if there is one."""
    batches: list[Batch] = []
    offset = HEAD_SIZE
    while offset < slot.end:
        batch = read_batch(file, offset, head, len(batches) + 1)
        if batch is None or batch.end > slot.end:
            return batches, f"the batch at byte {offset} has a bad header"
        batches.append(batch)
        offset = batch.end
    if len(batches) != slot.n_batches:
        return batches, f"it has {len(batches)} batches instead of {slot.n_batches}"
    return batches, ""


def _roll_forward(
    file: int, slot: Slot, batches: list[Batch], head: Head
) -> tuple[Slot, list[Batch], str]:
    """Recover the batch after the end, if the slot that recorded it is damaged.

    The batch was synced before that slot was written, so bytes after the end that are no whole
    batch are a problem.
    """
    other_slot = read_bytes(file, _SECTION, _SECTION * (1 + (slot.sequence + 1) % 2))
    if not any(other_slot) or os.fstat(file).st_size <= slot.end:
        return slot, batches, ""  # that slot was never written, or it was the older one
    batch = read_batch(file, slot.end, head, slot.sequence + 1)
    if batch is None or not is_whole(file, batch):
        return slot, batches, "one slot and the batch that it may have recorded are unreadable"
    new = Slot(slot.sequence + 1, batch.end, slot.n_batches + 1, slot.next_id)
    if batch.kind == STRINGS:
        new = new._replace(next_id=max(slot.next_id, batch.first_id + batch.n))
    elif batch.kind in ROWS:
        payload = np.frombuffer(read_bytes(file, batch.size, batch.start + HEADER_SIZE), np.uint8)
        last = to_segment(batch, payload, head.n_bits).last_id
        new = new._replace(next_id=max(slot.next_id, last + 1))
    return new, [*batches, batch], ""


def clean_slots(file: int, slot: Slot) -> None:
    """Make the slots on disk describe this state only, before a writer starts.

    If a torn slot were left and the next commit were torn too, no valid slot would remain.
    """
    number = slot.sequence % 2
    if _read_slot(read_bytes(file, _SECTION, _SECTION * (1 + number))) != slot:
        write_slot(file, slot)
    content = read_bytes(file, _SECTION, _SECTION * (2 - number))
    if any(content) and _read_slot(content) is None:
        write_bytes(file, bytes(_SECTION), _SECTION * (2 - number))
        os.fsync(file)


def read_batch(file: int, offset: int, head: Head, sequence: int | None = None) -> Batch | None:
    """Return the batch whose header is at an offset; None if there is no valid header."""
    content = read_bytes(file, HEADER_SIZE, offset)
    if not is_header(content):
        return None
    _, kind, number, n, first_id, size, checksum, n_removed = _HEADER.unpack_from(content)
    if sequence not in (None, number):
        return None
    batch = Batch(offset, kind, n, first_id, size, checksum, n_removed)
    return batch if batch.is_possible(head.n_bits, head.version) else None


# -- bytes --------------------------------------------------------------------------------------


def open_file(path: Path, writable: bool = False) -> int:
    """Open an existing regular file; opening a pipe would wait for its other end."""
    if path.exists() and not path.is_file():
        raise IndexFileError(f"{path} is not a regular file; give the path of an index file")
    binary = getattr(os, "O_BINARY", 0)  # only Windows has this flag
    return os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | binary)


def is_header(content: bytes) -> bool:
    """Return whether these bytes are an intact header of a batch."""
    return content.startswith(_BATCH_MAGIC) and _is_intact(content, HEADER_SIZE)


def header_bytes(batch: Batch, sequence: int) -> bytes:
    """Return the header of a batch, with its checksum."""
    fields = (batch.kind, sequence, batch.n, batch.first_id, batch.size, batch.checksum)
    return _sealed(_HEADER.pack(_BATCH_MAGIC, *fields, batch.n_removed), HEADER_SIZE)


def _slot_bytes(slot: Slot) -> bytes:
    return _sealed(_SLOT.pack(*slot), _SECTION)


def write_slot(file: int, slot: Slot) -> None:
    """Write a slot, even and odd sequence numbers in turn to either place, and sync."""
    write_bytes(file, _slot_bytes(slot), _SECTION * (1 + slot.sequence % 2))
    os.fsync(file)


def _sealed(content: bytes, size: int) -> bytes:
    """Pad content with zeros and append a checksum, `size` bytes in total."""
    content = content.ljust(size - _CRC.size, b"\0")
    return content + _CRC.pack(zlib.crc32(content))


def _is_intact(content: bytes, size: int = _SECTION) -> bool:
    """Return whether content written by `_sealed` has the right size and checksum."""
    if len(content) != size:
        return False
    body, end = content[: -_CRC.size], content[-_CRC.size :]
    return any(body) and _CRC.pack(zlib.crc32(body)) == end


def read_bytes(file: int, size: int, offset: int) -> bytes:
    """Read up to `size` bytes at an offset; fewer at the end of the file."""
    pieces: list[bytes] = []
    while size:
        if hasattr(os, "pread"):
            piece = os.pread(file, min(size, 2**26), offset)
        else:  # Windows
            os.lseek(file, offset, os.SEEK_SET)
            piece = os.read(file, min(size, 2**26))
        if not piece:
            break
        pieces.append(piece)
        size, offset = size - len(piece), offset + len(piece)
    return b"".join(pieces)


def write_bytes(file: int, content: bytes | memoryview, offset: int) -> int:
    """Write all of the content at an offset; return the offset of the next byte."""
    os.lseek(file, offset, os.SEEK_SET)
    view = memoryview(content)
    while len(view):
        written = os.write(file, view[: 2**26])
        offset, view = offset + written, view[written:]
    return offset
