"""How well distances tell similar pairs from dissimilar ones.

Hamming distances tie. All pairs at one distance pass a threshold together, so the ROC has one
vertex a distance and runs straight between them: a rate inside a tie is interpolated, never decided
by the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Roc:
    """A ROC curve, from (0, 0) to (1, 1), vertex by vertex.

    Attributes
    ----------
    distances : array of shape (v,)
        A pair is called similar at vertex i if its distance is at most ``distances[i]``;
        ``distances[0]`` is -inf.
    fpr, tpr : float64 arrays of shape (v,)
        Shares of dissimilar and of similar pairs that are called similar.
    """

    distances: Floats
    fpr: Floats
    tpr: Floats

    def fnr_at(self, fpr: float) -> float:
        """False-negative rate at a false-positive rate, the lowest that the curve has there."""
        if not 0 < fpr <= 1:
            raise ValueError(f"fpr must lie in (0, 1], got {fpr}")
        after = int(np.searchsorted(self.fpr, fpr, side="right"))
        return 0.0 if after == len(self.fpr) else 1 - _between(self.fpr, self.tpr, after, fpr)

    def fpr_at(self, tpr: float) -> float:
        """False-positive rate at a true-positive rate, the lowest that the curve has there."""
        if not 0 <= tpr <= 1:
            raise ValueError(f"tpr must lie in [0, 1], got {tpr}")
        after = int(np.searchsorted(self.tpr, tpr, side="left"))
        return 0.0 if after == 0 else _between(self.tpr, self.fpr, after, tpr)

    @property
    def fpr95(self) -> float:
        """False-positive rate where 95 % of the similar pairs are found."""
        return self.fpr_at(0.95)

    @property
    def auc(self) -> float:
        """Area under the curve; pairs that tie count half."""
        return float(np.trapezoid(self.tpr, self.fpr))

    @property
    def eer(self) -> float:
        """Equal-error rate: where false-positive and false-negative rate meet."""
        return float(np.interp(0, self.fpr + self.tpr - 1, self.fpr))  # rises from -1 to 1


def roc(distances: ArrayLike, similar: ArrayLike) -> Roc:
    """ROC of a distance on pairs.

    Parameters
    ----------
    distances : array of shape (p,)
        Small for pairs that look alike.
    similar : bool array of shape (p,)

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
    """False-negative rate at a false-positive rate; short for ``roc(...).fnr_at(fpr)``."""
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
    """Pairs sorted into their distinct distances once, to make many weighted ROCs quickly."""

    def __init__(self, distances: Floats, similar: NDArray[np.bool_]) -> None:
        self._levels, position = np.unique(distances, return_inverse=True)
        self._positive, self._negative = position[similar], position[~similar]

    def roc(self, positive_weights: Floats | None, negative_weights: Floats | None) -> Roc:
        """The ROC in which each pair counts by its weight."""
        return Roc(
            np.concatenate([[-np.inf], self._levels]),
            fpr=self._rates(self._negative, negative_weights),
            tpr=self._rates(self._positive, positive_weights),
        )

    def _rates(self, positions: NDArray[np.int64], weights: Floats | None) -> Floats:
        total = np.cumsum(np.bincount(positions, weights, minlength=len(self._levels)))
        return np.concatenate([[0.0], total / total[-1]])


def check_distances(distances: ArrayLike, similar: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    values, flags = np.asarray(distances, dtype=np.float64), np.asarray(similar).astype(bool)
    if values.ndim != 1 or flags.shape != values.shape:
        raise ValueError(
            f"distances and similar must be one-dimensional and equally long, "
            f"got shapes {values.shape} and {flags.shape}"
        )
    if np.isnan(values).any():
        raise ValueError("distances contain NaN")
    if flags.all() or not flags.any():
        raise ValueError("rates need at least one similar and one dissimilar pair")
    return values, flags


def _between(x: Floats, y: Floats, after: int, at: float) -> float:
    """y at x = `at` on the straight line from vertex `after` - 1 to vertex `after`."""
    before = after - 1
    share = (at - x[before]) / (x[after] - x[before])
    return float(y[before] + share * (y[after] - y[before]))
