"""Sources of rows that are read on demand, and the rows that learning needs, gathered once.

Learning needs only the rows of a sample of pairs and of a few random samples. Whatever holds the
rows (an array, a memory map, shards, blocks on a cluster, a dask array), these are gathered once,
and from there on there is one code path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.files import scratch_array

Array = NDArray[Any]
Numbers = NDArray[np.int64]

_CHUNK_BYTES = 2**28  # read at a time


class RowSource(ABC):
    """Rows outside of memory, indexed by a slice, by row numbers or by a boolean mask."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Number of rows and their width."""

    @abstractmethod
    def read(self, numbers: Numbers) -> Array:
        """Return some of the rows.

        Parameters
        ----------
        numbers : int64 array of shape (m,)
            Row numbers, ascending.

        Returns
        -------
        rows : array of shape (m, d)
        """

    def labels(self) -> Array | None:
        """Return the label of each row, or None if the source has none."""
        return None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | Numbers | NDArray[np.bool_]) -> Array:
        ascending, positions = row_numbers(index, len(self))
        rows = self.read(ascending)
        return rows if positions is None else rows[positions]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        rows = self[:]
        return rows if dtype is None else rows.astype(dtype, copy=False)


class Gathered(RowSource):
    """Some rows of a source, copied to memory and indexed by their numbers in the source.

    Above 1 GB they are copied to a temporary file.

    Parameters
    ----------
    X : array-like of shape (n, d)
        The source.
    numbers : int64 array
        Distinct row numbers in ascending order.
    """

    def __init__(self, X: Any, numbers: Numbers) -> None:
        self.numbers, self._shape = numbers, (int(X.shape[0]), int(X.shape[1]))
        self.rows = scratch_array((len(numbers), self._shape[1]), X.dtype)
        step = max(1, _CHUNK_BYTES // max(1, self._shape[1] * X.dtype.itemsize))
        for start in range(0, len(numbers), step):
            chunk = numbers[start : start + step]
            rows = X[chunk]
            rows = np.asarray(rows.compute() if hasattr(rows, "compute") else rows)
            self.rows[start : start + step] = check_finite(rows, chunk, "X")

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows of the source, and their width."""
        return self._shape

    def read(self, numbers: Numbers) -> Array:
        """Return the rows with these numbers, all of which must have been gathered."""
        if len(numbers) == len(self.numbers):
            return np.asarray(self.rows)
        return np.asarray(self.rows[np.searchsorted(self.numbers, numbers)])


class Stacked(RowSource):
    """The rows of two sources, one after the other.

    Parameters
    ----------
    X : array-like of shape (n, d)
        The first source.
    Y : array-like of shape (m, d)
        The second source; its row j has the number n + j.
    """

    def __init__(self, X: Any, Y: Any) -> None:
        self.sources = X, Y
        self.n_first = int(X.shape[0])
        self.dtype = np.result_type(X.dtype, Y.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows of both sources, and their width."""
        first, second = self.sources
        return self.n_first + int(second.shape[0]), int(first.shape[1])

    def read(self, numbers: Numbers) -> Array:
        """Return the rows with these numbers, those of the first source first."""
        split = int(np.searchsorted(numbers, self.n_first))
        out = np.empty((len(numbers), self.shape[1]), self.dtype)
        for name, source, chosen, part in zip(
            "XY",
            self.sources,
            (numbers[:split], numbers[split:] - self.n_first),
            (out[:split], out[split:]),
            strict=True,
        ):
            if len(chosen):
                rows = source[chosen]
                rows = np.asarray(rows.compute() if hasattr(rows, "compute") else rows)
                part[...] = check_finite(rows, chosen, name)
        return out


def is_source(X: Any) -> bool:
    """Return whether rows are read on demand: a memory map, a `RowSource` or a dask array."""
    return isinstance(X, np.memmap | RowSource) or hasattr(X, "to_delayed")


def check_source(X: Any, name: str = "X") -> None:
    """Raise ValueError unless X has two or more rows of numbers."""
    if len(X.shape) != 2 or np.isnan(X.shape).any():
        hint = "; call compute_chunk_sizes() first" if hasattr(X, "to_delayed") else ""
        raise ValueError(f"{name} must have a known shape (n, d), got shape {X.shape}{hint}")
    if X.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold numbers, got {X.dtype}")
    if X.shape[0] < 2:
        raise ValueError(f"{name} has {X.shape[0]} row(s); at least two are needed")


def gather(X: Any, *numbers: Numbers) -> Any:
    """Gather the rows with these numbers, indexed as in X; an array is returned unchanged."""
    if not is_source(X):
        return X
    return Gathered(X, np.unique(np.concatenate([array.ravel() for array in numbers])))


def row_numbers(
    index: slice | Numbers | NDArray[np.bool_], n: int
) -> tuple[Numbers, Numbers | None]:
    """Convert an index into n rows to distinct row numbers in ascending order.

    Also return the position of each indexed row among these numbers, or None if the index is
    distinct and ascending already.
    """
    if isinstance(index, slice):
        numbers = np.arange(*index.indices(n))
    else:
        numbers = np.asarray(index)
        if numbers.dtype == np.bool_ and numbers.shape == (n,):
            numbers = np.flatnonzero(numbers)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise IndexError(
                f"rows must be indexed by a slice, row numbers, or a boolean mask of length {n}"
            )
    if (numbers[1:] > numbers[:-1]).all():
        ascending, positions = numbers.astype(np.int64), None
    else:
        ascending, positions = np.unique(numbers.astype(np.int64), return_inverse=True)
    if len(ascending) and not 0 <= ascending[0] <= ascending[-1] < n:
        raise IndexError(
            f"row numbers must lie in 0..{n - 1}, got {ascending[0]} to {ascending[-1]}"
        )
    return ascending, positions


def check_finite(rows: Array, numbers: Numbers, where: str) -> Array:
    """Return the rows, or raise ValueError naming one that has NaN or infinity."""
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        bad = int(numbers[np.flatnonzero(~np.isfinite(rows).all(axis=1))[0]])
        raise ValueError(f"{where}: row {bad} contains NaN or infinity; remove or repair such rows")
    return rows
