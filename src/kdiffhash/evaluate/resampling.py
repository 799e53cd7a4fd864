"""Bootstrap resampling of error rates over objects, for confidence intervals.

Pairs that share an object are dependent, so the sampling unit is the object (a cluster bootstrap).
A resample draws as many objects as there are, with replacement. A positive pair is weighted by the
number of times its object was drawn, a negative pair by the product of these numbers for its two
objects.

At low false positive rates this alone gives intervals that are too narrow. A false positive rate of
0.001 may be dominated by a few objects that resemble everything, and a sample of n objects easily
misses a kind of object that makes up 1 / n of the population. Resampling the observed objects
cannot reveal that. Each resample is therefore contaminated, with probability 1/2, by *unseen
objects*: its false positive rate, at every vertex of the curve, becomes

    (FPR + w g) / (1 + w),   w = (4 / n) E,   E ~ Exp(1).

Here n is the number of objects in negative pairs. The mean of w over all resamples is 2 / n, the
share of negative pairs that contain a given object, so one object is added on average. g is the
false positive rate among pairs that contain an unseen object, which is taken to be worse than that
of the worst observed object (see `_unseen_fpr`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .roc import Floats, Levels, Roc, check_distances

Rate = Callable[[Roc], float]

#: Minimum effective number of objects among the false positives, see `enough_objects`.
MIN_EFFECTIVE_OBJECTS = 20.0
# Exponent of the worst observed object's false positive rate: 1 leaves it, 0 makes all pairs of an
# unseen object false positives. Of the values tried, 0.4 is the largest with a coverage of 0.90 at
# FPR 0.001 for 600 heavy-tailed objects.
_SEVERITY = 0.4
_FPR_GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # where the worst object is determined


def resample_rates(
    rates: Sequence[Rate],
    distances: Sequence[ArrayLike],
    similar: ArrayLike,
    objects: ArrayLike,
    *,
    n_resamples: int = 500,
    random_state: int | np.random.Generator | None = None,
) -> tuple[Floats, Floats]:
    """Compute error rates of several methods on the pairs and on resamples of their objects.

    All methods see the same resamples, so differences between methods are paired. Another call with
    the same pairs and the same seed uses the same resamples.

    Parameters
    ----------
    rates : sequence of functions of a Roc
        For instance ``[lambda r: r.fnr_at(1e-3), lambda r: r.fpr95]``.
    distances : sequence of arrays of shape (p,)
        Distances of the same pairs, one array per method.
    similar : bool array of shape (p,)
        True for positive pairs.
    objects : array of shape (p, 2)
        Labels of the two rows of each pair; equal in positive pairs.
    n_resamples : int, default=500
        Number of resamples.
    random_state : int, numpy.random.Generator or None, default=None
        Seed of the resamples.

    Returns
    -------
    values : float64 array of shape (n_methods, n_rates)
        Rates on the pairs themselves.
    samples : float64 array of shape (n, n_methods, n_rates)
        Rates on the resamples; those without positive or without negative pairs are left out.

    Raises
    ------
    ValueError
        If shapes do not match, or there are too few objects to resample.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash.evaluate.resampling import resample_rates
    >>> objects = np.array([[0, 0], [1, 1], [2, 2], [0, 1], [1, 2], [0, 2]])
    >>> similar = objects[:, 0] == objects[:, 1]
    >>> near, far = [1, 1, 2, 5, 6, 7], [1, 6, 2, 5, 6, 7]
    >>> values, samples = resample_rates(
    ...     [lambda r: r.auc], [near, far], similar, objects, n_resamples=20, random_state=0
    ... )
    >>> values.ravel().round(3), bool((samples[:, 0] >= samples[:, 1]).all())
    (array([1.   , 0.833]), True)
    """
    if n_resamples < 2:
        raise ValueError(f"n_resamples must be at least 2, got {n_resamples}")
    checked = [check_distances(values, similar) for values in distances]
    flags = checked[0][1]
    first, second, n_objects = _members(objects, flags)
    own, left, right = first[flags], first[~flags], second[~flags]
    n_in_negatives = len(np.unique([left, right]))
    levels = [Levels(*arrays) for arrays in checked]
    curves = [level.roc(None, None) for level in levels]
    unseen = [
        _unseen_fpr(curve, values[~flags], left, right)
        for curve, (values, _) in zip(curves, checked)
    ]

    rng = np.random.default_rng(random_state)
    samples = []
    for _ in range(n_resamples):
        counts = rng.multinomial(n_objects, np.full(n_objects, 1 / n_objects)).astype(np.float64)
        # Weight of unseen objects: one object on average, which is in 2 / n of the pairs.
        weight = (rng.random() < 0.5) * 2 * rng.exponential() * 2 / n_in_negatives
        positive, negative = counts[own], counts[left] * counts[right]
        if positive.any() and negative.any():
            resampled = [level.roc(positive, negative) for level in levels]
            contaminated = [
                Roc(curve.distances, (curve.fpr + weight * fpr) / (1 + weight), curve.tpr)
                for curve, fpr in zip(resampled, unseen)
            ]
            samples.append([[rate(curve) for rate in rates] for curve in contaminated])
    if not samples:
        raise ValueError("too few objects to resample; give pairs of more objects")
    return np.array([[rate(curve) for rate in rates] for curve in curves]), np.array(samples)


def combine_seeds(
    values: ArrayLike,
    samples: ArrayLike,
    *,
    random_state: int | np.random.Generator | None = None,
) -> tuple[Floats, Floats]:
    """Average rates over training seeds, resampling the seeds within each resample of objects.

    Each resample of the objects draws s of the s seeds with replacement. The variance of the mean
    of such a draw is (s - 1) / s times that of the mean of s new seeds, so its deviation from the
    mean over all seeds is multiplied by sqrt(s / (s - 1)).

    Parameters
    ----------
    values : array of shape (s, ...)
        Rates of each of s seeds.
    samples : array of shape (s, n, ...)
        Rates on n resamples of the objects, which must be the same for all seeds.
    random_state : int, numpy.random.Generator or None, default=None
        Seed of the resampling of seeds. Use the same for two methods that are to be compared.

    Returns
    -------
    values : float64 array of shape (...)
        Means over seeds.
    samples : float64 array of shape (n, ...)
        Resampled means, for `interval_of`.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash.evaluate.bootstrap import interval_of
    >>> from kdiffhash.evaluate.resampling import combine_seeds
    >>> rng = np.random.default_rng(0)
    >>> by_seed = np.array([0.30, 0.34, 0.32, 0.31, 0.33])
    >>> samples = by_seed[:, None] + 0.01 * rng.normal(size=1000)
    >>> interval = interval_of(*combine_seeds(by_seed, samples, random_state=0))
    >>> [round(float(end), 2) for end in (interval.low, interval.value, interval.high)]
    [0.3, 0.32, 0.34]
    """
    by_seed, resampled = np.asarray(values, np.float64), np.asarray(samples, np.float64)
    if not len(by_seed) or resampled.ndim < 2 or resampled.shape[0] != len(by_seed):
        raise ValueError(
            f"samples must have shape (n_seeds, n_resamples, ...) for {len(by_seed)} seeds, "
            f"got {resampled.shape}"
        )
    n_seeds, n = resampled.shape[:2]
    means = resampled.mean(axis=0)
    if n_seeds > 1:
        rng = np.random.default_rng(random_state)
        seeds = rng.integers(n_seeds, size=(n, n_seeds))
        drawn = resampled[seeds, np.arange(n)[:, None]].mean(axis=1)
        means = means + np.sqrt(n_seeds / (n_seeds - 1)) * (drawn - means)
    return by_seed.mean(axis=0), means


def effective_objects(
    rate: Rate, distances: ArrayLike, similar: ArrayLike, objects: ArrayLike
) -> float:
    """Compute the effective number of objects among the false positives.

    It is (sum c)^2 / sum c^2, where c is the number of false positives that contain each object:
    the number of objects if c is the same for all, and small if a few objects are in most false
    positives. (If a single object is in all of them, the result is below 4, since every pair has
    two objects.)

    Parameters
    ----------
    rate : function of a Roc
        Its operating point is the false positive rate at which it calls `Roc.fnr_at` or
        `Roc.fpr_at`, the lowest one if there are several. A function of the whole curve, such as
        the area under it, has none.
    distances : array of shape (p,)
        Distances of the pairs.
    similar : bool array of shape (p,)
        True for positive pairs.
    objects : array of shape (p, 2)
        Labels of the two rows of each pair; equal in positive pairs.

    Returns
    -------
    n_effective : float
        Infinite if the rate has no operating point; 0 if there is no false positive.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash.evaluate.resampling import effective_objects
    >>> objects = np.array([[0, 0], [1, 2], [1, 3], [2, 3], [0, 3]])
    >>> similar = objects[:, 0] == objects[:, 1]
    >>> distances = [1, 1, 1, 5, 5]  # object 1 is in both false positives
    >>> round(effective_objects(lambda r: r.fnr_at(0.5), distances, similar, objects), 2)
    2.67
    """
    return _operating_points([rate], [distances], similar, objects)[0][0][0][0]


def enough_objects(
    rate: Rate, distances: ArrayLike, similar: ArrayLike, objects: ArrayLike
) -> bool:
    """Return whether there are enough objects for a reliable confidence interval of a rate.

    There are two conditions. At the operating point of the rate, with false positive rate f,

    - the effective number of objects among the false positives must be at least
      `MIN_EFFECTIVE_OBJECTS` (20), so that the rate is not determined by a few objects, and
    - negative pairs must contain at least 2 / f objects. One of n objects is in 2 / n of the
      negative pairs, so with fewer objects, a single one that resembles everything would account
      for all of f, and whether the sample contains such an object is a matter of chance.

    Parameters
    ----------
    rate : function of a Roc
        See `effective_objects`.
    distances : array of shape (p,)
        Distances of the pairs.
    similar : bool array of shape (p,)
        True for positive pairs.
    objects : array of shape (p, 2)
        Labels of the two rows of each pair; equal in positive pairs.

    Returns
    -------
    is_enough : bool
        True if the rate has no operating point.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash.evaluate.resampling import enough_objects
    >>> rng = np.random.default_rng(0)
    >>> negative = rng.integers(1000, size=(20_000, 2))
    >>> objects = np.concatenate([np.repeat(np.arange(1000), 2).reshape(-1, 2), negative])
    >>> similar = objects[:, 0] == objects[:, 1]
    >>> distances = rng.normal(size=len(objects)) - 3 * similar
    >>> enough_objects(lambda r: r.fnr_at(1e-2), distances, similar, objects)
    True
    >>> enough_objects(lambda r: r.fnr_at(1e-3), distances, similar, objects)
    False
    """
    return bool(enough_objects_each([rate], [distances], similar, objects)[0, 0])


def enough_objects_each(
    rates: Sequence[Rate], distances: Sequence[ArrayLike], similar: ArrayLike, objects: ArrayLike
) -> NDArray[np.bool_]:
    """Apply the rule of `enough_objects` to several methods and rates on the same pairs.

    Parameters
    ----------
    rates : sequence of functions of a Roc
        See `effective_objects`.
    distances : sequence of arrays of shape (p,)
        Distances of the same pairs, one array per method.
    similar : bool array of shape (p,)
        True for positive pairs.
    objects : array of shape (p, 2)
        Labels of the two rows of each pair; equal in positive pairs.

    Returns
    -------
    is_enough : bool array of shape (n_methods, n_rates)

    Examples
    --------
    >>> from kdiffhash.evaluate.resampling import enough_objects_each
    >>> objects = [[0, 0], [1, 1], [0, 1], [1, 0]]
    >>> rates = [lambda r: r.fnr_at(0.5), lambda r: r.auc]
    >>> enough_objects_each(rates, [[1, 2, 3, 4]], [True, True, False, False], objects)
    array([[False,  True]])
    """
    points, n_objects = _operating_points(rates, distances, similar, objects)
    return np.array(
        [
            [
                n_effective >= MIN_EFFECTIVE_OBJECTS and n_objects * fpr >= 2
                for n_effective, fpr in row
            ]
            for row in points
        ]
    )


def _operating_points(
    rates: Sequence[Rate], distances: Sequence[ArrayLike], similar: ArrayLike, objects: ArrayLike
) -> tuple[list[list[tuple[float, float]]], int]:
    """Evaluate the operating points of rates.

    Return, by method and rate, the effective number of objects among the false positives and the
    false positive rate, and the number of objects in negative pairs.
    """
    checked = [check_distances(values, similar) for values in distances]
    flags = checked[0][1]
    first, second, _ = _members(objects, flags)
    left, right = first[~flags], second[~flags]
    points = []
    for values, _ in checked:
        curve = Levels(values, flags).roc(None, None)
        points.append(
            [_operating_point(rate, curve, values[~flags], left, right) for rate in rates]
        )
    return points, len(np.unique([left, right]))


def _operating_point(
    rate: Rate, curve: Roc, distances: Floats, left: NDArray[np.int64], right: NDArray[np.int64]
) -> tuple[float, float]:
    recording = _RecordingRoc(curve.distances, curve.fpr, curve.tpr)
    rate(recording)
    if not recording.fprs_used:
        return np.inf, 1.0
    fpr = min(recording.fprs_used)
    counts = _false_positives(curve, fpr, distances, left, right)
    return float(counts.sum() ** 2 / max((counts**2).sum(), 1)), fpr


@dataclass(frozen=True)
class _RecordingRoc(Roc):
    """A curve that records the false positive rates at which it is evaluated."""

    fprs_used: list[float] = field(default_factory=list)

    def fnr_at(self, fpr: float) -> float:
        self.fprs_used.append(fpr)
        return super().fnr_at(fpr)

    def fpr_at(self, tpr: float) -> float:
        fpr = super().fpr_at(tpr)
        self.fprs_used.append(fpr)
        return fpr


def _members(
    objects: ArrayLike, similar: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Number the objects of both sides of the pairs from 0 to n - 1, and return n too."""
    labels = np.asarray(objects)
    if labels.shape != (len(similar), 2):
        raise ValueError(f"objects must have shape ({len(similar)}, 2), got {labels.shape}")
    differ = np.flatnonzero(similar & (labels[:, 0] != labels[:, 1]))
    if len(differ):
        raise ValueError(
            f"positive pairs must have the same object twice, but pair {differ[0]} has "
            f"{labels[differ[0]].tolist()}"
        )
    distinct, numbers = np.unique(labels, return_inverse=True)
    first, second = numbers.reshape(-1, 2).T
    return first, second, len(distinct)


def _false_positives(
    curve: Roc,
    fpr: float,
    distances: Floats,
    first: NDArray[np.int64],
    second: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Count, per object, the negative pairs accepted where the curve reaches `fpr`."""
    vertex = min(int(np.searchsorted(curve.fpr, fpr)), len(curve.fpr) - 1)
    accepted = distances <= curve.distances[vertex]
    sides = np.concatenate([first[accepted], second[accepted]])
    return np.bincount(sides, minlength=1)


def _unseen_fpr(
    curve: Roc, distances: Floats, left: NDArray[np.int64], right: NDArray[np.int64]
) -> Floats:
    """Return the assumed false positive rate, at each vertex, of pairs with an unseen object.

    At each rate of a grid, the worst object is the one with the most false positives. Its own false
    positive rate is computed at all vertices, less one pair that may have been accepted by chance.
    The largest of these rates at each vertex is raised to a power below 1, which increases it,
    since an unseen object may be worse than any observed one.
    """
    worst = np.zeros(len(curve.fpr))
    for fpr in _FPR_GRID:
        worst_object = int(np.argmax(_false_positives(curve, fpr, distances, left, right)))
        own = np.sort(distances[(left == worst_object) | (right == worst_object)])
        n_accepted = np.searchsorted(own, curve.distances, side="right") - 1
        worst = np.maximum(worst, np.maximum(n_accepted, 0) / len(own))
    worst[-1] = 1.0
    return np.asarray(worst**_SEVERITY)
