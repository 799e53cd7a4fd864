"""`HashedSIFT` where OpenCV code has `cv2.SIFT_create()`; and codes for another kind of feature."""

from __future__ import annotations

import cv2
import numpy as np
from sklearn.datasets import load_sample_image

from kdiffhash import HashedFeatures, HashedSIFT, KernelLDAHash

photo = cv2.cvtColor(load_sample_image("flower.jpg"), cv2.COLOR_RGB2GRAY)
turn = cv2.getRotationMatrix2D((320, 210), 25, 0.8)
turned = cv2.warpAffine(photo, turn, (640, 427))


def match(features: object, norm: int) -> tuple[list, list, list]:
    """Plain OpenCV: features, brute force, mutual nearest neighbours."""
    keypoints, rows = features.detectAndCompute(photo, None)
    others, other_rows = features.detectAndCompute(turned, None)
    found = cv2.BFMatcher(norm, crossCheck=True).match(rows, other_rows)
    return keypoints, others, sorted(found, key=lambda m: m.distance)


def share_right(keypoints: list, others: list, found: list) -> float:
    ends = np.array([others[m.trainIdx].pt for m in found])
    starts = np.array([[*keypoints[m.queryIdx].pt, 1] for m in found])
    return float((np.linalg.norm(starts @ turn.T - ends, axis=1) < 3).mean())


sift = match(cv2.SIFT_create(), cv2.NORM_L2)
codes = match(HashedSIFT(n_bits=256), cv2.NORM_HAMMING)
print(f"SIFT, 512 bytes: {share_right(*sift):.0%} of {len(sift[2])} mutual matches are right")
print(f"codes, 32 bytes: {share_right(*codes):.0%} of {len(codes[2])} mutual matches are right")
drawn = cv2.drawMatches(photo, codes[0], turned, codes[1], codes[2][:80], None)
cv2.imwrite("opencv.jpg", drawn)

# Any other features: a function that gives keypoints and rows, and a model of one's own.
darker = cv2.GaussianBlur((photo * 0.6 + 20).astype(np.uint8), (5, 5), 1.2)
corners = cv2.goodFeaturesToTrack(photo, 800, 0.01, 5)[:, 0]


def describe(image: np.ndarray) -> tuple[list, np.ndarray]:
    """Pixels around corners, of length 1 and without their mean."""
    pixels = [cv2.getRectSubPix(image, (12, 12), place.tolist()).ravel() for place in corners]
    rows = np.array(pixels, np.float32)
    rows -= rows.mean(axis=1, keepdims=True)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True) + 1e-6
    return [cv2.KeyPoint(float(x), float(y), 12) for x, y in corners], rows


X = np.concatenate([describe(photo)[1][::2], describe(darker)[1][::2]])  # half of the corners
y = np.tile(np.arange(len(corners[::2])), 2)
model = KernelLDAHash(n_bits=64, n_basis=200, random_state=0).fit(X, y)
own = HashedFeatures(describe, model)
rows, other_rows = own.detectAndCompute(photo)[1][1::2], own.detectAndCompute(darker)[1][1::2]
found = cv2.BFMatcher(cv2.NORM_HAMMING).match(rows, other_rows)
right = np.mean([m.queryIdx == m.trainIdx for m in found])
print(f"pixels of corners not learned from, {own.descriptorSize()} bytes: {right:.0%} found again")
