"""Keypoint frames (where, how large, which way up) and the patches they cut from a picture.

A frame is a row (x, y, angle, sigma): pixels with (0, 0) in the middle of the first one, radians
from the x axis towards the y axis (clockwise on the screen), and the size of the keypoint. Its
patch is 15 sigma wide and turned so that the angle points to the right.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..extras import need
from .sheets import PATCH, WIDTH_IN_SIGMA, Pixels

Frames = NDArray[np.float64]
Neighbours = tuple[NDArray[np.float64], NDArray[np.int64]]


def detect_frames(image: Pixels, contrast: float = 0.012) -> Frames:
    """Frames of SIFT keypoints, strongest first."""
    cv2 = need("cv2", "vision")
    found = cv2.SIFT_create(contrastThreshold=contrast).detect(image)
    found = sorted(found, key=lambda k: (-k.response, k.pt, k.angle))
    rows = [(*k.pt, np.deg2rad(k.angle), k.size / 2) for k in found]
    return np.array(rows, np.float64).reshape(-1, 4)


def move_frames(
    frames: Frames, moved: NDArray[np.float64], jacobians: NDArray[np.float64]
) -> Frames:
    """Frames after a smooth map: new places, and the map's 2 x 2 derivatives at the old ones.

    A frame stays a similarity: its size grows with the root of the area, its angle turns with its
    own direction.
    """
    direction = np.stack([np.cos(frames[:, 2]), np.sin(frames[:, 2])], axis=1)
    turned = np.einsum("nij,nj->ni", jacobians, direction)
    growth = np.sqrt(np.abs(np.linalg.det(jacobians)))
    angle = np.arctan2(turned[:, 1], turned[:, 0])
    return np.column_stack([moved, angle, frames[:, 3] * growth])


def angle_between(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """b - a, from -pi to pi."""
    return np.asarray((b - a + np.pi) % (2 * np.pi) - np.pi)


def corners(frames: Frames) -> NDArray[np.float64]:
    """The corners of the patches, shape (n, 4, 2)."""
    half = WIDTH_IN_SIGMA / 2 * frames[:, 3]
    u = np.stack([np.cos(frames[:, 2]), np.sin(frames[:, 2])], axis=1) * half[:, None]
    v = np.stack([-u[:, 1], u[:, 0]], axis=1)
    middle = frames[:, :2]
    return np.stack([middle - u - v, middle + u - v, middle + u + v, middle - u + v], axis=1)


def nearest(places: NDArray[np.float64], wanted: NDArray[np.float64], count: int) -> Neighbours:
    """Distances to the nearest of some places and their numbers, closest first.

    Where there are fewer than `count` places, distances are infinite at the end and the numbers are
    those of the last place.
    """
    from scipy.spatial import cKDTree  # takes a while to import, and commands should start quickly

    gap, near = cKDTree(places).query(wanted, np.arange(1, count + 1))
    return gap, np.minimum(near, len(places) - 1)


def inside(places: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Which places (x, y) lie on a picture of this shape."""
    limit = np.array([shape[1] - 1, shape[0] - 1])
    return np.asarray(((places >= 0) & (places <= limit)).all(axis=-1))


def cut_patches(image: Pixels, frames: Frames) -> Pixels:
    """The patches of frames; where they are reduced, from a picture halved as often as needed."""
    cv2 = need("cv2", "vision")
    out = np.empty((len(frames), PATCH, PATCH), np.uint8)
    pixel = WIDTH_IN_SIGMA * frames[:, 3] / PATCH  # of the picture for one of the patch
    level = np.maximum(0, np.round(np.log2(pixel))).astype(int)
    middle = (PATCH - 1) / 2
    for current in range(level.max(initial=0) + 1):
        for i in np.flatnonzero(level == current):
            x, y, angle, _ = frames[i] * [0.5**current, 0.5**current, 1, 1]
            a = pixel[i] * 0.5**current * np.cos(angle)
            b = pixel[i] * 0.5**current * np.sin(angle)
            to_image = np.array(
                [[a, -b, x - (a - b) * middle], [b, a, y - (a + b) * middle]], np.float64
            )
            out[i] = cv2.warpAffine(
                image,
                to_image,
                (PATCH, PATCH),
                flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
                borderMode=cv2.BORDER_REPLICATE,
            )
        image = cv2.pyrDown(image)
    return out
