"""Sheets of patches: images of 1024 x 1024 grey pixels that hold 16 x 16 patches, row by row."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..extras import need
from .pictures import read_grey

PATCH = 64  # pixels along a side of a patch
WIDTH_IN_SIGMA = 15  # how much wider a patch is than the size sigma of its keypoint
PER_SIDE = 16
PER_SHEET = PER_SIDE * PER_SIDE
SIDE = PATCH * PER_SIDE

Pixels = NDArray[np.uint8]

_NAME = re.compile(r"patches(\d+)\.(bmp|png|jpe?g)", re.IGNORECASE)
_KEPT = 16  # decoded sheets in memory, a megabyte each


class PatchSheets:
    """The patches of a scene as a lazy array of shape (n, 64, 64).

    Indexing with a number, a slice or an array of numbers reads the sheets that are needed. Grey
    BMP sheets are memory-mapped; others are decoded, and the last few are kept.

    Parameters
    ----------
    files : list of Path
        The sheets in order.
    n_patches : int
        How many patches they hold; the rest of the last sheet is padding.
    rows : int64 array, optional
        Which of these patches this object shows; all by default.
    """

    dtype = np.dtype(np.uint8)
    ndim = 3

    def __init__(
        self, files: list[Path], n_patches: int, rows: NDArray[np.int64] | None = None
    ) -> None:
        self._files = files
        self._rows = np.arange(n_patches) if rows is None else rows
        self._sheet = lru_cache(_KEPT)(lambda number: read_sheet(files[number]))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n, 64, 64)."""
        return len(self._rows), PATCH, PATCH

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Pixels:
        if isinstance(key, tuple):
            raise IndexError("patches are indexed by their number alone; index what that gives")
        rows = np.asarray(self._rows[key])
        return self._read(rows.reshape(-1)).reshape(*rows.shape, PATCH, PATCH)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("patches are read from sheets, which takes a copy")
        return self[:].astype(dtype or self.dtype, copy=False)

    def take(self, rows: NDArray[np.int64]) -> PatchSheets:
        """Some of the patches, still lazy."""
        return PatchSheets(self._files, len(self._rows), self._rows[rows])

    def _read(self, rows: NDArray[np.int64]) -> Pixels:
        out = np.empty((len(rows), PATCH, PATCH), np.uint8)
        sheet_of = rows // PER_SHEET
        for number in np.unique(sheet_of).tolist():
            mine = np.flatnonzero(sheet_of == number)
            place = rows[mine] % PER_SHEET
            grid = self._sheet(number).reshape(PER_SIDE, PATCH, PER_SIDE, PATCH)
            out[mine] = grid[place // PER_SIDE, :, place % PER_SIDE]
        return out


def is_sheet(name: str) -> bool:
    """Whether a file is named as sheets are."""
    return _NAME.fullmatch(name) is not None


def find_sheets(folder: Path) -> list[Path]:
    """The sheets of a folder in order; they are numbered from 0 without gaps."""
    found: dict[int, Path] = {}
    for entry in os.scandir(folder):
        match = _NAME.fullmatch(entry.name)
        if match:
            number = int(match.group(1))
            if number in found:
                raise ValueError(f"{folder} has two sheets number {number}; remove one of them")
            found[number] = Path(entry.path)
    for number in range(len(found)):
        if number not in found:
            raise ValueError(f"{folder}: sheet patches{number:04d} is missing")
    return [found[number] for number in range(len(found))]


def read_sheet(path: Path) -> Pixels:
    """The pixels of a sheet: memory-mapped if it is a plain grey BMP file, else decoded."""
    if path.suffix.lower() == ".bmp":
        pixels = _map_bmp(path)
        if pixels is not None:
            return pixels
    pixels = read_grey(path)
    if pixels.shape != (SIDE, SIDE):
        height, width = pixels.shape
        raise ValueError(f"{path} has {width} x {height} pixels; a sheet has {SIDE} x {SIDE}")
    return pixels


def write_sheets(folder: Path, patches: Any, suffix: str) -> None:
    """Write patches, an array or a lazy one, as sheets; black fills the last one up."""
    image_module = need("PIL.Image", "vision")
    options = {"jpg": {"quality": 95}, "png": {"compress_level": 1}}.get(suffix, {})
    for number, start in enumerate(range(0, len(patches), PER_SHEET)):
        part = np.asarray(patches[start : start + PER_SHEET])
        sheet = np.zeros((PER_SHEET, PATCH, PATCH), np.uint8)
        sheet[: len(part)] = part
        pixels = sheet.reshape(PER_SIDE, PER_SIDE, PATCH, PATCH).swapaxes(1, 2)
        image = image_module.fromarray(np.ascontiguousarray(pixels.reshape(SIDE, SIDE)))
        kind = "JPEG" if suffix == "jpg" else suffix.upper()
        image.save(folder / f"patches{number:04d}.{suffix}", format=kind, **options)


def _map_bmp(path: Path) -> Pixels | None:
    """A BMP file of 8 bits a pixel with a plain grey palette, as a memory map; None if other."""
    try:
        with need("PIL.Image", "vision").open(path) as image:  # reads the head alone
            (coder, _, offset, (mode, _, direction)), *more = image.tile
            if (image.size, image.mode, coder, mode, more) != ((SIDE, SIDE), "L", "raw", "L", []):
                return None
    except OSError:
        return None  # decoding it tells what is wrong
    try:
        return np.memmap(path, np.uint8, "r", offset, (SIDE, SIDE))[::direction]
    except ValueError as error:
        raise ValueError(f"{path} is truncated; get it again") from error
