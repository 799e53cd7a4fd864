"""Features for OpenCV whose descriptors are codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import Codes, n_bytes
from ..extras import need
from ..hashers import BaseHasher
from ..pretrained import load_pretrained

Image = NDArray[np.uint8]


class HashedFeatures:
    """Any features, with codes in place of their descriptors.

    It has the methods of ``cv2.Feature2D``, and ``cv2.BFMatcher(cv2.NORM_HAMMING)`` takes its
    descriptors as they are.

    Parameters
    ----------
    extractor : cv2.Feature2D or callable
        What finds and describes keypoints; a callable takes an image and returns keypoints and
        descriptors, shape (n, d).
    model : fitted hasher
        Encodes the descriptors.
    """

    def __init__(self, extractor: Any, model: BaseHasher) -> None:
        if not callable(extractor) and not hasattr(extractor, "detectAndCompute"):
            raise ValueError(
                "extractor must be a cv2.Feature2D, or a function that takes an image and returns "
                f"keypoints and descriptors, got {type(extractor).__name__}"
            )
        self.extractor, self.model = extractor, model

    def detect(self, image: Image, mask: Image | None = None) -> tuple[Any, ...]:
        """Keypoints of an image, at pixels where `mask` is not zero."""
        image = _checked(image)
        if hasattr(self.extractor, "detect"):
            return tuple(self.extractor.detect(image, mask))
        return self.detectAndCompute(image, mask)[0]

    def compute(self, image: Image, keypoints: Sequence[Any]) -> tuple[tuple[Any, ...], Codes]:
        """Codes at given keypoints; keypoints that cannot be described are left out."""
        if not hasattr(self.extractor, "compute"):
            raise ValueError(
                "a function finds keypoints and describes them at once; use detectAndCompute"
            )
        kept, descriptors = self.extractor.compute(_checked(image), tuple(keypoints))
        return tuple(kept), self.encode(descriptors)

    def detectAndCompute(  # noqa: N802 (OpenCV's name)
        self, image: Image, mask: Image | None = None
    ) -> tuple[tuple[Any, ...], Codes]:
        """Keypoints of an image and their codes, shape (n, n_bytes); none is no error."""
        image = _checked(image)
        if hasattr(self.extractor, "detectAndCompute"):
            keypoints, descriptors = self.extractor.detectAndCompute(image, mask)
        else:
            keypoints, descriptors = self.extractor(image)
            keypoints, descriptors = _masked(keypoints, descriptors, mask)
        return tuple(keypoints), self.encode(descriptors)

    def encode(self, descriptors: NDArray[Any] | None) -> Codes:
        """Codes of descriptors that were computed before."""
        return encode_rows(self.model, descriptors)

    def descriptorSize(self) -> int:  # noqa: N802
        """Bytes of a code."""
        return n_bytes(self.model.n_bits_)

    def descriptorType(self) -> int:  # noqa: N802
        """CV_8U."""
        return int(need("cv2", "vision").CV_8U)

    def defaultNorm(self) -> int:  # noqa: N802
        """NORM_HAMMING."""
        return int(need("cv2", "vision").NORM_HAMMING)

    def getDefaultName(self) -> str:  # noqa: N802
        """Name of the features."""
        return f"kdiffhash.{type(self).__name__}"

    def empty(self) -> bool:
        """False: there is always something to detect with."""
        return False


class HashedSIFT(HashedFeatures):
    """SIFT with codes in place of its 128 numbers, by the model that comes with the package.

    Parameters
    ----------
    n_bits : int
        Length of the codes: 64, 128, 256 and 512 are usual; any length up to 512 will do.
    n_features : int
        Keep so many keypoints, the strongest; 0 for all.
    model : fitted hasher, optional
        One's own model of SIFT; `n_bits` is then that of the model.
    **options
        More options of ``cv2.SIFT_create``.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import HashedSIFT
    >>> image = np.random.default_rng(0).integers(0, 256, (200, 200), dtype=np.uint8)
    >>> keypoints, codes = HashedSIFT(n_bits=128).detectAndCompute(image)
    >>> codes.shape == (len(keypoints), 16), codes.dtype
    (True, dtype('uint8'))
    """

    def __init__(
        self,
        n_bits: int = 256,
        n_features: int = 0,
        *,
        model: BaseHasher | None = None,
        **options: Any,
    ) -> None:
        self.options = {"n_features": n_features, **options}
        sift = need("cv2", "vision").SIFT_create(nfeatures=n_features, **options)
        super().__init__(sift, load_pretrained("sift", n_bits=n_bits) if model is None else model)


def encode_rows(model: BaseHasher, rows: NDArray[Any] | None) -> Codes:
    """Codes of rows, of which there may be none."""
    if rows is None or not len(rows):
        return np.empty((0, n_bytes(model.n_bits_)), np.uint8)
    return model.transform(rows)


def _checked(image: Any) -> Image:
    if (
        not isinstance(image, np.ndarray)
        or image.dtype != np.uint8
        or image.ndim not in (2, 3)
        or not image.size
    ):
        what = f"{image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else image
        raise ValueError(
            f"image must be an array of 8-bit pixels, grey or colour, got {what}; "
            "cv2.imread gives None for a file that it cannot read"
        )
    return image


def _masked(keypoints: Any, descriptors: Any, mask: Image | None) -> tuple[Any, Any]:
    if mask is None or descriptors is None:
        return keypoints, descriptors
    places = np.array([point.pt for point in keypoints]).reshape(-1, 2).astype(int)
    last = np.array(mask.shape[1::-1]) - 1
    x, y = np.clip(places, 0, last).T
    inside = mask[y, x] != 0
    return [point for point, good in zip(keypoints, inside) if good], descriptors[inside]
