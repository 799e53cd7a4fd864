"""What a batch of rows with cells holds in an index file.

The payload begins with a head of 128 bytes and the *directory*: centres, first rows of the cells,
calibration, and runs of ids. They are checked when the file is opened, and copied into memory. Then
follow, memory-mapped, ids that are listed, the order of the rows in both directions, and the
blocks. Every part is padded to a multiple of 64 bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .cells import Cells
from .centres import Centres, TwoLevels
from .index_error import REPAIR, IndexFileError
from .recall_curves import KS, Calibration
from .segment import BLOCK, IdRuns, Segment, SegmentIds, Words, aligned_zeros, n_words

HEAD_SIZE = 128
_SIZES = struct.Struct("<10Q")
_CRC = struct.Struct("<I")

Arrays = list[NDArray[Any]]


class Sizes(NamedTuple):
    """The numbers that determine the size of a payload, apart from those of the batch."""

    cells: int
    groups: int
    runs: int
    listed: int
    steps: int  # of the calibration
    n_cells_asked: int
    measured_codes: int
    measured_cells: int
    measured_groups: int
    measured_queries: int


@dataclass(frozen=True)
class CellContent:
    """Rows with cells to be written to a file; the blocks are computed while they are written."""

    cells: Cells
    rows: NDArray[np.uint32]
    ids: SegmentIds
    blocks: Iterator[Words]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def last_id(self) -> int:
        """The highest id."""
        return self.ids.last(self.n_rows)

    def arrays(self) -> Iterator[NDArray[Any]]:
        """Yield the arrays of the payload."""
        cells, measured, (_, listed, runs) = self.cells, self.cells.calibration, self.ids
        sizes = Sizes(
            *(len(cells.levels.cells), len(cells.levels.groups)),
            *(0 if runs is None else len(runs.firsts), 0 if listed is None else len(listed)),
            *(len(measured.n_probe), cells.n_cells_asked or 0),
            *(measured.n_codes, measured.n_cells, measured.n_groups, measured.n_queries),
        )
        directory = [
            *(*cells.levels.arguments, cells.starts),
            *(measured.n_probe, measured.compared, measured.recall, measured.error),
            *(() if runs is None else (runs.firsts, runs.starts)),
        ]
        head, checksum = _SIZES.pack(*sizes).ljust(HEAD_SIZE - _CRC.size, b"\0"), 0
        for piece in (head, *map(padded_bytes, directory)):
            checksum = zlib.crc32(piece, checksum)
        yield np.frombuffer(head + _CRC.pack(checksum), np.uint8)
        yield from directory
        yield from () if listed is None else (listed,)
        yield from (cells.low, cells.high, self.rows)
        yield from self.blocks


def padded_bytes(array: NDArray[Any]) -> bytes:
    """Return the bytes of an array in the file, with the zeros after it."""
    content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return content + bytes(-len(content) % 64)


def read_cells(
    payload: NDArray[np.uint8], n: int, first_id: int, n_bits: int, start: int
) -> Segment:
    """Return the segment in a payload of n rows; `start` is where the batch is in the file."""
    try:
        return _read(payload, n, first_id, n_bits)
    except _DamagedError:
        message = f"the directory of the cells at byte {start} is damaged"
        raise IndexFileError(f"{message}; {REPAIR}") from None


class _DamagedError(Exception):
    """The directory of a payload is not what was written."""


class _Reader:
    """Takes one part of a payload after the other."""

    def __init__(self, payload: NDArray[np.uint8]) -> None:
        self.payload, self.at = payload, HEAD_SIZE

    def take(self, dtype: str, *shape: int) -> NDArray[Any]:
        """Return the next part without copying it."""
        size = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
        if size > len(self.payload) - self.at:
            raise _DamagedError
        part = self.payload[self.at : self.at + size]
        self.at += -(-size // 64) * 64
        return part.view(dtype).reshape(shape)

    def copy(self, dtype: str, *shape: int) -> NDArray[Any]:
        """Return a copy of the next part, in the byte order of the machine."""
        return self.take(dtype, *shape).astype(np.dtype(dtype).newbyteorder("="))

    def words(self, *shape: int) -> Words:
        """Return an aligned copy of the next part."""
        part = self.take("<u8", *shape)
        out = aligned_zeros(*shape)
        out[:] = part
        return out


def _read(payload: NDArray[np.uint8], n: int, first_id: int, n_bits: int) -> Segment:
    width = n_words(n_bits)
    if len(payload) < HEAD_SIZE:
        raise _DamagedError
    head = payload[:HEAD_SIZE].tobytes()
    sizes = Sizes(*_SIZES.unpack_from(head))
    reader = _Reader(payload)
    groups, centres = (
        Centres(reader.words(m // BLOCK, width, 3, BLOCK), reader.copy("<u2", m))
        for m in (sizes.groups, sizes.cells)
    )
    firsts = reader.copy("<i8", sizes.groups + 1)
    starts = reader.copy("<i8", sizes.cells + 1)
    n_probe, compared = reader.copy("<i8", sizes.steps), reader.copy("<f8", sizes.steps)
    recall, error = (reader.copy("<f8", len(KS), sizes.steps) for _ in range(2))
    runs = None
    if sizes.runs:
        runs = IdRuns(reader.copy("<i8", sizes.runs), reader.copy("<i8", sizes.runs + 1))
    checksum = zlib.crc32(head[: -_CRC.size])
    if _CRC.pack(zlib.crc32(payload[HEAD_SIZE : reader.at].data, checksum)) != head[-_CRC.size :]:
        raise _DamagedError
    cell_runs, group_runs = np.diff(starts), np.diff(firsts)
    if (
        *(starts[0], starts[-1], cell_runs.min() >= 0),
        *(firsts[0], firsts[-1], group_runs.min() >= 0),
        *(sizes.listed in (0, n), runs is None or runs.starts[-1] == n),
    ) != (0, n, True, 0, sizes.cells, True, True, True):
        raise _DamagedError
    listed = reader.take("<i8", n) if sizes.listed else None
    n_high = (n + 65535) >> 16
    low = reader.take("<u2", n)
    high = reader.take("<u8", (n + sizes.cells * n_high) // 64 + 1)
    rows = reader.take("<u4", n)
    blocks = reader.take("<u8", -(-n // BLOCK), width, BLOCK)
    if reader.at != len(payload):
        raise _DamagedError
    measured = Calibration(*sizes[6:], n_probe, compared, recall, error)
    levels = TwoLevels(groups, centres, firsts)
    cells = Cells(levels, starts, low, high, measured, rows, sizes.n_cells_asked or None)
    return Segment(blocks, n, first_id, listed, runs=runs, cells=cells)
