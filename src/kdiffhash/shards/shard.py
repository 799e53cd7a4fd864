"""The interface of a shard, and a sequence of shards read as one array."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .._util.files import check_regular
from ..learn.rows import Array, Numbers, RowSource, check_finite

#: Names of rows, labels and groups in files with several arrays; the first one present is used.
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
LABEL_FILES = (".labels.npy", ".groups.npy")  # labels and groups of NAME.npy
_CHUNK = 2**16  # rows read at a time if a format has no random access
_CHUNK_BYTES = 2**28  # largest chunk, unless a single row is larger
_MAX_WIDTH = 2**20  # columns
_FREE_BYTES = 2**30  # what a file of any size may unpack to
_MAX_EXPANSION = 100  # beyond that, size in memory divided by size of the file


@dataclass(frozen=True)
class Shard(ABC):
    """One file of rows.

    It keeps no file open and is small, so that it can be pickled and sent to another process.

    Attributes
    ----------
    path : Path
        The file.
    shape : tuple of int
        Number of rows, and their width.
    dtype : numpy dtype
        Type of the numbers.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from kdiffhash.shards import open_shards
    >>> path = tempfile.mkdtemp() + "/a.npy"
    >>> np.save(path, np.zeros((3, 2), np.uint8))
    >>> (shard,) = open_shards(path).files
    >>> shard.shape, shard.dtype
    ((3, 2), dtype('uint8'))
    """

    path: Path
    shape: tuple[int, int]
    dtype: np.dtype[Any]

    @classmethod
    @abstractmethod
    def open(cls, path: Path) -> Shard:
        """Read shape and type of the rows from the header of a file.

        Parameters
        ----------
        path : Path
            The file.

        Returns
        -------
        shard : Shard
        """

    @abstractmethod
    def chunks(self, size: int) -> Iterator[Array]:
        """Yield all rows in order.

        Parameters
        ----------
        size : int
            Largest number of rows in a chunk.

        Yields
        ------
        chunk : array of shape (at most size, d)
        """

    def take(self, numbers: Numbers) -> Array:
        """Return some of the rows.

        Parameters
        ----------
        numbers : int64 array of shape (m,)
            Row numbers, ascending.

        Returns
        -------
        rows : array of shape (m, d)
        """
        out = np.empty((len(numbers), self.shape[1]), self.dtype)
        start = last = 0
        for chunk in self.chunks(_CHUNK):
            first, last = np.searchsorted(numbers, (start, start + len(chunk)))
            out[first:last] = chunk[numbers[first:last] - start]
            start += len(chunk)
            if last == len(numbers):
                break
        return check_complete(out, int(last), self.path)

    def labels(self) -> Array | None:
        """Return the label of each row, or None if the file has none."""
        return None

    def groups(self) -> Array | None:
        """Return the group (image) of each row, or None if the file has none."""
        return None

    def __len__(self) -> int:
        return self.shape[0]


@dataclass(frozen=True, eq=False)
class Shards(RowSource):
    """Several shards, one after another, as one array.

    Rows are read on access, by a slice, row numbers or a mask.

    Parameters
    ----------
    files : tuple of Shard
        The shards, in the order of their rows.

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
        """Offset of the first row of each file, followed by the total number of rows."""
        return np.cumsum([0, *(len(file) for file in self.files)])

    @property
    def shape(self) -> tuple[int, int]:
        """Total number of rows, and their width."""
        return int(self.starts[-1]), self.files[0].shape[1]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Common dtype of all files."""
        return np.result_type(*{file.dtype for file in self.files})

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
        edges = np.searchsorted(numbers, self.starts)
        out = np.empty((len(numbers), self.shape[1]), self.dtype)
        for file, start, first, last in zip(self.files, self.starts, edges, edges[1:]):
            if first < last:
                own = numbers[first:last] - start
                out[first:last] = check_finite(file.take(own), own, str(file.path))
        return out

    def chunks(self, size: int) -> Iterator[Array]:
        """Yield all rows in order; a chunk never contains rows of two files.

        Parameters
        ----------
        size : int
            Largest number of rows in a chunk.

        Yields
        ------
        chunk : array of shape (at most size, d)
        """
        for file in self.files:
            n_read = 0
            for chunk in file.chunks(size):
                n_read += len(chunk)
                yield chunk
            if n_read != len(file):
                raise ValueError(f"{file.path} has {n_read} rows, but says that it has {len(file)}")

    def labels(self) -> Array | None:
        """Return the label of each row, or None if no file has labels."""
        labels = self._all_or_none([file.labels() for file in self.files], "labels")
        return None if labels is None else np.concatenate(labels)

    def groups(self) -> Array | None:
        """Return the group of each row, or None; groups of different files are distinct."""
        groups = self._all_or_none([file.groups() for file in self.files], "groups")
        return None if groups is None else number_consecutively(groups)

    def _all_or_none(self, arrays: list[Array | None], name: str) -> list[Array] | None:
        known = [array for array in arrays if array is not None]
        if not known:
            return None
        for file, array in zip(self.files, arrays):
            if array is None:
                raise ValueError(
                    f"{file.path} has no {name}, but other shards have; add them to all or none"
                )
        return known


def is_shards(path: Path) -> bool:
    """Return whether `open_shards` can open a path.

    Parameters
    ----------
    path : Path
        A file or folder.

    Returns
    -------
    supported : bool
        True for a file of a supported type, or a folder that contains one.

    Examples
    --------
    >>> from pathlib import Path
    >>> from kdiffhash.shards import is_shards
    >>> is_shards(Path("notes.txt"))
    False
    """
    return path.suffix in _KINDS if path.is_file() else bool(path.is_dir() and _files_in(path))


def open_shards(path: str | Path) -> Shards:
    """Open a file of rows, or a folder of such files in natural order of their names.

    Parameters
    ----------
    path : path
        `.npy`, `.npz`, `.parquet`, `.h5` or `.hdf5`, or a folder of such files. Numbers in names
        are compared by value: shard-10 comes after shard-9. Names that begin with a dot or an
        underscore, and other types of files, are skipped.

    Returns
    -------
    rows : Shards
        All rows as one array, read on access.

    Raises
    ------
    ValueError
        If a file is damaged or not numeric, or rows have different widths.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from kdiffhash.shards import open_shards
    >>> path = tempfile.mkdtemp() + "/a.npz"
    >>> np.savez(path, X=np.zeros((3, 2), np.uint8), y=[0, 0, 1])
    >>> open_shards(path).labels()
    array([0, 0, 1])
    """
    path = Path(path)
    paths = _files_in(path) if path.is_dir() else [path]
    if not paths:
        raise ValueError(f"the folder {path} has no shards; supported are {', '.join(_KINDS)}")
    files = tuple(_open(file) for file in paths)
    # An empty file need not have the width of the others.
    files = tuple(file for file in files if file.shape != (0, 0)) or files
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
        and not path.name.endswith(LABEL_FILES)
        and path.is_file()
    ]
    return sorted(paths, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that compares numbers in names by value."""
    tokens = re.split(r"(\d+)", path.stem)
    key = [(int(token), "") if token.isdecimal() else (-1, token) for token in tokens]
    return [*key, (-1, ""), (-1, path.stem), (-1, path.suffix)]


def _open(path: Path) -> Shard:
    if path.suffix not in _KINDS:
        raise ValueError(
            f"{path} is not a supported file; rows are read from {', '.join(_KINDS)}, or a folder"
        )
    check_regular(path)
    module, name = _KINDS[path.suffix]
    kind: type[Shard] = getattr(import_module(f".{module}", __package__), name)
    shard = kind.open(path)
    check_numeric(shard.dtype, path)
    return shard


def check_numeric(dtype: np.dtype[Any], path: Path) -> None:
    """Raise unless rows of this type can be encoded."""
    if dtype.kind not in "biuf":
        raise ValueError(f"{path} must hold real numbers, but has dtype {dtype}")


def as_shape(shape: tuple[int, ...] | None, path: Path) -> tuple[int, int]:
    """Return a two-dimensional shape, or raise an error that names the file."""
    if shape is None or len(shape) != 2 or min(shape) < 0:
        raise ValueError(f"{path} must hold rows, shape (n, d), but has shape {shape}")
    n, width = int(shape[0]), int(shape[1])
    if n and not 1 <= width <= _MAX_WIDTH:
        raise ValueError(
            f"{path} has rows of {width} numbers; a row must have from 1 to {_MAX_WIDTH}"
        )
    return n, width


def rows_per_chunk(size: int, shard: Shard) -> int:
    """Return how many rows to read at a time: at most `size`, and at most 256 MB."""
    return max(1, min(size, _CHUNK_BYTES // max(1, shard.shape[1] * shard.dtype.itemsize)))


def check_expansion(n_bytes: int, name: str, path: Path) -> None:
    """Raise if an array is far larger in memory than its file, before it is read.

    The size in memory is what the file says. Files of a few kilobytes can say terabytes.
    """
    if n_bytes > max(_FREE_BYTES, _MAX_EXPANSION * path.stat().st_size):
        raise ValueError(
            f"{path}: {name} takes {n_bytes} bytes in memory, more than {_MAX_EXPANSION} times the "
            "size of the file; if it is meant to be that large, store it uncompressed"
        )


def check_complete(rows: Array, n_read: int, path: Path) -> Array:
    """Return rows that were read, or raise if the file has fewer than it says."""
    if n_read < len(rows):
        raise ValueError(f"{path} is damaged: it has fewer rows than it says")
    return rows


def as_text(values: Array, name: str, path: Path) -> Array:
    """Return Python texts as an array of texts, which all take the room of the longest."""
    longest = max((len(value) for value in values), default=0)
    check_expansion(4 * longest * len(values), name, path)
    return values.astype(str)


def check_length(values: Array | None, n: int, name: str, path: Path) -> Array | None:
    """Return labels or groups, or raise an error if there is not one per row."""
    if values is not None and values.shape != (n,):
        raise ValueError(f"{path} has {n} rows, but {name} of shape {values.shape}")
    return values


def number_consecutively(groups: list[Array]) -> Numbers:
    """Return the groups of several arrays as integers that do not overlap."""
    out, n = [], 0
    for array in groups:
        ids = np.unique(array, return_inverse=True)[1]
        out.append(ids + n)
        n += int(ids.max(initial=-1)) + 1
    return np.concatenate(out).astype(np.int64)
