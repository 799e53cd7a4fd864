"""Similarity-sensitive hashing by boosting (SSH, eq. 1): each bit is a weak classifier of pairs."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from .._core import best_weighted_cut
from ..directions import smallest_eigenvectors
from ..encode import Encoder
from ..kernels import IdentityMap, Rows
from ..pairs import Pairs, Similar, check_both_kinds, distinct_rows
from ..parallel import run, sum_tiles
from ..preprocess import Preprocess, preprocess_rows
from ..thresholds import BitRates, cut_value, rank
from .base import BaseHasher

_TILE = 2048  # pairs per product
_CHANCE = 0.5 - 1e-9  # weighted error above which a bit tells nothing


class BoostedHash(BaseHasher):
    """Boosted similarity-sensitive hashing (SSH).

    AdaBoost over pairs: every bit is a weak classifier that calls a pair similar if both members
    fall on the same side, chosen for the weighted pairs; pairs that it gets wrong weigh more for
    the next one. Both kinds of pairs start with half of the weight. Where no bit beats chance, or
    one is perfect, the weights start afresh, randomly perturbed.

    Parameters
    ----------
    n_bits : int, optional
        Any number; 128 by default.
    weak : {"axis", "projection"}
        ``"axis"``: the best single feature and threshold (Shakhnarovich). ``"projection"``: the
        direction that minimises eq. (1) without the sign, then the best threshold on it.
    preprocess, n_positives, n_negatives, random_state, n_jobs
        As in `DiffHash`.

    Attributes
    ----------
    directions_ : float32 array of shape (n_bits, d)
    thresholds_ : float32 array of shape (n_bits,)
    offset_ : float32 array of shape (d,)
    bit_weights_ : float64 array of shape (n_bits,)
        AdaBoost's weight of each bit, ``log((1 - error) / error) / 2``; the codes do not use it.
    bit_fnr_, bit_fpr_, bit_ones_ : arrays of shape (n_bits,)
        Error rates of each bit on the training pairs (unweighted), and its share of ones.

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
            raise ValueError("all rows are equal, so no bit can tell them apart")

        sides = np.ascontiguousarray(members.T.astype(np.int32))
        left, right = sides
        learner_class = _AxisLearner if self.weak == "axis" else _ProjectionLearner
        learner = learner_class(features, sides, self.n_jobs)
        directions = np.zeros((n_bits, X.shape[1]), np.float32)
        thresholds = np.zeros(n_bits, np.float32)
        self.bit_weights_ = np.zeros(n_bits)
        fnr, fpr, ones = np.empty((3, n_bits))

        rng = self._rng("restart")
        agree = np.where(similar, 1.0, -1.0)  # the sign that a pair's bits should have
        weights = initial_weights(similar)
        for bit in range(n_bits):
            directions[bit], thresholds[bit] = learner.best_bit(weights * agree)
            encoder = Encoder(self.preprocess, self._feature_map(), directions[bit : bit + 1])
            above = encoder.columns(rows, self.n_jobs)[0] > thresholds[bit]
            same = above[left] == above[right]
            fnr[bit], fpr[bit] = np.mean(~same[similar]), np.mean(same[~similar])
            ones[bit] = above.mean()
            self.bit_weights_[bit], weights = reweigh(weights, same == similar)
            if not 0 < self.bit_weights_[bit] < np.inf:
                weights = initial_weights(similar) * rng.exponential(size=len(similar))
                weights /= weights.sum()
        self.directions_ = directions
        self._take_bit_rates(BitRates(thresholds, fnr, fpr, ones))

    def _feature_map(self) -> IdentityMap:
        return IdentityMap(self.offset_)


def initial_weights(similar: Similar) -> NDArray[np.float64]:
    """Half of the weight for each kind of pairs."""
    return np.asarray(np.where(similar, 0.5 / similar.sum(), 0.5 / (~similar).sum()))


def reweigh(
    weights: NDArray[np.float64], right: NDArray[np.bool_]
) -> tuple[float, NDArray[np.float64]]:
    """AdaBoost's step: the weight of a bit that is `right` on some pairs, and the new pair weights.

    Afterwards the pairs it got right and those it got wrong weigh one half each. A perfect bit has
    infinite weight, one no better than chance none; the pair weights then stay as they are.
    """
    error = float(weights[~right].sum() / weights.sum())
    if error <= 0:
        return np.inf, weights
    if error >= _CHANCE:
        return 0.0, weights
    new = np.where(right, weights / (2 * (1 - error)), weights / (2 * error))
    return float(np.log((1 - error) / error) / 2), new / new.sum()


class _AxisLearner:
    """The best single feature and threshold."""

    def __init__(self, features: Rows, sides: NDArray[np.int32], n_jobs: int | None) -> None:
        self._sides, self._n_jobs = sides, n_jobs
        self._width = features.shape[1]
        self._ranked = [rank(column) for column in features.T]

    def best_bit(self, signed_weights: NDArray[np.float64]) -> tuple[Rows, np.float32]:
        """Direction and threshold that minimise the signed weight of the pairs they separate."""
        losses = np.empty(self._width)
        cuts = np.empty(self._width, np.int64)

        def try_axis(axis: int) -> None:
            ranks, distinct = self._ranked[axis]
            found = best_weighted_cut(ranks, len(distinct), self._sides, signed_weights)
            cuts[axis], losses[axis] = found

        run([partial(try_axis, axis) for axis in range(self._width)], self._n_jobs)
        axis = int(np.argmin(losses))
        direction = np.zeros(self._width, np.float32)
        direction[axis] = 1
        return direction, cut_value(self._ranked[axis][1], int(cuts[axis]))


class _ProjectionLearner:
    """The minimiser of eq. (1) without the sign, then the best threshold on it."""

    def __init__(self, features: Rows, sides: NDArray[np.int32], n_jobs: int | None) -> None:
        self._features, self._sides, self._n_jobs = features, sides, n_jobs

    def best_bit(self, signed_weights: NDArray[np.float64]) -> tuple[Rows, np.float32]:
        """Direction and threshold for signed weights, positive for pairs that should agree."""
        features, (left, right) = self._features, self._sides
        scaled = (signed_weights * len(signed_weights)).astype(np.float32)

        def term(start: int, stop: int) -> NDArray[np.float64]:
            weighed = features[left[start:stop]] * scaled[start:stop, None]
            return np.asarray(weighed.T @ features[right[start:stop]], np.float64)

        width = features.shape[1]
        cross = sum_tiles(lambda: term, len(left), _TILE, (width, width), self._n_jobs)
        direction = smallest_eigenvectors(-(cross + cross.T), 1).astype(np.float32)
        plain = Encoder(None, IdentityMap(np.zeros(width, np.float32)), direction)
        column = plain.columns(features, self._n_jobs)[0]
        ranks, distinct = rank(column)
        cut, _ = best_weighted_cut(ranks, len(distinct), self._sides, signed_weights)
        return direction[0], cut_value(distinct, cut)
