"""Rows of a cluster, where they lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...extras import need
from ...shards import Shard, Shards, open_shards
from ...shards.shard import check_finite, row_numbers

Array = NDArray[Any]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Blocks:
    """Rows in blocks: files, or chunks of a dask array. It can be indexed like an array."""

    blocks: list[Any]
    sizes: list[int]
    width: int
    dtype: np.dtype[Any]
    client: Any

    @classmethod
    def of(cls, X: Any, client: Any) -> Blocks:
        """Blocks of a path, of shards, or of a dask array."""
        if not hasattr(X, "to_delayed"):
            X = absolute_shards(X)
            files = list(X.files)
            return cls(files, [len(file) for file in files], X.shape[1], X.dtype, client)
        if X.ndim != 2 or np.isnan(X.shape).any():
            raise ValueError(
                f"X must be rows of known number, shape (n, d), got shape {X.shape}; "
                "compute_chunk_sizes() finds unknown sizes"
            )
        X = X.rechunk({1: -1})
        return cls(list(X.to_delayed().ravel()), list(X.chunks[0]), X.shape[1], X.dtype, client)

    @cached_property
    def starts(self) -> Numbers:
        """Number of the first row of each block, and after them the number of all rows."""
        return np.cumsum([0, *self.sizes])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and width."""
        return int(self.starts[-1]), self.width

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, wanted: slice | Numbers) -> Array:
        rising, place = row_numbers(wanted, len(self))
        found = self.client.gather(list(self.take(rising).values()))
        rows = np.concatenate([np.empty((0, self.width), self.dtype), *found])
        return rows if place is None else rows[place]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or self.dtype, copy=False)

    def between(self, first: int, last: int) -> list[tuple[Any, int, int]]:
        """The blocks that rows from `first` to before `last` lie in, and their numbers there."""
        return [
            (block, max(first - start, 0), min(last - start, size))
            for block, start, size in zip(self.blocks, self.starts.tolist(), self.sizes)
            if first < start + size and start < last
        ]

    def take(self, numbers: Numbers) -> dict[int, Any]:
        """Futures of the rows with these numbers, which rise, for each block that has some."""
        delayed = need("dask", "dask").delayed(take_rows, pure=False)
        edges = np.searchsorted(numbers, self.starts)
        wanted = {
            i: delayed(block, numbers[edges[i] : edges[i + 1]] - start, start)
            for i, (block, start) in enumerate(zip(self.blocks, self.starts.tolist()))
            if edges[i] < edges[i + 1]
        }
        return dict(zip(wanted, self.client.compute(list(wanted.values()))))


def absolute_shards(X: Any) -> Shards:
    """Shards by names that are good on all machines."""
    if isinstance(X, str | Path):
        X = open_shards(X)
    if not isinstance(X, Shards):
        raise ValueError(
            f"X must be a path, shards or a dask array, got {type(X).__name__}; "
            "dask.array.from_array makes one of a NumPy array"
        )
    return Shards(tuple(replace(file, path=file.path.absolute()) for file in X.files))


def take_rows(block: Any, numbers: Numbers, start: int) -> Array:
    """Some rows of a block whose first row has the number `start` among all rows."""
    if isinstance(block, Shard):
        return check_finite(block.take(numbers), numbers, str(block.path))
    return check_finite(np.asarray(block)[numbers], start + numbers, "X")
