"""Images from the scikit-image wheel, and the same images warped to another viewpoint."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from skimage import data

HOMOGRAPHY = np.array([[0.92, 0.21, 5.0], [-0.17, 0.95, 40.0], [1.5e-4, 1e-4, 1.0]])


@pytest.fixture(scope="session")
def image_named():
    """Return a function that returns an image of `skimage.data` in grey, 360 pixels wide."""

    def make(name="camera"):
        image = getattr(data, name)()
        if image.ndim == 3:
            image = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        height = round(image.shape[0] * 360 / image.shape[1])
        return cv2.resize(image, (360, height), interpolation=cv2.INTER_AREA)

    return make


@pytest.fixture(scope="session")
def homography():
    return HOMOGRAPHY


@pytest.fixture(scope="session")
def warp():
    """Return a function that warps an image by a homography."""

    def apply(image, by=HOMOGRAPHY):
        return cv2.warpPerspective(image, by, image.shape[::-1])

    return apply


@pytest.fixture(scope="session")
def agree():
    """Return a function that tells which matches fit a homography within three pixels."""

    def check(left, right, by=HOMOGRAPHY):
        moved = np.column_stack([left, np.ones(len(left))]) @ by.T
        return np.linalg.norm(moved[:, :2] / moved[:, 2:] - right, axis=1) < 3

    return check


@pytest.fixture
def write(tmp_path):
    """Return a function that writes an image to a file in the test's folder."""

    def save(name, image):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(path), image)
        return path

    return save


@pytest.fixture
def two_photos(image_named, warp, write):
    """Paths of an image and of the same image from another viewpoint."""
    image = image_named()
    return write("a.png", image), write("b.jpg", warp(image))


@pytest.fixture(scope="session")
def flat():
    """An image without texture."""
    return np.full((120, 160), 128, np.uint8)
