"""Reading pictures: grey, 8 bits, or a sentence that says what is wrong with the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..extras import need

SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp")


def list_photos(root: Path, *, inner: bool = True) -> list[Path]:
    """The photographs in a folder by name; `inner`: and those in folders inside it."""
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder of photographs")
    named = (
        path for path in root.glob("**/*" if inner else "*") if path.suffix.lower() in SUFFIXES
    )
    return sorted(path for path in named if path.is_file())


def read_grey(path: Path, *, upright: bool = False) -> NDArray[np.uint8]:
    """The pixels of a picture as grey levels from 0 to 255; `upright`: turned as it says itself."""
    image_module = need("PIL.Image", "vision")
    try:
        with image_module.open(path) as image:
            if upright:
                image = need("PIL.ImageOps", "vision").exif_transpose(image)
            if image.mode.startswith("I;16"):
                return (np.asarray(image) >> 8).astype(np.uint8)
            if image.mode in ("I", "F"):
                raise ValueError("it has more than 16 bits a pixel; save it with 8 or 16")
            return np.asarray(image.convert("L"))
    except (OSError, SyntaxError, ValueError, image_module.DecompressionBombError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise ValueError(f"{path} is not a picture that can be read: {error}") from error
