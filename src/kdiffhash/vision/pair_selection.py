"""Choose the pairs of images that are worth matching, by votes of their keypoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..codes import Codes
from ..search import HammingIndex
from .photo_voting import count_votes

_KEYPOINTS = 1000  # per image that vote and are voted for
_NEAREST = 8  # codes that each keypoint votes for, besides those of its own image


class _Image(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def codes(self) -> Codes: ...
    @property
    def scales(self) -> NDArray[np.float32] | None: ...


def likely_pairs(
    images: Sequence[_Image], neighbours: int = 20, *, n_jobs: int | None = None
) -> list[tuple[str, str]]:
    """Return pairs of images that probably show the same objects.

    The 1,000 keypoints of each image with the largest scale vote for the images of their nearest
    codes, as in a search for photographs. Each image is paired with those that it gives most votes,
    if any. The number of pairs, and the time, grow linearly with the number of images but for the
    search, which compares each of these codes with all others.

    Parameters
    ----------
    images : sequence of ImageFeatures
        Images with codes, as returned by `read_images`.
    neighbours : int, default=20
        Number of images that each image is paired with.
    n_jobs : int, optional
        Number of threads; by default all cores available to the process.

    Returns
    -------
    pairs : list of (str, str)
        Names of images, in the order of `images`.

    Examples
    --------
    >>> from kdiffhash.vision.colmap import likely_pairs
    """
    rows = [_largest(image) for image in images]
    owners = np.repeat(np.arange(len(images)), [len(chosen) for chosen in rows])
    if not len(owners):
        return []
    codes = np.concatenate([image.codes[chosen] for image, chosen in zip(images, rows)])
    index = HammingIndex(codes)
    pairs: set[tuple[int, int]] = set()
    for number, (image, chosen) in enumerate(zip(images, rows)):
        if not len(chosen):
            continue
        k = min(2 * _NEAREST, len(codes))
        distances, ids = index.search(image.codes[chosen], k, n_jobs=n_jobs)
        found = owners[ids]
        others = found != number
        others &= np.cumsum(others, axis=1) <= _NEAREST
        voted, votes = count_votes(distances, np.where(others, found, -1), index.n_bits)
        best = np.lexsort((voted, -votes))[:neighbours]
        pairs |= {(min(number, i), max(number, i)) for i in voted[best].tolist()}
    return [(images[a].name, images[b].name) for a, b in sorted(pairs)]


def _largest(image: _Image) -> NDArray[np.int64]:
    """Return the keypoints of the largest scale; evenly chosen ones if scales are unknown."""
    n = len(image.codes)
    if n <= _KEYPOINTS:
        return np.arange(n)
    if image.scales is None:
        return np.linspace(0, n - 1, _KEYPOINTS).astype(np.int64)
    return np.sort(np.argsort(-image.scales, kind="stable")[:_KEYPOINTS])
