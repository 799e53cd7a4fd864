"""Find the photographs that show what another one shows."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from skimage import data
from sklearn.datasets import load_sample_images

from kdiffhash import HashedSIFT
from kdiffhash.vision import PhotoIndex, read_photo
from kdiffhash.vision.results_page import write_page

folder = Path("holidays")
folder.mkdir(exist_ok=True)
pictures = {
    "temple": load_sample_images().images[0],
    "flower": load_sample_images().images[1],
    "coffee": data.coffee(),
    "rocket": data.rocket(),
    "cat": data.chelsea(),
    "astronaut": data.astronaut(),
}
for name, pixels in pictures.items():
    cv2.imwrite(str(folder / f"{name}.jpg"), cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))

# The query: a part of one of them, turned and darker.
turn = cv2.getRotationMatrix2D((320, 210), -15, 1.2)
query = cv2.warpAffine(cv2.imread(str(folder / "temple.jpg")), turn, (640, 427))
cv2.imwrite("query.jpg", (query * 0.7).astype(np.uint8))

index = PhotoIndex("photos.index", HashedSIFT(n_bits=128, n_features=2000))
print(index.update(folder))
photo = read_photo("query.jpg", index.features)
found = index.search(photo, best=3)
for one in found:
    print(f"{one.path.name}: {one.n_inliers} of {len(one.matches.pairs)} matches agree")
write_page("photos.html", photo, found)
