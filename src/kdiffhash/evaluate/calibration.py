"""Distance thresholds for a target false positive rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..learn.pairs import check_both_kinds
from .bootstrap import Interval


@dataclass(frozen=True)
class Calibration:
    """A distance threshold with its error rates and their confidence intervals.

    Attributes
    ----------
    distance : int
        Accept a pair if its distance is at most this. -1 means that even distance 0 is too frequent
        among negative pairs.
    distance_interval : tuple of int
        Confidence interval of the threshold that has the target rate in the population, from
        order statistics of the sample.
    fpr : float
        False positive rate at `distance` on the sample; at most the target.
    fpr_interval : tuple of float
        Exact (Clopper-Pearson) confidence interval of the false positive rate.
    tpr : float
        True positive rate (recall) at `distance` on the sample.
    tpr_interval : tuple of float
        Exact confidence interval of the true positive rate.
    confidence : float
        Confidence level of the intervals.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash import LDAHash, draw_pairs
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = LDAHash(n_bits=32, random_state=0).fit(X[::2], y[::2])
    >>> pairs, similar = draw_pairs(y[1::2], 1000, 1000, random_state=0)
    >>> calibration = hasher.calibrate_threshold(X[1::2], pairs, similar, fpr=0.01)
    >>> calibration.fpr <= 0.01
    True
    """

    distance: int
    distance_interval: tuple[int, int]
    fpr: float
    fpr_interval: tuple[float, float]
    tpr: float
    tpr_interval: tuple[float, float]
    confidence: float

    def expected_false_pairs(self, n: int) -> Interval:
        """Estimate how many of all pairs among n codes of different objects are false positives.

        Parameters
        ----------
        n : int
            Number of codes, at least 2. Their pairs must be like the negative pairs of the sample.

        Returns
        -------
        expected : Interval
            Expected number at threshold `distance`, from `fpr` and `fpr_interval`.

        Examples
        --------
        >>> from kdiffhash import Calibration
        >>> calibration = Calibration(4, (3, 5), 0.01, (0.005, 0.02), 0.9, (0.8, 1.0), 0.95)
        >>> expected = calibration.expected_false_pairs(101)  # 5050 pairs
        >>> expected.value, expected.low, expected.high
        (50.5, 25.25, 101.0)
        """
        if n < 2:
            raise ValueError(f"n must be at least 2, so that there are pairs; got {n}")
        pairs = n * (n - 1) / 2
        low, high = self.fpr_interval
        return Interval(pairs * self.fpr, pairs * low, pairs * high)


def calibrate(
    distances: NDArray[np.int64], similar: NDArray[np.bool_], fpr: float, confidence: float = 0.95
) -> Calibration:
    """Find the largest distance whose false positive rate on the sample is at most `fpr`.

    Parameters
    ----------
    distances : int64 array of shape (p,)
        Distances of the pairs.
    similar : bool array of shape (p,)
        True for positive pairs.
    fpr : float
        Target false positive rate.
    confidence : float, default=0.95
        Confidence level of the intervals.

    Returns
    -------
    calibration : Calibration

    Raises
    ------
    ValueError
        If `fpr` is below 3 / (number of negative pairs). Even a sample without any false positive
        would not show that the rate is so low (the rule of three).
    """
    from scipy.stats import binom

    if not 0 < fpr < 1:
        raise ValueError(f"fpr must lie between 0 and 1, got {fpr}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    negatives, positives = np.sort(distances[~similar]), np.sort(distances[similar])
    check_both_kinds(len(positives), len(negatives))
    if len(negatives) * fpr < 3:
        raise ValueError(
            f"{len(negatives)} negative pairs cannot resolve a false positive rate of {fpr:g}; "
            f"give at least {int(np.ceil(3 / fpr))}, or set fpr to {3 / len(negatives):.2g} or more"
        )

    def threshold(n_false: int) -> int:
        """Return the largest distance with at most `n_false` false positives."""
        return int(negatives[n_false]) - 1 if n_false < len(negatives) else int(negatives[-1])

    tail = (1 - confidence) / 2
    low, high = (int(binom.ppf(q, len(negatives), fpr)) for q in (tail, 1 - tail))
    distance = threshold(int(len(negatives) * fpr + 1e-9))
    n_false = int(np.searchsorted(negatives, distance, side="right"))
    n_true = int(np.searchsorted(positives, distance, side="right"))
    return Calibration(
        distance=distance,
        distance_interval=(threshold(low), threshold(high)),
        fpr=n_false / len(negatives),
        fpr_interval=clopper_pearson(n_false, len(negatives), tail),
        tpr=n_true / len(positives),
        tpr_interval=clopper_pearson(n_true, len(positives), tail),
        confidence=confidence,
    )


def clopper_pearson(k: int, n: int, tail: float) -> tuple[float, float]:
    """Compute the exact confidence interval of a rate from k of n, with `tail` on each side."""
    from scipy.stats import binomtest

    exact = binomtest(k, n).proportion_ci(1 - 2 * tail, method="exact")
    return float(exact.low), float(exact.high)
