"""Format of index files: batches of codes, appended and never overwritten.

A file begins with a head of 4096 bytes: an identification of 1024 bytes (format version, length of
the codes, fingerprint of their model), two slots of 1024 bytes, and 1024 zero bytes. Batches
follow, each with a header of 64 bytes and a payload whose length is a multiple of 64. The payload
holds rows (ids, if they are not consecutive, then blocks) or removed ids. All numbers are
little-endian, and every byte is covered by a CRC-32.

A batch is appended in two steps. First the batch is written after the last one and synced. Then the
older slot is overwritten with the new end of the file and synced. Without the second step the batch
does not exist. A slot torn by a crash fails its checksum, and the other slot is valid. Opening a
file reads only the slots and the headers of the batches, whatever the size of the file.
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

VERSION = 2  # version 1 has no model fingerprint; it can still be read and appended to
MAX_BITS = 4096
HEADER_SIZE = 64
FOLLOWING, LISTED, REMOVED = 1, 2, 3  # kinds of batches: consecutive ids, listed ids, removal
_MAGIC = b"kdiffhash index\n"
_HEAD, _SECTION = 4096, 1024
_FIRST = struct.Struct("<16sII128s")  # magic, version, n_bits, fingerprint of the model or zeros
_SLOT = struct.Struct("<QQQq")  # sequence, end, number of batches, next id
_HEADER = struct.Struct("<4sIQQqQI")  # magic, kind, sequence, n, first id, payload size and CRC
_BATCH_MAGIC = b"part"
_CRC = struct.Struct("<I")
BINARY = getattr(os, "O_BINARY", 0)  # only Windows has this flag


class IndexFileError(KdiffhashError, ValueError):
    """Error raised if a file is not an index, is damaged, or has an unknown version.

    Examples
    --------
    >>> import tempfile
    >>> from kdiffhash import HammingIndex, IndexFileError
    >>> path = tempfile.mkdtemp() + "/notes.txt"
    >>> with open(path, "w") as file:
    ...     _ = file.write("not an index")
    >>> try:
    ...     HammingIndex.open(path)
    ... except IndexFileError as error:
    ...     print("not a kdiffhash index" in str(error))
    True
    """


class Head(NamedTuple):
    """Identification of a file: format version, code length, fingerprint of the model."""

    version: int
    n_bits: int
    model: str | None


class Slot(NamedTuple):
    """State of the file after a batch: its sequence number, the end, and the next new id."""

    sequence: int
    end: int
    n_batches: int
    next_id: int


@dataclass(frozen=True)
class Batch:
    """One batch, as described by its header."""

    start: int
    kind: int
    n: int
    first_id: int
    size: int
    checksum: int

    @property
    def end(self) -> int:
        """Offset of the first byte after the batch."""
        return self.start + HEADER_SIZE + self.size


def damage(path: Path) -> Iterator[str]:
    """Check every byte of a file, and yield a sentence for each problem."""
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
            yield f"the file was truncated before byte {newest}, so its last batch is missing"
        for batch in batches:
            checksum, offset = 0, batch.start + HEADER_SIZE
            while offset < batch.end:
                piece = read_bytes(file, min(2**24, batch.end - offset), offset)
                checksum, offset = zlib.crc32(piece, checksum), offset + len(piece)
            if checksum != batch.checksum:
                yield f"the batch of {batch.n} rows at byte {batch.start} fails its checksum"
    finally:
        os.close(file)


def empty_file(n_bits: int, model: str | None = None, next_id: int = 0) -> bytes:
    """Return the content of an empty index file."""
    first = _sealed(_FIRST.pack(_MAGIC, VERSION, n_bits, (model or "").encode()), _SECTION)
    return first + _slot_bytes(Slot(0, _HEAD, 0, next_id)) + bytes(2 * _SECTION)


# -- reading and checking -----------------------------------------------------------------------


def read_head(file: int, path: Path) -> Head:
    """Read and check the identification of a file."""
    content = read_bytes(file, _SECTION, 0)
    if content[: len(_MAGIC)] != _MAGIC:
        raise IndexFileError(f"{path} is not a kdiffhash index (see `kdiffhash index build`)")
    if not _is_intact(content):
        raise IndexFileError(f"{path} has a damaged head; restore it from a copy")
    _, version, n_bits, model = _FIRST.unpack_from(content)
    if not 1 <= version <= VERSION:
        raise IndexFileError(
            f"{path} has format version {version}, but this version reads formats up to {VERSION}; "
            "upgrade kdiffhash"
        )
    if not 1 <= n_bits <= MAX_BITS:
        raise IndexFileError(f"{path} is damaged: its head gives a code length of {n_bits} bits")
    return Head(version, n_bits, model.rstrip(b"\0").decode("ascii", "replace") or None)


def read_batches(file: int, path: Path, n_bits: int) -> tuple[Slot, list[Batch]]:
    """Return the newest complete state of a file, and its batches."""
    slots = sorted(_read_slots(file), reverse=True)
    problem, size = "its slots are damaged", os.fstat(file).st_size
    for slot in slots:
        if slot.end > size:  # the last batch was cut off; the older slot does not include it
            problem = f"it ends at byte {size} instead of {slot.end}"
            continue
        batches, problem = _walk(file, slot, n_bits)
        if batches is None:
            break
        if len(slots) == 1:
            slot, batches = _roll_forward(file, slot, batches, n_bits)
        return slot, batches
    raise IndexFileError(
        f"{path} is damaged: {problem}; restore it from a copy, or build it again from the codes"
    )


def _read_slots(file: int) -> list[Slot]:
    slots = (_read_slot(read_bytes(file, _SECTION, _SECTION * number)) for number in (1, 2))
    return [slot for slot in slots if slot is not None]


def _read_slot(content: bytes) -> Slot | None:
    return Slot(*_SLOT.unpack_from(content)) if _is_intact(content) else None


def _walk(file: int, slot: Slot, n_bits: int) -> tuple[list[Batch] | None, str]:
    """Return the batches up to the end given by a slot, or None and the problem."""
    batches: list[Batch] = []
    offset = _HEAD
    while offset < slot.end:
        batch = _read_batch(file, offset, len(batches) + 1, n_bits)
        if batch is None or batch.end > slot.end:
            return None, f"the batch at byte {offset} has a bad header"
        batches.append(batch)
        offset = batch.end
    if len(batches) != slot.n_batches:
        return None, f"it has {len(batches)} batches instead of {slot.n_batches}"
    return batches, ""


def _roll_forward(
    file: int, slot: Slot, batches: list[Batch], n_bits: int
) -> tuple[Slot, list[Batch]]:
    """Recover a complete batch after the end, if the slot that recorded it is damaged.

    The batch was synced before that slot was written.
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
    """Make the slots on disk describe this state only, before a writer starts.

    If a torn slot were left and the next commit were torn too, no valid slot would remain. A slot
    left by a batch that was cut off might accidentally match the next batch.
    """
    number = slot.sequence % 2
    if _read_slot(read_bytes(file, _SECTION, _SECTION * (1 + number))) != slot:
        write_slot(file, slot)
    content = read_bytes(file, _SECTION, _SECTION * (2 - number))
    other = _read_slot(content)
    if any(content) and (other is None or other.sequence > slot.sequence):
        write_bytes(file, bytes(_SECTION), _SECTION * (2 - number))
        os.fsync(file)


def _read_batch(file: int, offset: int, sequence: int, n_bits: int) -> Batch | None:
    content = read_bytes(file, HEADER_SIZE, offset)
    if not _is_intact(content, HEADER_SIZE):
        return None
    magic, kind, number, n, first_id, size, checksum = _HEADER.unpack_from(content)
    if magic != _BATCH_MAGIC or number != sequence or kind not in (FOLLOWING, LISTED, REMOVED):
        return None
    rows = 64 * n_words(n_bits) * -(-n // BLOCK)
    expected = {FOLLOWING: rows, LISTED: padded(8 * n) + rows, REMOVED: padded(8 * n)}[kind]
    if n < 1 or size != expected or first_id + n > 2**63:
        return None
    return Batch(offset, kind, n, first_id, size, checksum)


# -- bytes --------------------------------------------------------------------------------------


def header_bytes(batch: Batch, sequence: int) -> bytes:
    """Return the header of a batch, with its checksum."""
    fields = (batch.kind, sequence, batch.n, batch.first_id, batch.size, batch.checksum)
    return _sealed(_HEADER.pack(_BATCH_MAGIC, *fields), HEADER_SIZE)


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


def padded(size: int) -> int:
    """Round up to a multiple of 64."""
    return -(-size // 64) * 64


def write_bytes(file: int, content: bytes | memoryview, offset: int) -> int:
    """Write all of the content at an offset; return the offset of the next byte."""
    os.lseek(file, offset, os.SEEK_SET)
    view = memoryview(content)
    while len(view):
        written = os.write(file, view[: 2**26])
        offset, view = offset + written, view[written:]
    return offset
