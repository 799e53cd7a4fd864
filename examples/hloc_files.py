"""Encode and match a features file of hloc, and read the matches as hloc does."""

from __future__ import annotations

import cv2
import h5py
import numpy as np
from sklearn.datasets import load_sample_image

from kdiffhash import load_pretrained
from kdiffhash.vision.hloc import encode_features, match_features

photo = cv2.cvtColor(load_sample_image("china.jpg"), cv2.COLOR_RGB2GRAY)
images = {"db/1.jpg": photo, "db/2.jpg": cv2.flip(photo[:, 100:], 0), "query/3.jpg": photo[50:350]}
with h5py.File("features.h5", "w") as file:  # as hloc's extract_features writes it
    for name, image in images.items():
        keypoints, sift = cv2.SIFT_create().detectAndCompute(image, None)
        group = file.create_group(name)
        group["keypoints"] = np.array([point.pt for point in keypoints], np.float32)
        group["descriptors"] = np.sqrt(sift / sift.sum(axis=1, keepdims=True)).T  # RootSIFT, (d, n)
        group["image_size"] = np.array(image.shape[::-1])

model = load_pretrained("rootsift", n_bits=256)
encode_features("features.h5", "codes.h5", model)
with h5py.File("features.h5") as before, h5py.File("codes.h5") as after:
    for name in images:
        sizes = [file[name]["descriptors"].nbytes for file in (before, after)]
        print(f"{name}: {sizes[0]:,} bytes of descriptors, {sizes[1]:,} of codes")

for (a, b), n in match_features("codes.h5", "matches.h5", model).items():
    print(f"{a} and {b}: {n} matches")
with h5py.File("matches.h5") as file:
    matches = file["db-1.jpg/query-3.jpg/matches0"][()]
    print(f"{(matches >= 0).sum()} keypoints of db/1.jpg have a match in query/3.jpg")
