"""What a file of rows can do, and several of them as one array."""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..rows import Array, Numbers, RowSource, check_finite

#: What the rows, and what is known of them, may be called in a file of several arrays.
ROWS = ("X", "descriptors", "embeddings", "codes", "x", "arr_0")
LABELS = ("y", "labels", "label", "ids", "id")
GROUPS = ("groups", "group")

_KINDS = {
    ".npy": ("numpy_files", "NpyShard"),
    ".npz": ("numpy_files", "NpzShard"),
    ".parquet": ("parquet", "ParquetShard"),
    ".h5": ("hdf5", "Hdf5Shard"),
    ".hdf5": ("hdf5", "Hdf5Shard"),
}
BESIDE = (".labels.npy", ".groups.npy")  # of NAME.npy, in files beside it
_BLOCK = 2**16  # rows that are held at once where only some of them are wanted


@dataclass(frozen=True)
class Shard(ABC):
    """One file of rows.

    It keeps no file open and is small, so that it can be sent to where the rows are read.

    Attributes
    ----------
    path : Path
    shape : (n, d)
    dtype : numpy dtype
    """

    path: Path
    shape: tuple[int, int]
    dtype: np.dtype[Any]

    @classmethod
    @abstractmethod
    def open(cls, path: Path) -> Shard:
        """Read what the file says of itself."""

    @abstractmethod
    def blocks(self, height: int) -> Iterator[Array]:
        """All rows in order, in blocks of at most `height` rows."""

    def take(self, numbers: Numbers) -> Array:
        """The rows with these numbers, which rise, shape (m, d)."""
        out = np.empty((len(numbers), self.shape[1]), self.dtype)
        start = 0
        for block in self.blocks(_BLOCK):
            first, last = np.searchsorted(numbers, (start, start + len(block)))
            out[first:last] = block[numbers[first:last] - start]
            start += len(block)
            if last == len(numbers):
                break
        return out

    def labels(self) -> Array | None:
        """Which thing each row shows, if the file tells."""
        return None

    def groups(self) -> Array | None:
        """The group (photograph) of each row, if the file tells."""
        return None

    def __len__(self) -> int:
        return self.shape[0]


@dataclass(frozen=True, eq=False)
class Shards(RowSource):
    """The rows of several files, one file after another, as if they were one array.

    Rows are read when they are asked for, by a slice or by their numbers.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from pathlib import Path
    >>> from kdiffhash.shards import open_shards
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(Path(folder) / "a.npy", np.zeros((3, 2), np.uint8))
    ...     np.save(Path(folder) / "b.npy", np.ones((4, 2), np.uint8))
    ...     rows = open_shards(folder)
    ...     rows.shape, rows[[4, 0]]
    ((7, 2), array([[1, 1],
           [0, 0]], dtype=uint8))
    """

    files: tuple[Shard, ...]
    ndim: ClassVar[int] = 2

    @cached_property
    def starts(self) -> Numbers:
        """Number of the first row of each file, and after them the number of all rows."""
        return np.cumsum([0, *(len(file) for file in self.files)])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of all files together, and their width."""
        return int(self.starts[-1]), self.files[0].shape[1]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """What holds the values of all files."""
        return np.result_type(*{file.dtype for file in self.files})

    def read(self, numbers: Numbers) -> Array:
        """The rows with these numbers, which rise, from the files that have some of them."""
        edges = np.searchsorted(numbers, self.starts)
        out = np.empty((len(numbers), self.shape[1]), self.dtype)
        for file, start, first, last in zip(self.files, self.starts, edges, edges[1:]):
            if first < last:
                own = numbers[first:last] - start
                out[first:last] = check_finite(file.take(own), own, str(file.path))
        return out

    def blocks(self, height: int) -> Iterator[Array]:
        """All rows in order, in blocks of at most `height` rows."""
        for file in self.files:
            yield from file.blocks(height)

    def labels(self) -> Array | None:
        """Which thing each row shows, if every file tells."""
        parts = self._all_or_none([file.labels() for file in self.files], "labels")
        return None if parts is None else np.concatenate(parts)

    def groups(self) -> Array | None:
        """The group of each row, if every file tells; each file has groups of its own."""
        parts = self._all_or_none([file.groups() for file in self.files], "groups")
        return None if parts is None else numbered_apart(parts)

    def _all_or_none(self, parts: list[Array | None], what: str) -> list[Array] | None:
        known = [part for part in parts if part is not None]
        if not known:
            return None
        for file, part in zip(self.files, parts):
            if part is None:
                raise ValueError(f"{file.path} has no {what}, but other shards have")
        return known


def is_shards(path: Path) -> bool:
    """Whether `open_shards` would find rows there."""
    return path.suffix in _KINDS if path.is_file() else bool(path.is_dir() and _files_in(path))


def open_shards(path: str | Path) -> Shards:
    """Open a file of rows, or a folder of them in the order of their names.

    Parameters
    ----------
    path : path
        `.npy`, `.npz`, `.parquet`, `.h5` or `.hdf5`, or a folder of such files. Numbers in names
        count as numbers: part-10 comes after part-9. Names that begin with a dot or an underscore,
        and other kinds of files, are left out.

    Returns
    -------
    rows : Shards
    """
    path = Path(path)
    paths = _files_in(path) if path.is_dir() else [path]
    if not paths:
        raise ValueError(f"the folder {path} has no files of rows ({', '.join(_KINDS)})")
    files = tuple(_open(file) for file in paths)
    files = tuple(file for file in files if file.shape != (0, 0)) or files  # empty, width unknown
    for file in files:
        if file.shape[1] != files[0].shape[1]:
            raise ValueError(
                f"shards have rows of different widths: {file.shape[1]} in {file.path}, "
                f"{files[0].shape[1]} in {files[0].path}"
            )
    return Shards(files)


def _files_in(folder: Path) -> list[Path]:
    paths = [
        path
        for path in folder.iterdir()
        if path.suffix in _KINDS
        and not path.name.startswith((".", "_"))
        and not path.name.endswith(BESIDE)
        and path.is_file()
    ]
    return sorted(paths, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """A key by which numbers in names come in the order of their values."""
    parts = re.split(r"(\d+)", path.stem)
    key = [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
    return [*key, (-1, ""), (-1, path.stem), (-1, path.suffix)]


def _open(path: Path) -> Shard:
    if path.suffix not in _KINDS:
        raise ValueError(f"{path}: rows are read from {', '.join(_KINDS)}, or a folder of them")
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    module, name = _KINDS[path.suffix]
    kind: type[Shard] = getattr(import_module(f".{module}", __package__), name)
    shard = kind.open(path)
    if shard.dtype.kind not in "biuf":
        raise ValueError(f"{path} must hold numbers, but has {shard.dtype}")
    return shard


def as_shape(shape: tuple[int, ...] | None, path: Path) -> tuple[int, int]:
    """A shape of rows, or an error that names the file."""
    if shape is None or len(shape) != 2 or min(shape) < 0:
        raise ValueError(f"{path} must hold rows, shape (n, d), but has shape {shape}")
    return int(shape[0]), int(shape[1])


def one_a_row(values: Array | None, n: int, what: str, path: Path) -> Array | None:
    """Labels or groups that fit the rows, or an error that names the file."""
    if values is not None and values.shape != (n,):
        raise ValueError(f"{path} has {n} rows, but {what} of shape {values.shape}")
    return values


def numbered_apart(parts: list[Array]) -> Numbers:
    """Ids of several sets as whole numbers that do not overlap."""
    out, n = [], 0
    for part in parts:
        ids = np.unique(part, return_inverse=True)[1]
        out.append(ids + n)
        n += int(ids.max(initial=-1)) + 1
    return np.concatenate(out).astype(np.int64)
