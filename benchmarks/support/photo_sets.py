"""Sets of photographs with known cameras, and which matches between them are correct."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

SETS = ("herz-jesus-p8", "castle-p30")
APART = 3  # photographs that are at most this far apart in their order are matched
N_FEATURES = 8000


def photos_of(name: str) -> list[Path]:
    """Return the photographs of a set, in the order in which they were taken."""
    return sorted((Path(os.environ["KDIFFHASH_PHOTOS"]) / name).glob("*.jpg"))


def pairs_of(photos: list[Path]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of photographs that are matched."""
    return ((a, b) for a, b in combinations(range(len(photos)), 2) if b - a <= APART)


def camera(photo: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return calibration at half the size, rotation from world to camera, and centre."""
    values = np.array(photo.with_suffix(".camera").read_text().split(), float)
    half = np.diag([0.5, 0.5, 1.0])  # the photographs have half the published size
    return half @ values[:9].reshape(3, 3), values[12:21].reshape(3, 3).T, values[21:24]


def fundamental(a: Path, b: Path) -> np.ndarray:
    """Return the fundamental matrix of two photographs."""
    (k1, r1, c1), (k2, r2, c2) = camera(a), camera(b)
    x, y, z = r2 @ (c1 - c2)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.linalg.inv(k2).T @ cross @ r2 @ r1.T @ np.linalg.inv(k1)


def epipolar(f: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the distance to the epipolar line in pixels, the larger of both photographs."""
    left, right = (np.column_stack([points, np.ones(len(points))]) for points in (left, right))
    lines, back = left @ f.T, right @ f
    error = np.abs((right * lines).sum(axis=1))
    return np.maximum(error / np.hypot(*lines[:, :2].T), error / np.hypot(*back[:, :2].T))


def detect(photo: Path, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return keypoints (x, y, size, angle, response, octave) and SIFT of a photograph."""
    import cv2

    image = cv2.imread(str(photo), cv2.IMREAD_GRAYSCALE)
    keypoints, descriptors = cv2.SIFT_create(nfeatures=N_FEATURES, **options).detectAndCompute(
        image, None
    )
    values = [[*p.pt, p.size, p.angle, p.response, p.octave] for p in keypoints]
    return np.array(values), descriptors.astype(np.uint8)
