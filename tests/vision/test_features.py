"""OpenCV feature extractors whose descriptors are codes."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from kdiffhash import (
    HashedFeatures,
    HashedSIFT,
    load_pretrained,
    match_codes,
)
from kdiffhash.study.baselines import RandomHyperplaneHash


def attributes(keypoints):
    """Return position, size, angle and octave of OpenCV keypoints."""
    return np.array([(*k.pt, k.size, k.angle, k.octave) for k in keypoints])


def random_hasher(width, n_bits=64):
    rows = np.random.default_rng(0).normal(size=(400, width))
    return RandomHyperplaneHash(n_bits, random_state=0).fit(rows, np.arange(400) // 2)


@pytest.mark.parametrize("n_bits", [64, 100, 256, 512])
def test_codes_are_the_encoded_sift_descriptors(image_named, n_bits):
    image = image_named()
    keypoints, codes = HashedSIFT(n_bits).detectAndCompute(image)
    expected, descriptors = cv2.SIFT_create().detectAndCompute(image, None)
    np.testing.assert_array_equal(attributes(keypoints), attributes(expected))
    np.testing.assert_array_equal(codes, load_pretrained("sift", n_bits).transform(descriptors))
    assert codes.dtype == np.uint8
    assert codes.shape == (len(expected), -(-n_bits // 8))
    assert len(expected) > 200


def test_sift_options_are_passed_on(image_named):
    image = image_named()
    keypoints, codes = HashedSIFT(128, 50, contrastThreshold=0.1).detectAndCompute(image)
    expected = cv2.SIFT_create(nfeatures=50, contrastThreshold=0.1).detect(image)
    np.testing.assert_array_equal(attributes(keypoints), attributes(expected))
    assert codes.shape == (len(expected), 16)


def test_a_custom_model_determines_the_code_length(image_named):
    model = load_pretrained("sift", 40)
    features = HashedSIFT(model=model)
    assert features.model is model
    assert features.detectAndCompute(image_named())[1].shape[1] == features.descriptorSize() == 5


def test_detect_then_compute_gives_the_same_as_one_call(image_named):
    image, features = image_named(), HashedSIFT()
    keypoints, codes = features.detectAndCompute(image)
    np.testing.assert_array_equal(attributes(features.detect(image)), attributes(keypoints))
    described, again = features.compute(image, keypoints)
    np.testing.assert_array_equal(attributes(described), attributes(keypoints))
    np.testing.assert_array_equal(again, codes)
    _, codes_of_four = features.compute(image, keypoints[5:9])
    np.testing.assert_array_equal(codes_of_four, codes[5:9])
    assert features.compute(image, [])[1].shape == (0, 32)


def test_keypoints_outside_the_mask_are_left_out(image_named):
    image, features = image_named(), HashedSIFT()
    mask = np.zeros_like(image)
    mask[:, :150] = 255
    keypoints, codes = features.detectAndCompute(image, mask)
    expected, descriptors = cv2.SIFT_create().detectAndCompute(image, mask)
    assert 0 < len(keypoints) < len(features.detect(image))
    np.testing.assert_array_equal(attributes(keypoints), attributes(expected))
    np.testing.assert_array_equal(codes, features.encode(descriptors))
    np.testing.assert_array_equal(attributes(features.detect(image, mask)), attributes(expected))


def test_opencv_matchers_accept_the_codes(image_named, warp, agree):
    features = HashedSIFT()
    assert features.defaultNorm() == cv2.NORM_HAMMING
    assert features.descriptorType() == cv2.CV_8U
    assert features.descriptorSize() == 32
    assert features.getDefaultName() == "kdiffhash.HashedSIFT"
    assert not features.empty()
    image = image_named()
    a, left = features.detectAndCompute(image)
    b, right = features.detectAndCompute(warp(image))
    matches = cv2.BFMatcher(cv2.NORM_HAMMING, crossCheck=True).match(left, right)
    found = {(m.queryIdx, m.trainIdx): m.distance for m in matches}
    pairs, distances = match_codes(left, right)
    ours = dict(zip(map(tuple, pairs.tolist()), distances.tolist()))
    common = ours.keys() & found.keys()  # ties may be broken differently
    assert len(common) > 0.95 * len(found)
    assert all(ours[pair] == found[pair] for pair in common)
    good = agree(
        np.array([a[i].pt for i, _ in found]),
        np.array([b[j].pt for _, j in found]),
    )
    assert good.mean() > 0.6


def test_images_without_keypoints_give_empty_arrays(flat):
    for image in (flat, np.zeros((1, 1), np.uint8), np.dstack([flat] * 3)):
        keypoints, codes = HashedSIFT(100).detectAndCompute(image)
        assert keypoints == ()
        assert codes.shape == (0, 13)
        assert codes.dtype == np.uint8
    assert HashedSIFT().detect(flat) == ()
    assert HashedSIFT().encode(None).shape == (0, 32)


def test_colour_images_are_accepted(image_named):
    image = image_named()
    codes = [HashedSIFT().detectAndCompute(i)[1] for i in (image, np.dstack([image] * 3))]
    np.testing.assert_array_equal(*codes)


@pytest.mark.parametrize(
    "image",
    [
        None,
        "photo.jpg",
        [[1, 2], [3, 4]],
        np.zeros((20, 20)),
        np.zeros((20, 20), np.uint16),
        np.zeros(20, np.uint8),
        np.zeros((2, 20, 20, 3), np.uint8),
    ],
)
def test_input_that_is_not_an_8_bit_image_is_refused(image):
    features = HashedSIFT()
    for method in (features.detect, features.detectAndCompute, lambda i: features.compute(i, [])):
        with pytest.raises(ValueError, match="image must be an array of 8-bit pixels"):
            method(image)


def test_other_opencv_features_can_be_hashed(image_named):
    image, orb = image_named(), cv2.ORB_create(nfeatures=200)
    features = HashedFeatures(orb, random_hasher(32))
    keypoints, codes = features.detectAndCompute(image)
    expected, descriptors = orb.detectAndCompute(image, None)
    np.testing.assert_array_equal(attributes(keypoints), attributes(expected))
    np.testing.assert_array_equal(codes, features.model.transform(descriptors))
    assert features.getDefaultName() == "kdiffhash.HashedFeatures"
    assert features.descriptorSize() == 8


@pytest.mark.parametrize("name", ["KAZE_create", "AKAZE_create"])
def test_features_of_optional_opencv_modules_can_be_hashed(image_named, name):
    if not hasattr(cv2, name):
        pytest.skip(f"this OpenCV has no {name}")
    image, extractor = image_named(), getattr(cv2, name)()
    features = HashedFeatures(extractor, random_hasher(extractor.descriptorSize()))
    keypoints, codes = features.detectAndCompute(image)
    descriptors = extractor.detectAndCompute(image, None)[1]
    assert len(keypoints) == len(codes) > 0
    np.testing.assert_array_equal(codes, features.model.transform(descriptors))


def test_the_extractor_can_be_a_function():
    points = [cv2.KeyPoint(x, y, 5) for x, y in [(2, 3), (50, 7), (99, 79), (10, 60)]]
    rows = np.random.default_rng(1).normal(size=(4, 20))
    features = HashedFeatures(lambda _: (points, rows), random_hasher(20))
    image, mask = np.zeros((80, 100), np.uint8), np.zeros((80, 100), np.uint8)
    keypoints, codes = features.detectAndCompute(image)
    assert [k.pt for k in keypoints] == [(2, 3), (50, 7), (99, 79), (10, 60)]
    np.testing.assert_array_equal(codes, features.model.transform(rows))
    mask[3, 2] = mask[79, 99] = 1
    keypoints, codes = features.detectAndCompute(image, mask)
    assert [k.pt for k in keypoints] == [(2, 3), (99, 79)]
    np.testing.assert_array_equal(codes, features.model.transform(rows[[0, 2]]))
    assert [k.pt for k in features.detect(image, mask)] == [(2, 3), (99, 79)]
    with pytest.raises(ValueError, match="detectAndCompute"):
        features.compute(image, points)


def test_a_function_may_return_no_keypoints():
    image = np.zeros((80, 100), np.uint8)
    for empty in (([], None), ([], np.empty((0, 20), np.float32))):
        features = HashedFeatures(lambda _, empty=empty: empty, random_hasher(20))
        assert features.detectAndCompute(image, image)[1].shape == (0, 8)


def test_a_model_for_another_descriptor_length_is_refused(image_named):
    features = HashedFeatures(cv2.SIFT_create(), random_hasher(32))
    with pytest.raises(ValueError, match=r"128 features.*32 features"):
        features.detectAndCompute(image_named())
    with pytest.raises(ValueError, match=r"cv2\.Feature2D"):
        HashedFeatures("sift", random_hasher(128))
    with pytest.raises(ValueError, match="from 1 to 512"):
        HashedSIFT(513)
