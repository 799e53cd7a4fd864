"""Cells of a segment: which rows each has, and the positions of the rows.

Rows are stored cell by cell, and in ascending order of their ids in each cell. The position of a
row is its rank among all ids. Positions take little more than two bytes per code: their lower 16
bits are stored by row; the upper bits never descend in a cell, and are stored as a string of ones
and zeros (Elias-Fano coding; see `Cells` in native/loops.h).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._util.errors import KdiffhashError
from .centres import Centres, Numbers, TwoLevels
from .recall_curves import Calibration
from .segment import BLOCK, Words

_CHUNK = 2**20

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Cells:
    """Cells of a segment.

    Attributes
    ----------
    levels : TwoLevels
        Centres of the cells and of groups of cells.
    starts : int64 array of shape (n_cells + 1,)
        First row of each cell, and the number of rows.
    low : uint16 array of shape (n_rows,)
        Lower 16 bits of the position of each row.
    high : uint64 array
        Upper bits of the positions.
    calibration : Calibration
        How many cells to search for a recall.
    stored_rows : uint32 array of shape (n_rows,), or None
        The row of each position, if it was read from a file.
    n_cells_asked : int or None
        The number of cells that the user chose.
    cache : dict
        What is computed when it is first needed; not pickled.
    """

    levels: TwoLevels
    starts: Ints
    low: NDArray[np.uint16]
    high: NDArray[np.uint64]
    calibration: Calibration
    stored_rows: Numbers | None = None
    n_cells_asked: int | None = None
    cache: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def order(self) -> tuple[Ints, NDArray[np.uint16], NDArray[np.uint64]]:
        """The order of the rows as arguments of the core."""
        return self.starts, self.low, self.high

    @cached_property
    def n_used(self) -> int:
        """Number of cells that have rows."""
        return int(np.count_nonzero(np.diff(self.starts)))

    @property
    def nbytes(self) -> int:
        """Bytes of the centres and of the order of the rows."""
        centres: tuple[Centres, ...] = (self.levels.groups, self.levels.cells)
        arrays = [array for part in centres for array in part.arguments]
        return sum(array.nbytes for array in (*arrays, self.levels.firsts, *self.order))

    def n_cells_for(self, n_codes: int) -> int | None:
        """Return the number of cells that the user chose, or the highest that n codes can have."""
        return self.n_cells_asked and min(self.n_cells_asked, n_codes // BLOCK)

    def positions_of(self, rows: Ints) -> Ints:
        """Return the positions of rows."""
        flat = np.ascontiguousarray(rows, np.int64).reshape(-1)
        positions = np.empty_like(flat)
        _core.positions_of(*self.order, flat, positions)
        self.check(int(positions.max(initial=-1)))
        return positions.reshape(np.shape(rows))

    def groups_for(self, n_probe: int) -> int:
        """Return the number of groups whose cells are scored."""
        return self.calibration.groups_for(n_probe)

    def check(self, highest: int) -> None:
        """Raise an error if the highest of some positions does not exist."""
        if highest >= len(self.low):
            raise DamagedCellsError(
                "the cells of the index are damaged: the position of a row is too large; run "
                "`kdiffhash index verify`"
            )

    def rows_of(self, positions: Ints) -> Ints:
        """Return the rows of positions, which must exist."""
        rows = self.all_rows[positions].astype(np.int64)
        if rows.size and int(rows.max()) >= len(self.low):
            raise DamagedCellsError(
                "the cells of the index are damaged: the row of a position is too large; run "
                "`kdiffhash index verify`"
            )
        return rows

    @property
    def all_rows(self) -> Numbers:
        """The row of each position, computed when it is first needed."""
        if self.stored_rows is not None:
            return self.stored_rows
        if "rows" not in self.cache:
            rows = np.empty(len(self.low), np.uint32)
            for start in range(0, len(rows), _CHUNK):
                own = np.arange(start, min(start + _CHUNK, len(rows)))
                rows[self.positions_of(own)] = own
            self.cache["rows"] = rows
        found: Numbers = self.cache["rows"]
        return found

    def searchable(self, blocks: Words) -> _core.SearchableCells:
        """Return the form in which the core searches the cells of these blocks."""
        if "searchable" not in self.cache:
            own = (blocks, len(self.low), *self.order, *self.levels.arguments)
            self.cache["searchable"] = _core.searchable_cells(*own)
        found: _core.SearchableCells = self.cache["searchable"]
        return found

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"cache": {}}


class DamagedCellsError(KdiffhashError, ValueError):
    """Error raised if cells that were read from a file contradict each other."""


def cell_sizes(cell_of: Numbers, n_cells: int) -> Ints:
    """Return the number of rows of each cell; `numpy.bincount` would copy all of `cell_of`."""
    sizes = np.zeros(n_cells, np.int64)
    for start in range(0, len(cell_of), _CHUNK):
        sizes += np.bincount(cell_of[start : start + _CHUNK], minlength=n_cells)
    return sizes


def order_rows(
    cell_of: Numbers, n_cells: int
) -> tuple[Ints, NDArray[np.uint16], NDArray[np.uint64]]:
    """Order rows by cell; replace the cells of all positions by their rows.

    Returns
    -------
    starts, low, high : arrays
        See `Cells`.
    """
    n = len(cell_of)
    starts = np.zeros(n_cells + 1, np.int64)
    np.cumsum(cell_sizes(cell_of, n_cells), out=starts[1:])
    n_high = (n + 65535) >> 16
    low = np.empty(n, np.uint16)
    high = np.zeros((n + n_cells * n_high) // 64 + 1, np.uint64)
    _core.order_rows(starts, cell_of, low, high)
    return starts, low, high
