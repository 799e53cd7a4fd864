"""SIFT keypoints of photographs, encoded later.

Nothing here imports scikit-learn, so that photographs are read while it is imported.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .._util.extras import need
from .features import Image, encode_descriptors
from .photo_matching import Photo, read_photo

if TYPE_CHECKING:
    from ..hashers import BaseHasher


class _PlainSIFT:
    """SIFT in the form of `HashedFeatures`, with descriptors in place of codes."""

    def __init__(self, n_features: int) -> None:
        self.sift = need("cv2", "vision").SIFT_create(nfeatures=n_features)

    def detectAndCompute(self, image: Image) -> Any:  # noqa: N802 (OpenCV's name)
        return self.sift.detectAndCompute(image, None)


def detect_sift(
    path: str | os.PathLike[str], n_features: int, size: int | None, max_pixels: int
) -> Photo:
    """Read a photograph whose `codes` are its SIFT descriptors; threads may do so concurrently."""
    features: Any = _PlainSIFT(n_features)
    return read_photo(path, features, size, max_pixels=max_pixels)


def encode_detected(photo: Photo, model: BaseHasher) -> Photo:
    """Return a photograph of `detect_sift` with codes in place of descriptors."""
    return replace(photo, codes=encode_descriptors(model, photo.codes))
