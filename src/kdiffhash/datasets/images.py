"""Find and read photographs as 8-bit grey images."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .._util.extras import need
from .._util.files import DAMAGE, first_line

SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp")


def list_photos(root: Path, *, recursive: bool = True) -> list[Path]:
    """List the photographs in a folder, sorted by path; `recursive` includes its subfolders."""
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder of photographs")
    candidates = (
        path for path in root.glob("**/*" if recursive else "*") if path.suffix.lower() in SUFFIXES
    )
    return sorted(path for path in candidates if path.is_file())


def read_grey(path: Path, *, apply_orientation: bool = False) -> NDArray[np.uint8]:
    """Read an image in grey; `apply_orientation` rotates it as its EXIF data says."""
    image_module = need("PIL.Image", "vision")
    try:
        with image_module.open(path) as image:
            if apply_orientation:
                image = need("PIL.ImageOps", "vision").exif_transpose(image)
            if image.mode.startswith("I;16"):
                return (np.asarray(image) >> 8).astype(np.uint8)
            if image.mode in ("I", "F"):
                raise ValueError("it has more than 16 bits per pixel; convert it to 8 or 16 bits")
            return np.asarray(image.convert("L"))
    except (*DAMAGE, OSError, struct.error, image_module.DecompressionBombError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise ValueError(f"{path} is not a readable image: {first_line(error)}") from error
