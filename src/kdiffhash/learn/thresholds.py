"""The threshold of each bit: ``argmin over a of weight * FNR(a) + FPR(a)`` (eqs. 5 and 6).

The search is exact. Between two neighbouring projections of the training rows nothing changes, so
every gap between neighbours is tried, and the threshold is the middle of the best gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._util.threads import run
from ..codes import Codes
from .pairs import Pairs, Similar, check_both_kinds


@dataclass(frozen=True)
class BitRates:
    """What the threshold search found, one entry a bit.

    Attributes
    ----------
    thresholds : float32 array of shape (n_bits,)
    fnr, fpr : float64 arrays of shape (n_bits,)
        Share of similar pairs whose bits differ, share of dissimilar pairs whose bits agree.
    ones : float64 array of shape (n_bits,)
        Share of rows whose bit is 1; near 0 or 1 the bit says nothing.
    """

    thresholds: NDArray[np.float32]
    fnr: NDArray[np.float64]
    fpr: NDArray[np.float64]
    ones: NDArray[np.float64]


def find_thresholds(
    columns: NDArray[np.float32],
    pairs: Pairs,
    similar: Similar,
    weight: float = 1.0,
    n_jobs: int | None = None,
) -> BitRates:
    """Thresholds and rates of all bits.

    Parameters
    ----------
    columns : float32 array of shape (n_bits, n)
        Projections of the rows, by bit.
    pairs : int array of shape (p, 2)
        Row numbers.
    similar : bool array of shape (p,)
    weight : float
        Of the false-negative rate.
    n_jobs : int, optional

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash.learn.thresholds import find_thresholds
    >>> projections = np.array([[0.0, 1.0, 4.0, 5.0]], np.float32)  # one bit, four rows
    >>> pairs, similar = np.array([[0, 1], [2, 3], [1, 2]]), np.array([True, True, False])
    >>> find_thresholds(projections, pairs, similar).thresholds
    array([2.5], dtype=float32)
    """
    n_positives, n_negatives = int(similar.sum()), int((~similar).sum())
    check_both_kinds(n_positives, n_negatives)
    positives, negatives = _sides(pairs[similar]), _sides(pairs[~similar])
    n_bits = len(columns)
    thresholds = np.empty(n_bits, np.float32)
    fnr, fpr, ones = np.empty((3, n_bits))

    def solve(bit: int) -> None:
        ranks, distinct = rank(np.asarray(columns[bit]))
        # Losses are whole numbers for weight 1, so that ties are real ties.
        cut, n_missed, n_split = _core.best_cut(
            ranks, distinct, positives, negatives, weight * n_negatives, float(n_positives)
        )
        thresholds[bit] = cut_value(distinct, cut)
        fnr[bit], fpr[bit] = n_missed / n_positives, 1 - n_split / n_negatives
        ones[bit] = np.mean(ranks > cut)

    run([partial(solve, bit) for bit in range(n_bits)], n_jobs)
    return BitRates(thresholds, fnr, fpr, ones)


def rank(values: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Rank of every value among the distinct values, and those values in rising order."""
    ranks, distinct = np.empty(len(values), np.int32), np.empty(len(values), np.float32)
    n_distinct = _core.rank(np.ascontiguousarray(values), ranks, distinct)
    return ranks, distinct[:n_distinct]


def rates_at(
    thresholds: NDArray[np.float32], codes: Codes, pairs: Pairs, similar: Similar
) -> BitRates:
    """Rates of bits whose thresholds are known, from the codes of the rows in pairs."""
    n_bits = len(thresholds)

    def share_that_differ(chosen: Pairs) -> NDArray[np.float64]:
        total = np.zeros(n_bits)
        for part in np.array_split(chosen, -(-len(chosen) // 2**16)):
            differ = codes[part[:, 0]] ^ codes[part[:, 1]]
            total += np.unpackbits(differ, axis=1, count=n_bits).sum(axis=0, dtype=np.int64)
        return total / len(chosen)

    ones = sum(
        np.unpackbits(part, axis=1, count=n_bits).sum(axis=0, dtype=np.int64)
        for part in np.array_split(codes, -(-len(codes) // 2**16))
    )
    fnr, split = share_that_differ(pairs[similar]), share_that_differ(pairs[~similar])
    return BitRates(thresholds, fnr, 1 - split, ones / len(codes))


def _sides(pairs: Pairs) -> NDArray[np.int32]:
    """Left and right members of pairs, shape (2, p), the left ones in order for the cache."""
    return np.ascontiguousarray(pairs[np.argsort(pairs[:, 0])].T, np.int32)


def cut_value(distinct: NDArray[np.float32], cut: int) -> np.float32:
    """The middle t of the gap above rank `cut`: distinct[cut] <= t < distinct[cut + 1]."""
    low = np.float32(distinct[cut])
    if cut == len(distinct) - 1:
        return low
    high = np.float32(distinct[cut + 1])
    middle = np.float32((np.float64(low) + np.float64(high)) / 2)
    return middle if low <= middle < high else low
