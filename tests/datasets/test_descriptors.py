"""Descriptors of patches."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from skimage.feature import hog

from kdiffhash.datasets import describe_patches, describe_scene, load_scene
from kdiffhash.datasets.sheets import write_sheets


@pytest.fixture(scope="module")
def patches():
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (300, 64, 64)).astype(np.uint8)
    return np.stack([cv2.GaussianBlur(patch, (0, 0), 3) for patch in noise])


def test_sift_is_that_of_one_upright_keypoint_with_any_number_of_threads(patches):
    sift, keypoint = cv2.SIFT_create(), cv2.KeyPoint(31.5, 31.5, 128 / 15, 0, 0, 257)
    one_by_one = np.concatenate([sift.compute(patch, [keypoint])[1] for patch in patches])
    for n_jobs in (1, 2):
        descriptors = describe_patches(patches, n_jobs=n_jobs)
        assert descriptors.dtype == np.uint8
        np.testing.assert_array_equal(descriptors, one_by_one)


def test_hog_agrees_with_scikit_image(patches):
    descriptors = describe_patches(patches[:20], "hog", n_jobs=2)
    assert descriptors.dtype == np.float32
    expected = hog(patches[7], orientations=8, pixels_per_cell=(16, 16), cells_per_block=(2, 2))
    np.testing.assert_allclose(descriptors[7], expected, rtol=1e-6)


def test_an_empty_array_of_patches_gives_an_empty_array():
    assert describe_patches(np.empty((0, 64, 64), np.uint8)).shape == (0, 128)


@pytest.mark.parametrize(
    ("patches", "kind", "message"),
    [
        (np.zeros((3, 32, 32), np.uint8), "sift", r"shape \(n, 64, 64\)"),
        (np.zeros((64, 64), np.uint8), "sift", r"shape \(n, 64, 64\)"),
        (np.zeros((3, 64, 64)), "sift", "float64"),
        (np.zeros((3, 64, 64), np.uint8), "surf", "kind must be one of sift, hog"),
    ],
)
def test_invalid_input_is_refused(patches, kind, message):
    with pytest.raises(ValueError, match=message):
        describe_patches(patches, kind)


def test_describe_scene_stores_descriptors_and_replaces_damaged_ones(tmp_path, patches):
    write_sheets(tmp_path, patches, "bmp")
    table = np.column_stack([np.arange(300) // 3, np.arange(300) % 3])
    np.savetxt(tmp_path / "info.txt", table, fmt="%d")
    scene = describe_scene(tmp_path)
    np.testing.assert_array_equal(scene.descriptors, describe_patches(patches))
    describe_scene(tmp_path, "hog")
    assert load_scene(tmp_path, "hog").descriptors.shape == (300, 288)
    (tmp_path / "hog.npy").write_bytes(b"PK junk")
    with pytest.raises(ValueError, match=r"hog.npy is an .npz file"):
        load_scene(tmp_path, "hog")
    assert describe_scene(tmp_path, "hog").descriptors.shape == (300, 288)  # replaced
    with pytest.raises(ValueError, match="descriptor must be the name of a file"):
        load_scene(tmp_path, "../sift")


def test_sift_agrees_with_the_stored_descriptors_of_real_scenes(scenes):
    scene = load_scene("brighton-beach")
    np.testing.assert_array_equal(describe_patches(scene.patches), scene.descriptors)
    for name in ("boruszyn", "castle-p30", "herz-jesus-p25"):  # JPEG sheets
        scene = load_scene(name)
        rows = np.sort(np.random.default_rng(0).choice(len(scene), 1500, replace=False))
        descriptors = describe_patches(scene.patches.take(rows)).astype(int)
        gap = np.abs(descriptors - scene.descriptors[rows])
        assert np.median(np.linalg.norm(gap, axis=1)) < 10  # the norm of a descriptor is 512
        assert gap.mean() < 0.5
