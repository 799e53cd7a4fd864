"""How well distances tell similar pairs from dissimilar ones.

Hamming distances tie. All pairs at one distance pass a threshold together, so the ROC has one
vertex a distance and runs straight between them: a rate inside a tie is interpolated, never decided
by the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


@dataclass(frozen=True)
class Interval:
    """A value with its bootstrap interval."""

    value: float
    low: float
    high: float


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
    values, flags = _check(distances, similar)
    return _Levels(values, flags).roc(None, None)


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

    Pairs that share a thing are not independent, so things are drawn again, not pairs: a similar
    pair counts as often as its thing was drawn, a dissimilar one as often as both of its things
    were drawn together.

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

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import bootstrap
    >>> things = np.array([[0, 0], [1, 1], [2, 2], [0, 1], [1, 2], [0, 2]])
    >>> similar = things[:, 0] == things[:, 1]
    >>> bootstrap(lambda r: r.auc, [1, 1, 2, 5, 6, 7], similar, things, random_state=0)
    Interval(value=1.0, low=1.0, high=1.0)
    """
    values, samples = resample_rates(
        [rate], [distances], similar, things, n_resamples=n_resamples, random_state=random_state
    )
    return interval_of(values[0, 0], samples[:, 0, 0], confidence)


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
    values, samples = resample_rates(
        [rate], both, similar, things, n_resamples=n_resamples, random_state=random_state
    )
    return interval_of(values[0, 0] - values[1, 0], samples[:, 0, 0] - samples[:, 1, 0], confidence)


def resample_rates(
    rates: Sequence[Callable[[Roc], float]],
    distances: Sequence[ArrayLike],
    similar: ArrayLike,
    things: ArrayLike,
    *,
    n_resamples: int = 500,
    random_state: int | np.random.Generator | None = None,
) -> tuple[Floats, Floats]:
    """Several rates of several distances on the same pairs, and on the same resamples of things.

    Since all see the same things drawn, any difference of two columns of the samples is a paired
    one. With the same pairs and the same seed the same things are drawn again.

    Returns
    -------
    values : float64 array of shape (n_distances, n_rates)
    samples : float64 array of shape (n, n_distances, n_rates)
        One entry for each resample that has pairs of both kinds.
    """
    if n_resamples < 2:
        raise ValueError(f"n_resamples must be at least 2, got {n_resamples}")
    checked = [_check(values, similar) for values in distances]
    flags, pair_ids = checked[0][1], np.asarray(things)
    if pair_ids.shape != (len(flags), 2):
        raise ValueError(f"things must have shape ({len(flags)}, 2), got {pair_ids.shape}")
    if np.any(pair_ids[flags, 0] != pair_ids[flags, 1]):
        raise ValueError("similar pairs must have the same thing twice")
    names, members = np.unique(pair_ids, return_inverse=True)
    first, second = members.reshape(-1, 2).T
    levels = [_Levels(*one) for one in checked]
    inside, left, right = first[flags], first[~flags], second[~flags]

    def measure(positive: Floats | None, negative: Floats | None) -> list[list[float]]:
        curves = (level.roc(positive, negative) for level in levels)
        return [[rate(curve) for rate in rates] for curve in curves]

    rng = np.random.default_rng(random_state)
    samples = []
    for _ in range(n_resamples):
        drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names))).astype(np.float64)
        positive, negative = drawn[inside], drawn[left] * drawn[right]
        if positive.any() and negative.any():
            samples.append(measure(positive, negative))
    if not samples:
        raise ValueError("too few things to resample; an interval needs pairs of several things")
    return np.array(measure(None, None)), np.array(samples)


def interval_of(value: float, samples: ArrayLike, confidence: float = 0.95) -> Interval:
    """A value with the interval that holds the given share of its resampled values."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1), got {confidence}")
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.asarray(samples, np.float64), [tail, 1 - tail])
    return Interval(float(value), float(low), float(high))


class _Levels:
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


def _check(distances: ArrayLike, similar: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
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
