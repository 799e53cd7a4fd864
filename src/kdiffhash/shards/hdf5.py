"""Shards in HDF5 files: local features in the layout of hloc, or arrays of rows and labels.

hloc has one group per image, with `descriptors` of shape (d, n): one column per keypoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._util.extras import need
from ..learn.rows import Array, Numbers
from .shard import GROUPS, LABELS, ROWS, Shard, as_shape, check_length


@dataclass(frozen=True)
class Hdf5Shard(Shard):
    """The descriptors of all images, sorted by image name, or one array of rows.

    Attributes
    ----------
    images : tuple of (name, n)
        Images and their number of descriptors; empty for one array of rows.
    member : str
        Name of the array of rows; empty for images.
    """

    images: tuple[tuple[str, int], ...] = ()
    member: str = ""

    @classmethod
    def open(cls, path: Path) -> Hdf5Shard:
        """Read the names and shapes of the datasets."""
        with open_hdf5(path) as (file, h5py):
            member = next((name for name in ROWS if isinstance(file.get(name), h5py.Dataset)), "")
            if member:
                rows = plain(file[member], path)
                return cls(path, as_shape(rows.shape, path), rows.dtype, (), member)
            found: list[tuple[str, tuple[int, ...], Any]] = []

            def collect(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset) and name.endswith("/descriptors"):
                    plain(item, path)
                    found.append((name.removesuffix("/descriptors"), item.shape, item.dtype))

            file.visititems(collect)
        if not found:
            raise ValueError(
                f"{path} has neither IMAGE/descriptors, as written by hloc, nor a dataset named "
                f"{' or '.join(ROWS[:3])}"
            )
        shapes = {name: as_shape(shape, path) for name, shape, _ in found}
        widths = {shape[0] for shape in shapes.values()}
        if len(widths) > 1:
            raise ValueError(f"{path} has descriptors of different widths: {sorted(widths)}")
        n, width = sum(shape[1] for shape in shapes.values()), widths.pop()
        dtype = np.result_type(*{dtype for _, _, dtype in found})
        images = tuple((name, shape[1]) for name, shape in sorted(shapes.items()))
        return cls(path, (n, width), dtype, images)

    def chunks(self, size: int) -> Iterator[Array]:
        """Yield the rows in order, at most `size` of one image at a time."""
        with open_hdf5(self.path) as (file, _):
            if self.member:
                rows = plain(file[self.member], self.path)
                yield from (rows[i : i + size] for i in range(0, len(rows), size))
                return
            for name, n in self.images:
                rows = image_rows(file, name, self.path)
                yield from (rows[i : i + size] for i in range(0, n, size))

    def take(self, numbers: Numbers) -> Array:
        """Return the rows with these ascending numbers; other images are not read."""
        if self.member:
            return super().take(numbers)
        out = np.empty((len(numbers), self.shape[1]), self.dtype)
        with open_hdf5(self.path) as (file, _):
            start = 0
            for name, n in self.images:
                first, last = np.searchsorted(numbers, (start, start + n))
                if first < last:
                    out[first:last] = image_rows(file, name, self.path)[numbers[first:last] - start]
                start += n
        return out

    def labels(self) -> Array | None:
        """Return the labels of an array of rows; files of hloc have none."""
        return self._find(LABELS)

    def groups(self) -> Array | None:
        """Return the image of each row as an integer."""
        if self.images:
            return np.repeat(np.arange(len(self.images)), [n for _, n in self.images])
        return self._find(GROUPS)

    def _find(self, names: tuple[str, ...]) -> Array | None:
        if self.images:
            return None
        with open_hdf5(self.path) as (file, h5py):
            name = next((name for name in names if isinstance(file.get(name), h5py.Dataset)), None)
            if name is None:
                return None
            dataset = plain(file[name], self.path)
            is_text = h5py.check_string_dtype(dataset.dtype) is not None
            values = np.asarray(dataset.asstr()[()], str) if is_text else dataset[()]
        return check_length(values, len(self), name, self.path)


def plain(dataset: Any, path: Path) -> Any:
    """Return a dataset if it is stored in this file; files must not refer to other files."""
    if dataset.external or dataset.is_virtual or dataset.file.filename != str(path):
        raise ValueError(
            f"{path}: {dataset.name} refers to another file; copy the data into this one"
        )
    return dataset


def image_rows(file: Any, name: str, path: Path) -> Array:
    """Return the descriptors of an image, one per row."""
    return np.ascontiguousarray(plain(file[name]["descriptors"], path)[()].T)


@contextmanager
def open_hdf5(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open a file for reading, with errors that name it."""
    h5py = need("h5py", "hdf5")
    with reading(path), h5py.File(path, "r") as file:
        yield file, h5py


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the errors of h5py into one that names the file."""
    try:
        yield
    except (OSError, KeyError, RuntimeError, TypeError, UnicodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} is not a readable HDF5 file: {error}") from error
