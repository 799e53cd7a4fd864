"""OpenCV feature extractors whose descriptors are binary codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._util.extras import need
from ..codes import Codes, n_bytes

if TYPE_CHECKING:
    from ..hashers import BaseHasher

Image = NDArray[np.uint8]


class HashedFeatures:
    """A feature extractor that returns binary codes in place of descriptors.

    It has the methods of ``cv2.Feature2D``, and its codes can be passed to
    ``cv2.BFMatcher(cv2.NORM_HAMMING)`` without conversion.

    Parameters
    ----------
    extractor : cv2.Feature2D or callable
        Detects and describes keypoints. A callable takes an image and returns keypoints and
        descriptors of shape (n, d).
    model : fitted hasher
        Hasher that encodes the descriptors.

    Examples
    --------
    >>> import cv2, numpy as np
    >>> from kdiffhash import HashedFeatures, load_pretrained
    >>> features = HashedFeatures(cv2.SIFT_create(nfeatures=100), load_pretrained("sift", 64))
    >>> image = np.random.default_rng(0).integers(0, 256, (200, 200), dtype=np.uint8)
    >>> keypoints, codes = features.detectAndCompute(image)
    >>> codes.shape == (len(keypoints), 8)
    True
    """

    def __init__(self, extractor: Any, model: BaseHasher) -> None:
        if not callable(extractor) and not hasattr(extractor, "detectAndCompute"):
            raise ValueError(
                "extractor must be a cv2.Feature2D, or a function that takes an image and returns "
                f"keypoints and descriptors, got {type(extractor).__name__}"
            )
        self.extractor, self.model = extractor, model

    def detect(self, image: Image, mask: Image | None = None) -> tuple[Any, ...]:
        """Detect keypoints.

        Parameters
        ----------
        image : uint8 array of shape (height, width) or (height, width, 3)
        mask : uint8 array of shape (height, width), optional
            Keypoints are detected only where the mask is not zero.

        Returns
        -------
        keypoints : tuple of cv2.KeyPoint
        """
        image = _check_image(image)
        if hasattr(self.extractor, "detect"):
            return tuple(self.extractor.detect(image, mask))
        return self.detectAndCompute(image, mask)[0]

    def compute(self, image: Image, keypoints: Sequence[Any]) -> tuple[tuple[Any, ...], Codes]:
        """Compute the codes of given keypoints.

        Parameters
        ----------
        image : uint8 array of shape (height, width) or (height, width, 3)
        keypoints : sequence of cv2.KeyPoint

        Returns
        -------
        keypoints : tuple of cv2.KeyPoint
            Those that the extractor could describe.
        codes : uint8 array of shape (n, n_bytes)
        """
        if not hasattr(self.extractor, "compute"):
            raise ValueError(
                "the extractor is a function, which detects and describes in one call; use "
                "detectAndCompute instead of compute"
            )
        described, descriptors = self.extractor.compute(_check_image(image), tuple(keypoints))
        return tuple(described), self.encode(descriptors)

    def detectAndCompute(  # noqa: N802 (OpenCV's name)
        self, image: Image, mask: Image | None = None
    ) -> tuple[tuple[Any, ...], Codes]:
        """Detect keypoints and compute their codes.

        Parameters
        ----------
        image : uint8 array of shape (height, width) or (height, width, 3)
        mask : uint8 array of shape (height, width), optional
            Keypoints are detected only where the mask is not zero.

        Returns
        -------
        keypoints : tuple of cv2.KeyPoint
            Empty if no keypoint was detected.
        codes : uint8 array of shape (n, n_bytes)
        """
        image = _check_image(image)
        if hasattr(self.extractor, "detectAndCompute"):
            keypoints, descriptors = self.extractor.detectAndCompute(image, mask)
        else:
            keypoints, descriptors = self.extractor(image)
            keypoints, descriptors = _masked(keypoints, descriptors, mask)
        return tuple(keypoints), self.encode(descriptors)

    def encode(self, descriptors: NDArray[Any] | None) -> Codes:
        """Encode descriptors that are already computed.

        Parameters
        ----------
        descriptors : array of shape (n, d), or None
            None, which OpenCV returns if there are no keypoints, gives an empty array.

        Returns
        -------
        codes : uint8 array of shape (n, n_bytes)
        """
        return encode_descriptors(self.model, descriptors)

    def descriptorSize(self) -> int:  # noqa: N802
        """Return the number of bytes per code."""
        return n_bytes(self.model.n_bits_)

    def descriptorType(self) -> int:  # noqa: N802
        """Return ``cv2.CV_8U``."""
        return int(need("cv2", "vision").CV_8U)

    def defaultNorm(self) -> int:  # noqa: N802
        """Return ``cv2.NORM_HAMMING``."""
        return int(need("cv2", "vision").NORM_HAMMING)

    def getDefaultName(self) -> str:  # noqa: N802
        """Return the name of the extractor."""
        return f"kdiffhash.{type(self).__name__}"

    def empty(self) -> bool:
        """Return False: the extractor is always usable."""
        return False


class HashedSIFT(HashedFeatures):
    """SIFT whose descriptors are binary codes, by default those of the pretrained model.

    Parameters
    ----------
    n_bits : int, default=256
        Code length, up to 512; 64, 128, 256 and 512 are common choices.
    n_features : int, default=0
        Keep at most this many keypoints, the strongest ones; 0 keeps all.
    model : fitted hasher, optional
        Model for SIFT descriptors to use instead of the pretrained one. It determines the code
        length; `n_bits` is ignored.
    **options : any
        Further options of ``cv2.SIFT_create``.

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
        from ..hashers.pretrained import load_pretrained

        self.options = {"n_features": n_features, **options}
        sift = need("cv2", "vision").SIFT_create(nfeatures=n_features, **options)
        super().__init__(sift, load_pretrained("sift", n_bits=n_bits) if model is None else model)


def encode_descriptors(model: BaseHasher, descriptors: NDArray[Any] | None) -> Codes:
    """Encode descriptors; None or an empty array gives an empty array of codes."""
    if descriptors is None or not len(descriptors):
        return np.empty((0, n_bytes(model.n_bits_)), np.uint8)
    return model.transform(descriptors)


def _check_image(image: Any) -> Image:
    """Return the image; raise if it is not an array of 8-bit pixels."""
    if (
        not isinstance(image, np.ndarray)
        or image.dtype != np.uint8
        or image.ndim not in (2, 3)
        or not image.size
    ):
        given = f"{image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else image
        raise ValueError(
            f"image must be an array of 8-bit pixels, grey or colour, got {given}; "
            "cv2.imread returns None for a file that it cannot read"
        )
    return image


def _masked(keypoints: Any, descriptors: Any, mask: Image | None) -> tuple[Any, Any]:
    """Drop keypoints at positions where the mask is zero."""
    if mask is None or descriptors is None:
        return keypoints, descriptors
    positions = np.array([keypoint.pt for keypoint in keypoints]).reshape(-1, 2).astype(int)
    last = np.array(mask.shape[1::-1]) - 1
    x, y = np.clip(positions, 0, last).T
    inside = mask[y, x] != 0
    return [keypoint for keypoint, keep in zip(keypoints, inside) if keep], descriptors[inside]
