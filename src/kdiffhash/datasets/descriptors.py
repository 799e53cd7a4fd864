"""Descriptors of patches: SIFT by OpenCV (the paper uses another program), and HOG."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._util.extras import need
from .._util.files import replacing
from .._util.progress import progress
from .._util.threads import run_tiles
from .scene import Scene, open_scene, read_scene
from .sheets import PATCH, PER_SHEET, WIDTH_IN_SIGMA, Pixels

DescriptorKind = Literal["sift", "hog"]


def describe_patches(
    patches: Any, kind: DescriptorKind = "sift", *, n_jobs: int | None = None, verbose: bool = False
) -> NDArray[Any]:
    """Compute a descriptor for each patch.

    Parameters
    ----------
    patches : array of shape (n, 64, 64), uint8
        An array, or the patches of a scene (`PatchSheets`), which are read one sheet at a time.
    kind : {"sift", "hog"}, default="sift"
        ``"sift"`` is OpenCV's SIFT of one upright keypoint at the centre whose support is the patch
        (15 sigma wide): 128 uint8 values. ``"hog"`` is scikit-image's histogram of oriented
        gradients with 8 orientations, cells of 16 pixels and blocks of 2 x 2 cells: 288 float32
        values.
    n_jobs : int, optional
        Number of threads; by default all cores available to the process.
    verbose : bool, default=False
        Show a progress bar on a terminal.

    Returns
    -------
    descriptors : uint8 or float32 array of shape (n, d)

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash.datasets import describe_patches
    >>> patches = np.random.default_rng(0).integers(0, 256, (5, 64, 64), dtype=np.uint8)
    >>> describe_patches(patches).shape, describe_patches(patches, "hog").shape
    ((5, 128), (5, 288))
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


def describe_folder(
    folder: Path, kind: DescriptorKind = "sift", *, n_jobs: int | None = None, verbose: bool = False
) -> Scene:
    """Compute descriptors for the scene in a folder, store them there and open the scene."""
    scene = open_scene(folder, kind)
    descriptors = describe_patches(scene.patches, kind, n_jobs=n_jobs, verbose=verbose)
    with replacing(folder / f"{kind}.npy") as temporary, temporary.open("wb") as file:
        np.save(file, descriptors)
    return read_scene(folder, kind)


def _sift(patches: Pixels) -> NDArray[np.uint8]:
    """Compute OpenCV's SIFT of each patch."""
    cv2 = need("cv2", "vision")
    middle = (PATCH - 1) / 2
    # Octave field 257: layer 1 of octave 1, the pyramid level for this size.
    keypoint = cv2.KeyPoint(middle, middle, 2 * PATCH / WIDTH_IN_SIGMA, 0, 0, 257)
    # One call for many patches, so that threads rarely wait for the GIL.
    _, descriptors = cv2.SIFT_create().compute(list(patches), [[keypoint]] * len(patches))
    return np.concatenate(descriptors).astype(
        np.uint8
    )  # the values are integers from 0 to 255 already


def _hog(patches: Pixels) -> NDArray[np.float32]:
    """Compute the histogram of oriented gradients of each patch."""
    hog = need("skimage.feature", "vision").hog
    cells = {"pixels_per_cell": (16, 16), "cells_per_block": (2, 2)}
    return np.stack([hog(patch, 8, **cells) for patch in patches]).astype(np.float32)


_KINDS: dict[str, tuple[Callable[[Pixels], NDArray[Any]], int, type]] = {
    "sift": (_sift, 128, np.uint8),
    "hog": (_hog, 288, np.float32),
}
