"""Shards in Parquet files: the rows are a column of lists of equal length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._util.extras import need
from .._util.files import DAMAGE, first_line
from ..learn.rows import Array, Numbers
from .shard import (
    GROUPS,
    LABELS,
    ROWS,
    Shard,
    as_shape,
    as_text,
    check_complete,
    check_expansion,
    check_length,
    rows_per_chunk,
)

_CHUNK = 2**14  # rows decoded at a time


@dataclass(frozen=True)
class ParquetShard(Shard):
    """A table with a column of rows, and optional columns of labels and groups."""

    column: str = ""

    @classmethod
    def open(cls, path: Path) -> ParquetShard:
        """Read the schema, and the first row if the schema does not specify the length of lists."""
        types = need("pyarrow", "parquet").types
        with _open(path) as file:
            schema, n = file.schema_arrow, file.metadata.num_rows
            lists = [f.name for f in schema if _is_list(types, f.type)]
            column = next((name for name in ROWS if name in lists), lists[0] if lists else None)
            if column is None or (column not in ROWS and len(lists) > 1):
                raise ValueError(
                    f"{path} must have a column of lists named {' or '.join(ROWS[:3])}; "
                    f"its columns are {', '.join(schema.names)}"
                )
            kind = schema.field(column).type
            if types.is_fixed_size_list(kind):
                width = kind.list_size
            else:
                first = next(file.iter_batches(1, columns=[column])).column(0) if n else []
                width = len(first[0].as_py() or ()) if n else 0
            dtype = np.dtype(kind.value_type.to_pandas_dtype())
        return cls(path, as_shape((n, width), path), dtype, column)

    def chunks(self, size: int) -> Iterator[Array]:
        """Yield the rows in order, at most `size` at a time."""
        with _open(self.path) as file:
            start = 0
            for batch in file.iter_batches(rows_per_chunk(size, self), columns=[self.column]):
                yield self._rows(batch.column(0), start)
                start += batch.num_rows

    def take(self, numbers: Numbers) -> Array:
        """Return the rows with these ascending numbers; other row groups are not read."""
        out = np.empty((len(numbers), self.shape[1]), self.dtype)
        with _open(self.path) as file:
            start = n_read = 0
            for group in range(file.metadata.num_row_groups):
                stop = start + file.metadata.row_group(group).num_rows
                first, last = np.searchsorted(numbers, (start, stop))
                if first < last:
                    own = numbers[first:last]
                    n_read += self._take_from(file, group, start, own, out[first:last])
                start = stop
        return check_complete(out, n_read, self.path)

    def _take_from(self, file: Any, group: int, start: int, numbers: Numbers, out: Array) -> int:
        """Copy rows of a row group to `out`; return how many there were."""
        size, last = rows_per_chunk(_CHUNK, self), 0
        for batch in file.iter_batches(size, row_groups=[group], columns=[self.column]):
            first, last = np.searchsorted(numbers, (start, start + batch.num_rows))
            if first < last:
                rows = self._rows(batch.column(0), start)
                out[first:last] = rows[numbers[first:last] - start]
            start += batch.num_rows
            if last == len(numbers):
                break
        return int(last)

    def _rows(self, column: Any, start: int) -> Array:
        """Convert a column of lists to rows; all must have the same length and no nulls."""
        width = self.shape[1]
        values = column.flatten()  # leaves out the values of null lists
        if column.null_count or values.null_count or len(values) != len(column) * width:
            raise ValueError(
                f"{self.path}: column {self.column} has nulls or lists that are not {width} long, "
                f"between rows {start} and {start + len(column)}"
            )
        if hasattr(column, "value_lengths") and len(column):
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            if (lengths != width).any():
                bad = start + int(np.flatnonzero(lengths != width)[0])
                raise ValueError(f"{self.path}: row {bad} is not {width} long like the first row")
        return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(column), width)

    def labels(self) -> Array | None:
        """Return the column of labels (see `shard.LABELS` for its names), or None."""
        return self._find(LABELS)

    def groups(self) -> Array | None:
        """Return the column of groups (see `shard.GROUPS` for its names), or None."""
        return self._find(GROUPS)

    def _find(self, names: tuple[str, ...]) -> Array | None:
        with _open(self.path) as file:
            name = next((name for name in names if name in file.schema_arrow.names), None)
            if name is None:
                return None
            check_expansion(8 * len(self), name, self.path)
            column = file.read(columns=[name]).column(0)
        if column.null_count:
            raise ValueError(f"{self.path}: column {name} has nulls; each row needs a value")
        if need("pyarrow", "parquet").types.is_nested(column.type):
            raise ValueError(f"{self.path}: column {name} must have one value per row, not lists")
        values = np.asarray(column.to_numpy())
        if values.dtype == object and all(isinstance(value, str) for value in values[:1]):
            values = as_text(values, name, self.path)
        return check_length(values, len(self), name, self.path)


def _is_list(types: Any, kind: Any) -> bool:
    is_list = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
    return bool(
        is_list and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type))
    )


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    parquet = need("pyarrow.parquet", "parquet")
    arrow = need("pyarrow", "parquet")
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (arrow.ArrowException, *DAMAGE, OSError) as error:
        if isinstance(error, FileNotFoundError) or str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path} is not a readable Parquet file: {first_line(error)}") from error
