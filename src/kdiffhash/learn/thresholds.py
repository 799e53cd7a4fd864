"""Search for the threshold of each bit, which minimises ``weight * FNR + FPR`` (eqs. 5 and 6).

The search is exact. The rates change only at projections of training rows, so every gap between
neighbouring projections is tried. The threshold is the middle of the best gap, the widest one if
several are equally good.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._util.progress import report
from .._util.threads import run
from ..codes import Codes
from .pairs import Pairs, Similar, check_both_kinds


@dataclass(frozen=True)
class BitRates:
    """Thresholds and error rates of all bits.

    Attributes
    ----------
    thresholds : float32 array of shape (n_bits,)
    fnr : float64 array of shape (n_bits,)
        False negative rate: share of positive pairs in which the bit differs.
    fpr : float64 array of shape (n_bits,)
        False positive rate: share of negative pairs in which the bit is equal.
    ones : float64 array of shape (n_bits,)
        Share of rows for which the bit is 1; near 0 or 1 the bit carries no information.
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
    """Find the best threshold of each bit.

    Parameters
    ----------
    columns : float32 array of shape (n_bits, n)
        Projections of the rows, by bit.
    pairs : int array of shape (p, 2)
        Row numbers.
    similar : bool array of shape (p,)
        True for positive pairs.
    weight : float, default=1.0
        Weight of the false negative rate.
    n_jobs : int or None, default=None
        Number of threads; None uses all cores.

    Returns
    -------
    rates : BitRates

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
        # With weight 1, losses are integers, so that ties are exact.
        highest_zero, n_false_negatives, n_true_negatives = _core.best_threshold(
            ranks, distinct, positives, negatives, weight * n_negatives, float(n_positives)
        )
        thresholds[bit] = threshold_above(distinct, highest_zero)
        fnr[bit] = n_false_negatives / n_positives
        fpr[bit] = 1 - n_true_negatives / n_negatives
        ones[bit] = np.mean(ranks > highest_zero)
        report(1 / n_bits)

    run([partial(solve, bit) for bit in range(n_bits)], n_jobs)
    return BitRates(thresholds, fnr, fpr, ones)


def rank(values: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the rank of every value among the distinct values, and these in ascending order."""
    ranks, distinct = np.empty(len(values), np.int32), np.empty(len(values), np.float32)
    n_distinct = _core.rank(np.ascontiguousarray(values), ranks, distinct)
    return ranks, distinct[:n_distinct]


def rates_at(
    thresholds: NDArray[np.float32], codes: Codes, pairs: Pairs, similar: Similar
) -> BitRates:
    """Compute the error rates of bits with given thresholds.

    Parameters
    ----------
    thresholds : float32 array of shape (n_bits,)
        Stored in the result.
    codes : uint8 array of shape (n, ceil(n_bits / 8))
        Codes of the rows in pairs.
    pairs : int array of shape (p, 2)
        Row numbers.
    similar : bool array of shape (p,)
        True for positive pairs.

    Returns
    -------
    rates : BitRates
    """
    n_bits = len(thresholds)

    def share_that_differ(chosen: Pairs) -> NDArray[np.float64]:
        total = np.zeros(n_bits)
        for batch in np.array_split(chosen, -(-len(chosen) // 2**16)):
            differ = codes[batch[:, 0]] ^ codes[batch[:, 1]]
            total += np.unpackbits(differ, axis=1, count=n_bits).sum(axis=0, dtype=np.int64)
        return total / len(chosen)

    ones = sum(
        np.unpackbits(chunk, axis=1, count=n_bits).sum(axis=0, dtype=np.int64)
        for chunk in np.array_split(codes, -(-len(codes) // 2**16))
    )
    fnr, tnr = share_that_differ(pairs[similar]), share_that_differ(pairs[~similar])
    return BitRates(thresholds, fnr, 1 - tnr, ones / len(codes))


def _sides(pairs: Pairs) -> NDArray[np.int32]:
    """Return left and right members, shape (2, p), sorted by the left ones for cache locality."""
    return np.ascontiguousarray(pairs[np.argsort(pairs[:, 0])].T, np.int32)


def threshold_above(distinct: NDArray[np.float32], rank: int) -> np.float32:
    """Return the middle t of the gap above a rank: distinct[rank] <= t < distinct[rank + 1]."""
    low = np.float32(distinct[rank])
    if rank == len(distinct) - 1:
        return low
    high = np.float32(distinct[rank + 1])
    middle = np.float32((np.float64(low) + np.float64(high)) / 2)
    return middle if low <= middle < high else low
