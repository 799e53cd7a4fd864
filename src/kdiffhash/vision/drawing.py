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

_INLIER_COLOUR, _OUTLIER_COLOUR = (60, 190, 40), (40, 40, 230)  # blue, green, red
_MAX_WIDTH = 2000  # pixels of both photographs together
_MAX_LINES = 100
_GAP = 8  # pixels between the photographs
_CAPTION_HEIGHT = 44
_FADE = 0.35  # share of white in the photographs, so that the lines stand out
_LINE_OPACITY = 0.7


def draw_matches(
    a: Image,
    b: Image,
    matches: PhotoMatches,
    text: str = "",
    *,
    names: tuple[str, str] | None = None,
) -> ColourImage:
    """Draw two photographs side by side and a line for each match: inliers green, outliers red.

    Of more than 100 matches, only a sample is drawn as lines, spread over the first photograph and
    with the same share of inliers; the keypoints of all other inliers are drawn as dots.

    Parameters
    ----------
    a, b : uint8 arrays of shape (height, width) or (height, width, 3)
        The two photographs in grey, or in OpenCV's order of channels: blue, green, red.
    matches : PhotoMatches
        Their matches.
    text : str, default=""
        Caption to draw above the photographs. It is followed by the number of lines if only a
        sample is drawn.
    names : (str, str), optional
        Names to draw on the photographs.

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
    left, right = (_faded(image, scale) for image in (a, b))
    top = _CAPTION_HEIGHT if text else 0
    right_x = left.shape[1] + _GAP
    shape = (top + max(left.shape[0], right.shape[0]), right_x + right.shape[1], 3)
    canvas = np.full(shape, 255, np.uint8)
    canvas[top : top + left.shape[0], : left.shape[1]] = left
    canvas[top : top + right.shape[0], right_x:] = right
    offsets = np.array([[0, top], [right_x, top]])
    ends = (np.stack([matches.left, matches.right], axis=1) * scale + offsets).round().astype(int)
    drawn = _spread_sample(matches)
    for start, end in ends[matches.inliers].tolist() if len(drawn) < len(ends) else ():
        for position in (start, end):
            cv2.circle(canvas, position, 1, _INLIER_COLOUR, -1, cv2.LINE_AA)
    lines = canvas.copy()
    for match in sorted(drawn.tolist(), key=lambda i: bool(matches.inliers[i])):
        colour = _INLIER_COLOUR if matches.inliers[match] else _OUTLIER_COLOUR
        cv2.line(lines, *ends[match].tolist(), colour, 1, cv2.LINE_AA)
    canvas = cv2.addWeighted(lines, _LINE_OPACITY, canvas, 1 - _LINE_OPACITY, 0)
    for match in drawn.tolist():
        colour = _INLIER_COLOUR if matches.inliers[match] else _OUTLIER_COLOUR
        for position in ends[match].tolist():
            cv2.circle(canvas, position, 3, colour, -1, cv2.LINE_AA)
    labels = [(name, (x + 8, top + 8), 17) for name, x in zip(names or (), (0, right_x))]
    if text:
        if len(drawn) < len(ends):
            text += f" ({len(drawn):,} of {len(ends):,} matches drawn as lines)"
        labels.append((text, (12, 9), 21))
    return _write_texts(canvas, labels)


def _faded(image: Image, scale: float) -> NDArray[np.uint8]:
    """Return a photograph in colour, scaled and mixed with white."""
    cv2 = need("cv2", "vision")
    size = [max(1, round(scale * side)) for side in image.shape[1::-1]]
    image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    if image.ndim == 2:
        image = np.dstack([image] * 3)
    faded: NDArray[np.uint8] = (image * (1 - _FADE) + 255 * _FADE).astype(np.uint8)
    return faded


def _spread_sample(matches: PhotoMatches) -> NDArray[np.int64]:
    """Return matches to draw as lines: at most 100, with the same share of inliers as all.

    Inliers and outliers are each taken in turn from the cells of a grid on the first photograph, so
    that a dense patch of keypoints does not hide the rest.
    """
    n = len(matches.pairs)
    if n <= _MAX_LINES:
        return np.arange(n)
    n_inliers = round(_MAX_LINES * float(matches.inliers.mean()))
    chosen = []
    for inlier, size in ((True, n_inliers), (False, _MAX_LINES - n_inliers)):
        rows = np.flatnonzero(matches.inliers == inlier)
        position = matches.left[rows]
        low, high = matches.left.min(axis=0), matches.left.max(axis=0)
        cells = (16 * (position - low) / np.maximum(high - low, 1)).astype(np.int64)
        order = np.lexsort((rows, cells[:, 1], cells[:, 0]))
        _, first, inverse = np.unique(cells[order], axis=0, return_index=True, return_inverse=True)
        turn = np.arange(len(rows)) - first[inverse.ravel()]  # within the cell
        chosen.append(rows[order][np.argsort(turn, kind="stable")[:size]])
    return np.sort(np.concatenate(chosen))


def _write_texts(image: ColourImage, texts: list[tuple[str, tuple[int, int], int]]) -> ColourImage:
    """Write texts on a light ground, each with its position and size."""
    if not texts:
        return image
    pillow, fonts = need("PIL.Image", "vision"), need("PIL.ImageFont", "vision")
    picture = pillow.fromarray(np.ascontiguousarray(image[..., ::-1]))
    draw = need("PIL.ImageDraw", "vision").Draw(picture, "RGBA")
    for text, position, size in texts:
        font = fonts.load_default(size)
        x0, y0, x1, y1 = draw.textbbox(position, text, font)
        draw.rectangle((x0 - 4, y0 - 4, x1 + 4, y1 + 4), (255, 255, 255, 210))
        draw.text(position, text, (30, 30, 30), font)
    return np.ascontiguousarray(np.asarray(picture)[..., ::-1])


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
