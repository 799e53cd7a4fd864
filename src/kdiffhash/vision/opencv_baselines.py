"""Baselines for matching two photographs: SIFT and ORB of OpenCV."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._util.extras import need
from .features import Image
from .photo_matching import Geometry, PhotoMatches, keypoint_positions, verify_matches

NAMES = ("SIFT", "ORB")
BASELINE_RATIO = 0.8  # Lowe's value for SIFT, also common for ORB


@dataclass(frozen=True)
class BaselineMatches:
    """Matches of two photographs by SIFT or ORB."""

    n_features: tuple[int, int]
    matches: PhotoMatches
    seconds: float  # of matching alone, without detection and description


def match_by_baseline(
    name: str, a: Image, b: Image, n_features: int, geometry: Geometry, tolerance: float
) -> BaselineMatches:
    """Match two photographs with SIFT or ORB by mutual nearest neighbours and the two-way test."""
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
    pairs = _mutual_matches(cv2.BFMatcher(norm), *[descriptors for _, descriptors in features])
    seconds = time.perf_counter() - start
    matches = verify_matches(points[0], points[1], pairs, geometry, tolerance)
    return BaselineMatches((len(points[0]), len(points[1])), matches, seconds)


def _mutual_matches(matcher: Any, a: Any, b: Any) -> Any:
    """Return the index pairs of mutual matches that pass the same two-way test as codes."""
    if a is None or b is None or min(len(a), len(b)) < 2:
        return np.empty((0, 2), np.int64)
    backward = {first.queryIdx: (first, second) for first, second in matcher.knnMatch(b, a, 2)}
    pairs = []
    for first, second in matcher.knnMatch(a, b, 2):
        back, back_second = backward[first.trainIdx]
        mean = (second.distance + back_second.distance) / 2
        is_nearest = first.distance < min(second.distance, back_second.distance)
        if (
            back.trainIdx == first.queryIdx
            and is_nearest
            and first.distance < BASELINE_RATIO * mean
        ):
            pairs.append((first.queryIdx, first.trainIdx))
    return np.array(pairs, np.int64).reshape(-1, 2)
