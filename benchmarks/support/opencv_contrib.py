"""Compute the binary descriptors of OpenCV contrib at given keypoints.

`matching.py` runs this in a separate environment, because OpenCV and OpenCV contrib cannot be
installed together: ``python opencv_contrib.py KEYPOINTS.npz OUT.npz``.
"""

from __future__ import annotations

import sys

import cv2
import numpy as np

SIFT_SCALE = 6.75  # of the sampling window, as OpenCV recommends for SIFT keypoints
BINBOOST = {64: 300, 128: 301, 256: 302}  # OpenCV's constants for the BinBoost variants


def extractors() -> dict[tuple[str, int], object]:
    """Return the descriptor extractors by name and number of bits."""
    x = cv2.xfeatures2d
    sizes = {
        "beblid": {256: x.BEBLID_SIZE_256_BITS, 512: x.BEBLID_SIZE_512_BITS},
        "teblid": {256: x.TEBLID_SIZE_256_BITS, 512: x.TEBLID_SIZE_512_BITS},
    }
    return {
        **{("beblid", n): x.BEBLID_create(SIFT_SCALE, size) for n, size in sizes["beblid"].items()},
        **{("teblid", n): x.TEBLID_create(SIFT_SCALE, size) for n, size in sizes["teblid"].items()},
        **{("binboost", n): x.BoostDesc_create(i, True, SIFT_SCALE) for n, i in BINBOOST.items()},
        **{("latch", n): x.LATCH_create(n // 8, True) for n in (128, 256, 512)},
    }


def main() -> None:
    inputs, out = np.load(sys.argv[1]), {}
    for number, path in enumerate(inputs["paths"]):
        image = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
        rows = inputs[f"keypoints{number}"]
        for (name, n_bits), extractor in extractors().items():
            # Extractors drop keypoints near the border; class_id tells which ones remain.
            keypoints = [
                cv2.KeyPoint(x, y, size, angle, response, int(octave), i)
                for i, (x, y, size, angle, response, octave) in enumerate(rows.tolist())
            ]
            remaining, codes = extractor.compute(image, keypoints)
            out[f"{name}-{n_bits}-{number}"] = codes
            out[f"{name}-{n_bits}-{number}-rows"] = [point.class_id for point in remaining]
    np.savez(sys.argv[2], **out)


if __name__ == "__main__":
    main()
