"""Rows in files or dask arrays that the workers of a cluster read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..._util.extras import need
from ...learn.rows import Array, Numbers, RowSource, check_finite, check_source
from ...shards import Shard, Shards, open_shards
from .cluster import gather


@dataclass(frozen=True, eq=False)
class RemoteRows(RowSource):
    """The rows of shards, or of the chunks of a dask array, which workers read."""

    sources: list[Any]  # shards, or delayed chunks of a dask array
    sizes: list[int]  # number of rows of each source
    width: int
    dtype: np.dtype[Any]
    client: Any
    shards: Shards | None = None

    @classmethod
    def of(cls, X: Any, client: Any) -> RemoteRows:
        """Return the rows of a path, of shards, or of a dask array."""
        if not hasattr(X, "to_delayed"):
            X = absolute_shards(X)
            files = list(X.files)
            sizes = [len(file) for file in files]
            return cls(files, sizes, X.shape[1], X.dtype, client, X)
        check_source(X)
        X = X.rechunk({1: -1})
        return cls(list(X.to_delayed().ravel()), list(X.chunks[0]), X.shape[1], X.dtype, client)

    @cached_property
    def starts(self) -> Numbers:
        """Number of the first row of each source, followed by the number of rows."""
        return np.cumsum([0, *self.sizes])

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return int(self.starts[-1]), self.width

    def labels(self) -> Array | None:
        """Labels stored with the files, if any."""
        return None if self.shards is None else self.shards.labels()

    def read(self, numbers: Numbers) -> Array:
        """Return the rows with these increasing numbers, read by the workers."""
        delayed = need("dask", "dask").delayed(take_rows, pure=False)
        edges = np.searchsorted(numbers, self.starts)
        tasks = [
            delayed(source, numbers[edges[i] : edges[i + 1]] - start, start)
            for i, (source, start) in enumerate(zip(self.sources, self.starts.tolist()))
            if edges[i] < edges[i + 1]
        ]
        rows = gather(self.client, self.client.compute(tasks))
        return np.concatenate([np.empty((0, self.width), self.dtype), *rows])

    def slices(self, first: int, last: int) -> list[tuple[Any, int, int]]:
        """Return rows `first` to `last - 1` as slices of sources: source, start, stop."""
        return [
            (source, max(first - start, 0), min(last - start, size))
            for source, start, size in zip(self.sources, self.starts.tolist(), self.sizes)
            if first < start + size and start < last
        ]


def absolute_shards(X: Any) -> Shards:
    """Return shards with absolute paths, which are valid on all machines."""
    if isinstance(X, str | Path):
        X = open_shards(X)
    if not isinstance(X, Shards):
        raise ValueError(
            f"X must be a path, shards or a dask array, got {type(X).__name__}; "
            "turn a NumPy array into a dask array with dask.array.from_array"
        )
    return Shards(tuple(replace(file, path=file.path.absolute()) for file in X.files))


def take_rows(source: Any, numbers: Numbers, start: int) -> Array:
    """Return rows of a source by number; its first row is row `start` of all rows."""
    if isinstance(source, Shard):
        return check_finite(source.take(numbers), numbers, str(source.path))
    return check_finite(np.asarray(source)[numbers], start + numbers, "X")
