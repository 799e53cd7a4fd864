"""Index a folder of photographs and find those that show the same objects as a query."""

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
images = {
    "temple": load_sample_images().images[0],
    "flower": load_sample_images().images[1],
    "coffee": data.coffee(),
    "rocket": data.rocket(),
    "cat": data.chelsea(),
    "astronaut": data.astronaut(),
}
for name, pixels in images.items():
    cv2.imwrite(str(folder / f"{name}.jpg"), cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))

# The query: a section of one of them, rotated and darker.
rotation = cv2.getRotationMatrix2D((320, 210), -15, 1.2)
query = cv2.warpAffine(cv2.imread(str(folder / "temple.jpg")), rotation, (640, 427))
cv2.imwrite("query.jpg", (query * 0.7).astype(np.uint8))

index = PhotoIndex("photos.index", HashedSIFT(n_bits=128, n_features=2000))
print(index.update(folder))
photo = read_photo("query.jpg", index.features)
results = index.search(photo, best=3)
for result in results:
    n_matches = len(result.matches.pairs)
    print(f"{result.path.name}: {n_matches} matches, {result.n_inliers} inliers")
write_page("photos.html", photo, results)
