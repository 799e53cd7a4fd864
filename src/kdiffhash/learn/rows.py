"""Rows that are read when they are asked for, and those that learning needs, gathered once.

Learning sees a sample of pairs and never needs more than the rows in them and in a few random
samples. So whatever the rows are (an array, a memory map, shards, blocks on a cluster, a dask
array), these are gathered into memory, and from there on all is as with an array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.files import scratch_array

Array = NDArray[Any]
Numbers = NDArray[np.int64]

_PORTION = 2**28  # bytes that are read at a time


class RowSource(ABC):
    """Rows outside of memory, indexed by a slice, by row numbers, or by a mask."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Number of rows and their width."""

    @abstractmethod
    def read(self, numbers: Numbers) -> Array:
        """The rows with these numbers, which rise."""

    def labels(self) -> Array | None:
        """Which object each row belongs to, if the source tells."""
        return None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, wanted: slice | Numbers | NDArray[np.bool_]) -> Array:
        rising, place = row_numbers(wanted, len(self))
        rows = self.read(rising)
        return rows if place is None else rows[place]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        rows = self[:]
        return rows if dtype is None else rows.astype(dtype, copy=False)


class Gathered(RowSource):
    """Some rows of a source, in memory, under the numbers that they have there."""

    def __init__(self, X: Any, numbers: Numbers) -> None:
        self.numbers, self._shape = numbers, (int(X.shape[0]), int(X.shape[1]))
        self.rows = scratch_array((len(numbers), self._shape[1]), X.dtype)
        step = max(1, _PORTION // max(1, self._shape[1] * X.dtype.itemsize))
        for start in range(0, len(numbers), step):
            some = numbers[start : start + step]
            rows = X[some]
            rows = np.asarray(rows.compute() if hasattr(rows, "compute") else rows)
            self.rows[start : start + step] = check_finite(rows, some, "X")

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows of the source, and their width."""
        return self._shape

    def read(self, numbers: Numbers) -> Array:
        """The rows with these numbers, all of which were gathered."""
        if len(numbers) == len(self.numbers):
            return np.asarray(self.rows)
        return np.asarray(self.rows[np.searchsorted(self.numbers, numbers)])


def is_source(X: Any) -> bool:
    """Whether rows are read when they are asked for: a memory map, a `RowSource`, a dask array."""
    return isinstance(X, np.memmap | RowSource) or hasattr(X, "to_delayed")


def check_source(X: Any) -> None:
    """Refuse what is not rows of numbers."""
    if len(X.shape) != 2 or np.isnan(X.shape).any():
        hint = "; compute_chunk_sizes() finds unknown sizes" if hasattr(X, "to_delayed") else ""
        raise ValueError(f"X must be rows of known number, shape (n, d), got shape {X.shape}{hint}")
    if X.dtype.kind not in "biuf":
        raise ValueError(f"X must hold numbers, got {X.dtype}")
    if X.shape[0] < 2:
        raise ValueError(f"X has {X.shape[0]} row(s); at least two are needed")


def gather(X: Any, *numbers: Numbers) -> Any:
    """The rows with these numbers, in memory, indexed as in X; an array is returned as it is."""
    if not is_source(X):
        return X
    return Gathered(X, np.unique(np.concatenate([some.ravel() for some in numbers])))


def row_numbers(
    wanted: slice | Numbers | NDArray[np.bool_], n: int
) -> tuple[Numbers, Numbers | None]:
    """Which of n rows are wanted, rising and without repetition, and the place of each in them.

    The place is None where they are wanted just so.
    """
    if isinstance(wanted, slice):
        numbers = np.arange(*wanted.indices(n))
    else:
        numbers = np.asarray(wanted)
        if numbers.dtype == np.bool_ and numbers.shape == (n,):
            numbers = np.flatnonzero(numbers)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise IndexError("rows are asked for by a slice, their numbers, or a mask of all")
    if (numbers[1:] > numbers[:-1]).all():
        rising, place = numbers.astype(np.int64), None
    else:
        rising, place = np.unique(numbers.astype(np.int64), return_inverse=True)
    if len(rising) and not 0 <= rising[0] <= rising[-1] < n:
        raise IndexError(f"rows are numbered from 0 to {n - 1}")
    return rising, place


def check_finite(rows: Array, numbers: Numbers, where: str) -> Array:
    """The rows with these numbers, or an error that names one with NaN or infinity."""
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        bad = int(numbers[np.flatnonzero(~np.isfinite(rows).all(axis=1))[0]])
        raise ValueError(f"{where}: row {bad} contains NaN or infinity; drop or repair such rows")
    return rows
