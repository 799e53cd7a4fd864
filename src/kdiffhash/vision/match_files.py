"""Write the matches of two photographs to a file: .npz, .csv or .json."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.files import replacing
from .photo_matching import Geometry, Photo, PhotoMatches

SUFFIXES = (".npz", ".csv", ".json")
_COLUMNS = ("x_a", "y_a", "x_b", "y_b", "distance", "inlier")


def write_matches(
    path: str | os.PathLike[str],
    a: Photo,
    b: Photo,
    matches: PhotoMatches,
    geometry: Geometry = "fundamental",
) -> None:
    """Write matches with their positions in the full photographs, distances and inlier flags.

    Positions are in pixels of the photographs before they were reduced and after they were rotated
    as their EXIF data says; (0, 0) is the centre of the first pixel.

    Parameters
    ----------
    path : path
        File to write. An .npz file has the arrays `points_a` and `points_b` of shape (p, 2),
        `distances`, `inliers`, `keypoints` (p, 2) with the indices of the matched keypoints, and
        `model` (3, 3), the fundamental matrix or homography, if there is one. A .csv file has the
        columns x_a, y_a, x_b, y_b, distance and inlier (0 or 1), a .json file all of this.
    a, b : Photo
        The photographs that were matched.
    matches : PhotoMatches
        Their matches, with distances.
    geometry : str, default="fundamental"
        The geometric model that `matches` was verified with.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from kdiffhash import HashedSIFT
    >>> from kdiffhash.vision import Photo, match_photos, write_matches
    >>> image = np.random.default_rng(0).integers(0, 256, (200, 200), dtype=np.uint8)
    >>> keypoints, codes = HashedSIFT(n_bits=128).detectAndCompute(image)
    >>> photo = Photo("noise", image, np.float32([k.pt for k in keypoints]), codes)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "matches.csv")
    ...     write_matches(path, photo, photo, match_photos(photo, photo))
    ...     open(path).readline()
    'x_a,y_a,x_b,y_b,distance,inlier\\n'
    """
    check_matches_name(path)
    if matches.distances is None:
        raise ValueError("matches have no distances; use those that match_photos returns")
    left, right = (
        _transform(photo.to_full_size, points)
        for photo, points in ((a, matches.left), (b, matches.right))
    )
    model = matches.model
    if model is not None:
        to_a, to_b = np.linalg.inv(a.to_full_size), np.linalg.inv(b.to_full_size)
        first = to_b.T if geometry == "fundamental" else b.to_full_size
        model = first @ model @ to_a
        model = model / np.linalg.norm(model)
    suffix = Path(path).suffix.lower()
    columns = [*left.T.tolist(), *right.T.tolist(), matches.distances.tolist()]
    rows = list(zip(*columns, matches.inliers.astype(int).tolist()))
    with replacing(path) as temporary:
        if suffix == ".npz":
            arrays: dict[str, Any] = {} if model is None else {"model": model}
            with temporary.open("wb") as file:
                np.savez_compressed(
                    file,
                    points_a=left,
                    points_b=right,
                    distances=matches.distances,
                    inliers=matches.inliers,
                    keypoints=matches.pairs,
                    **arrays,
                )
        elif suffix == ".csv":
            with temporary.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(_COLUMNS)
                writer.writerows(_rounded(row) for row in rows)
        else:
            result = {
                "a": _described(a),
                "b": _described(b),
                "geometry": geometry,
                "model": None if model is None else model.tolist(),
                "matches": [dict(zip(_COLUMNS, _rounded(row))) for row in rows],
            }
            temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def check_matches_name(path: str | os.PathLike[str]) -> None:
    """Raise if the suffix is not that of a file of matches."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise ValueError(f"{os.fspath(path)}: a file of matches must end in {', '.join(SUFFIXES)}")


def _transform(matrix: NDArray[np.float64], points: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return positions in the full photograph."""
    transformed: NDArray[np.float64] = points.astype(np.float64) @ matrix[:2, :2].T + matrix[:2, 2]
    return transformed


def _rounded(row: tuple[Any, ...]) -> list[Any]:
    """Round positions to thousandths of a pixel."""
    return [*(round(value, 3) for value in row[:4]), *row[4:]]


def _described(photo: Photo) -> dict[str, Any]:
    height, width = photo.image.shape[:2]
    return {"name": photo.name, "size": list(photo.full_size or (width, height))}
