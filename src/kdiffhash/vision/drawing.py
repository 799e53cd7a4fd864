"""Matches drawn on two photographs side by side."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..extras import need
from ..files import replacing
from .features import Image
from .photos import PhotoMatches

Picture = NDArray[np.uint8]  # blue, green, red: shape (height, width, 3)

_GOOD, _BAD = (70, 200, 60), (50, 50, 235)
_WIDTH = 2000  # of a picture, at most
_LINES = 400  # at most
_GAP = 8  # pixels between the photographs
_STRIP = 44  # height of the line of text above


def draw_matches(a: Image, b: Image, matches: PhotoMatches, text: str = "") -> Picture:
    """Both photographs with a line for each match: inliers green, over red outliers.

    Parameters
    ----------
    a, b : uint8 arrays of shape (height, width)
    matches : PhotoMatches
        Of more than 400 some are drawn, inliers and outliers in proportion.
    text : str
        A line above the picture.

    Returns
    -------
    picture : uint8 array of shape (height, width, 3), blue, green, red
    """
    cv2 = need("cv2", "vision")
    scale = min(1.0, _WIDTH / (a.shape[1] + b.shape[1]))
    sizes = [[max(1, round(scale * side)) for side in image.shape[1::-1]] for image in (a, b)]
    left, right = (
        cv2.resize(image, size, interpolation=cv2.INTER_AREA) for image, size in zip((a, b), sizes)
    )
    top = _STRIP if text else 0
    second = left.shape[1] + _GAP
    shape = (top + max(left.shape[0], right.shape[0]), second + right.shape[1], 3)
    canvas = np.full(shape, 255, np.uint8)
    # Paler than they are, so that the lines stand out.
    canvas[top : top + left.shape[0], : left.shape[1]] = left[..., None] // 2 + 100
    canvas[top : top + right.shape[0], second:] = right[..., None] // 2 + 100
    offsets = np.array([[0, top], [second, top]])
    ends = np.stack([matches.left, matches.right], axis=1) * scale + offsets
    step = max(1, -(-len(ends) // _LINES))
    for inlier, colour in ((False, _BAD), (True, _GOOD)):
        chosen = np.flatnonzero(matches.inliers == inlier)[::step]
        for start, end in ends[chosen].round().astype(int).tolist():
            cv2.line(canvas, start, end, colour, 1, cv2.LINE_AA)
            for place in (start, end):
                cv2.circle(canvas, place, 3, colour, -1, cv2.LINE_AA)
    if text:
        font = cv2.FONT_HERSHEY_SIMPLEX
        cv2.putText(canvas, text, (12, 30), font, 0.8, (40, 40, 40), 2, cv2.LINE_AA)
    return canvas


def stack_pictures(pictures: list[Picture]) -> Picture:
    """Pictures below each other, on white."""
    width = max(picture.shape[1] for picture in pictures)
    pad = [((0, 0), (0, width - picture.shape[1]), (0, 0)) for picture in pictures]
    return np.concatenate([np.pad(p, w, constant_values=255) for p, w in zip(pictures, pad)])


def check_picture(path: str | os.PathLike[str]) -> None:
    """Refuse a name that is not one of a picture."""
    if Path(path).suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise ValueError(f"{os.fspath(path)}: pictures are written as .png or .jpg")


def encode_picture(picture: Picture, suffix: str) -> bytes:
    """A picture as the content of a file of this kind."""
    cv2 = need("cv2", "vision")
    options = [cv2.IMWRITE_JPEG_QUALITY, 88] if suffix.lower() != ".png" else []
    return bytes(cv2.imencode(suffix, picture, options)[1].tobytes())


def write_picture(picture: Picture, path: str | os.PathLike[str]) -> None:
    """Write a picture (.png or .jpg), in place of one that is there."""
    check_picture(path)
    content = encode_picture(picture, Path(path).suffix)
    with replacing(path) as temporary:
        temporary.write_bytes(content)
