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
        gap = self.fpr - (1 - self.tpr)  # rises from -1 to 1
        after = int(np.argmax(gap >= 0))
        before = after - 1
        share = -gap[before] / (gap[after] - gap[before])
        return float(self.fpr[before] + share * (self.fpr[after] - self.fpr[before]))


@dataclass(frozen=True)
class Interval:
    """A value with its bootstrap interval."""

    value: float
    low: float
    high: float


def roc(distances: ArrayLike, similar: ArrayLike, weights: ArrayLike | None = None) -> Roc:
    """ROC of a distance on pairs.

    Parameters
    ----------
    distances : array of shape (p,)
        Small for pairs that look alike.
    similar : bool array of shape (p,)
    weights : array of shape (p,), optional
        How often each pair counts.

    Examples
    --------
    >>> from kdiffhash import roc
    >>> curve = roc([0, 1, 1, 3], [True, True, False, False])
    >>> curve.fnr_at(0.25), curve.auc
    (0.25, 0.875)
    """
    levels, position, flags = _levels(distances, similar)
    count = np.ones(len(flags)) if weights is None else np.asarray(weights, np.float64)
    return _roc_of_levels(levels, position, flags, count)


def fnr_at_fpr(distances: ArrayLike, similar: ArrayLike, fpr: float) -> float:
    """False-negative rate at a false-positive rate; short for ``roc(...).fnr_at(fpr)``."""
    return roc(distances, similar).fnr_at(fpr)


def bootstrap(
    rate: Callable[[Roc], float],
    distances: ArrayLike,
    similar: ArrayLike,
    things: ArrayLike,
    *,
    n_resamples: int = 500,
    confidence: float = 0.95,
    random_state: int | np.random.Generator | None = None,
) -> Interval:
    """A rate with an interval from resampling things.

    Pairs that share a thing are not independent, so things are drawn again, not pairs: a pair
    counts as often as both of its things were drawn together.

    Parameters
    ----------
    rate : function of a Roc
        For instance ``lambda r: r.fnr_at(1e-3)``.
    distances : array of shape (p,)
    similar : bool array of shape (p,)
    things : array of shape (p, 2)
        Ids of the things in each pair; equal in similar pairs.

    Returns
    -------
    interval : Interval
    """
    return _bootstrap([rate], [distances], similar, things, n_resamples, confidence, random_state)


def bootstrap_difference(
    rate: Callable[[Roc], float],
    distances: ArrayLike,
    other_distances: ArrayLike,
    similar: ArrayLike,
    things: ArrayLike,
    *,
    n_resamples: int = 500,
    confidence: float = 0.95,
    random_state: int | np.random.Generator | None = None,
) -> Interval:
    """``rate(distances) - rate(other_distances)`` with an interval from paired resampling.

    Both methods see the same things drawn, so what they have in common cancels. An interval below
    zero says that the first method has the lower rate. Parameters as in `bootstrap`.
    """
    both = [distances, other_distances]
    return _bootstrap([rate, rate], both, similar, things, n_resamples, confidence, random_state)


def _bootstrap(
    rates: list[Callable[[Roc], float]],
    distances: list[ArrayLike],
    similar: ArrayLike,
    things: ArrayLike,
    n_resamples: int,
    confidence: float,
    random_state: int | np.random.Generator | None,
) -> Interval:
    """Interval of one rate, or of the first minus the second."""
    if n_resamples < 2 or not 0 < confidence < 1:
        raise ValueError("n_resamples must be at least 2 and confidence must lie in (0, 1)")
    ids = np.asarray(things)
    levels = [_levels(d, similar) for d in distances]
    if ids.shape != (len(levels[0][2]), 2):
        raise ValueError(f"things must have shape ({len(levels[0][2])}, 2), got {ids.shape}")
    names, ids = np.unique(ids, return_inverse=True)
    first, second = ids.reshape(-1, 2).T
    rng = np.random.default_rng(random_state)

    def value(weights: Floats) -> float:
        values = [
            rate(_roc_of_levels(*level, weights)) for rate, level in zip(rates, levels, strict=True)
        ]
        return values[0] - values[1] if len(values) == 2 else values[0]

    similar_pair = levels[0][2]
    samples = []
    for _ in range(n_resamples):
        drawn = np.bincount(rng.integers(len(names), size=len(names)), minlength=len(names))
        # A similar pair lies within one thing and comes with each copy of it.
        weights = np.where(similar_pair, drawn[first], drawn[first] * drawn[second])
        if weights[similar_pair].any() and weights[~similar_pair].any():
            samples.append(value(weights.astype(np.float64)))
    if not samples:
        raise ValueError("too few things to resample; an interval needs pairs of several things")
    tail = (1 - confidence) / 2
    low, high = np.quantile(samples, [tail, 1 - tail])
    return Interval(value(np.ones(len(first))), float(low), float(high))


def _levels(
    distances: ArrayLike, similar: ArrayLike
) -> tuple[Floats, NDArray[np.int64], NDArray[np.bool_]]:
    """The distinct distances, the place of each pair among them, and the checked flags."""
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
    levels, position = np.unique(values, return_inverse=True)
    return levels, position, flags


def _roc_of_levels(
    levels: Floats, position: NDArray[np.int64], similar: NDArray[np.bool_], weights: Floats
) -> Roc:
    def rates(of: NDArray[np.bool_]) -> Floats:
        total = np.cumsum(np.bincount(position[of], weights[of], minlength=len(levels)))
        return np.concatenate([[0.0], total / total[-1]])

    return Roc(np.concatenate([[-np.inf], levels]), fpr=rates(~similar), tpr=rates(similar))


def _between(x: Floats, y: Floats, after: int, at: float) -> float:
    """y at x = `at` on the straight line from vertex `after` - 1 to vertex `after`."""
    before = after - 1
    share = (at - x[before]) / (x[after] - x[before])
    return float(y[before] + share * (y[after] - y[before]))
