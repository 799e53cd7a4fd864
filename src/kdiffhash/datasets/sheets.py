"""Sheets of patches: grey images of 1024 x 1024 pixels that hold 16 x 16 patches row by row."""

from __future__ import annotations

import os
import re
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.extras import need
from .._util.files import DAMAGE, check_regular, first_line
from .images import read_grey

PATCH = 64  # pixels per side of a patch
WIDTH_IN_SIGMA = 15  # width of a patch divided by the scale sigma of its keypoint
PER_SIDE = 16
PER_SHEET = PER_SIDE * PER_SIDE
SIDE = PATCH * PER_SIDE

Pixels = NDArray[np.uint8]

_NAME = re.compile(r"patches(\d+)\.(bmp|png|jpe?g)", re.IGNORECASE)
_N_CACHED = 16  # decoded sheets kept in memory, 1 MB each


class PatchSheets:
    """The patches of a scene as a lazy array of shape (n, 64, 64).

    Indexing with an integer, a slice, an integer array or a boolean array reads only the sheets
    that are needed. Grey BMP sheets are memory-mapped; others are decoded, and the most recently
    used ones are cached.

    Parameters
    ----------
    files : list of Path
        The sheets in order.
    n_patches : int
        Number of patches; the rest of the last sheet is padding.
    rows : int64 array, optional
        Indices of the patches that this array consists of; all by default.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from PIL import Image
    >>> from kdiffhash.datasets import PatchSheets
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "patches0000.png"
    ...     Image.fromarray(np.zeros((1024, 1024), np.uint8)).save(path)
    ...     patches = PatchSheets([path], 200)
    ...     patches.shape, patches[[3, 7]].shape
    ((200, 64, 64), (2, 64, 64))
    """

    dtype = np.dtype(np.uint8)
    ndim = 3

    def __init__(
        self, files: list[Path], n_patches: int, rows: NDArray[np.int64] | None = None
    ) -> None:
        self._files = files
        self._rows = np.arange(n_patches) if rows is None else rows
        self._sheet = lru_cache(_N_CACHED)(lambda number: read_sheet(files[number]))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the array, (n, 64, 64)."""
        return len(self._rows), PATCH, PATCH

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Pixels:
        if isinstance(key, tuple):
            raise IndexError("patches are indexed along the first axis only; index the result")
        rows = np.asarray(self._rows[key])
        return self._read(rows.reshape(-1)).reshape(*rows.shape, PATCH, PATCH)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("patches are read from files, so copy=False is not possible")
        return self[:].astype(dtype or self.dtype, copy=False)

    def take(self, rows: NDArray[np.int64]) -> PatchSheets:
        """Return a selection of the patches as another lazy array.

        Parameters
        ----------
        rows : int64 array
            Indices of the patches.

        Returns
        -------
        patches : PatchSheets
        """
        return PatchSheets(self._files, len(self._rows), self._rows[rows])

    def _read(self, rows: NDArray[np.int64]) -> Pixels:
        out = np.empty((len(rows), PATCH, PATCH), np.uint8)
        sheet_of = rows // PER_SHEET
        for number in np.unique(sheet_of).tolist():
            selected = np.flatnonzero(sheet_of == number)
            cell = rows[selected] % PER_SHEET
            grid = self._sheet(number).reshape(PER_SIDE, PATCH, PER_SIDE, PATCH)
            out[selected] = grid[cell // PER_SIDE, :, cell % PER_SIDE]
        return out


def is_sheet(name: str) -> bool:
    """Return whether a file name is that of a sheet."""
    return _NAME.fullmatch(name) is not None


def find_sheets(folder: Path) -> list[Path]:
    """Return the sheets of a folder in order; they must be numbered from 0 without gaps."""
    found: dict[int, Path] = {}
    for entry in os.scandir(folder):
        match = _NAME.fullmatch(entry.name)
        if match:
            number = int(match.group(1))
            if number in found:
                raise ValueError(
                    f"{folder} has two sheets with number {number}; remove one of them"
                )
            found[number] = Path(entry.path)
    for number in range(len(found)):
        if number not in found:
            raise ValueError(
                f"{folder}: sheet patches{number:04d} is missing; sheets are numbered from 0 "
                "without gaps"
            )
    return [found[number] for number in range(len(found))]


def read_sheet(path: Path) -> Pixels:
    """Read a sheet: memory-mapped if it is an uncompressed grey BMP file, else decoded."""
    check_regular(path)
    image_module = need("PIL.Image", "vision")
    try:
        with image_module.open(path) as image:  # reads only the header
            size, place = image.size, _place_of_pixels(image)
    except (*DAMAGE, OSError, struct.error, image_module.DecompressionBombError) as error:
        if isinstance(error, PermissionError):
            raise
        raise ValueError(f"{path} is not a readable image: {first_line(error)}") from error
    if size != (SIDE, SIDE):
        width, height = size
        raise ValueError(f"{path} has {width} x {height} pixels; a sheet must have {SIDE} x {SIDE}")
    if place is None:
        return read_grey(path)
    offset, direction = place
    try:
        return np.memmap(path, np.uint8, "r", offset, (SIDE, SIDE))[::direction]
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path} is truncated; fetch or build it again") from error


def write_sheets(folder: Path, patches: Any, suffix: str) -> None:
    """Write patches (an array or `PatchSheets`) as sheets; the last one is padded with black."""
    image_module = need("PIL.Image", "vision")
    options = {"jpg": {"quality": 95}, "png": {"compress_level": 1}}.get(suffix, {})
    for number, start in enumerate(range(0, len(patches), PER_SHEET)):
        chunk = np.asarray(patches[start : start + PER_SHEET])
        sheet = np.zeros((PER_SHEET, PATCH, PATCH), np.uint8)
        sheet[: len(chunk)] = chunk
        pixels = sheet.reshape(PER_SIDE, PER_SIDE, PATCH, PATCH).swapaxes(1, 2)
        image = image_module.fromarray(np.ascontiguousarray(pixels.reshape(SIDE, SIDE)))
        kind = "JPEG" if suffix == "jpg" else suffix.upper()
        image.save(folder / f"patches{number:04d}.{suffix}", format=kind, **options)


def _place_of_pixels(image: Any) -> tuple[int, int] | None:
    """Return offset and row order of an uncompressed grey BMP file; None for other images."""
    if image.format != "BMP" or image.mode != "L" or len(image.tile) != 1:
        return None
    coder, _, offset, (mode, _, direction) = image.tile[0]
    return (offset, direction) if (coder, mode) == ("raw", "L") else None
