"""Two photographs: what matches, and which of the matches agree with one geometry."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..codes import Codes
from ..datasets.pictures import read_grey
from ..extras import need
from ..search import match_codes
from .features import HashedFeatures, Image

Geometry = Literal["fundamental", "homography", "none"]
Points = NDArray[np.float32]  # x and y of keypoints, shape (n, 2)

RATIO = 0.74  # of the nearest to the second nearest distance; about as strict as 0.8 on SIFT
SIZE = 1600  # pixels of the longer side, to which larger photographs are reduced
TOLERANCE = 2.0  # pixels that an inlier may be off
_FEWEST = 8  # matches without which nothing is known of a geometry
_CONFIDENCE, _ROUNDS = 0.9999, 10_000  # of MAGSAC


@dataclass(frozen=True)
class Photo:
    """A photograph's keypoints and codes.

    Attributes
    ----------
    name : str
    image : uint8 array of shape (height, width)
        Grey, upright as the camera was held, and reduced if it was large.
    points : float32 array of shape (n, 2)
        Places of the keypoints in `image`.
    codes : uint8 array of shape (n, n_bytes)
    """

    name: str
    image: Image
    points: Points
    codes: Codes


@dataclass(frozen=True)
class PhotoMatches:
    """Matches of two photographs.

    Attributes
    ----------
    pairs : int64 array of shape (p, 2)
        Numbers of keypoints in the first and in the second photograph.
    left, right : float32 arrays of shape (p, 2)
        Their places.
    inliers : bool array of shape (p,)
        Which matches agree with the geometry; all, where none was asked for.
    model : float64 array of shape (3, 3), or None
        Fundamental matrix or homography, from the first to the second photograph.
    """

    pairs: NDArray[np.int64]
    left: Points
    right: Points
    inliers: NDArray[np.bool_]
    model: NDArray[np.float64] | None


def read_image(path: str | os.PathLike[str], size: int | None = SIZE) -> Image:
    """A photograph in grey, upright, its longer side reduced to `size` pixels if it is longer."""
    image = read_grey(Path(path), upright=True)
    longer = max(image.shape)
    if size is None or longer <= size:
        return image
    cv2 = need("cv2", "vision")
    height, width = (max(1, round(side * size / longer)) for side in image.shape)
    reduced: Image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return reduced


def read_photo(
    path: str | os.PathLike[str], features: HashedFeatures, size: int | None = SIZE
) -> Photo:
    """Read a photograph, and find and encode its features.

    Parameters
    ----------
    path : path
    features : HashedFeatures
        For example ``HashedSIFT()``.
    size : int, optional
        Reduce the longer side to this many pixels; None to leave it as it is.

    Returns
    -------
    photo : Photo
    """
    image = read_image(path, size)
    keypoints, codes = features.detectAndCompute(image)
    return Photo(Path(path).name, image, places(keypoints), codes)


def places(keypoints: Any) -> Points:
    """Where OpenCV's keypoints are."""
    return np.array([point.pt for point in keypoints], np.float32).reshape(-1, 2)


def match_photos(
    a: Photo,
    b: Photo,
    *,
    ratio: float | None = RATIO,
    geometry: Geometry = "fundamental",
    tolerance: float = TOLERANCE,
    n_jobs: int | None = None,
) -> PhotoMatches:
    """Match two photographs: mutual nearest codes, clearly nearer than the second nearest.

    Parameters
    ----------
    a, b : Photo
    ratio : float, optional
        See `match_codes`.
    geometry : {"fundamental", "homography", "none"}
        What the matches are to agree with, found by MAGSAC (or by plain RANSAC with local
        optimisation where OpenCV's MAGSAC fails): the epipolar geometry of two views of
        anything, or the homography of two views of something flat, or from one place.
    tolerance : float
        Pixels that an inlier may be off.
    n_jobs : int, optional
        By default all that this process may use.

    Returns
    -------
    matches : PhotoMatches
    """
    pairs = match_codes(a.codes, b.codes, ratio=ratio, n_jobs=n_jobs).pairs
    return verify_matches(a.points, b.points, pairs, geometry, tolerance)


def verify_matches(
    a: Points,
    b: Points,
    pairs: NDArray[np.int64],
    geometry: Geometry = "fundamental",
    tolerance: float = TOLERANCE,
) -> PhotoMatches:
    """Find the geometry that most matches agree with, and which do."""
    if geometry not in ("fundamental", "homography", "none"):
        raise ValueError(f"geometry must be fundamental, homography or none, got {geometry!r}")
    left, right = a[pairs[:, 0]], b[pairs[:, 1]]
    if geometry == "none":
        return PhotoMatches(pairs, left, right, np.ones(len(pairs), bool), None)
    model, inliers = None, np.zeros(len(pairs), bool)
    if len(pairs) >= _FEWEST:
        cv2 = need("cv2", "vision")
        find = cv2.findFundamentalMat if geometry == "fundamental" else cv2.findHomography
        options = {"maxIters": _ROUNDS, "confidence": _CONFIDENCE}
        for method in (cv2.USAC_MAGSAC, cv2.USAC_ACCURATE):
            cv2.setRNGSeed(0)
            try:
                found, mask = find(left, right, method, tolerance, **options)
            except cv2.error:  # MAGSAC's last steps may fail, with few matches or with a flat scene
                continue
            if found is not None and found.shape == (3, 3):
                model, inliers = found, mask.ravel().astype(bool)
                break
    return PhotoMatches(pairs, left, right, inliers, model)
