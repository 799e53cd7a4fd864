"""Similarity-sensitive hashing by boosting (SSH, eq. 1): each bit is a weak pair classifier."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from .._core import best_weighted_threshold
from .._util.threads import run, sum_tiles
from ..learn.directions import smallest_eigenvectors
from ..learn.encoder import Encoder
from ..learn.kernels import IdentityMap, Rows
from ..learn.pairs import Pairs, Similar, check_both_kinds, distinct_rows
from ..learn.preprocess import Preprocess, preprocess_rows
from ..learn.thresholds import BitRates, rank, threshold_above
from .base import BaseHasher

_TILE = 2048  # pairs per product
_CHANCE = 0.5 - 1e-9  # a weighted error above this is no better than chance


class BoostedHash(BaseHasher):
    """Boosted similarity-sensitive hashing (SSH).

    AdaBoost over pairs: each bit is a weak classifier that calls a pair positive if both members
    get the same bit value. Each bit is chosen for the current pair weights; pairs it classifies
    wrongly get more weight for the next bit. Initially positive and negative pairs have half of the
    total weight each. If the best bit is perfect or no better than chance, the weights are reset
    with a random perturbation.

    Parameters
    ----------
    n_bits : int or None, default=None
        Length of the codes, any number. None means 128.
    weak : {"projection", "axis"}, default="projection"
        Weak classifier. ``"axis"``: the best single feature and threshold (Shakhnarovich).
        ``"projection"``: the direction that minimises eq. (1) of the paper without the sign
        function, then the best threshold on it.
    preprocess : {None, "unit", "hellinger"}, default=None
        Preprocessing of each row, stored with the model: none, scaling to Euclidean length 1, or
        scaling to sum 1 followed by square roots (turns SIFT into RootSIFT).
    n_positives : int, default=100_000
        Number of positive pairs that `fit` draws from the labels.
    n_negatives : int, default=200_000
        Number of negative pairs that `fit` draws from the labels.
    random_state : int, RandomState instance or None, default=None
        Seed of all random choices; an int makes the model reproducible.
    n_jobs : int or None, default=None
        Number of threads; None uses all cores. The result does not depend on it.

    Attributes
    ----------
    directions_ : float32 array of shape (n_bits, d)
        One projection direction per bit.
    thresholds_ : float32 array of shape (n_bits,)
        One threshold per bit.
    offset_ : float32 array of shape (d,)
        Mean of the training rows, subtracted from each row before projection.
    bit_weights_ : float64 array of shape (n_bits,)
        AdaBoost's weight of each bit, ``log((1 - error) / error) / 2``. The codes do not use it.
    bit_fnr_ : float64 array of shape (n_bits,)
        False negative rate of each bit on the training pairs.
    bit_fpr_ : float64 array of shape (n_bits,)
        False positive rate of each bit on the training pairs.
    bit_ones_ : float64 array of shape (n_bits,)
        Share of training rows for which the bit is 1.
    bit_spread_ : float64 array of shape (n_bits,)
        Standard deviation of the projections of training rows.

    References
    ----------
    G. Shakhnarovich: Learning task-specific similarity. PhD thesis, MIT, 2005.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash import BoostedHash
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = BoostedHash(n_bits=16, n_positives=2000, n_negatives=2000, random_state=0)
    >>> hasher.fit_transform(X, y).shape
    (1797, 2)
    """

    offset_: NDArray[np.float32]
    bit_weights_: NDArray[np.float64]

    _per_bit: ClassVar[tuple[str, ...]] = (
        "directions_",
        "thresholds_",
        "bit_weights_",
        "bit_fnr_",
        "bit_fpr_",
        "bit_ones_",
        "bit_spread_",
    )
    _fitted: ClassVar[tuple[str, ...]] = (*_per_bit, "offset_")

    def __init__(
        self,
        n_bits: int | None = None,
        *,
        weak: Literal["axis", "projection"] = "projection",
        preprocess: Preprocess = None,
        n_positives: int = 100_000,
        n_negatives: int = 200_000,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_bits = n_bits
        self.weak = weak
        self.preprocess = preprocess
        self.n_positives = n_positives
        self.n_negatives = n_negatives
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _check_params(self) -> None:
        super()._check_params()
        if self.weak not in ("axis", "projection"):
            raise ValueError(f"weak must be 'axis' or 'projection', got {self.weak!r}")

    def _learn(self, X: Any, pairs: Pairs, similar: Similar, labels: object) -> None:  # noqa: ARG002
        check_both_kinds(int(similar.sum()), int((~similar).sum()))
        n_bits = 128 if self.n_bits is None else int(self.n_bits)
        used, members = distinct_rows(pairs)
        rows = X[used]
        features = preprocess_rows(rows, self.preprocess)
        self.offset_ = features.mean(axis=0, dtype=np.float64).astype(np.float32)
        features -= self.offset_
        if not features.any():
            raise ValueError(
                "all training rows are equal, so no bit can separate them; check X and preprocess"
            )

        sides = np.ascontiguousarray(members.T.astype(np.int32))
        left, right = sides
        learner_class = _AxisLearner if self.weak == "axis" else _ProjectionLearner
        learner = learner_class(features, sides, self.n_jobs)
        directions = np.zeros((n_bits, X.shape[1]), np.float32)
        thresholds = np.zeros(n_bits, np.float32)
        self.bit_weights_ = np.zeros(n_bits)
        fnr, fpr, ones = np.empty((3, n_bits))

        rng = self._rng("restart")
        agree = np.where(similar, 1.0, -1.0)  # +1 if the bits of a pair should agree
        weights = initial_weights(similar)
        for bit in range(n_bits):
            directions[bit], thresholds[bit] = learner.best_bit(weights * agree)
            encoder = Encoder(self.preprocess, self._feature_map(), directions[bit : bit + 1])
            above = encoder.columns(rows, self.n_jobs)[0] > thresholds[bit]
            same = above[left] == above[right]
            fnr[bit], fpr[bit] = np.mean(~same[similar]), np.mean(same[~similar])
            ones[bit] = above.mean()
            self.bit_weights_[bit], weights = update_weights(weights, same == similar)
            if not 0 < self.bit_weights_[bit] < np.inf:
                weights = initial_weights(similar) * rng.exponential(size=len(similar))
                weights /= weights.sum()
        self.directions_ = directions
        self._take_bit_rates(BitRates(thresholds, fnr, fpr, ones))
        self._record_spread(rows, members)

    def _feature_map(self) -> IdentityMap:
        return IdentityMap(self.offset_)


def initial_weights(similar: Similar) -> NDArray[np.float64]:
    """Return pair weights in which positives and negatives have a total of one half each."""
    return np.asarray(np.where(similar, 0.5 / similar.sum(), 0.5 / (~similar).sum()))


def update_weights(
    weights: NDArray[np.float64], correct: NDArray[np.bool_]
) -> tuple[float, NDArray[np.float64]]:
    """Return AdaBoost's weight of a bit and the updated pair weights.

    `correct` marks the pairs that the bit classifies correctly. After the update, these and the
    others have a total weight of one half each. A perfect bit has infinite weight, and one no
    better than chance has weight 0; in both cases the pair weights do not change.
    """
    error = float(weights[~correct].sum() / weights.sum())
    if error <= 0:
        return np.inf, weights
    if error >= _CHANCE:
        return 0.0, weights
    new = np.where(correct, weights / (2 * (1 - error)), weights / (2 * error))
    return float(np.log((1 - error) / error) / 2), new / new.sum()


class _AxisLearner:
    """Weak learner: the best single feature and threshold."""

    def __init__(self, features: Rows, sides: NDArray[np.int32], n_jobs: int | None) -> None:
        self._sides, self._n_jobs = sides, n_jobs
        self._width = features.shape[1]
        self._ranked = [rank(column) for column in features.T]

    def best_bit(self, signed_weights: NDArray[np.float64]) -> tuple[Rows, np.float32]:
        """Return direction and threshold; signed weights are positive for positive pairs."""
        losses = np.empty(self._width)
        cuts = np.empty(self._width, np.int64)

        def try_axis(axis: int) -> None:
            ranks, distinct = self._ranked[axis]
            cuts[axis], losses[axis] = best_weighted_threshold(
                ranks, len(distinct), self._sides, signed_weights
            )

        run([partial(try_axis, axis) for axis in range(self._width)], self._n_jobs)
        axis = int(np.argmin(losses))
        direction = np.zeros(self._width, np.float32)
        direction[axis] = 1
        return direction, threshold_above(self._ranked[axis][1], int(cuts[axis]))


class _ProjectionLearner:
    """Weak learner: the minimiser of eq. (1) without the sign, then the best threshold on it."""

    def __init__(self, features: Rows, sides: NDArray[np.int32], n_jobs: int | None) -> None:
        self._features, self._sides, self._n_jobs = features, sides, n_jobs

    def best_bit(self, signed_weights: NDArray[np.float64]) -> tuple[Rows, np.float32]:
        """Return direction and threshold; signed weights are positive for positive pairs."""
        features, (left, right) = self._features, self._sides
        scaled = (signed_weights * len(signed_weights)).astype(np.float32)

        def term(start: int, stop: int) -> NDArray[np.float64]:
            weighted = features[left[start:stop]] * scaled[start:stop, None]
            return np.asarray(weighted.T @ features[right[start:stop]], np.float64)

        width = features.shape[1]
        cross = sum_tiles(lambda: term, len(left), _TILE, (width, width), self._n_jobs)
        direction = smallest_eigenvectors(-(cross + cross.T), 1).astype(np.float32)
        plain = Encoder(None, IdentityMap(np.zeros(width, np.float32)), direction)
        column = plain.columns(features, self._n_jobs)[0]
        ranks, distinct = rank(column)
        cut, _ = best_weighted_threshold(ranks, len(distinct), self._sides, signed_weights)
        return direction[0], threshold_above(distinct, cut)
