"""The distance below which a pair is called similar, for a wanted false-positive rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..learn.pairs import check_both_kinds


@dataclass(frozen=True)
class Calibration:
    """A distance threshold and what to expect of it.

    Attributes
    ----------
    distance : int
        Call a pair similar if its distance is at most this. -1 means that even distance 0 comes up
        too often among dissimilar pairs.
    distance_interval : tuple of int
        Where the threshold would fall in other samples of this size.
    fpr : float
        False-positive rate of `distance` on the sample; at most the wanted one.
    fpr_interval : tuple of float
        Exact (Clopper-Pearson) interval of that rate.
    tpr : float
        Share of the similar pairs that are found at `distance`.
    tpr_interval : tuple of float
    confidence : float
    """

    distance: int
    distance_interval: tuple[int, int]
    fpr: float
    fpr_interval: tuple[float, float]
    tpr: float
    tpr_interval: tuple[float, float]
    confidence: float


def calibrate(
    distances: NDArray[np.int64], similar: NDArray[np.bool_], fpr: float, confidence: float = 0.95
) -> Calibration:
    """Largest integer distance whose false-positive rate on the sample is at most `fpr`.

    Refuses a rate below 3 / (number of dissimilar pairs): even a sample with no false positive at
    all would not show that the rate is so low (the rule of three).
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
            f"{len(negatives)} dissimilar pairs cannot resolve a false-positive rate of {fpr:g}; "
            f"give at least {int(np.ceil(3 / fpr))}, or ask for {3 / len(negatives):.2g} or more"
        )

    def threshold(n_false: int) -> int:
        """Largest distance that at most `n_false` dissimilar pairs stay within."""
        return int(negatives[n_false]) - 1 if n_false < len(negatives) else int(negatives[-1])

    tail = (1 - confidence) / 2
    low, high = (int(binom.ppf(q, len(negatives), fpr)) for q in (tail, 1 - tail))
    distance = threshold(int(len(negatives) * fpr + 1e-9))
    n_false = int(np.searchsorted(negatives, distance, side="right"))
    n_found = int(np.searchsorted(positives, distance, side="right"))
    return Calibration(
        distance=distance,
        distance_interval=(threshold(low), threshold(high)),
        fpr=n_false / len(negatives),
        fpr_interval=clopper_pearson(n_false, len(negatives), tail),
        tpr=n_found / len(positives),
        tpr_interval=clopper_pearson(n_found, len(positives), tail),
        confidence=confidence,
    )


def clopper_pearson(hits: int, n: int, tail: float) -> tuple[float, float]:
    """Exact interval of a rate, with `tail` left out on either side."""
    from scipy.stats import binomtest

    exact = binomtest(hits, n).proportion_ci(1 - 2 * tail, method="exact")
    return float(exact.low), float(exact.high)
