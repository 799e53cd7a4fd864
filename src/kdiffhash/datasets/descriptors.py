"""Descriptors of patches: SIFT as in the paper, and HOG as one that is not SIFT."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..extras import need
from ..files import replacing
from ..parallel import run_tiles
from ..progress import progress
from .scene import Scene, load_scene, open_scene
from .sheets import PATCH, PER_SHEET, WIDTH_IN_SIGMA, Pixels

Kind = Literal["sift", "hog"]


def describe_patches(
    patches: Any, kind: Kind = "sift", *, n_jobs: int | None = None, verbose: bool = False
) -> NDArray[Any]:
    """A descriptor of each patch.

    Parameters
    ----------
    patches : array of shape (n, 64, 64), uint8
        An array, or the lazy patches of a scene, which are read a sheet at a time.
    kind : {"sift", "hog"}
        ``"sift"``: OpenCV's SIFT of one keypoint in the middle, upright, as large as the patch
        (15 sigma wide): 128 uint8. ``"hog"``: scikit-image's histograms of oriented gradients, 8
        orientations, cells of 16 pixels, blocks of 2 x 2 cells: 288 float32.
    n_jobs : int, optional
        Threads; all cores by default.
    verbose : bool
        Show a progress bar on a terminal.

    Returns
    -------
    array of shape (n, d)
    """
    shape, dtype = np.shape(patches), getattr(patches, "dtype", None)
    if len(shape) != 3 or shape[1:] != (PATCH, PATCH) or dtype != np.uint8:
        raise ValueError(
            f"patches must be uint8 of shape (n, {PATCH}, {PATCH}), got {dtype} {shape}"
        )
    if kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, got {kind!r}")
    describe, width, out_dtype = _KINDS[kind]
    out = np.empty((shape[0], width), out_dtype)
    with progress(shape[0], kind, verbose) as advance:

        def work(start: int, stop: int) -> None:
            out[start:stop] = describe(np.asarray(patches[start:stop]))
            advance(stop - start)

        run_tiles(lambda: work, shape[0], PER_SHEET, n_jobs)
    return out


def describe_scene(
    name: str | os.PathLike[str],
    kind: Kind = "sift",
    *,
    n_jobs: int | None = None,
    verbose: bool = False,
) -> Scene:
    """Write the descriptors of a scene's patches into its folder, and open it with them."""
    scene = open_scene(name, kind)
    descriptors = describe_patches(scene.patches, kind, n_jobs=n_jobs, verbose=verbose)
    with replacing(scene.path / f"{kind}.npy") as temporary, temporary.open("wb") as file:
        np.save(file, descriptors)
    return load_scene(scene.path, kind)


def _sift(patches: Pixels) -> NDArray[np.uint8]:
    cv2 = need("cv2", "vision")
    middle = (PATCH - 1) / 2
    # The octave field asks for the pyramid level of one octave up, layer 1, which fits the size.
    keypoint = cv2.KeyPoint(middle, middle, 2 * PATCH / WIDTH_IN_SIGMA, 0, 0, 257)
    # One call for many patches: Python's lock is taken once, so threads do not wait for it.
    _, rows = cv2.SIFT_create().compute(list(patches), [[keypoint]] * len(patches))
    return np.concatenate(rows).astype(np.uint8)  # whole numbers up to 255 already


def _hog(patches: Pixels) -> NDArray[np.float32]:
    hog = need("skimage.feature", "vision").hog
    cells = {"pixels_per_cell": (16, 16), "cells_per_block": (2, 2)}
    return np.stack([hog(patch, 8, **cells) for patch in patches]).astype(np.float32)


_KINDS: dict[str, tuple[Callable[[Pixels], NDArray[Any]], int, type]] = {
    "sift": (_sift, 128, np.uint8),
    "hog": (_hog, 288, np.float32),
}
