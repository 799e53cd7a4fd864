"""Baselines on the same photographs: OpenCV's SIFT and ORB."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._util.extras import need
from .features import Image
from .photo_matching import Geometry, PhotoMatches, keypoint_positions, verify_matches

NAMES = ("SIFT", "ORB")
RATIO = 0.8  # Lowe's value for SIFT; common for ORB too


@dataclass(frozen=True)
class BaselineMatches:
    """Matches of two photographs by one of OpenCV's methods."""

    n_features: tuple[int, int]
    matches: PhotoMatches
    seconds: float  # for matching, without detection and description


def match_with(
    name: str, a: Image, b: Image, n_features: int, geometry: Geometry, tolerance: float
) -> BaselineMatches:
    """Match two photographs with SIFT or ORB: mutual nearest neighbours and ratio test."""
    cv2 = need("cv2", "vision")
    extractors = {
        "SIFT": (cv2.SIFT_create, cv2.NORM_L2),
        "ORB": (cv2.ORB_create, cv2.NORM_HAMMING),
    }
    create, norm = extractors[name]
    extractor = create(nfeatures=n_features or 100_000)
    features = [extractor.detectAndCompute(image, None) for image in (a, b)]
    points = [keypoint_positions(keypoints) for keypoints, _ in features]
    start = time.perf_counter()
    pairs = _mutual(cv2.BFMatcher(norm), *[descriptors for _, descriptors in features])
    seconds = time.perf_counter() - start
    matches = verify_matches(points[0], points[1], pairs, geometry, tolerance)
    return BaselineMatches((len(points[0]), len(points[1])), matches, seconds)


def _mutual(matcher: Any, a: Any, b: Any) -> Any:
    none = np.empty((0, 2), np.int64)
    if a is None or b is None or len(b) < 2:
        return none
    back = {(m.trainIdx, m.queryIdx) for m in matcher.match(b, a)}
    clear = (one for one, two in matcher.knnMatch(a, b, 2) if one.distance < RATIO * two.distance)
    pairs = [(m.queryIdx, m.trainIdx) for m in clear if (m.queryIdx, m.trainIdx) in back]
    return np.array(pairs, np.int64).reshape(-1, 2)
