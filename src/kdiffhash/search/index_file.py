"""An open index file: reading and memory-mapping batches, and appending with a single writer."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._util.files import replacing
from . import index_format as disk
from . import index_payload as payloads
from .cells_payload import CellContent
from .index_error import REPAIR, IndexFileError
from .index_format import Head, Slot
from .index_lock import creating, is_at, open_locked, remove_leftovers, unlock
from .index_payload import CELLS, HEADER_SIZE, REMOVED, STRINGS, Batch
from .segment import Ids, Segment
from .string_ids import IdBlock

_SMALL = 2**20  # batches below this size in bytes are read, larger ones are memory-mapped

Content: TypeAlias = Iterator[
    Segment | IdBlock | CellContent
]  # string ids come before the rows that have them


class IndexFile:
    """An index file, open for reading and, if `writable`, for appending.

    The writer holds a lock on the file itself; readers need no lock.
    """

    def __init__(self, path: Path, writable: bool = False) -> None:
        self.path, self.writable = path, writable
        self.n_maps, self._process = 0, os.getpid()
        self.head: Head
        self._file: int | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Open the file at `path`, replacing the one that was open before."""
        file = open_locked(self.path) if self.writable else disk.open_file(self.path)
        try:
            head = disk.read_head(file, self.path)
            if self._file is not None:
                self._refuse_other_codes(head)
            slot, batches = disk.read_batches(file, self.path, head)
        except BaseException:
            os.close(file)
            raise
        self._adopt(file, head, slot, batches)

    def clean_up(self) -> None:
        """Remove what killed writers left behind, once the file is known to be intact."""
        disk.clean_slots(self._handle(), self.slot)
        remove_leftovers(self.path)

    def _adopt(self, file: int, head: Head, slot: Slot, batches: list[Batch]) -> None:
        """Use an open file from now on, and close the one that was open before."""
        old, self._file = self._file, file
        if old is not None:
            os.close(old)
        self.head, self.slot, self.batches = head, slot, batches
        self.forget_maps()

    def _refuse_other_codes(self, head: Head) -> None:
        """Refuse a new file with codes of another length or model."""
        if head.n_bits != self.head.n_bits:
            raise IndexFileError(
                f"{self.path} now holds codes of {head.n_bits} bits instead of "
                f"{self.head.n_bits}; open it again"
            )
        if head.string_ids != self.head.string_ids and self.slot.n_batches:
            kinds = ("integers", "strings")
            raise IndexFileError(
                f"{self.path} was replaced by a file whose ids are {kinds[head.string_ids]}, not "
                f"{kinds[self.head.string_ids]}; open it again"
            )
        if self.head.model not in (None, head.model):
            raise IndexFileError(
                f"{self.path} was replaced by a file with codes of another model, or of none; "
                "open it again"
            )

    @classmethod
    def create(cls, path: Path, n_bits: int, model: str | None) -> Self:
        """Create an empty index file and open it for appending; it must not exist yet."""
        with creating(path) as temporary:
            temporary.write_bytes(disk.empty_file(n_bits, model))
        return cls(path, writable=True)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def close(self) -> None:
        """Release the lock and close the file; memory maps stay readable while they are in use."""
        if self._file is None:
            return
        file, self._file = self._file, None
        if self.writable and os.getpid() == self._process:
            unlock(file)
        os.close(file)

    def refresh(self) -> bool:
        """Read the current state of the file; return whether the file has been replaced.

        A file can be replaced by another one, or its bytes by those of another one.
        """
        file = self._handle()
        if self.writable:  # there are no changes but its own
            self._check_unchanged()
            return False
        if not is_at(file, self.path) or disk.read_head(file, self.path) != self.head:
            self._open()
            return True
        slot, batches = disk.read_batches(file, self.path, self.head)
        replaced = batches[: len(self.batches)] != self.batches
        self.slot, self.batches = slot, batches
        if replaced:
            self.forget_maps()
        return replaced

    @property
    def state(self) -> tuple[Any, ...]:
        """Value that differs between any two states of the file, and from any other file."""
        return (self.head.file_id, os.fstat(self._handle()).st_ino, *self.slot)

    def forget_maps(self) -> None:
        """Drop the memory map, which keeps a file open; the next read maps the file again."""
        self._map: NDArray[np.uint8] | None = None
        self.n_maps = 0

    def read_rows(self, batch: Batch) -> Segment:
        """Return the rows of a batch, memory-mapped unless the batch is small."""
        mapped = batch.size >= _SMALL
        return payloads.to_segment(batch, self._payload(batch), self.head.n_bits, mapped)

    def read_strings(self, batch: Batch) -> IdBlock:
        """Return the string ids of a batch, memory-mapped unless the batch is small."""
        return payloads.to_id_block(batch, self._payload(batch), batch.size >= _SMALL)

    def read_removed(self, batch: Batch) -> Ids:
        """Return the ids whose earlier rows a batch removes."""
        return payloads.removed_ids(batch, self._payload(batch))

    def _payload(self, batch: Batch) -> NDArray[np.uint8]:
        start = batch.start + HEADER_SIZE
        if batch.size < _SMALL:
            payload = disk.read_bytes(self._handle(), batch.size, start)
            if zlib.crc32(payload) != batch.checksum:
                raise self._fails_checksum(batch)
            return np.frombuffer(payload, np.uint8)
        if self._map is None or len(self._map) < batch.end:  # one map for all batches so far
            try:
                mapped = mmap.mmap(self._handle(), self.slot.end, access=mmap.ACCESS_READ)
            except OSError:  # no more memory maps available
                return np.frombuffer(disk.read_bytes(self._handle(), batch.size, start), np.uint8)
            self._map = np.frombuffer(mapped, np.uint8)
            self.n_maps += 1
        return self._map[start : batch.end]

    def _fails_checksum(self, batch: Batch) -> IndexFileError:
        return IndexFileError(
            f"{self.path} is damaged: the batch of {batch.n} rows at byte {batch.start} fails its "
            f"checksum; {REPAIR}"
        )

    def add_rows(self, segment: Segment, next_id: int, removed: Ids | None = None) -> Batch:
        """Append a batch of rows; it is durable on return, and absent if an error is raised.

        It may also remove earlier rows, which takes a file of version 4.
        """
        kind, arrays = payloads.from_segment(segment, self.head.version)
        n_removed = 0 if removed is None else len(removed)
        if removed is not None and n_removed:
            arrays.insert(0, np.ascontiguousarray(removed, "<i8"))
        numbers = (kind, segment.n_rows, segment.first_id)
        return self._append(*numbers, arrays, next_id, n_removed)

    def add_cells(self, content: CellContent, next_id: int) -> Batch:
        """Append a batch of rows with cells, which takes a file of version 4."""
        numbers = (CELLS, content.n_rows, content.ids.first)
        return self._append(*numbers, content.arrays(), next_id)

    def add_strings(self, block: IdBlock) -> Batch:
        """Append a batch of string ids, before the rows that have them."""
        arrays = payloads.from_id_block(block)
        next_id = max(self.slot.next_id, block.end)
        return self._append(STRINGS, len(block.texts), block.first, arrays, next_id)

    def add_removal(self, ids: Ids) -> Batch:
        """Append a batch of ids whose rows are removed."""
        arrays = [np.ascontiguousarray(ids, "<i8")]
        return self._append(REMOVED, len(ids), 0, arrays, self.slot.next_id)

    def replace(self, content: Content, head: Head, next_id: int) -> None:
        """Replace this file by a new one with this content, and the version of this head."""
        self.check_changeable()
        self._check_unchanged()
        for batch in self.batches:  # copied damage would get a valid checksum
            if batch.size >= _SMALL and not disk.is_whole(self._handle(), batch):
                raise self._fails_checksum(batch)
        try:
            with replacing(self.path) as temporary:
                # The new file is locked before it gets its name, so no other writer comes between.
                new = _write(temporary, head, content, next_id)
                self._check_unchanged()
            self._adopt(new.give_up(), new.head, new.slot, new.batches)
        except BaseException:
            if not is_at(self._handle(), self.path):  # appending to the old file would lose data
                self.close()
            raise

    def give_up(self) -> int:
        """Return the open file, still locked, and forget it."""
        file, self._file = self._handle(), None
        return file

    def check_changeable(self) -> None:
        """Refuse to change a file that is open for reading, or was opened before a fork."""
        if not self.writable:
            raise ValueError(
                f"{self.path} is open for reading only; open it with mode='a' to change it"
            )
        if os.getpid() != self._process:
            raise ValueError(
                f"{self.path} was opened before a fork; only the process that opened it can "
                "change it"
            )

    def _check_unchanged(self) -> None:
        """Refuse to write if the file was moved, deleted, replaced or overwritten by others."""
        file = self._handle()
        moved = not is_at(file, self.path)
        if (
            moved
            or disk.read_head(file, self.path) != self.head
            or (max(disk.read_slots(file), default=None) != self.slot)
        ):
            raise IndexFileError(
                f"{self.path} was {'moved, deleted or replaced' if moved else 'overwritten'} while "
                "it was open for writing; nothing was changed, open it again"
            )

    def _append(
        self,
        kind: int,
        n: int,
        first_id: int,
        arrays: Iterable[NDArray[Any]],
        next_id: int,
        n_removed: int = 0,
    ) -> Batch:
        self.check_changeable()
        self._check_unchanged()
        file, slot = self._handle(), self.slot
        start, sequence = slot.end, slot.sequence + 1
        checksum, size = 0, 0
        try:
            offset = start + HEADER_SIZE
            for array in arrays:
                array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
                for piece in (array.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % 64)):
                    if len(piece):
                        checksum = zlib.crc32(piece, checksum)
                        size += len(piece)
                        offset = disk.write_bytes(file, piece, offset)
            batch = Batch(start, kind, n, first_id, size, checksum, n_removed)
            disk.write_bytes(file, disk.header_bytes(batch, sequence), start)
            os.fsync(file)
        except OSError as error:
            _truncate(file, start)
            raise _with_note(error, f"{self.path}: nothing was added, the rest is intact") from None
        self._check_unchanged()
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


def write_file(path: Path, head: Head, content: Content, next_id: int) -> None:
    """Write a complete index file, atomically replacing an existing one that has no writer."""
    if not path.exists():
        with creating(path) as temporary:
            _write(temporary, head, content, next_id).close()
        return
    old = open_locked(path, readonly=True)
    try:
        with replacing(path) as temporary:
            new = _write(temporary, head, content, next_id)
        new.close()
    finally:
        os.close(old)


def _write(path: Path, head: Head, content: Content, next_id: int) -> IndexFile:
    """Write an index file and return it, open for appending."""
    path.write_bytes(disk.empty_file_of(head, next_id))
    new = IndexFile(path, writable=True)
    try:
        for piece in content:
            if isinstance(piece, IdBlock):
                new.add_strings(piece)
            elif isinstance(piece, CellContent):
                new.add_cells(piece, max(new.slot.next_id, piece.last_id + 1))
            else:
                new.add_rows(piece, max(new.slot.next_id, piece.last_id + 1))
    except BaseException:
        new.close()
        raise
    return new


def _truncate(file: int, end: int) -> None:
    """Free the space of a failed batch if possible; bytes after the end are ignored anyway."""
    with contextlib.suppress(OSError):
        os.ftruncate(file, end)


def _with_note(error: OSError, note: str) -> OSError:
    """Return the same error with a note in its message."""
    return OSError(error.errno, f"{os.strerror(error.errno or errno.EIO)} ({note})")
