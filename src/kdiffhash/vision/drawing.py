"""Draw the matches of two photographs side by side."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .._util.extras import need
from .._util.files import replacing
from .features import Image
from .photo_matching import PhotoMatches

ColourImage = NDArray[np.uint8]  # blue, green, red: shape (height, width, 3)

_INLIER_COLOUR, _OUTLIER_COLOUR = (70, 200, 60), (50, 50, 235)
_MAX_WIDTH = 2000  # pixels of both photographs together
_MAX_LINES = 400
_GAP = 8  # pixels between the photographs
_CAPTION_HEIGHT = 44


def draw_matches(a: Image, b: Image, matches: PhotoMatches, text: str = "") -> ColourImage:
    """Draw two photographs side by side and a line for each match: inliers green, outliers red.

    Parameters
    ----------
    a, b : uint8 arrays of shape (height, width)
        The two photographs in grey.
    matches : PhotoMatches
        If there are more than 400, only a sample with the same share of inliers is drawn.
    text : str, default=""
        Caption to draw above the photographs.

    Returns
    -------
    image : uint8 array of shape (height, width, 3)
        Channels in OpenCV's order: blue, green, red.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash.vision import PhotoMatches, draw_matches
    >>> a, b = np.zeros((50, 60), np.uint8), np.zeros((40, 30), np.uint8)
    >>> pairs, position = np.array([[0, 0]]), np.float32([[9, 9]])
    >>> matches = PhotoMatches(pairs, position, position, np.array([True]), None)
    >>> draw_matches(a, b, matches).shape
    (50, 98, 3)
    """
    cv2 = need("cv2", "vision")
    scale = min(1.0, _MAX_WIDTH / (a.shape[1] + b.shape[1]))
    sizes = [[max(1, round(scale * side)) for side in image.shape[1::-1]] for image in (a, b)]
    left, right = (
        cv2.resize(image, size, interpolation=cv2.INTER_AREA) for image, size in zip((a, b), sizes)
    )
    top = _CAPTION_HEIGHT if text else 0
    right_x = left.shape[1] + _GAP
    shape = (top + max(left.shape[0], right.shape[0]), right_x + right.shape[1], 3)
    canvas = np.full(shape, 255, np.uint8)
    # Faded, so that the lines stand out.
    canvas[top : top + left.shape[0], : left.shape[1]] = left[..., None] // 2 + 100
    canvas[top : top + right.shape[0], right_x:] = right[..., None] // 2 + 100
    offsets = np.array([[0, top], [right_x, top]])
    ends = np.stack([matches.left, matches.right], axis=1) * scale + offsets
    step = max(1, -(-len(ends) // _MAX_LINES))
    for inlier, colour in ((False, _OUTLIER_COLOUR), (True, _INLIER_COLOUR)):
        drawn = np.flatnonzero(matches.inliers == inlier)[::step]
        for start, end in ends[drawn].round().astype(int).tolist():
            cv2.line(canvas, start, end, colour, 1, cv2.LINE_AA)
            for position in (start, end):
                cv2.circle(canvas, position, 3, colour, -1, cv2.LINE_AA)
    if text:
        font = cv2.FONT_HERSHEY_SIMPLEX
        cv2.putText(canvas, text, (12, 30), font, 0.8, (40, 40, 40), 2, cv2.LINE_AA)
    return canvas


def stack_images(images: list[ColourImage]) -> ColourImage:
    """Stack images vertically on a white background."""
    width = max(image.shape[1] for image in images)
    padding = [((0, 0), (0, width - image.shape[1]), (0, 0)) for image in images]
    return np.concatenate([np.pad(i, p, constant_values=255) for i, p in zip(images, padding)])


def check_image_name(path: str | os.PathLike[str]) -> None:
    """Raise if the suffix is not that of an image format that can be written."""
    if Path(path).suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise ValueError(
            f"{os.fspath(path)}: the name of an image to write must end in .png or .jpg"
        )


def encode_image(image: ColourImage, suffix: str) -> bytes:
    """Return the content of a .png or .jpg file of the image."""
    cv2 = need("cv2", "vision")
    options = [cv2.IMWRITE_JPEG_QUALITY, 88] if suffix.lower() != ".png" else []
    return bytes(cv2.imencode(suffix, image, options)[1].tobytes())


def write_image(image: ColourImage, path: str | os.PathLike[str]) -> None:
    """Write an image, replacing an existing file atomically.

    Parameters
    ----------
    image : uint8 array of shape (height, width, 3)
        Channels in OpenCV's order: blue, green, red.
    path : path
        File to write; the name must end in .png, .jpg or .jpeg.

    Examples
    --------
    >>> import tempfile, os
    >>> import numpy as np
    >>> from kdiffhash.vision import write_image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_image(np.zeros((20, 30, 3), np.uint8), os.path.join(folder, "black.png"))
    ...     os.listdir(folder)
    ['black.png']
    """
    check_image_name(path)
    content = encode_image(image, Path(path).suffix)
    with replacing(path) as temporary:
        temporary.write_bytes(content)
