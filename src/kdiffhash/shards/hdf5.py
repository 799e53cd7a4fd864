"""Shards in HDF5 files: local features in the layout of hloc, or arrays of rows and labels.

hloc has one group per image, with `descriptors` of shape (d, n): one column per keypoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._util.extras import need
from .._util.files import DAMAGE, check_regular, first_line
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
    check_numeric,
    rows_per_chunk,
)


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
            member = find_dataset(file, ROWS, h5py, path)
            if member:
                rows = plain(file[member], path)
                return cls(path, as_shape(rows.shape, path), rows.dtype, (), member)
            # No error is raised within a visit: h5py does not pass it on.
            link = file.visititems_links(lambda name, link: name if is_link(link, h5py) else None)
            if link is not None:
                raise _refused_link(link, path)
            names: list[str] = []
            file.visit(names.append)
            found: list[tuple[str, tuple[int, ...], Any]] = []
            for name in names:
                item = file[name] if name.endswith("/descriptors") else None
                if isinstance(item, h5py.Dataset):
                    plain(item, path)
                    check_numeric(item.dtype, path)
                    found.append((name.removesuffix("/descriptors"), item.shape, item.dtype))
        if not found:
            raise ValueError(
                f"{path} has neither IMAGE/descriptors, as written by hloc, nor a dataset named "
                f"{' or '.join(ROWS[:3])}"
            )
        shapes = {name: as_shape(shape and shape[::-1], path) for name, shape, _ in found}
        widths = {width for _, width in shapes.values()}
        if len(widths) > 1:
            raise ValueError(f"{path} has descriptors of different widths: {sorted(widths)}")
        images = tuple((name, n) for name, (n, _) in sorted(shapes.items()))
        dtype = np.result_type(*{dtype for _, _, dtype in found})
        return cls(path, (sum(n for _, n in images), widths.pop()), dtype, images)

    def chunks(self, size: int) -> Iterator[Array]:
        """Yield the rows in order, at most `size` of one image at a time."""
        with open_hdf5(self.path) as (file, _):
            if self.member:
                rows, step = plain(file[self.member], self.path), rows_per_chunk(size, self)
                yield from (rows[i : i + step] for i in range(0, len(rows), step))
                return
            for name, _ in self.images:
                rows = image_rows(file, name, self.path)
                yield from (rows[i : i + size] for i in range(0, len(rows), size))

    def take(self, numbers: Numbers) -> Array:
        """Return the rows with these ascending numbers; other images are not read."""
        if self.member:
            return super().take(numbers)
        out = np.empty((len(numbers), self.shape[1]), self.dtype)
        with open_hdf5(self.path) as (file, _):
            start = n_read = 0
            for name, n in self.images:
                first, last = np.searchsorted(numbers, (start, start + n))
                if first < last:
                    out[first:last] = image_rows(file, name, self.path)[numbers[first:last] - start]
                    n_read += last - first
                start += n
        return check_complete(out, n_read, self.path)

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
            name = find_dataset(file, names, h5py, self.path)
            if not name:
                return None
            dataset = plain(file[name], self.path)
            check_expansion(dataset.nbytes, name, self.path)
            if h5py.check_string_dtype(dataset.dtype) is not None:
                values = as_text(np.asarray(dataset.asstr()[()], object), name, self.path)
            elif dataset.dtype.kind in "biufS":
                values = dataset[()]
            else:
                raise ValueError(f"{self.path}: {name} has values of type {dataset.dtype}")
        return check_length(values, len(self), name, self.path)


def find_dataset(file: Any, names: tuple[str, ...], h5py: Any, path: Path) -> str:
    """Return the first of these names that is a dataset of the file, or an empty string.

    Links are refused unread: a link to another file could lead to a pipe or device.
    """
    for name in names:
        link = file.get(name, getlink=True)
        if is_link(link, h5py):
            raise _refused_link(name, path)
        if link is not None and isinstance(file[name], h5py.Dataset):
            return name
    return ""


def is_link(link: Any, h5py: Any) -> bool:
    """Return whether a name in a file is that of another place."""
    return isinstance(link, h5py.SoftLink | h5py.ExternalLink)


def _refused_link(name: str, path: Path) -> ValueError:
    return ValueError(
        f"{path}: {name} refers to another file or place; copy the data into its place"
    )


def plain(dataset: Any, path: Path) -> Any:
    """Return a dataset if all of it is stored in this file.

    Values that were never written take no room in a file, so a small file could say that it has any
    number of them.
    """
    if dataset.external or dataset.is_virtual or dataset.file.filename != str(path):
        raise ValueError(
            f"{path}: {dataset.name} refers to another file; copy the data into this one"
        )
    if dataset.shape is None or not dataset.size:
        return dataset
    if dataset.chunks is None:
        is_written = dataset.id.get_storage_size() >= dataset.nbytes
    else:
        n_chunks = [-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks)]
        is_written = dataset.id.get_num_chunks() >= math.prod(n_chunks)
        n_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
        check_expansion(n_bytes, f"a chunk of {dataset.name}", path)
    if not is_written:
        raise ValueError(
            f"{path}: parts of {dataset.name}, shape {dataset.shape}, were never written; resize "
            "it to what was written"
        )
    return dataset


def image_rows(file: Any, name: str, path: Path) -> Array:
    """Return the descriptors of an image, one per row."""
    dataset = plain(file[name]["descriptors"], path)
    check_expansion(dataset.nbytes, dataset.name, path)
    return np.ascontiguousarray(dataset[()].T)


@contextmanager
def open_hdf5(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open a file for reading, with errors that name it."""
    h5py = need("h5py", "hdf5")
    check_regular(path)
    with reading(path), h5py.File(path, "r") as file:
        yield file, h5py


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the errors of h5py into one that names the file."""
    try:
        yield
    except (*DAMAGE, OSError, SystemError) as error:
        if isinstance(error, FileNotFoundError) or str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path} is not a readable HDF5 file: {first_line(error)}") from error
