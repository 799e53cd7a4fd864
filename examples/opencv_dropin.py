"""Use `HashedSIFT` in place of `cv2.SIFT_create()`, and codes for features of your own."""

from __future__ import annotations

import cv2
import numpy as np
from sklearn.datasets import load_sample_image

from kdiffhash import HashedFeatures, HashedSIFT, KernelLDAHash

photo = cv2.cvtColor(load_sample_image("flower.jpg"), cv2.COLOR_RGB2GRAY)
rotation = cv2.getRotationMatrix2D((320, 210), 25, 0.8)
rotated = cv2.warpAffine(photo, rotation, (640, 427))


def match(features: object, norm: int) -> tuple[list, list, list]:
    """Match both images with OpenCV: brute force, mutual nearest neighbours."""
    keypoints_a, descriptors_a = features.detectAndCompute(photo, None)
    keypoints_b, descriptors_b = features.detectAndCompute(rotated, None)
    matches = cv2.BFMatcher(norm, crossCheck=True).match(descriptors_a, descriptors_b)
    return keypoints_a, keypoints_b, sorted(matches, key=lambda m: m.distance)


def precision(keypoints_a: list, keypoints_b: list, matches: list) -> float:
    """Return the share of matches that are within 3 pixels of the true position."""
    points_a = np.array([[*keypoints_a[m.queryIdx].pt, 1] for m in matches])
    points_b = np.array([keypoints_b[m.trainIdx].pt for m in matches])
    return float((np.linalg.norm(points_a @ rotation.T - points_b, axis=1) < 3).mean())


sift = match(cv2.SIFT_create(), cv2.NORM_L2)
codes = match(HashedSIFT(n_bits=256), cv2.NORM_HAMMING)
print(f"SIFT, 512 bytes: {len(sift[2])} mutual matches, {precision(*sift):.0%} correct")
print(f"codes, 32 bytes: {len(codes[2])} mutual matches, {precision(*codes):.0%} correct")
drawn = cv2.drawMatches(photo, codes[0], rotated, codes[1], codes[2][:80], None)
cv2.imwrite("opencv.jpg", drawn)

# Features of your own: a function that returns keypoints and descriptors, and a model for them.
darker = cv2.GaussianBlur((photo * 0.6 + 20).astype(np.uint8), (5, 5), 1.2)
corners = cv2.goodFeaturesToTrack(photo, 800, 0.01, 5)[:, 0]


def describe(image: np.ndarray) -> tuple[list, np.ndarray]:
    """Describe corners by the pixels around them, with mean 0 and length 1."""
    pixels = [cv2.getRectSubPix(image, (12, 12), corner.tolist()).ravel() for corner in corners]
    descriptors = np.array(pixels, np.float32)
    descriptors -= descriptors.mean(axis=1, keepdims=True)
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True) + 1e-6
    return [cv2.KeyPoint(float(x), float(y), 12) for x, y in corners], descriptors


X = np.concatenate(
    [describe(photo)[1][::2], describe(darker)[1][::2]]
)  # train on every second corner
y = np.tile(np.arange(len(corners[::2])), 2)
model = KernelLDAHash(n_bits=64, n_basis=200, random_state=0).fit(X, y)
own = HashedFeatures(describe, model)
codes_a, codes_b = own.detectAndCompute(photo)[1][1::2], own.detectAndCompute(darker)[1][1::2]
matches = cv2.BFMatcher(cv2.NORM_HAMMING).match(codes_a, codes_b)
correct = np.mean([m.queryIdx == m.trainIdx for m in matches])
print(f"codes of test corners, {own.descriptorSize()} bytes: {correct:.0%} of the matches correct")
