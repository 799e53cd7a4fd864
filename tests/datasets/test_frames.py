"""Keypoint frames and the patches cut from them."""

from __future__ import annotations

import cv2
import numpy as np

from kdiffhash.datasets.frames import (
    angle_between,
    corners,
    cut_patches,
    detect_frames,
    inside,
    move_frames,
)

SIGMA = 64 / 15  # scale at which a patch has as many pixels as its area in the image


def noise_image():
    noise = np.random.default_rng(0).integers(0, 256, (200, 240)).astype(np.uint8)
    return cv2.GaussianBlur(noise, (0, 0), 4)


def test_an_upright_frame_gives_a_plain_crop():
    image = noise_image()
    (patch,) = cut_patches(image, np.array([[31.5 + 50, 31.5 + 20, 0, SIGMA]]))
    np.testing.assert_array_equal(patch, image[20:84, 50:114])


def test_a_rotated_frame_gives_a_rotated_crop():
    """An angle that points down in the image points to the right in the patch."""
    image = noise_image()
    (patch,) = cut_patches(image, np.array([[81.5, 51.5, np.pi / 2, SIGMA]]))
    crop = image[20:84, 50:114]
    assert np.abs(patch.astype(int) - np.rot90(crop)).max() <= 1


def test_large_frames_are_cut_without_aliasing():
    image = np.zeros((600, 600), np.uint8)
    image[::2] = 200  # too fine for a patch reduced by a factor of eight
    (patch,) = cut_patches(image, np.array([[300, 300, 0, 8 * SIGMA]]))
    assert abs(patch.mean() - 100) < 3
    assert patch.std() < 3


def test_corners_are_7_5_sigma_from_the_centre():
    frame = np.array([[100, 80, 0, 2.0]])
    expected = [[85, 65], [115, 65], [115, 95], [85, 95]]
    np.testing.assert_allclose(corners(frame)[0], expected)
    assert inside(corners(frame), (96, 116)).all()
    assert not inside(corners(frame), (95, 116)).all()


def test_a_similarity_rotates_and_scales_frames():
    turn, grow = 0.3, 1.7
    matrix = grow * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    frames = np.array([[10.0, 20.0, 0.5, 3.0]])
    moved = move_frames(frames, frames[:, :2] @ matrix.T, matrix[None])
    np.testing.assert_allclose(moved[0, 2:], [0.8, 5.1])


def test_angle_differences_wrap_around():
    assert abs(angle_between(np.array(3.1), np.array(-3.1)) - (2 * np.pi - 6.2)) < 1e-12


def test_frames_of_a_rotated_image_are_rotated():
    image = noise_image()
    found = detect_frames(image, contrast=0.005)
    turned = detect_frames(np.ascontiguousarray(np.rot90(image, -1)), contrast=0.005)
    complete = inside(corners(found), image.shape).all(axis=1)
    assert complete.sum() > 5
    n_agree = 0
    for x, y, angle, sigma in found[complete]:
        expected = np.array([199 - y, x])  # clockwise: the top row becomes the right column
        gap = np.linalg.norm(turned[:, :2] - expected, axis=1)
        same = (gap < 1) & (np.abs(np.log2(turned[:, 3] / sigma)) < 0.1)
        same &= np.abs(angle_between(angle + np.pi / 2, turned[:, 2])) < 0.1
        n_agree += same.any()
    assert n_agree >= 0.8 * complete.sum()
