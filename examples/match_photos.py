"""Match two photographs by codes in place of SIFT descriptors, and draw the matches."""

from __future__ import annotations

import cv2
import numpy as np
from sklearn.datasets import load_sample_image

from kdiffhash import HashedSIFT
from kdiffhash.vision import draw_matches, match_photos, read_photo, write_image

# A photograph, and the same one from another viewpoint and in other light.
photo = cv2.cvtColor(load_sample_image("china.jpg"), cv2.COLOR_RGB2GRAY)
height, width = photo.shape
corners = np.float32([[0, 0], [width, 0], [width, height], [0, height]])
moved = np.float32([[90, 60], [600, 10], [560, 400], [30, 350]])
truth = cv2.getPerspectiveTransform(corners, moved)
other = cv2.warpPerspective(photo, truth, (width, height), borderValue=255)
cv2.imwrite("a.png", photo)
cv2.imwrite("b.png", (255 * (other / 255.0) ** 1.6).astype(np.uint8))

features = HashedSIFT(n_bits=256)
a, b = read_photo("a.png", features), read_photo("b.png", features)
matches = match_photos(a, b, geometry="homography")
expected = cv2.perspectiveTransform(matches.left[:, None], truth)[:, 0]
correct = np.linalg.norm(expected - matches.right, axis=1) < 3
n, n_inliers = len(correct), matches.inliers.sum()
print(f"{len(a.codes)} and {len(b.codes)} keypoints, {a.codes.shape[1]} bytes each")
print(f"{n} matches, {correct.mean():.0%} correct; {n_inliers} inliers")
caption = f"{n} matches, {n_inliers} inliers of one homography"
write_image(draw_matches(a.image, b.image, matches, caption), "matches.jpg")
