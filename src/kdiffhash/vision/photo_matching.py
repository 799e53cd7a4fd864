"""Match two photographs by codes and verify the matches geometrically."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._util.extras import need
from ..codes import Codes
from ..datasets.images import MAX_PIXELS, read_pixels
from ..search import match_codes
from .features import HashedFeatures, Image

Geometry = Literal["fundamental", "homography", "none"]
Points = NDArray[np.float32]  # x and y of keypoints, shape (n, 2)

RATIO = 0.74  # of Hamming distances; about as strict as a ratio of 0.8 for SIFT
SIZE = 1600  # pixels; larger photographs are reduced so that the longer side has this length
TOLERANCE = 2.0  # pixels
_MIN_MATCHES = 8  # needed to estimate a geometry
_CONFIDENCE, _MAX_ITERATIONS = 0.9999, 10_000  # of MAGSAC


@dataclass(frozen=True)
class Photo:
    """A photograph with its keypoints and their codes, as returned by `read_photo`.

    Parameters
    ----------
    name : str
        File name.
    image : uint8 array of shape (height, width)
        In grey, rotated as its EXIF data says, and reduced if it was large.
    points : float32 array of shape (n, 2)
        Keypoint positions (x, y) in `image`.
    codes : uint8 array of shape (n, n_bytes)
    full_size : (int, int) or None, default=None
        Width and height before the photograph was reduced; None means those of `image`.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import HashedSIFT
    >>> from kdiffhash.vision import Photo
    >>> image = np.random.default_rng(0).integers(0, 256, (200, 200), dtype=np.uint8)
    >>> keypoints, codes = HashedSIFT(n_bits=64).detectAndCompute(image)
    >>> photo = Photo("noise", image, np.float32([k.pt for k in keypoints]), codes)
    >>> len(photo.points) == len(photo.codes)
    True
    """

    name: str
    image: Image
    points: Points
    codes: Codes
    full_size: tuple[int, int] | None = None

    @property
    def to_full_size(self) -> NDArray[np.float64]:
        """Matrix of shape (3, 3) from positions in `image` to those in the full photograph."""
        height, width = self.image.shape[:2]
        full_width, full_height = self.full_size or (width, height)
        x, y = full_width / width, full_height / height
        # The centre of the first pixel is at (0, 0), its corner at (-0.5, -0.5).
        return np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2], [0, 0, 1]])


@dataclass(frozen=True)
class PhotoMatches:
    """Matches of two photographs, as returned by `match_photos`.

    Parameters
    ----------
    pairs : int64 array of shape (p, 2)
        Indices of the matched keypoints in the first and in the second photograph.
    left, right : float32 arrays of shape (p, 2)
        Positions of these keypoints.
    inliers : bool array of shape (p,)
        True for inliers of the geometry; True for all matches with ``geometry="none"``.
    model : float64 array of shape (3, 3), or None
        Fundamental matrix or homography from the first to the second photograph; None with
        ``geometry="none"`` or if it could not be estimated.
    distances : int32 array of shape (p,) or None, default=None
        Hamming distances of the matches, if known.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash.vision import PhotoMatches
    >>> position = np.float32([[9, 9]])
    >>> matches = PhotoMatches(np.array([[0, 0]]), position, position, np.array([True]), None)
    >>> int(matches.inliers.sum())
    1
    """

    pairs: NDArray[np.int64]
    left: Points
    right: Points
    inliers: NDArray[np.bool_]
    model: NDArray[np.float64] | None
    distances: NDArray[np.int32] | None = None


def read_image(
    path: str | os.PathLike[str],
    size: int | None = SIZE,
    *,
    colour: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> Image:
    """Read a photograph, rotated as its EXIF data says and reduced to `size`.

    It has shape (height, width), or with `colour` (height, width, 3) in OpenCV's order: blue,
    green, red.
    """
    return _read_reduced(path, size, colour, max_pixels)[0]


def _read_reduced(
    path: str | os.PathLike[str], size: int | None, colour: bool, max_pixels: int
) -> tuple[Image, tuple[int, int]]:
    """Return a photograph, and its width and height before it was reduced."""
    options: Any = {"apply_orientation": True, "max_pixels": max_pixels, "size": size}
    image, full = read_pixels(Path(path), colour=colour, **options)
    if colour:
        image = np.ascontiguousarray(image[..., ::-1])
    if size is None or max(full) <= size:
        return image, full
    cv2 = need("cv2", "vision")
    width, height = (max(1, round(side * size / max(full))) for side in full)
    reduced: Image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return reduced, full


def read_photo(
    path: str | os.PathLike[str],
    features: HashedFeatures,
    size: int | None = SIZE,
    *,
    max_pixels: int = MAX_PIXELS,
) -> Photo:
    """Read a photograph, detect its keypoints and encode them.

    Parameters
    ----------
    path : path
        Image file.
    features : HashedFeatures
        Detects and encodes keypoints, for example ``HashedSIFT()``.
    size : int or None, default=1600
        Reduce the photograph if its longer side has more pixels than this; None keeps full size.
    max_pixels : int, default=256_000_000
        Refuse a photograph with more pixels, which could fill the memory.

    Returns
    -------
    photo : Photo

    Raises
    ------
    ValueError
        If the file is not a readable image, or has too many pixels.

    Examples
    --------
    >>> import tempfile, os
    >>> import numpy as np
    >>> from PIL import Image
    >>> from kdiffhash import HashedSIFT
    >>> from kdiffhash.vision import read_photo
    >>> noise = np.random.default_rng(0).integers(0, 256, (200, 300), dtype=np.uint8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "noise.png")
    ...     Image.fromarray(noise).save(path)
    ...     photo = read_photo(path, HashedSIFT(n_bits=64), size=150)
    >>> photo.name, photo.image.shape
    ('noise.png', (100, 150))
    """
    image, full_size = _read_reduced(path, size, False, max_pixels)
    keypoints, codes = features.detectAndCompute(image)
    return Photo(Path(path).name, image, keypoint_positions(keypoints), codes, full_size)


def keypoint_positions(keypoints: Any) -> Points:
    """Return the positions of OpenCV keypoints, shape (n, 2)."""
    return np.array([keypoint.pt for keypoint in keypoints], np.float32).reshape(-1, 2)


def match_photos(
    a: Photo,
    b: Photo,
    *,
    ratio: float | None = RATIO,
    geometry: Geometry = "fundamental",
    tolerance: float = TOLERANCE,
    n_jobs: int | None = None,
) -> PhotoMatches:
    """Match two photographs by mutual nearest codes and ratio test, and verify the matches.

    Parameters
    ----------
    a, b : Photo
        Photographs with codes of the same model.
    ratio : float or None, default=0.74
        Ratio test: a match is kept if its Hamming distance is below `ratio` times the mean of the
        second-nearest distances in both directions; None skips the test.
    geometry : {"fundamental", "homography", "none"}, default="fundamental"
        Geometric model, estimated by MAGSAC (by RANSAC where OpenCV's MAGSAC fails). A fundamental
        matrix relates two views of any scene, a homography two views of a plane or two views from
        the same position. ``"none"`` skips the verification.
    tolerance : float, default=2.0
        Largest error of an inlier in pixels.
    n_jobs : int, optional
        Number of threads; by default all cores available to the process.

    Returns
    -------
    matches : PhotoMatches

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import HashedSIFT
    >>> from kdiffhash.vision import Photo, match_photos
    >>> image = np.random.default_rng(0).integers(0, 256, (200, 200), dtype=np.uint8)
    >>> keypoints, codes = HashedSIFT(n_bits=128).detectAndCompute(image)
    >>> photo = Photo("noise", image, np.float32([k.pt for k in keypoints]), codes)
    >>> matches = match_photos(photo, photo, geometry="homography")
    >>> np.allclose(matches.model, np.eye(3), atol=1e-3)
    True
    """
    pairs, distances = match_codes(a.codes, b.codes, ratio=ratio, n_jobs=n_jobs)
    matches = verify_matches(a.points, b.points, pairs, geometry, tolerance)
    return replace(matches, distances=distances)


def verify_matches(
    a: Points,
    b: Points,
    pairs: NDArray[np.int64],
    geometry: Geometry = "fundamental",
    tolerance: float = TOLERANCE,
) -> PhotoMatches:
    """Estimate the geometry of two photographs from their matches, and find its inliers."""
    if geometry not in ("fundamental", "homography", "none"):
        raise ValueError(f"geometry must be fundamental, homography or none, got {geometry!r}")
    left, right = a[pairs[:, 0]], b[pairs[:, 1]]
    if geometry == "none":
        return PhotoMatches(pairs, left, right, np.ones(len(pairs), bool), None)
    model, inliers = None, np.zeros(len(pairs), bool)
    if len(pairs) >= _MIN_MATCHES:
        cv2 = need("cv2", "vision")
        estimate = cv2.findFundamentalMat if geometry == "fundamental" else cv2.findHomography
        options = {"maxIters": _MAX_ITERATIONS, "confidence": _CONFIDENCE}
        for method in (cv2.USAC_MAGSAC, cv2.USAC_ACCURATE, cv2.RANSAC):
            try:  # these methods have a random generator of their own with a fixed seed
                estimated, mask = estimate(left, right, method, tolerance, **options)
            except cv2.error:  # the first two may fail with few matches or a planar scene
                continue
            if estimated is not None and estimated.shape == (3, 3):
                model, inliers = estimated, mask.ravel().astype(bool)
                break
    return PhotoMatches(pairs, left, right, inliers, model)
