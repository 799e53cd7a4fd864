"""An open index file: reading and memory-mapping batches, and appending with a single writer."""

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

_SMALL = 2**20  # batches below this size in bytes are read, larger ones are memory-mapped


class IndexFile:
    """An index file, open for reading and, if `writable`, for appending.

    The writer holds a lock on a separate file next to the index; readers need no lock.
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
        """Open the file at `path`, replacing the one that was open before."""
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
        """Create an empty index file and open it for appending; it must not exist yet."""
        with changing(path):
            if path.exists():
                raise FileExistsError(
                    errno.EEXIST, "the file already exists; remove it first", str(path)
                )
            with replacing(path) as temporary:
                temporary.write_bytes(disk.empty_file(n_bits, model))
        return cls(path, writable=True)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def close(self) -> None:
        """Release the lock and close the file; memory maps stay readable while they are in use."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def refresh(self) -> bool:
        """Read the current state of the file; return whether the file has been replaced."""
        if self._is_replaced():
            self._open()
            return True
        self.slot, self.batches = disk.read_batches(self._handle(), self.path, self.head.n_bits)
        return False

    @property
    def inode(self) -> int:
        """Inode number of the file; a file that replaces it has another one."""
        return os.fstat(self._handle()).st_ino

    def forget_maps(self) -> None:
        """Drop the memory map, which keeps a file open; the next read maps the file again."""
        self._map: NDArray[np.uint8] | None = None
        self.n_maps = 0

    def _is_replaced(self) -> bool:
        here, there = os.fstat(self._handle()), self.path.stat()
        return (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino)

    def read_rows(self, batch: Batch) -> Segment:
        """Return the rows of a batch, memory-mapped unless the batch is small."""
        payload, skip, listed = self._payload(batch), 0, None
        if batch.kind == LISTED:
            listed, skip = payload[: 8 * batch.n].view("<i8"), disk.padded(8 * batch.n)
        shape = (-(-batch.n // BLOCK), n_words(self.head.n_bits), BLOCK)
        blocks = payload[skip:].view("<u8").reshape(shape)
        return Segment(blocks, batch.n, batch.first_id, listed, mapped=batch.size >= _SMALL)

    def read_removed(self, batch: Batch) -> Ids:
        """Return the ids that a batch removes."""
        return self._payload(batch)[: 8 * batch.n].view("<i8").astype(np.int64)

    def _payload(self, batch: Batch) -> NDArray[np.uint8]:
        start = batch.start + disk.HEADER_SIZE
        if batch.size < _SMALL:
            return np.frombuffer(disk.read_bytes(self._handle(), batch.size, start), np.uint8)
        if self._map is None or len(self._map) < batch.end:  # one map for all batches so far
            try:
                mapped = mmap.mmap(self._handle(), self.slot.end, access=mmap.ACCESS_READ)
            except OSError:  # no more memory maps available
                return np.frombuffer(disk.read_bytes(self._handle(), batch.size, start), np.uint8)
            self._map = np.frombuffer(mapped, np.uint8)
            self.n_maps += 1
        return self._map[start : batch.end]

    def add_rows(self, segment: Segment, next_id: int) -> Batch:
        """Append a batch of rows; it is durable on return, and absent if an error is raised."""
        kind = FOLLOWING if segment.listed is None else LISTED
        arrays = [] if segment.listed is None else [segment.listed.astype("<i8", copy=False)]
        arrays.append(np.ascontiguousarray(segment.blocks, "<u8"))
        return self._append(kind, segment.n_rows, segment.first_id, arrays, next_id)

    def add_removal(self, ids: Ids) -> Batch:
        """Append a batch of ids whose rows are removed."""
        arrays = [np.ascontiguousarray(ids, "<i8")]
        return self._append(REMOVED, len(ids), 0, arrays, self.slot.next_id)

    def replace(self, segments: Iterator[Segment]) -> None:
        """Replace this file by a new one with these rows."""
        self._check_writable()
        try:
            write_file(self.path, self.head, segments, self.slot.next_id, lock=False)
            self.refresh()
        except BaseException:
            if self._is_replaced():  # appending to the old file would lose data
                self.close()
            raise

    def _check_writable(self) -> None:
        if not self.writable:
            raise ValueError(
                f"{self.path} is open for reading only; open it with mode='a' to change it"
            )
        if os.getpid() != self._process:
            raise ValueError(
                f"{self.path} was opened before a fork; only the process that opened it can "
                "change it"
            )

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
            offset = disk.write_bytes(file, disk.header_bytes(batch, sequence), start)
            for piece in pieces:
                offset = disk.write_bytes(file, piece, offset)
            os.fsync(file)
        except OSError as error:
            _truncate(file, start)
            raise _with_note(error, f"{self.path}: nothing was added, the rest is intact") from None
        new = Slot(sequence, batch.end, slot.n_batches + 1, next_id)
        try:
            disk.write_slot(file, new)
        except OSError as error:  # it is unknown which slot is on disk
            self.close()
            raise _with_note(error, f"{self.path}: reopen the index to see its state") from None
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
    """Write a complete index file, atomically replacing an existing one."""
    with changing(path) if lock else contextlib.nullcontext(), replacing(path) as temporary:
        temporary.write_bytes(disk.empty_file(head.n_bits, head.model, next_id))
        new = IndexFile(temporary, writable=True)
        try:
            for segment in segments:
                new.add_rows(segment, max(next_id, segment.last_id + 1))
        finally:
            new.close()
            lock_path(temporary).unlink(missing_ok=True)


def _truncate(file: int, end: int) -> None:
    """Free the space of a failed batch if possible; bytes after the end are ignored anyway."""
    with contextlib.suppress(OSError):
        os.ftruncate(file, end)


def _with_note(error: OSError, note: str) -> OSError:
    """Return the same error with a note in its message."""
    return OSError(error.errno, f"{os.strerror(error.errno or errno.EIO)} ({note})")


def lock_path(path: Path) -> Path:
    """Return the path of the lock file of an index; it is left behind and may be deleted."""
    return path.with_name(f".{path.name}.lock")


@contextlib.contextmanager
def changing(path: Path) -> Iterator[None]:
    """Hold the lock of an index file, which need not exist yet."""
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
            errno.EAGAIN, f"another writer has {path} open; wait until it is closed"
        ) from None
    return lock
