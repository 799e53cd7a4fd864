"""Shards in `.npy` files, which are memory-mapped, and `.npz` files, which are read as streams."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from .._util.files import open_npy
from ..learn.rows import Array, Numbers
from .shard import GROUPS, LABELS, ROWS, Shard, as_shape, check_length

_DAMAGE = (  # errors that reading a damaged archive may raise
    ValueError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    OSError,
    MemoryError,
)


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
            try:
                with archive.open(f"{member}.npy") as stream:
                    shape, _, dtype = _read_header(stream)
                size = archive.getinfo(f"{member}.npy").file_size
                if np.prod(as_shape(shape, path), dtype=object) * dtype.itemsize > size:
                    raise ValueError(f"its header gives shape {shape}, but it has {size} bytes")
            except _DAMAGE as error:
                raise ValueError(f"{path} is not a readable .npz file: {error}") from error
        return cls(path, as_shape(shape, path), dtype, member)

    def chunks(self, size: int) -> Iterator[Array]:
        """Yield rows from the stream; an array in Fortran order is read into memory first."""
        with _archive(self.path) as archive, archive.open(f"{self.member}.npy") as stream:
            (n, width), fortran, dtype = _read_header(stream)
            if fortran:
                rows = read_npz(self.path, (self.member,))[self.member]
                yield from (rows[i : i + size] for i in range(0, n, size))
                return
            for start in range(0, n, size):
                n_rows = min(size, n - start)
                n_bytes = n_rows * width * dtype.itemsize
                try:
                    content = stream.read(n_bytes)
                except _DAMAGE as error:
                    raise ValueError(
                        f"{self.path} is damaged after row {start}: {error}"
                    ) from error
                if len(content) < n_bytes:
                    raise ValueError(f"{self.path} is truncated after row {start}")
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
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ValueError("it holds a single array")
        with file:
            return {name: file[name] for name in file.files if names is None or name in names}
    except _DAMAGE as error:
        raise ValueError(f"{path} is not a readable .npz file: {error}") from error


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is not a readable .npz file: {error}{_hint(path)}") from error
    with archive:
        yield archive


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
            f"{', '.join(names) or 'none'}"
        )
    return member


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in read:
        raise ValueError(f"unknown .npy version {version}")
    shape, fortran, dtype = read[version](stream)
    if dtype.hasobject:
        raise ValueError("arrays of Python objects are refused, because they are pickled")
    return shape, fortran, dtype
