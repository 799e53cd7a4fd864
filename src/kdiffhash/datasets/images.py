"""Find and read photographs as 8-bit grey images."""

from __future__ import annotations

import struct
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.extras import need
from .._util.files import DAMAGE, check_regular, first_line

SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp")
MAX_PIXELS = 256_000_000  # of a photograph; one of 192 megapixels takes 0.6 GB in colour
_REDUCE_WHILE_DECODING = 50_000_000  # pixels
_LIMIT_LOCK = Lock()


def list_photos(root: Path, *, recursive: bool = True) -> list[Path]:
    """List the photographs in a folder, sorted by path; `recursive` includes its subfolders."""
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder of photographs")
    candidates = (
        path for path in root.glob("**/*" if recursive else "*") if path.suffix.lower() in SUFFIXES
    )
    return sorted(path for path in candidates if path.is_file())


def read_grey(
    path: Path, *, apply_orientation: bool = False, max_pixels: int = MAX_PIXELS
) -> NDArray[np.uint8]:
    """Read an image in grey; `apply_orientation` rotates it as its EXIF data says."""
    return read_pixels(path, apply_orientation=apply_orientation, max_pixels=max_pixels)[0]


def read_pixels(
    path: Path,
    *,
    colour: bool = False,
    apply_orientation: bool = False,
    max_pixels: int = MAX_PIXELS,
    size: int | None = None,
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Read an image in grey, or red, green and blue, and return its full width and height too.

    A JPEG file of more than 50 million pixels is decoded at a half, a quarter or an eighth of its
    size, if its longer side then still has at least `size` pixels.
    """
    image_module = need("PIL.Image", "vision")
    check_regular(path)
    try:
        with _opened(path) as image:
            n_pixels = image.width * image.height
            if n_pixels > max_pixels:
                raise _TooLargeError(
                    f"{path} has {n_pixels:,} pixels ({image.width} x {image.height}), but at most "
                    f"{max_pixels:,} are read; reduce it, or raise the limit with --max-pixels "
                    "(max_pixels=)"
                )
            full = image.size
            if size is not None and n_pixels > _REDUCE_WHILE_DECODING:
                longer = max(full)
                image.draft(None, tuple(max(1, side * size // longer) for side in full))
            if apply_orientation:
                turned = need("PIL.ImageOps", "vision").exif_transpose(image)
                if (turned.width < turned.height) != (image.width < image.height):
                    full = full[::-1]
                image = turned
            if image.mode.startswith("I;16"):
                grey = (np.asarray(image) >> 8).astype(np.uint8)
                return np.dstack([grey] * 3) if colour else grey, full
            if image.mode in ("I", "F"):
                raise ValueError("it has more than 16 bits per pixel; convert it to 8 or 16 bits")
            return np.asarray(image.convert("RGB" if colour else "L")), full
    except _TooLargeError as error:
        raise ValueError(str(error)) from None
    except (*DAMAGE, OSError, struct.error, image_module.DecompressionBombError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise ValueError(f"{path} is not a readable image: {first_line(error)}") from error


class _TooLargeError(Exception):
    """Raised if an image has more pixels than are read."""


def _opened(path: Path) -> Any:
    """Open an image without Pillow's own limit on its size, which is one for the whole process."""
    image_module = need("PIL.Image", "vision")
    with _LIMIT_LOCK:
        limit, image_module.MAX_IMAGE_PIXELS = image_module.MAX_IMAGE_PIXELS, None
        try:
            return image_module.open(path)
        finally:
            image_module.MAX_IMAGE_PIXELS = limit
