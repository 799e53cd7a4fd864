"""Matching of two sets of codes by mutual nearest neighbours and the ratio test."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _core
from .._util.threads import run_tiles
from ..codes import as_words, check_codes
from .index_format import MAX_BITS
from .scan import n_useful_threads
from .segment import Words, to_blocks

Int64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

_TILE = 1024  # queries per task of a thread
_RIVAL_SHARE = 32  # the first of so many codes are searched for rivals before the others


class Matches(NamedTuple):
    """Result of `match_codes`.

    Attributes
    ----------
    pairs : int64 array of shape (p, 2)
        Rows of `a` and of `b`, in the order of `a`.
    distances : int32 array of shape (p,)
        Hamming distance of each match.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import match_codes
    >>> codes = np.array([[0b11110000], [0b00001111]], np.uint8)
    >>> pairs, distances = match_codes(codes, codes)
    >>> pairs.tolist(), distances.tolist()
    ([[0, 0], [1, 1]], [0, 0])
    """

    pairs: NDArray[np.int64]
    distances: NDArray[np.int32]


def match_codes(
    a: ArrayLike,
    b: ArrayLike,
    *,
    ratio: float | None = None,
    mutual: bool = True,
    two_way: bool = True,
    max_distance: int | None = None,
    n_jobs: int | None = None,
) -> Matches:
    """Match each code of `a` with its nearest neighbour in `b`.

    Parameters
    ----------
    a : uint8 array of shape (n, n_bytes)
        Packed codes.
    b : uint8 array of shape (m, n_bytes)
        Packed codes of the same length.
    ratio : float or None, default=None
        Ratio test: keep a match only if its distance is below `ratio` times the distance to the
        second nearest code: the mean of the second-nearest distances in both directions, or with
        ``two_way=False`` or ``mutual=False`` the second-nearest distance in `b`. Equal distances
        never pass, not even at distance zero, because the match is ambiguous. A second nearest
        code that does not exist counts as infinitely far.
    mutual : bool, default=True
        Keep a match only if it is the nearest neighbour in both directions. Ties go to the lower
        row.
    two_way : bool, default=True
        Whether the ratio test of mutual matches uses the second-nearest distances in both
        directions: of the row of `a` among the codes of `b`, and of the row of `b` among those of
        `a`. It then keeps more correct matches at the same precision.
    max_distance : int or None, default=None
        Keep matches up to and including this distance. None means no limit.
    n_jobs : int or None, default=None
        Number of threads; None uses all cores available to this process.

    Returns
    -------
    pairs : int64 array of shape (p, 2)
        Rows of `a` and of `b`, in the order of `a`.
    distances : int32 array of shape (p,)
        Hamming distance of each match.

    Raises
    ------
    ValueError
        If the arrays differ in width, exceed 4096 bits, or an option is out of range.

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
            f"codes must be two-dimensional, of the same width, got shapes {a.shape} and "
            f"{b.shape}; encode both with the same model and n_bits"
        )
    if ratio is not None and not 0 < ratio <= 1:
        raise ValueError(f"ratio must be above 0 and at most 1, got {ratio}")
    if max_distance is not None and (
        not isinstance(max_distance, int | np.integer) or max_distance < 0
    ):
        raise ValueError(f"max_distance must be an integer of at least 0, got {max_distance!r}")
    if a.shape[1] > MAX_BITS // 8:
        raise ValueError(f"codes have at most {MAX_BITS} bits, these have {8 * a.shape[1]}")
    if not len(a) or not len(b):
        return Matches(np.empty((0, 2), np.int64), np.empty(0, np.int32))
    a_words, b_words = as_words(a), as_words(b)
    most = 64 * a_words.shape[1] if max_distance is None else int(max_distance)
    if ratio is not None and mutual and two_way:
        good, nearest, best = _match_two_way(a_words, b_words, ratio, most, n_jobs)
    else:
        good, nearest, best = _match(a_words, b_words, ratio, mutual, most, n_jobs)
    rows = np.flatnonzero(good)
    return Matches(np.stack([rows, nearest[rows]], axis=1), best[rows].astype(np.int32))


def _match(
    a: Words, b: Words, ratio: float | None, mutual: bool, most: int, n_jobs: int | None
) -> tuple[Mask, Int64, Int64]:
    """Return whether each row of `a` has a match, its nearest row of `b`, and their distance."""
    n_bits = 64 * a.shape[1]
    most = min(most, n_bits)
    bound_of = _bounds(n_bits, ratio)
    bounds = np.full(len(a), bound_of[most] + (ratio is None), np.int64)
    best, second, nearest = _nearest(b, a, bounds, bound_of, n_jobs)
    good = (best <= most) & (second >= bound_of[np.minimum(best, n_bits)])
    if mutual and good.any():
        matched, place = np.unique(nearest[good], return_inverse=True)
        closest = np.full(len(matched), n_bits, np.int64)
        np.minimum.at(closest, place, best[good])
        # A code of `a` lies at this distance, so only codes at least as near can win.
        back = _nearest(a, b[matched], closest + 1, _bounds(n_bits, None), n_jobs)[2]
        good[good] = back[place] == np.flatnonzero(good)
    return good, nearest, best


def _match_two_way(
    a: Words, b: Words, ratio: float, most: int, n_jobs: int | None
) -> tuple[Mask, Int64, Int64]:
    """Return what `_match` returns, for a ratio test with the distances of both directions.

    The sum of both second-nearest distances has to reach a bound, and each has to be above the
    distance of the match. So once the first is known, the second only has to be compared with the
    rest of the sum: the match fails if any other code of `a` is nearer than that, its rival.
    """
    n_bits = 64 * a.shape[1]
    most = min(most, n_bits)
    sums = _sum_bounds(n_bits, ratio)
    distances = np.arange(n_bits + 3)
    # From this second distance on, the other direction only has to be above the distance.
    bound_of = np.clip(sums - distances - 1, distances + 1, n_bits + 1)
    bounds = np.full(len(a), bound_of[most], np.int64)
    best, second, nearest = _nearest(b, a, bounds, bound_of, n_jobs, exact_second=True)
    rows = np.flatnonzero(best <= most)
    # If several rows have the same nearest row of `b`, only the closest of them can match it, and
    # the next one may already be a rival.
    rows = rows[np.lexsort((best[rows], nearest[rows]))]
    claimed = np.append(nearest[rows], -1)
    is_closest = np.diff(claimed, prepend=-2)[:-1] != 0
    next_claim = np.where(claimed[1:] == claimed[:-1], np.append(best[rows[1:]], 0), n_bits + 1)
    distance = best[rows]
    rest = np.where(second[rows] < bound_of[distance], sums[distance] - second[rows], 0)
    rival_bounds = np.clip(rest, distance + 1, n_bits + 1)
    possible = is_closest & (second[rows] > distance) & (next_claim >= rival_bounds)
    rows, rival_bounds = rows[possible], rival_bounds[possible]
    good = np.zeros(len(a), bool)
    good[rows[_without_rivals(a, b[nearest[rows]], rows, rival_bounds, n_jobs)]] = True
    return good, nearest, best


def _bounds(n_bits: int, ratio: float | None) -> Int64:
    """Return, for each distance of the nearest code, the smallest second distance that passes."""
    distances = np.arange(n_bits + 3)
    if ratio is None:
        return np.minimum(distances, n_bits + 1)
    return np.minimum(np.searchsorted(ratio * distances, distances, side="right"), n_bits + 1)


def _sum_bounds(n_bits: int, ratio: float) -> Int64:
    """Return, for each distance, the smallest sum of both second distances that passes."""
    means = np.arange(2 * n_bits + 3) / 2
    return np.searchsorted(ratio * means, np.arange(n_bits + 3), side="right").astype(np.int64)


def _nearest(
    codes: Words,
    queries: Words,
    bounds: Int64,
    bound_of: Int64,
    n_jobs: int | None,
    *,
    exact_second: bool = False,
) -> tuple[Int64, Int64, Int64]:
    """Return the two smallest distances of each query, where below its bound, and the best row.

    The second is exact if it passes the test, and with `exact_second` also if it fails.
    """
    n, width = queries.shape
    no_match = 64 * width + 1
    best, second = np.full(n, no_match, np.int64), np.full(n, no_match, np.int64)
    rows = np.full(n, -1, np.int64)
    blocks = to_blocks(codes).reshape(-1)

    def work(start: int, stop: int) -> None:
        tile = slice(start, stop)
        results = (best[tile], second[tile], rows[tile])
        _core.match(
            blocks, len(codes), queries[tile], exact_second, bounds[tile], bound_of, *results
        )

    workers = n_useful_threads(len(codes), width, n, n_jobs)
    run_tiles(lambda: work, n, _TILE, workers, blas=False)
    return best, second, rows


def _without_rivals(
    codes: Words, queries: Words, excluded: Int64, bounds: Int64, n_jobs: int | None
) -> Int64:
    """Return the queries for which no code but the excluded row is below the bound."""
    left = np.arange(len(queries))
    # Most queries with a rival have one among few codes, and are not compared with the others.
    first = len(codes) // _RIVAL_SHARE
    for start, stop in ((0, first), (first, len(codes))):
        some, words = to_blocks(codes[start:stop]).reshape(-1), queries[left]
        left = left[
            _has_no_rival(some, stop - start, words, excluded[left] - start, bounds[left], n_jobs)
        ]
    return left


def _has_no_rival(
    blocks: Words,
    n_rows: int,
    queries: Words,
    excluded: Int64,
    bounds: Int64,
    n_jobs: int | None,
) -> Mask:
    """Return for each query whether no row but the excluded one is below its bound."""

    def work(start: int, stop: int) -> None:
        tile = slice(start, stop)
        _core.find_rivals(blocks, n_rows, queries[tile], excluded[tile], bounds[tile])

    workers = n_useful_threads(n_rows, queries.shape[1], len(queries), n_jobs)
    run_tiles(lambda: work, len(queries), _TILE, workers, blas=False)
    return bounds > 0
