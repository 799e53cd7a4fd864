"""Index files: batches of codes behind each other, mapped into memory and never written twice.

A file begins with a head of 4096 bytes: what it is (1024 bytes, checksummed), two slots of 1024
bytes, and 1024 zero bytes. Segments follow, each a header of 64 bytes and a payload whose length is
a multiple of 64: rows (ids where they are listed, then blocks) or ids that are removed. All numbers
are little-endian; every byte is covered by a CRC-32.

A batch is added by writing its segment behind the others, syncing, then writing the older slot,
which tells where the file now ends, and syncing again. Until the slot is there the batch does not
exist; a slot that was torn by a crash fails its checksum, and the other one counts. Opening reads
the slots and the headers of the segments, whatever the size of the file.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import filelock
import numpy as np
from numpy.typing import NDArray

from .._numba.lanes import BLOCK
from ..errors import KdiffhashError
from ..files import replacing
from .segment import Ids, Segment, n_words

VERSION = 1
MAX_BITS = 4096
_MAGIC = b"kdiffhash index\n"
_HEAD, _PART = 4096, 1024
_FIRST = struct.Struct("<16sII")  # magic, version, n_bits
_SLOT = struct.Struct("<QQQq")  # sequence, end, number of segments, next id
_HEADER = struct.Struct("<4sIQQqQI")  # magic, kind, sequence, n, first id, payload, its CRC
_HEADER_SIZE, _SEGMENT_MAGIC = 64, b"part"
_CRC = struct.Struct("<I")
_BINARY = getattr(os, "O_BINARY", 0)  # Windows
_SMALL = 2**20  # bytes of a part up to which it is read, not mapped
FOLLOWING, LISTED, REMOVED = 1, 2, 3  # kinds of segments


class IndexFileError(KdiffhashError, ValueError):
    """A file is not an index, or is damaged, or its version is unknown."""


class Slot(NamedTuple):
    """What the file held after some batch."""

    sequence: int
    end: int
    n_segments: int
    next_id: int


@dataclass(frozen=True)
class Part:
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
        return self.start + _HEADER_SIZE + self.size


class IndexFile:
    """An index file, open for reading, and for adding where `writable`.

    One writer at a time holds a lock beside the file; readers need none.
    """

    def __init__(self, path: Path, writable: bool = False) -> None:
        self.path, self.writable = path, writable
        self.n_bits, self.n_maps, self._process = 0, 0, os.getpid()
        self._lock = _lock(path) if writable else None
        self._file: int | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Open the file that is there now, in the place of the one that was."""
        file = os.open(self.path, (os.O_RDWR if self.writable else os.O_RDONLY) | _BINARY)
        try:
            n_bits = _read_first(file, self.path)
            if self._file is not None and n_bits != self.n_bits:
                raise IndexFileError(
                    f"{self.path} now holds codes of {n_bits} bits instead of {self.n_bits}; "
                    "open it again"
                )
            slot, parts = _read_parts(file, self.path, n_bits)
            if self.writable:
                _settle(file, slot)
        except BaseException:
            os.close(file)
            raise
        old, self._file = self._file, file
        if old is not None:
            os.close(old)
        self.n_bits, self.slot, self.parts = n_bits, slot, parts
        self.forget_maps()

    @classmethod
    def create(cls, path: Path, n_bits: int) -> Self:
        """Write an empty index file, which must not be there yet, and open it for adding."""
        with changing(path):
            if path.exists():
                raise FileExistsError(
                    errno.EEXIST, "there is a file already; remove it first", str(path)
                )
            with replacing(path) as temporary:
                temporary.write_bytes(empty_file(n_bits))
        return cls(path, writable=True)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def close(self) -> None:
        """Give the lock back. What was mapped stays readable while it is in use."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def refresh(self) -> bool:
        """Look at what the file holds now; whether another one has taken its place."""
        if self._is_replaced():
            self._open()
            return True
        self.slot, self.parts = _read_parts(self._handle(), self.path, self.n_bits)
        return False

    def forget_maps(self) -> None:
        """Map the file anew when it is read next; each map holds an open file."""
        self._map: NDArray[np.uint8] | None = None
        self.n_maps = 0

    def _is_replaced(self) -> bool:
        here, there = os.fstat(self._handle()), self.path.stat()
        return (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino)

    def read_rows(self, part: Part) -> Segment:
        """The rows of a part: mapped, or read where they are few."""
        payload, skip, listed = self._payload(part), 0, None
        if part.kind == LISTED:
            listed, skip = payload[: 8 * part.n].view("<i8"), _padded(8 * part.n)
        shape = (-(-part.n // BLOCK), n_words(self.n_bits), BLOCK)
        blocks = payload[skip:].view("<u8").reshape(shape)
        return Segment(blocks, part.n, part.first_id, listed, mapped=part.size >= _SMALL)

    def read_removed(self, part: Part) -> Ids:
        """The ids of a part that removes them."""
        return self._payload(part)[: 8 * part.n].view("<i8").astype(np.int64)

    def _payload(self, part: Part) -> NDArray[np.uint8]:
        start = part.start + _HEADER_SIZE
        if part.size < _SMALL:
            return np.frombuffer(_read(self._handle(), part.size, start), np.uint8)
        if self._map is None or len(self._map) < part.end:  # one map for all parts so far
            try:
                mapped = mmap.mmap(self._handle(), self.slot.end, access=mmap.ACCESS_READ)
            except OSError:  # no more maps: the batch is there, so it must be readable
                return np.frombuffer(_read(self._handle(), part.size, start), np.uint8)
            self._map = np.frombuffer(mapped, np.uint8)
            self.n_maps += 1
        return self._map[start : part.end]

    def add_rows(self, segment: Segment, next_id: int) -> Part:
        """Append a batch of rows; it is there for good when this returns, or not at all."""
        kind = FOLLOWING if segment.listed is None else LISTED
        arrays = [] if segment.listed is None else [segment.listed.astype("<i8", copy=False)]
        arrays.append(np.ascontiguousarray(segment.blocks, "<u8"))
        return self._append(kind, segment.n_rows, segment.first_id, arrays, next_id)

    def add_removal(self, ids: Ids) -> Part:
        """Append ids whose rows count no more."""
        arrays = [np.ascontiguousarray(ids, "<i8")]
        return self._append(REMOVED, len(ids), 0, arrays, self.slot.next_id)

    def replace(self, segments: Iterator[Segment]) -> None:
        """Put a new file with these rows in the place of this one."""
        self._check_writable()
        try:
            write_file(self.path, self.n_bits, segments, self.slot.next_id, lock=False)
            self.refresh()
        except BaseException:
            if self._is_replaced():  # what is added to the old file would be lost
                self.close()
            raise

    def _check_writable(self) -> None:
        if not self.writable:
            raise ValueError(f"{self.path} is open for reading; open it with mode='a' to change it")
        if os.getpid() != self._process:
            raise ValueError(f"{self.path} was opened before a fork; let one process change it")

    def _append(
        self, kind: int, n: int, first_id: int, arrays: list[NDArray[Any]], next_id: int
    ) -> Part:
        self._check_writable()
        file, slot = self._handle(), self.slot
        start, sequence = slot.end, slot.sequence + 1
        pieces, checksum, size = [], 0, 0
        for array in arrays:
            for piece in (array.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % 64)):
                if len(piece):
                    pieces.append(piece)
                    checksum = zlib.crc32(piece, checksum)
                    size += len(piece)
        part = Part(start, kind, n, first_id, size, checksum)
        try:
            place = _write(file, _header(part, sequence), start)
            for piece in pieces:
                place = _write(file, piece, place)
            os.fsync(file)
        except OSError as error:
            _cut(file, start)
            raise _told(error, f"{self.path}: nothing was added, the rest is intact") from None
        new = Slot(sequence, part.end, slot.n_segments + 1, next_id)
        try:
            _write_slot(file, new)
        except OSError as error:  # nobody knows which slot is on the disk
            self.close()
            raise _told(error, f"{self.path}: open the index again to see its state") from None
        except BaseException:
            self.close()
            raise
        self.slot, self.parts = new, [*self.parts, part]
        return part

    def _handle(self) -> int:
        if self._file is None:
            raise ValueError(f"the index {self.path} is closed; open it again")
        return self._file


def write_file(
    path: Path, n_bits: int, segments: Iterator[Segment], next_id: int, lock: bool = True
) -> None:
    """Write a whole index file, which takes the place of any that is there when it is complete."""
    with changing(path) if lock else contextlib.nullcontext(), replacing(path) as temporary:
        temporary.write_bytes(empty_file(n_bits, next_id))
        new = IndexFile(temporary, writable=True)
        try:
            for segment in segments:
                new.add_rows(segment, max(next_id, segment.last_id + 1))
        finally:
            new.close()
            lock_path(temporary).unlink(missing_ok=True)


def damage(path: Path) -> Iterator[str | None]:
    """Check every byte of a file: a sentence for each damage, None for each part that is whole."""
    file = os.open(path, os.O_RDONLY | _BINARY)
    try:
        try:
            n_bits = _read_first(file, path)
        except IndexFileError as error:
            yield str(error)
            return
        for number in (1, 2):
            content = _read(file, _PART, _PART * number)
            if _read_slot(content) is None and any(content):
                yield f"the slot at byte {_PART * number} fails its checksum; the other one is used"
        if any(_read(file, _PART, 3 * _PART)):
            yield f"bytes {3 * _PART} to {_HEAD} should be zero"
        try:
            slot, parts = _read_parts(file, path, n_bits)
        except IndexFileError as error:
            yield str(error)
            return
        newest = max((s.end for s in _read_slots(file)), default=0)
        if newest > slot.end:
            yield f"the file was cut: it ends before byte {newest}, so its last batch is missing"
        for part in parts:
            found, place = 0, part.start + _HEADER_SIZE
            while place < part.end:
                piece = _read(file, min(2**24, part.end - place), place)
                found, place = zlib.crc32(piece, found), place + len(piece)
            if found != part.checksum:
                yield f"the batch of {part.n} rows at byte {part.start} fails its checksum"
            else:
                yield None
    finally:
        os.close(file)


def empty_file(n_bits: int, next_id: int = 0) -> bytes:
    """The content of an index file that holds nothing."""
    first = _sealed(_FIRST.pack(_MAGIC, VERSION, n_bits), _PART)
    return first + _slot_bytes(Slot(0, _HEAD, 0, next_id)) + bytes(2 * _PART)


# -- reading what may be damaged ----------------------------------------------------------------


def _read_first(file: int, path: Path) -> int:
    """Check what a file says it is; its number of bits."""
    content = _read(file, _PART, 0)
    if content[: len(_MAGIC)] != _MAGIC:
        raise IndexFileError(f"{path} is not a kdiffhash index (see `kdiffhash index build`)")
    if not _is_whole(content):
        raise IndexFileError(f"{path} is damaged in its head; restore it from a copy")
    _, version, n_bits = _FIRST.unpack_from(content)
    if not 1 <= version <= VERSION:
        raise IndexFileError(
            f"{path} has format version {version}, this kdiffhash reads up to {VERSION}; upgrade it"
        )
    if not 1 <= n_bits <= MAX_BITS:
        raise IndexFileError(f"{path} is damaged: codes of {n_bits} bits")
    return int(n_bits)


def _read_parts(file: int, path: Path, n_bits: int) -> tuple[Slot, list[Part]]:
    """The newest state that is there as a whole."""
    slots = sorted(_read_slots(file), reverse=True)
    where, size = "its slots are damaged", os.fstat(file).st_size
    for slot in slots:
        if slot.end > size:  # the last batch was cut off; the older slot knows nothing of it
            where = f"it ends at byte {size} instead of {slot.end}"
            continue
        parts, where = _walk(file, slot, n_bits)
        if parts is None:
            break
        if len(slots) == 1:
            slot, parts = _roll_forward(file, slot, parts, n_bits)
        return slot, parts
    raise IndexFileError(
        f"{path} is damaged: {where}; restore it from a copy, or build it again from the codes"
    )


def _read_slots(file: int) -> list[Slot]:
    slots = (_read_slot(_read(file, _PART, _PART * number)) for number in (1, 2))
    return [slot for slot in slots if slot is not None]


def _read_slot(content: bytes) -> Slot | None:
    return Slot(*_SLOT.unpack_from(content)) if _is_whole(content) else None


def _walk(file: int, slot: Slot, n_bits: int) -> tuple[list[Part] | None, str]:
    """The parts up to a slot's end, or None and what is wrong."""
    parts: list[Part] = []
    place = _HEAD
    while place < slot.end:
        part = _read_part(file, place, len(parts) + 1, n_bits)
        if part is None or part.end > slot.end:
            return None, f"the batch at byte {place} has a bad header"
        parts.append(part)
        place = part.end
    if len(parts) != slot.n_segments:
        return None, f"it has {len(parts)} batches instead of {slot.n_segments}"
    return parts, ""


def _roll_forward(file: int, slot: Slot, parts: list[Part], n_bits: int) -> tuple[Slot, list[Part]]:
    """Take a whole batch that follows, if the slot that told of it was hit.

    The batch had been synced before that slot was touched.
    """
    if not any(_read(file, _PART, _PART * (1 + (slot.sequence + 1) % 2))):
        return slot, parts  # that slot was never written
    part = _read_part(file, slot.end, slot.sequence + 1, n_bits)
    if part is None or part.end > os.fstat(file).st_size:
        return slot, parts
    payload = _read(file, part.size, part.start + _HEADER_SIZE)
    if zlib.crc32(payload) != part.checksum:
        return slot, parts
    next_id = slot.next_id
    if part.kind == FOLLOWING:
        next_id = max(next_id, part.first_id + part.n)
    elif part.kind == LISTED:
        next_id = max(next_id, int(np.frombuffer(payload, "<i8", part.n)[-1]) + 1)
    return Slot(slot.sequence + 1, part.end, slot.n_segments + 1, next_id), [*parts, part]


def _settle(file: int, slot: Slot) -> None:
    """Before a writer starts: let the slots on the disk tell of this state and no other.

    A torn slot would otherwise be the only other one when the next commit is torn, and one that
    tells of a batch that was cut off might come to fit the next batch.
    """
    number = slot.sequence % 2
    if _read_slot(_read(file, _PART, _PART * (1 + number))) != slot:
        _write_slot(file, slot)
    content = _read(file, _PART, _PART * (2 - number))
    other = _read_slot(content)
    if any(content) and (other is None or other.sequence > slot.sequence):
        _write(file, bytes(_PART), _PART * (2 - number))
        os.fsync(file)


def _read_part(file: int, place: int, sequence: int, n_bits: int) -> Part | None:
    content = _read(file, _HEADER_SIZE, place)
    if not _is_whole(content, _HEADER_SIZE):
        return None
    magic, kind, number, n, first_id, size, checksum = _HEADER.unpack_from(content)
    if magic != _SEGMENT_MAGIC or number != sequence or kind not in (FOLLOWING, LISTED, REMOVED):
        return None
    rows = 64 * n_words(n_bits) * -(-n // BLOCK)
    wanted = {FOLLOWING: rows, LISTED: _padded(8 * n) + rows, REMOVED: _padded(8 * n)}[kind]
    if n < 1 or size != wanted or first_id + n > 2**63:
        return None
    return Part(place, kind, n, first_id, size, checksum)


# -- bytes --------------------------------------------------------------------------------------


def _header(part: Part, sequence: int) -> bytes:
    fields = (part.kind, sequence, part.n, part.first_id, part.size, part.checksum)
    return _sealed(_HEADER.pack(_SEGMENT_MAGIC, *fields), _HEADER_SIZE)


def _slot_bytes(slot: Slot) -> bytes:
    return _sealed(_SLOT.pack(*slot), _PART)


def _write_slot(file: int, slot: Slot) -> None:
    _write(file, _slot_bytes(slot), _PART * (1 + slot.sequence % 2))
    os.fsync(file)


def _sealed(content: bytes, size: int) -> bytes:
    """Content, zeros, and the checksum of both, `size` bytes together."""
    content = content.ljust(size - _CRC.size, b"\0")
    return content + _CRC.pack(zlib.crc32(content))


def _is_whole(content: bytes, size: int = _PART) -> bool:
    if len(content) != size:
        return False
    body, end = content[: -_CRC.size], content[-_CRC.size :]
    return any(body) and _CRC.pack(zlib.crc32(body)) == end


def _read(file: int, size: int, place: int) -> bytes:
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


def _padded(size: int) -> int:
    return -(-size // 64) * 64


def _write(file: int, content: bytes | memoryview, place: int) -> int:
    """Write all of it; where the next byte goes."""
    os.lseek(file, place, os.SEEK_SET)
    view = memoryview(content)
    while len(view):
        written = os.write(file, view[: 2**26])
        place, view = place + written, view[written:]
    return place


def _cut(file: int, end: int) -> None:
    """Give the room of a failed batch back, if that is possible; what is there does not count."""
    with contextlib.suppress(OSError):
        os.ftruncate(file, end)


def _told(error: OSError, what: str) -> OSError:
    return OSError(error.errno, f"{os.strerror(error.errno or 5)} ({what})")


def lock_path(path: Path) -> Path:
    """The file beside an index that its writer holds a lock on; it stays, and may be removed."""
    return path.with_name(f".{path.name}.lock")


@contextlib.contextmanager
def changing(path: Path) -> Iterator[None]:
    """Hold the lock of an index file, which need not be there yet."""
    lock = _lock(path)
    try:
        yield
    finally:
        lock.release()


def _lock(path: Path) -> filelock.BaseFileLock:
    path = path.resolve()
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such folder", str(path.parent))
    lock = filelock.FileLock(lock_path(path), thread_local=False)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise BlockingIOError(
            errno.EAGAIN, f"another process is changing {path}; wait until it is done"
        ) from None
    return lock
