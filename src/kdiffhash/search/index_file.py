"""An open index file: reading and mapping what is there, adding to it, and one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import filelock
import numpy as np
from numpy.typing import NDArray

from .._util.files import replacing
from . import index_format as disk
from .index_format import FOLLOWING, LISTED, REMOVED, Batch, Head, IndexFileError, Slot
from .segment import BLOCK, Ids, Segment, n_words

_SMALL = 2**20  # bytes of a batch up to which it is read, not mapped


class IndexFile:
    """An index file, open for reading, and for adding where `writable`.

    One writer at a time holds a lock beside the file; readers need none.
    """

    def __init__(self, path: Path, writable: bool = False) -> None:
        self.path, self.writable = path, writable
        self.n_maps, self._process = 0, os.getpid()
        self.head: Head
        self._lock = _lock(path) if writable else None
        self._file: int | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Open the file that is there now, in the place of the one that was."""
        file = os.open(self.path, (os.O_RDWR if self.writable else os.O_RDONLY) | disk.BINARY)
        try:
            head = disk.read_head(file, self.path)
            if self._file is not None and head.n_bits != self.head.n_bits:
                raise IndexFileError(
                    f"{self.path} now holds codes of {head.n_bits} bits instead of "
                    f"{self.head.n_bits}; open it again"
                )
            if self._file is not None and self.head.model not in (None, head.model):
                raise IndexFileError(
                    f"{self.path} was replaced by a file with codes of another model, or of none; "
                    "open it again"
                )
            slot, batches = disk.read_batches(file, self.path, head.n_bits)
            if self.writable:
                disk.clean_slots(file, slot)
        except BaseException:
            os.close(file)
            raise
        old, self._file = self._file, file
        if old is not None:
            os.close(old)
        self.head, self.slot, self.batches = head, slot, batches
        self.forget_maps()

    @classmethod
    def create(cls, path: Path, n_bits: int, model: str | None) -> Self:
        """Write an empty index file, which must not be there yet, and open it for adding."""
        with changing(path):
            if path.exists():
                raise FileExistsError(
                    errno.EEXIST, "there is a file already; remove it first", str(path)
                )
            with replacing(path) as temporary:
                temporary.write_bytes(disk.empty_file(n_bits, model))
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
        self.slot, self.batches = disk.read_batches(self._handle(), self.path, self.head.n_bits)
        return False

    @property
    def inode(self) -> int:
        """The number that the system knows the file by; one that takes its place has another."""
        return os.fstat(self._handle()).st_ino

    def forget_maps(self) -> None:
        """Map the file anew when it is read next; each map holds an open file."""
        self._map: NDArray[np.uint8] | None = None
        self.n_maps = 0

    def _is_replaced(self) -> bool:
        here, there = os.fstat(self._handle()), self.path.stat()
        return (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino)

    def read_rows(self, batch: Batch) -> Segment:
        """The rows of a batch: mapped, or read where they are few."""
        payload, skip, listed = self._payload(batch), 0, None
        if batch.kind == LISTED:
            listed, skip = payload[: 8 * batch.n].view("<i8"), disk.padded(8 * batch.n)
        shape = (-(-batch.n // BLOCK), n_words(self.head.n_bits), BLOCK)
        blocks = payload[skip:].view("<u8").reshape(shape)
        return Segment(blocks, batch.n, batch.first_id, listed, mapped=batch.size >= _SMALL)

    def read_removed(self, batch: Batch) -> Ids:
        """The ids of a batch that removes them."""
        return self._payload(batch)[: 8 * batch.n].view("<i8").astype(np.int64)

    def _payload(self, batch: Batch) -> NDArray[np.uint8]:
        start = batch.start + disk.HEADER_SIZE
        if batch.size < _SMALL:
            return np.frombuffer(disk.read_bytes(self._handle(), batch.size, start), np.uint8)
        if self._map is None or len(self._map) < batch.end:  # one map for all batches so far
            try:
                mapped = mmap.mmap(self._handle(), self.slot.end, access=mmap.ACCESS_READ)
            except OSError:  # no more maps: the batch is there, so it must be readable
                return np.frombuffer(disk.read_bytes(self._handle(), batch.size, start), np.uint8)
            self._map = np.frombuffer(mapped, np.uint8)
            self.n_maps += 1
        return self._map[start : batch.end]

    def add_rows(self, segment: Segment, next_id: int) -> Batch:
        """Append a batch of rows; it is there for good when this returns, or not at all."""
        kind = FOLLOWING if segment.listed is None else LISTED
        arrays = [] if segment.listed is None else [segment.listed.astype("<i8", copy=False)]
        arrays.append(np.ascontiguousarray(segment.blocks, "<u8"))
        return self._append(kind, segment.n_rows, segment.first_id, arrays, next_id)

    def add_removal(self, ids: Ids) -> Batch:
        """Append ids whose rows count no more."""
        arrays = [np.ascontiguousarray(ids, "<i8")]
        return self._append(REMOVED, len(ids), 0, arrays, self.slot.next_id)

    def replace(self, segments: Iterator[Segment]) -> None:
        """Put a new file with these rows in the place of this one."""
        self._check_writable()
        try:
            write_file(self.path, self.head, segments, self.slot.next_id, lock=False)
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
    ) -> Batch:
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
        batch = Batch(start, kind, n, first_id, size, checksum)
        try:
            place = disk.write_bytes(file, disk.header_bytes(batch, sequence), start)
            for piece in pieces:
                place = disk.write_bytes(file, piece, place)
            os.fsync(file)
        except OSError as error:
            _cut(file, start)
            raise _told(error, f"{self.path}: nothing was added, the rest is intact") from None
        new = Slot(sequence, batch.end, slot.n_batches + 1, next_id)
        try:
            disk.write_slot(file, new)
        except OSError as error:  # nobody knows which slot is on the disk
            self.close()
            raise _told(error, f"{self.path}: open the index again to see its state") from None
        except BaseException:
            self.close()
            raise
        self.slot, self.batches = new, [*self.batches, batch]
        return batch

    def _handle(self) -> int:
        if self._file is None:
            raise ValueError(f"the index {self.path} is closed; open it again")
        return self._file


def write_file(
    path: Path, head: Head, segments: Iterator[Segment], next_id: int, lock: bool = True
) -> None:
    """Write a whole index file, which takes the place of any that is there when it is complete."""
    with changing(path) if lock else contextlib.nullcontext(), replacing(path) as temporary:
        temporary.write_bytes(disk.empty_file(head.n_bits, head.model, next_id))
        new = IndexFile(temporary, writable=True)
        try:
            for segment in segments:
                new.add_rows(segment, max(next_id, segment.last_id + 1))
        finally:
            new.close()
            lock_path(temporary).unlink(missing_ok=True)


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
