"""Matching two sets of codes: nearest neighbours that are mutual and clearly the best."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _core
from ..codes import as_words, check_codes
from ..parallel import run_tiles
from .index_format import MAX_BITS
from .passes import threads_that_pay
from .segment import Words, to_blocks

Limits = NDArray[np.int64]

_CHUNK = 1024  # queries that a thread takes at a time


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
    n_jobs: int | None = None,
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
    n_jobs : int, optional
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
    if max_distance is not None and (
        not isinstance(max_distance, int | np.integer) or max_distance < 0
    ):
        raise ValueError(f"max_distance must be a whole number from zero, got {max_distance!r}")
    if a.shape[1] > MAX_BITS // 8:
        raise ValueError(f"codes have at most {MAX_BITS} bits, these have {8 * a.shape[1]}")
    if not len(a) or not len(b):
        return Matches(np.empty((0, 2), np.int64), np.empty(0, np.int32))
    a_words, b_words = as_words(a), as_words(b)
    n_bits = 64 * a_words.shape[1]
    limit_of = _limits(n_bits, ratio)
    most = n_bits if max_distance is None else min(max_distance, n_bits)
    limits = np.full(len(a), limit_of[most] + (ratio is None), np.int64)
    best, second, nearest = _nearest(b_words, a_words, limits, limit_of, n_jobs)
    good = (best <= most) & (second >= limit_of[np.minimum(best, n_bits)])
    if mutual and good.any():
        wanted, place = np.unique(nearest[good], return_inverse=True)
        closest = np.full(len(wanted), n_bits, np.int64)
        np.minimum.at(closest, place, best[good])
        # Some code of `a` is at this distance, so only those that are as near have to be seen.
        back = _nearest(a_words, b_words[wanted], closest + 1, _limits(n_bits, None), n_jobs)[2]
        good[good] = back[place] == np.flatnonzero(good)
    rows = np.flatnonzero(good)
    return Matches(np.stack([rows, nearest[rows]], axis=1), best[rows].astype(np.int32))


def _limits(n_bits: int, ratio: float | None) -> Limits:
    """For each distance of a nearest code: the distance from which on others do not matter."""
    distances = np.arange(n_bits + 3)
    if ratio is None:
        return np.minimum(distances, n_bits + 1)
    passes = distances[:, None] < ratio * distances[:-1]
    return np.where(passes.any(axis=1), passes.argmax(axis=1), n_bits + 1)


def _nearest(
    codes: Words,
    queries: Words,
    limits: Limits,
    limit_of: Limits,
    n_jobs: int | None,
) -> tuple[Limits, Limits, Limits]:
    """Distances of the two nearest codes of each query, as far as they matter, and the nearest."""
    n, width = queries.shape
    nothing = 64 * width + 1
    best, second = np.full(n, nothing, np.int64), np.full(n, nothing, np.int64)
    rows = np.full(n, -1, np.int64)
    blocks = to_blocks(codes).reshape(-1)

    def work(start: int, stop: int) -> None:
        some = slice(start, stop)
        given = (queries[some], limits[some], limit_of, best[some], second[some], rows[some])
        _core.match(blocks, len(codes), *given)

    run_tiles(lambda: work, n, _CHUNK, threads_that_pay(codes.size, n, n_jobs), blas=False)
    return best, second, rows
