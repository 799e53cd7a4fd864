"""Matches of a photograph with another one that was rotated or mirrored.

Pairs of neighbouring photographs of herz-jesus-p8; the second is turned, and the positions of its
keypoints are turned back, so that the published cameras tell which matches are correct.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from support.harness import arguments, log, report
from support.markdown import table
from support.match_scores import PRECISION, Quality, mutual_matches, two_way
from support.photo_sets import epipolar, fundamental, photos_of

from kdiffhash import load_pretrained
from kdiffhash.learn.preprocess import preprocess_rows

PAIRS = ((1, 2), (3, 4), (5, 6))
N_FEATURES, N_BITS = 4000, 256
ANGLES = (0, 15, 45, 90, 180)  # degrees


def turns(image: np.ndarray) -> dict[str, np.ndarray]:
    """Return the affine maps (2, 3) to try by name, from the image to a canvas that holds it."""
    height, width = image.shape
    maps = {}
    for angle in ANGLES:
        c, s = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
        maps[f"rotated by {angle}°"] = np.array([[c, -s], [s, c]])
    maps["mirrored"] = np.diag([-1.0, 1.0])
    corners = np.array([[0, 0], [width - 1, 0], [0, height - 1], [width - 1, height - 1]])
    return {
        name: np.column_stack([matrix, -(corners @ matrix.T).min(axis=0)])
        for name, matrix in maps.items()
    }


def detect(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and SIFT of the keypoints of an image."""
    import cv2

    keypoints, rows = cv2.SIFT_create(nfeatures=N_FEATURES).detectAndCompute(image, None)
    return np.array([point.pt for point in keypoints]), rows.astype(np.uint8)


def main() -> None:
    import cv2

    options = arguments(__doc__)
    photos, model = photos_of("herz-jesus-p8"), load_pretrained("sift", N_BITS)
    images = {i: cv2.imread(str(photos[i]), cv2.IMREAD_GRAYSCALE) for pair in PAIRS for i in pair}
    upright = {first: detect(images[first]) for first, _ in PAIRS}
    rows: list[dict[str, Any]] = []
    for name in turns(images[1]):
        points, sift = [], []
        for first, second in PAIRS:
            matrix = turns(images[second])[name]
            size = np.ceil(np.abs(matrix[:, :2]) @ images[second].shape[::-1]).astype(int)
            turned = cv2.warpAffine(images[second], matrix, size.tolist(), borderValue=128)
            found, described = detect(turned)
            back = (found - matrix[:, 2]) @ np.linalg.inv(matrix[:, :2]).T
            points += [upright[first][0], back]
            sift += [upright[first][1], described]

        def error(a: int, _: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
            one, other = PAIRS[a // 2]
            return epipolar(fundamental(photos[one], photos[other]), left, right)

        pairs = [(2 * i, 2 * i + 1) for i in range(len(PAIRS))]
        for method, descriptors in (
            ("RootSIFT", [preprocess_rows(d, "hellinger") for d in sift]),
            ("codes", [model.transform(d) for d in sift]),
        ):
            matches = mutual_matches(pairs, points, descriptors, error)
            quality = Quality(matches, two_way(matches))
            correct, precision = quality.correct_at_precision(np.ones(len(pairs), int))
            row = {"photograph": name, "method": method, "correct": correct}
            rows.append({**row, "precision": precision})
            log(rows[-1])
    report("turned_photos", {"rows": rows, "n_bits": N_BITS}, options)


def tables(result: dict[str, Any]) -> dict[str, str]:
    rows = result["rows"]
    found = {(row["photograph"], row["method"]): row for row in rows}
    upright = {
        name: found[rows[0]["photograph"], name]["correct"] for name in ("RootSIFT", "codes")
    }

    def cell(photograph: str, method: str) -> str:
        row = found[photograph, method]
        share = f"{row['correct']:,.0f} ({100 * row['correct'] / upright[method]:.0f} %)"
        return share if row["precision"] >= PRECISION else "none at this precision"

    cells = [
        [name, cell(name, "RootSIFT"), cell(name, "codes")]
        for name in dict.fromkeys(row["photograph"] for row in rows)
    ]
    note = (
        f"Correct matches at a precision of {PRECISION:.2f}, on {len(PAIRS)} pairs of "
        f"`herz-jesus-p8` whose second photograph was turned; {N_FEATURES:,} keypoints each. "
        "(`python benchmarks/turned_photos.py`)"
    )
    header = ["second photograph", "RootSIFT", f"codes of {result['n_bits']} bits"]
    return {"turned-photos": note + "\n\n" + table(header, cells)}


if __name__ == "__main__":
    main()
