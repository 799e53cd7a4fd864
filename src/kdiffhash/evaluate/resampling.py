"""Rates on resamples of the objects, for confidence intervals.

Two things are resampled. Objects are drawn with replacement, since pairs that share an object are
not independent. And half of the resamples get *unseen objects*: a false positive rate of 0.001 may
be ruled by a few objects that resemble everything, and a sample of n objects can easily have missed
a kind that makes up 1 / n of the population. Drawing again from what was seen can never tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .roc import Floats, Levels, Roc, check_distances

Rate = Callable[[Roc], float]

#: Effective objects behind the false positives that `enough_objects` asks for.
MIN_EFFECTIVE_OBJECTS = 20.0
# Between the worst object seen (1) and one whose pairs are all false positives (0), on a log scale.
# Of the powers tried, the largest that covers 0.90 at FPR 0.001 with 600 heavy-tailed objects.
_SEVERITY = 0.4
_FPR_GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # where the worst objects are looked for


def resample_rates(
    rates: Sequence[Rate],
    distances: Sequence[ArrayLike],
    similar: ArrayLike,
    objects: ArrayLike,
    *,
    n_resamples: int = 500,
    random_state: int | np.random.Generator | None = None,
) -> tuple[Floats, Floats]:
    """Compute rates of several distances on the same pairs and on the same resamples.

    All distances see the same resamples, so the difference of two columns of the samples is a
    paired one. The same pairs and the same seed give the same resamples in another call.

    Parameters
    ----------
    rates : sequence of functions of a Roc
        For instance ``[lambda r: r.fnr_at(1e-3), lambda r: r.fpr95]``.
    distances : sequence of arrays of shape (p,)
        One array per method.
    similar : bool array of shape (p,)
        True for positive pairs.
    objects : array of shape (p, 2)
        Ids of the objects in each pair; equal in positive pairs.
    n_resamples : int, default=500
        Number of resamples.
    random_state : int, Generator or None, default=None
        Seed of the resamples.

    Returns
    -------
    values : float64 array of shape (n_distances, n_rates)
        Rates on the pairs as they are.
    samples : float64 array of shape (n, n_distances, n_rates)
        One entry for each resample that has pairs of both kinds.

    Raises
    ------
    ValueError
        If shapes do not fit, or there are too few objects to resample.

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
    inside, left, right = first[flags], first[~flags], second[~flags]
    n_seen = len(np.unique([left, right]))
    levels = [Levels(*one) for one in checked]
    curves = [level.roc(None, None) for level in levels]
    unseen = [
        _unseen_fpr(curve, values[~flags], left, right)
        for curve, (values, _) in zip(curves, checked)
    ]

    rng = np.random.default_rng(random_state)
    samples = []
    for _ in range(n_resamples):
        drawn = rng.multinomial(n_objects, np.full(n_objects, 1 / n_objects)).astype(np.float64)
        # In expectation one object as bad as any seen, which is in 2 / n of the pairs.
        share = (rng.random() < 0.5) * 2 * rng.exponential() * 2 / n_seen
        positive, negative = drawn[inside], drawn[left] * drawn[right]
        if positive.any() and negative.any():
            again = [level.roc(positive, negative) for level in levels]
            mixed = [
                Roc(one.distances, (one.fpr + share * more) / (1 + share), one.tpr)
                for one, more in zip(again, unseen)
            ]
            samples.append([[rate(curve) for rate in rates] for curve in mixed])
    if not samples:
        raise ValueError("too few objects to resample; an interval needs pairs of several objects")
    return np.array([[rate(curve) for rate in rates] for curve in curves]), np.array(samples)


def combine_seeds(
    values: ArrayLike,
    samples: ArrayLike,
    *,
    random_state: int | np.random.Generator | None = None,
) -> tuple[Floats, Floats]:
    """Average rates over training seeds, and resample the seeds in every resample of objects.

    The deviation of drawn seeds from the mean of all is multiplied by sqrt(s / (s - 1)): means of s
    drawn out of s seeds vary by that much less than means of s new seeds.

    Parameters
    ----------
    values : array of shape (s, ...)
        Rates for each of s seeds.
    samples : array of shape (s, n, ...)
        The same on n resamples of the objects, the same ones for each seed.
    random_state : int, Generator or None, default=None
        Seed of the draw of seeds; the same one draws the same seeds for another method.

    Returns
    -------
    values : float64 array of shape (...)
        Mean over seeds.
    samples : float64 array of shape (n, ...)
        Resampled means; `interval_of` makes an interval of them.

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
    by_seed, again = np.asarray(values, np.float64), np.asarray(samples, np.float64)
    if not len(by_seed) or again.ndim < 2 or again.shape[0] != len(by_seed):
        raise ValueError(
            f"samples must have shape (n_seeds, n_resamples, ...) for {len(by_seed)} seeds, "
            f"got {again.shape}"
        )
    n_seeds, n = again.shape[:2]
    middle = again.mean(axis=0)
    if n_seeds > 1:
        rng = np.random.default_rng(random_state)
        drawn = again[rng.integers(n_seeds, size=(n, n_seeds)), np.arange(n)[:, None]].mean(axis=1)
        middle = middle + np.sqrt(n_seeds / (n_seeds - 1)) * (drawn - middle)
    return by_seed.mean(axis=0), middle


def effective_objects(
    rate: Rate, distances: ArrayLike, similar: ArrayLike, objects: ArrayLike
) -> float:
    """Count the objects behind the false positives at the operating point of a rate.

    With c false positives of each object, this is (sum c)^2 / sum c^2: the number of objects if all
    have equally many, near 1 if a single object is in nearly all of them.

    Parameters
    ----------
    rate : function of a Roc
        Its operating point is where it calls `Roc.fnr_at` or `Roc.fpr_at`; the lowest false
        positive rate where there are several. A rate of the whole curve, such as the area under
        it, has none.
    distances : array of shape (p,)
    similar : bool array of shape (p,)
    objects : array of shape (p, 2)

    Returns
    -------
    n_effective : float
        Infinite for a rate of the whole curve; 0 where there is no false positive.

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
    return _behind_false_positives(rate, distances, similar, objects)[0]


def enough_objects(
    rate: Rate, distances: ArrayLike, similar: ArrayLike, objects: ArrayLike
) -> bool:
    """Tell whether an interval of a rate is reliable: the rule of enough objects.

    At the false positive rate f of its operating point, the rate needs

    - false positives of at least `MIN_EFFECTIVE_OBJECTS` effective objects (20), so that no few
      objects rule it, and
    - at least 2 / f objects in negative pairs: one object is in 2 / n of the pairs, so with fewer,
      one that resembles everything would make up the rate alone, and missing it would be luck.

    Parameters
    ----------
    rate : function of a Roc
        See `effective_objects`.
    distances : array of shape (p,)
    similar : bool array of shape (p,)
    objects : array of shape (p, 2)

    Returns
    -------
    is_enough : bool
        True for a rate of the whole curve.

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
    n_effective, fpr, n_objects = _behind_false_positives(rate, distances, similar, objects)
    return bool(n_effective >= MIN_EFFECTIVE_OBJECTS and n_objects * fpr >= 2)


def _behind_false_positives(
    rate: Rate, distances: ArrayLike, similar: ArrayLike, objects: ArrayLike
) -> tuple[float, float, int]:
    """Effective objects at the operating point, its false positive rate, objects in negatives."""
    values, flags = check_distances(distances, similar)
    first, second, _ = _members(objects, flags)
    left, right = first[~flags], second[~flags]
    n_objects = len(np.unique([left, right]))
    curve = Levels(values, flags).roc(None, None)
    watched = _WatchedRoc(curve.distances, curve.fpr, curve.tpr)
    rate(watched)
    if not watched.asked:
        return np.inf, 1.0, n_objects
    fpr = min(watched.asked)
    counts = _false_positives(curve, fpr, values[~flags], left, right)
    return float(counts.sum() ** 2 / max((counts**2).sum(), 1)), fpr, n_objects


@dataclass(frozen=True)
class _WatchedRoc(Roc):
    """A curve that notes the false positive rates it is read at."""

    asked: list[float] = field(default_factory=list)

    def fnr_at(self, fpr: float) -> float:
        self.asked.append(fpr)
        return super().fnr_at(fpr)

    def fpr_at(self, tpr: float) -> float:
        found = super().fpr_at(tpr)
        self.asked.append(found)
        return found


def _members(
    objects: ArrayLike, similar: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Objects of both sides of the pairs as numbers 0..n-1, and n."""
    ids = np.asarray(objects)
    if ids.shape != (len(similar), 2):
        raise ValueError(f"objects must have shape ({len(similar)}, 2), got {ids.shape}")
    if np.any(ids[similar, 0] != ids[similar, 1]):
        raise ValueError("positive pairs must have the same object twice")
    names, numbers = np.unique(ids, return_inverse=True)
    first, second = numbers.reshape(-1, 2).T
    return first, second, len(names)


def _false_positives(
    curve: Roc,
    fpr: float,
    distances: Floats,
    first: NDArray[np.int64],
    second: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Negative pairs at most as far as the distance where the curve reaches `fpr`, per object."""
    vertex = min(int(np.searchsorted(curve.fpr, fpr)), len(curve.fpr) - 1)
    passed = distances <= curve.distances[vertex]
    sides = np.concatenate([first[passed], second[passed]])
    return np.bincount(sides, minlength=1)


def _unseen_fpr(
    curve: Roc, distances: Floats, left: NDArray[np.int64], right: NDArray[np.int64]
) -> Floats:
    """False positive rate, at the vertices of the curve, of pairs with an unseen object.

    The share of the worst object's pairs that pass, less one pair that may have passed by chance,
    raised to a power below 1: an unseen object may be worse.
    """
    worst = np.zeros(len(curve.fpr))
    for fpr in _FPR_GRID:
        one = int(np.argmax(_false_positives(curve, fpr, distances, left, right)))
        own = np.sort(distances[(left == one) | (right == one)])
        passed = np.searchsorted(own, curve.distances, side="right") - 1
        worst = np.maximum(worst, np.maximum(passed, 0) / len(own))
    worst[-1] = 1.0
    return np.asarray(worst**_SEVERITY)
