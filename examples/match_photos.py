"""Match two photographs with codes in place of SIFT's numbers, and draw what was found."""

from __future__ import annotations

import cv2
import numpy as np
from sklearn.datasets import load_sample_image

from kdiffhash import HashedSIFT
from kdiffhash.vision import draw_matches, match_photos, read_photo, write_image

# A photograph, and the same from somewhere else, later in the day.
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
there = cv2.perspectiveTransform(matches.left[:, None], truth)[:, 0]
right = np.linalg.norm(there - matches.right, axis=1) < 3
print(f"{len(a.codes)} and {len(b.codes)} keypoints, {a.codes.shape[1]} bytes each")
print(f"{len(right)} matches, {right.mean():.0%} of them right; {matches.inliers.sum()} agree")
text = f"{matches.inliers.sum()} of {len(right)} matches agree with one homography"
write_image(draw_matches(a.image, b.image, matches, text), "matches.jpg")
