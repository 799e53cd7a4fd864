"""Distance thresholds for a target false positive rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import check_codes
from ..learn.pairs import Pairs, Similar, check_both_kinds, check_pairs
from .bootstrap import Interval
from .pair_distances import code_distances


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
            Number of codes, from 2 to 10^18. Their pairs must be like the negative pairs of the
            sample.

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
        if not 2 <= n <= 10**18:
            raise ValueError(
                f"n must be from 2 (so that there are pairs) to {10**18:.0e}, got {str(n)[:30]}"
            )
        pairs = n * (n - 1) / 2
        low, high = self.fpr_interval
        return Interval(pairs * self.fpr, pairs * low, pairs * high)


def calibrate(
    data: ArrayLike,
    similar: ArrayLike,
    *,
    fpr: float,
    pairs: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Calibration:
    """Find the largest distance whose false positive rate on a sample of pairs is at most `fpr`.

    The codes may come from anywhere: learned codes, perceptual hashes of images (pHash, PDQ),
    SimHash of texts, signs of embeddings.

    Parameters
    ----------
    data : int array of shape (p,), or uint8 array of shape (n, n_bytes)
        Distances of the pairs; or, if `pairs` is given, packed codes.
    similar : bool array of shape (p,)
        True for positive pairs.
    fpr : float
        Target false positive rate, at least 3 / (number of negative pairs).
    pairs : int array of shape (p, 2) or None, default=None
        Rows of `data` in each pair. A pair that occurs several times counts once.
    confidence : float, default=0.95
        Confidence level of the intervals.

    Returns
    -------
    calibration : Calibration
        The threshold `distance`, `fpr` and `tpr`, each with a confidence interval.

    Raises
    ------
    ValueError
        If `fpr` is below 3 / (number of negative pairs). Even a sample without any false positive
        would not show that the rate is so low (the rule of three). Also if a pair is both positive
        and negative, or pairs a row with itself.

    Notes
    -----
    The confidence intervals assume independent pairs, so no row should occur in many of them, and
    a sample that is like the application: negative pairs that are easier to tell apart than those
    of the application give too large a distance.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import calibrate
    >>> rng = np.random.default_rng(0)
    >>> codes = rng.integers(0, 256, (4000, 8), dtype=np.uint8)  # 64 random bits each
    >>> codes[1::2] = np.where(np.arange(2000)[:, None] < 1000, codes[::2], codes[1::2])
    >>> codes[1:2000:2, 0] ^= 0b10000001  # the first 1000 pairs differ in two bits
    >>> rows = np.arange(4000).reshape(-1, 2)
    >>> result = calibrate(codes, np.arange(2000) < 1000, pairs=rows, fpr=0.01)
    >>> result.distance, result.tpr
    (22, 1.0)
    >>> result.distance_interval
    (21, 23)
    """
    if not 0 < fpr < 1:
        raise ValueError(f"fpr must lie between 0 and 1, got {fpr}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if pairs is None:
        distances, flags = _check_distances(data, similar)
    else:
        codes = check_codes(data)
        if codes.ndim != 2:
            raise ValueError(f"codes must have shape (n, n_bytes), got {codes.shape}")
        rows, flags = distinct_pairs(*check_pairs(pairs, similar, len(codes), ("codes", "codes")))
        distances = code_distances(codes, rows)
    return _threshold(distances, flags, fpr, confidence)


def _check_distances(data: ArrayLike, similar: ArrayLike) -> tuple[NDArray[Any], Similar]:
    distances, flags = np.asarray(data), np.asarray(similar)
    if distances.ndim == 2 and distances.dtype == np.uint8:
        raise ValueError(
            f"got codes of shape {distances.shape} without pairs; pass pairs=, the row numbers of "
            "both members of each pair, or the distances of the pairs"
        )
    if distances.ndim != 1 or distances.dtype.kind not in "iu":
        raise ValueError(
            "distances must be a one-dimensional array of integers, one per pair; got "
            f"{distances.dtype} of shape {distances.shape}"
        )
    if len(distances) and distances.min() < 0:
        raise ValueError(f"distances must not be negative, got {distances.min()}")
    rows = np.zeros((len(distances), 2), np.int64)  # checks `similar` as everywhere else
    return distances.astype(np.int64), check_pairs(rows, flags, 1)[1]


def distinct_pairs(pairs: Pairs, similar: Similar) -> tuple[Pairs, Similar]:
    """Return each pair once; the order of its two rows does not matter.

    Raises
    ------
    ValueError
        If a pair is both positive and negative, or pairs a row with itself.
    """
    same = np.flatnonzero(pairs[:, 0] == pairs[:, 1])
    if len(same):
        raise ValueError(
            f"pair {same[0]} pairs row {pairs[same[0], 0]} with itself; leave such pairs out"
        )
    both = np.column_stack([np.sort(pairs, axis=1), similar])
    once = np.unique(both, axis=0)
    repeated = np.flatnonzero((once[1:, :2] == once[:-1, :2]).all(axis=1))
    if len(repeated):
        a, b = once[repeated[0], :2]
        raise ValueError(
            f"rows {a} and {b} are both a positive and a negative pair; keep one of the two"
        )
    return once[:, :2], once[:, 2].astype(bool)


def _threshold(
    distances: NDArray[np.int64], similar: Similar, fpr: float, confidence: float = 0.95
) -> Calibration:
    """Return the calibration of distances that have been checked; see `calibrate`."""
    from scipy.stats import binom

    negatives, positives = np.sort(distances[~similar]), np.sort(distances[similar])
    check_both_kinds(len(positives), len(negatives))
    if len(negatives) * fpr < 3 - 1e-9:
        rate = 3 / len(negatives)
        raise ValueError(
            f"{len(negatives)} negative pairs cannot show a false positive rate of {fpr:g}: even "
            f"without any false positive among them, the rate could be {min(rate, 1):.2g}. Give at "
            f"least {int(np.ceil(3 / fpr - 1e-9))} negative pairs"
            + (f", or set fpr to {rate:.2g} or more" if rate < 1 else "")
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
