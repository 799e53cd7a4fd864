"""Shards in `.npy` files, which are memory-mapped, and `.npz` files, which are read as streams."""

from __future__ import annotations

import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._util.files import DAMAGE, check_regular, first_line, open_npy, read_npy_header
from ..learn.rows import Array, Numbers
from .shard import (
    GROUPS,
    LABELS,
    ROWS,
    Shard,
    as_shape,
    check_expansion,
    check_length,
    rows_per_chunk,
)

# Errors that reading a damaged archive may raise.
_DAMAGE = (*DAMAGE, OSError, zlib.error, lzma.LZMAError, struct.error)


class NpyShard(Shard):
    """An array of rows; labels and groups are in NAME.labels.npy and NAME.groups.npy."""

    @classmethod
    def open(cls, path: Path) -> NpyShard:
        """Read the header of the file."""
        rows = open_npy(path)
        return cls(path, as_shape(rows.shape, path), rows.dtype)

    def chunks(self, size: int) -> Iterator[Array]:
        """Yield views of the memory-mapped file."""
        rows = open_npy(self.path)
        return (rows[i : i + size] for i in range(0, len(rows), size))

    def take(self, numbers: Numbers) -> Array:
        """Return the rows with these numbers."""
        return np.asarray(open_npy(self.path)[numbers])

    def labels(self) -> Array | None:
        """Return the labels from NAME.labels.npy, if there is such a file."""
        return self._companion("labels")

    def groups(self) -> Array | None:
        """Return the groups from NAME.groups.npy, if there is such a file."""
        return self._companion("groups")

    def _companion(self, name: str) -> Array | None:
        path = self.path.with_name(f"{self.path.stem}.{name}.npy")
        values = np.asarray(open_npy(path)) if path.exists() else None
        return check_length(values, len(self), f"{name} in {path.name}", self.path)


@dataclass(frozen=True)
class NpzShard(Shard):
    """An archive of named arrays: rows (X), labels (y) and groups."""

    member: str = ""

    @classmethod
    def open(cls, path: Path) -> NpzShard:
        """Read the header of the array of rows."""
        with _archive(path) as archive:
            member = _pick(archive, path)
            shape, _, dtype = _read_header(archive, member)
            return cls(path, as_shape(shape, path), dtype, member)

    def chunks(self, size: int) -> Iterator[Array]:
        """Yield rows from the stream; an array in Fortran order is read into memory first."""
        size = rows_per_chunk(size, self)
        with _archive(self.path) as archive:
            shape, fortran, dtype = _read_header(archive, self.member)
            n, width = as_shape(shape, self.path)
            if fortran:
                rows = read_npz(self.path, (self.member,))[self.member]
                yield from (rows[i : i + size] for i in range(0, n, size))
                return
            with archive.open(f"{self.member}.npy") as stream:
                read_npy_header(stream)
                for start in range(0, n, size):
                    n_rows = min(size, n - start)
                    n_bytes = n_rows * width * dtype.itemsize
                    content = stream.read(n_bytes)
                    if len(content) < n_bytes:
                        raise ValueError(f"it is truncated after row {start}")
                    yield np.frombuffer(content, dtype).reshape(n_rows, width)

    def labels(self) -> Array | None:
        """Return the array of labels (see `shard.LABELS` for its names), or None."""
        return self._find(LABELS)

    def groups(self) -> Array | None:
        """Return the array of groups (see `shard.GROUPS` for its names), or None."""
        return self._find(GROUPS)

    def _find(self, names: tuple[str, ...]) -> Array | None:
        arrays = read_npz(self.path, names)
        name = next((name for name in names if name in arrays), "")
        return check_length(arrays.get(name), len(self), name, self.path)


def read_npz(path: Path, names: tuple[str, ...] | None = None) -> dict[str, Array]:
    """Return the arrays of an .npz file, or those with these names; pickles are refused."""
    with _archive(path) as archive:
        members = [name.removesuffix(".npy") for name in archive.namelist()]
        return {
            name: _read_array(archive, name, path)
            for name in members
            if names is None or name in names
        }


def _read_array(archive: zipfile.ZipFile, name: str, path: Path) -> Array:
    shape, _, dtype = _read_header(archive, name)
    check_expansion(dtype.itemsize * math.prod(shape), name, path)
    with archive.open(f"{name}.npy") as stream:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive; errors while it is open become one that names the file."""
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if len(set(names)) < len(names):
                raise ValueError("two of its arrays have the same name")
            yield archive
    except _DAMAGE as error:
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
            raise  # it names the file already
        reason = f"{first_line(error)}{_hint(path)}"
        raise ValueError(f"{path} is not a readable .npz file: {reason}") from error


def _hint(path: Path) -> str:
    """Return a hint for the error message if the file is an .npy file."""
    with path.open("rb") as file:
        is_npy = file.read(6) == np.lib.format.MAGIC_PREFIX
    return "; it holds a single array: rename it to .npy" if is_npy else ""


def _pick(archive: zipfile.ZipFile, path: Path) -> str:
    """Return the name of the array of rows."""
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    member = next((name for name in ROWS if name in names), None)
    if member is None:
        raise ValueError(
            f"{path} must have an array named {' or '.join(ROWS)}; its arrays are "
            f"{', '.join(names)[:200] or 'none'}"
        )
    return member


def _read_header(
    archive: zipfile.ZipFile, name: str
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type of an array, if the archive has as many bytes as they need."""
    with archive.open(f"{name}.npy") as stream:
        shape, fortran, dtype = read_npy_header(stream)
    size = archive.getinfo(f"{name}.npy").file_size
    if math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"its header gives shape {shape}, but it has {size} bytes")
    return shape, fortran, dtype
