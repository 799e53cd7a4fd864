"""ROC curves of distances on positive and negative pairs.

Hamming distances have many ties. All pairs at the same distance pass a threshold together, so the
curve has one vertex per distinct distance, with straight lines between them. A rate inside a tie is
interpolated and does not depend on the order of the pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Roc:
    """A ROC curve from (0, 0) to (1, 1), given by its vertices.

    Attributes
    ----------
    distances : float64 array of shape (v,)
        Distance thresholds. At vertex i, a pair is accepted if its distance is at most
        ``distances[i]``; ``distances[0]`` is -inf.
    fpr : float64 array of shape (v,)
        False positive rate: share of the negative pairs that are accepted.
    tpr : float64 array of shape (v,)
        True positive rate: share of the positive pairs that are accepted.

    Examples
    --------
    >>> from kdiffhash import roc
    >>> curve = roc([0, 1, 1, 3], [True, True, False, False])
    >>> curve.tpr
    array([0. , 0.5, 1. , 1. ])
    >>> curve.fpr
    array([0. , 0. , 0.5, 1. ])
    """

    distances: Floats
    fpr: Floats
    tpr: Floats

    def fnr_at(self, fpr: float) -> float:
        """Return the false negative rate at a false positive rate.

        Parameters
        ----------
        fpr : float
            False positive rate in (0, 1].

        Returns
        -------
        fnr : float
            The lowest false negative rate that the curve has there.
        """
        if not 0 < fpr <= 1:
            raise ValueError(f"fpr must lie in (0, 1], got {fpr}")
        after = int(np.searchsorted(self.fpr, fpr, side="right"))
        return 0.0 if after == len(self.fpr) else 1 - _between(self.fpr, self.tpr, after, fpr)

    def fpr_at(self, tpr: float) -> float:
        """Return the false positive rate at a true positive rate.

        Parameters
        ----------
        tpr : float
            True positive rate in [0, 1].

        Returns
        -------
        fpr : float
            The lowest false positive rate that the curve has there.
        """
        if not 0 <= tpr <= 1:
            raise ValueError(f"tpr must lie in [0, 1], got {tpr}")
        after = int(np.searchsorted(self.tpr, tpr, side="left"))
        return 0.0 if after == 0 else _between(self.tpr, self.fpr, after, tpr)

    @property
    def fpr95(self) -> float:
        """False positive rate at a true positive rate of 95 %."""
        return self.fpr_at(0.95)

    @property
    def auc(self) -> float:
        """Area under the curve; ties count half."""
        return float(np.trapezoid(self.tpr, self.fpr))

    @property
    def eer(self) -> float:
        """Equal error rate: where false positive rate and false negative rate are equal."""
        return float(np.interp(0, self.fpr + self.tpr - 1, self.fpr))  # increases from -1 to 1


def roc(distances: ArrayLike, similar: ArrayLike) -> Roc:
    """Compute the ROC curve of distances.

    Parameters
    ----------
    distances : array of shape (p,)
        Distances of the pairs; smaller means more similar.
    similar : bool array of shape (p,)
        True for positive pairs.

    Returns
    -------
    curve : Roc

    Raises
    ------
    ValueError
        If shapes differ, a distance is NaN, or there is no positive or no negative pair.

    Examples
    --------
    >>> from kdiffhash import roc
    >>> curve = roc([0, 1, 1, 3], [True, True, False, False])
    >>> curve.fnr_at(0.25), curve.auc
    (0.25, 0.875)
    """
    values, flags = check_distances(distances, similar)
    return Levels(values, flags).roc(None, None)


def fnr_at_fpr(distances: ArrayLike, similar: ArrayLike, fpr: float) -> float:
    """Return the false negative rate at a false positive rate.

    Short for ``roc(distances, similar).fnr_at(fpr)``.

    Parameters
    ----------
    distances : array of shape (p,)
        Distances of the pairs; smaller means more similar.
    similar : bool array of shape (p,)
        True for positive pairs.
    fpr : float
        False positive rate in (0, 1].

    Returns
    -------
    fnr : float

    Examples
    --------
    >>> from kdiffhash import fnr_at_fpr
    >>> fnr_at_fpr([0, 1, 1, 3], [True, True, False, False], 0.25)
    0.25
    """
    return roc(distances, similar).fnr_at(fpr)


#: Rates that evaluations report, by name.
RATES: dict[str, Callable[[Roc], float]] = {
    "fnr_at_1e-2": lambda curve: curve.fnr_at(1e-2),
    "fnr_at_1e-3": lambda curve: curve.fnr_at(1e-3),
    "fnr_at_1e-4": lambda curve: curve.fnr_at(1e-4),
    "fpr95": lambda curve: curve.fpr95,
    "auc": lambda curve: curve.auc,
}


class Levels:
    """Pairs grouped by distinct distance, for computing many weighted ROC curves quickly."""

    def __init__(self, distances: Floats, similar: NDArray[np.bool_]) -> None:
        self._levels, position = np.unique(distances, return_inverse=True)
        self._positive, self._negative = position[similar], position[~similar]

    def roc(self, positive_weights: Floats | None, negative_weights: Floats | None) -> Roc:
        """Return the ROC curve of weighted pairs; None means equal weights."""
        return Roc(
            np.concatenate([[-np.inf], self._levels]),
            fpr=self._rates(self._negative, negative_weights),
            tpr=self._rates(self._positive, positive_weights),
        )

    def _rates(self, positions: NDArray[np.int64], weights: Floats | None) -> Floats:
        total = np.cumsum(np.bincount(positions, weights, minlength=len(self._levels)))
        return np.concatenate([[0.0], total / total[-1]])


def check_distances(distances: ArrayLike, similar: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    """Return distances and flags as arrays after checking them."""
    values, flags = np.asarray(distances, dtype=np.float64), np.asarray(similar).astype(bool)
    if values.ndim != 1 or flags.shape != values.shape:
        raise ValueError(
            f"distances and similar must be one-dimensional and of equal length, "
            f"got shapes {values.shape} and {flags.shape}"
        )
    if np.isnan(values).any():
        raise ValueError("distances contain NaN; remove these pairs")
    if flags.all() or not flags.any():
        raise ValueError(
            f"error rates need positive and negative pairs, got {flags.sum()} positive and "
            f"{(~flags).sum()} negative"
        )
    return values, flags


def _between(x: Floats, y: Floats, after: int, at: float) -> float:
    """Interpolate y at x = `at` on the line from vertex `after` - 1 to vertex `after`."""
    before = after - 1
    share = (at - x[before]) / (x[after] - x[before])
    return float(y[before] + share * (y[after] - y[before]))
