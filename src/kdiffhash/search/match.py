"""Matching two sets of codes: nearest neighbours that are mutual and clearly the best."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import check_codes
from .index import HammingIndex


class Matches(NamedTuple):
    """What `match_codes` found."""

    pairs: NDArray[np.int64]
    distances: NDArray[np.int32]


def match_codes(
    a: ArrayLike,
    b: ArrayLike,
    *,
    ratio: float | None = None,
    mutual: bool = True,
    max_distance: int | None = None,
    threads: int | None = None,
) -> Matches:
    """Match each code of `a` with its nearest in `b`.

    Parameters
    ----------
    a, b : uint8 arrays of shapes (n, n_bytes) and (m, n_bytes)
    ratio : float, optional
        Keep a match only if its distance is below `ratio` times the distance to the second nearest
        code in `b`. Equal distances never pass, also at zero: with two nearest codes nobody knows
        which one is meant. Where `b` has a single code, there is nothing to pass.
    mutual : bool
        Keep a match only if the code in `a` is also the nearest of the one in `b`. Of equally near
        codes the first is the nearest.
    max_distance : int, optional
        Keep matches up to this distance.
    threads : int, optional
        By default all that this process may use.

    Returns
    -------
    pairs : int64 array of shape (p, 2)
        Rows of `a` and of `b`, in the order of `a`.
    distances : int32 array of shape (p,)

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import match_codes
    >>> a = np.array([[0b11110000], [0b00001111]], np.uint8)
    >>> b = np.array([[0b00001110], [0b11111111], [0b11110001]], np.uint8)
    >>> match_codes(a, b, ratio=0.8)
    Matches(pairs=array([[0, 2],
           [1, 0]]), distances=array([1, 1], dtype=int32))
    """
    a, b = check_codes(a), check_codes(b)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or not a.shape[1]:
        raise ValueError(
            f"codes must be rows of the same width, got shapes {a.shape} and {b.shape}; "
            "encode both with the same model and n_bits"
        )
    if ratio is not None and not 0 < ratio <= 1:
        raise ValueError(f"ratio must be above 0 and at most 1, got {ratio}")
    if max_distance is not None and max_distance < 0:
        raise ValueError(f"max_distance must be zero or more, got {max_distance}")
    if not len(a) or not len(b):
        return Matches(np.empty((0, 2), np.int64), np.empty(0, np.int32))
    distances, ids = HammingIndex(b).search(a, 1 if ratio is None else 2, threads=threads)
    nearest, best = ids[:, 0], distances[:, 0]
    good = np.ones(len(a), bool)
    if max_distance is not None:
        good &= best <= max_distance
    if ratio is not None and distances.shape[1] > 1:
        good &= best < ratio * distances[:, 1]
    if mutual and good.any():
        wanted, place = np.unique(nearest[good], return_inverse=True)
        back = HammingIndex(a).search(b[wanted], 1, threads=threads)[1][:, 0]
        good[good] = back[place] == np.flatnonzero(good)
    rows = np.flatnonzero(good)
    return Matches(np.stack([rows, nearest[rows]], axis=1), best[rows])
