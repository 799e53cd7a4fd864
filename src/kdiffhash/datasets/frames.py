"""Keypoint frames (position, orientation, scale) and the patches they cut from an image.

A frame is a row (x, y, angle, sigma). The position is in pixels, with (0, 0) at the centre of the
first pixel; the angle is in radians from the x axis towards the y axis (clockwise on the screen);
sigma is the scale of the keypoint. The patch of a frame is 15 sigma wide and rotated so that the
angle points to the right.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .._util.extras import need
from .sheets import PATCH, WIDTH_IN_SIGMA, Pixels

Frames = NDArray[np.float64]
Neighbours = tuple[NDArray[np.float64], NDArray[np.int64]]


def detect_frames(image: Pixels, contrast: float = 0.012) -> Frames:
    """Detect SIFT keypoints and return their frames, strongest first."""
    cv2 = need("cv2", "vision")
    found = cv2.SIFT_create(contrastThreshold=contrast).detect(image)
    found = sorted(found, key=lambda k: (-k.response, k.pt, k.angle))
    rows = [(*k.pt, np.deg2rad(k.angle), k.size / 2) for k in found]
    return np.array(rows, np.float64).reshape(-1, 4)


def move_frames(
    frames: Frames, moved: NDArray[np.float64], jacobians: NDArray[np.float64]
) -> Frames:
    """Transform frames by a smooth map, given their new positions and its 2 x 2 derivatives.

    Shear is dropped: the scale changes with the square root of the area, and the angle is that of
    the transformed direction.
    """
    direction = np.stack([np.cos(frames[:, 2]), np.sin(frames[:, 2])], axis=1)
    turned = np.einsum("nij,nj->ni", jacobians, direction)
    growth = np.sqrt(np.abs(np.linalg.det(jacobians)))
    angle = np.arctan2(turned[:, 1], turned[:, 0])
    return np.column_stack([moved, angle, frames[:, 3] * growth])


def angle_between(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return b - a, wrapped to [-pi, pi)."""
    return np.asarray((b - a + np.pi) % (2 * np.pi) - np.pi)


def corners(frames: Frames) -> NDArray[np.float64]:
    """Return the corners of the patches, shape (n, 4, 2)."""
    half = WIDTH_IN_SIGMA / 2 * frames[:, 3]
    u = np.stack([np.cos(frames[:, 2]), np.sin(frames[:, 2])], axis=1) * half[:, None]
    v = np.stack([-u[:, 1], u[:, 0]], axis=1)
    centre = frames[:, :2]
    return np.stack([centre - u - v, centre + u - v, centre + u + v, centre - u + v], axis=1)


def nearest_neighbours(
    points: NDArray[np.float64], queries: NDArray[np.float64], count: int
) -> Neighbours:
    """Return distances and indices of the nearest points, nearest first.

    If there are fewer than `count` points, the remaining distances are infinite and the remaining
    indices are that of the last point.
    """
    from scipy.spatial import cKDTree  # imported here because it is slow to import

    gap, near = cKDTree(points).query(queries, np.arange(1, count + 1))
    return gap, np.minimum(near, len(points) - 1)


def inside(positions: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return which positions (x, y) lie inside an image of this shape."""
    last = np.array([shape[1] - 1, shape[0] - 1])
    return np.asarray(((positions >= 0) & (positions <= last)).all(axis=-1))


def cut_patches(image: Pixels, frames: Frames) -> Pixels:
    """Cut the patches of frames; large ones are cut from a reduced image to avoid aliasing."""
    cv2 = need("cv2", "vision")
    out = np.empty((len(frames), PATCH, PATCH), np.uint8)
    pixel = WIDTH_IN_SIGMA * frames[:, 3] / PATCH  # image pixels per patch pixel
    level = np.maximum(0, np.round(np.log2(pixel))).astype(int)
    centre = (PATCH - 1) / 2
    for current in range(level.max(initial=0) + 1):
        for i in np.flatnonzero(level == current):
            x, y, angle, _ = frames[i] * [0.5**current, 0.5**current, 1, 1]
            a = pixel[i] * 0.5**current * np.cos(angle)
            b = pixel[i] * 0.5**current * np.sin(angle)
            to_image = np.array(
                [[a, -b, x - (a - b) * centre], [b, a, y - (a + b) * centre]], np.float64
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
