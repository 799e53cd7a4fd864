"""Hashing across two kinds of descriptors: one map for each, learned together."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from ..codes import Codes
from ..encode import Encoder, compute_features
from ..model_file import Arrays, Header, Model, from_json, to_json
from ..moments import covariance
from ..pairs import Pairs, Similar, as_ids, check_both_kinds, check_pairs
from ..parallel import one_blas_thread, run, sum_tiles
from ..thresholds import BitRates
from .kernel import KernelDiffHash
from .linear import DiffHash, check_ridge
from .stored import from_file, to_file

Matrix = NDArray[np.float64]

_TILE = 1024  # pairs per product; part of the definition of a result, see `parallel`
_SPREAD_ROWS = 50_000  # rows whose features say how they spread
_STORED = ("n_bits", "alpha", "ridge", "n_negatives", "random_state")
_ROUNDS = 3  # of the search for thresholds, one map after the other


class CrossDiffHash(Model, BaseEstimator):
    """Diff-hash across two kinds of descriptors of the same things.

    Codes of both kinds are compared with each other: bit i of a row x of the first kind is the sign
    of ``p_i . x - a_i``, of a row y of the second that of ``q_i . y - b_i``. All p and q follow
    from one singular value decomposition of ``alpha C_P - C_N``, the cross moments of pairs (x, y)
    that match and that do not, on features that are whitened as far as `ridge` lets them. Singular
    vectors that tell little would make bits that tell little; so they are weighed by the square of
    their singular values, and mixed by a random rotation that both maps share.

    Parameters
    ----------
    n_bits : int
        At most the number of features of the narrower kind.
    x, y : DiffHash or KernelDiffHash, optional
        What each kind's features are: the rows themselves or a kernel, with its preprocessing. By
        default `DiffHash()`. Of their parameters those that make features count.
    alpha : float
        Weight of the pairs that match; infinity leaves the others out.
    ridge : float
        What is added to the covariance of features, relative to its mean eigenvalue.
    n_negatives : int
        Pairs that do not match, drawn by `fit`.
    random_state : int, RandomState or None
    n_jobs : int, optional

    Attributes
    ----------
    x_, y_ : DiffHash or KernelDiffHash
        Fitted hashers, one for each kind, to encode with, to save, to export.

    References
    ----------
    M. M. Bronstein: Kernel diff-hash. arXiv:1111.0466, 2011, whose formulas still carry two maps.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import CrossDiffHash, hamming
    >>> rng = np.random.default_rng(0)
    >>> things = rng.normal(size=(500, 4))
    >>> X, Y = things @ rng.normal(size=(4, 8)), things @ rng.normal(size=(4, 12))
    >>> cross = CrossDiffHash(4, random_state=0).fit(X[:400], Y[:400])
    >>> codes_x, codes_y = cross.transform(X[400:], Y[400:])
    >>> bool(hamming(codes_x, codes_y).mean() < 1)
    True
    """

    def __init__(
        self,
        n_bits: int = 128,
        *,
        x: DiffHash | KernelDiffHash | None = None,
        y: DiffHash | KernelDiffHash | None = None,
        alpha: float = 2.0,
        ridge: float = 1e-2,
        n_negatives: int = 200_000,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_bits = n_bits
        self.x = x
        self.y = y
        self.alpha = alpha
        self.ridge = ridge
        self.n_negatives = n_negatives
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: ArrayLike, Y: ArrayLike, ids: ArrayLike | None = None) -> Self:
        """Learn from rows side by side: row i of X and row i of Y show the same thing.

        Parameters
        ----------
        X : array of shape (n, d)
        Y : array of shape (n, e)
        ids : array of shape (n,), optional
            Which thing the rows show; rows of one thing are then not taken for a pair that does
            not match. By default all rows show different things.

        Returns
        -------
        self
        """
        self._check_params()
        n = len(np.asarray(X))
        if len(np.asarray(Y)) != n:
            raise ValueError(f"X has {n} rows and Y {len(np.asarray(Y))}; they go side by side")
        if n < 2:
            raise ValueError(f"X and Y have {n} rows; at least two things are needed")
        things = np.arange(n) if ids is None else as_ids(ids, "ids")
        if things.shape != (n,):
            raise ValueError(f"ids must have shape ({n},), got {things.shape}")
        negatives = self._side("x")._rng("negatives").integers(n, size=(self.n_negatives, 2))
        negatives = negatives[things[negatives[:, 0]] != things[negatives[:, 1]]]
        matching = np.repeat(np.arange(n), 2).reshape(-1, 2)
        pairs = np.concatenate([matching, negatives])
        return self.fit_pairs(X, Y, pairs, np.arange(len(pairs)) < n)

    def fit_pairs(self, X: ArrayLike, Y: ArrayLike, pairs: ArrayLike, similar: ArrayLike) -> Self:
        """Learn from explicit pairs.

        Parameters
        ----------
        X : array of shape (n, d)
        Y : array of shape (m, e)
        pairs : int array of shape (p, 2)
            A row number of X and one of Y.
        similar : bool array of shape (p,)

        Returns
        -------
        self
        """
        self._check_params()
        sides = [self._side("x"), self._side("y")]
        rows = [
            validate_data(side, data, dtype="numeric", ensure_min_samples=2)
            for side, data in zip(sides, (X, Y), strict=True)
        ]
        checked, flags = check_pairs(pairs, similar, (len(rows[0]), len(rows[1])), "XY")
        check_both_kinds(int(flags.sum()), int((~flags).sum()))
        features = []
        for side, data in zip(sides, rows, strict=True):
            side._check_params()
            with one_blas_thread():
                side._fix_features(data, side._draw_samples(len(data)))
            width = side._feature_map().width
            if self.n_bits > width:
                raise ValueError(side._too_many_bits(self.n_bits, width))
            features.append(
                compute_features(data, side.preprocess, side._feature_map(), self.n_jobs)
            )
        rng = sides[0]._rng("rotation")
        for side, vectors in zip(sides, self._solve(features, checked, flags, rng), strict=True):
            side.directions_ = np.ascontiguousarray(vectors, np.float32)
        self._find_thresholds(sides, rows, checked, flags)
        self.x_, self.y_ = sides
        return self

    def transform(self, X: ArrayLike, Y: ArrayLike) -> tuple[Codes, Codes]:
        """Codes of rows of both kinds; `x_.transform` and `y_.transform` encode one kind."""
        check_is_fitted(self)
        return self.x_.transform(X), self.y_.transform(Y)

    def _to_file(self) -> tuple[Header, Arrays]:
        check_is_fitted(self)
        params = {name: getattr(self, name) for name in _STORED}
        if not isinstance(self.random_state, int | np.integer):
            params["random_state"] = None
        header: Header = {"class": type(self).__name__, "sides": {}}
        header["params"] = {name: to_json(name, value) for name, value in params.items()}
        arrays: Arrays = {}
        for name, side in (("x", self.x_), ("y", self.y_)):
            header["sides"][name], own = to_file(side)
            arrays |= {f"{name}.{key}": value for key, value in own.items()}
        return header, arrays

    @classmethod
    def _from_file(cls, header: Header, arrays: Arrays) -> Self:
        sides = {}
        for name, side in header["sides"].items():
            own = {k.removeprefix(f"{name}."): a for k, a in arrays.items() if k[:2] == f"{name}."}
            kind = {"DiffHash": DiffHash, "KernelDiffHash": KernelDiffHash}[side["class"]]
            sides[name] = from_file(kind, side, own)
        params = {name: from_json(value) for name, value in header["params"].items()}
        model = cls(**params, x=clone(sides["x"]), y=clone(sides["y"]))
        model._check_params()
        model.x_, model.y_ = sides["x"], sides["y"]
        if not model.x_.n_bits_ == model.y_.n_bits_ == model.n_bits:
            raise ValueError("its two sides do not have the same number of bits")
        return model

    # -- the steps ------------------------------------------------------------------------------

    def _side(self, name: Literal["x", "y"]) -> Any:
        """An unfitted hasher of one kind, which takes the common parameters from here."""
        given = getattr(self, name)
        if given is not None and not isinstance(given, DiffHash | KernelDiffHash):
            raise ValueError(f"{name} must be a DiffHash or KernelDiffHash, got {given!r}")
        common = {"n_bits": self.n_bits, "random_state": self.random_state, "n_jobs": self.n_jobs}
        return (DiffHash() if given is None else clone(given)).set_params(**common, refine=0)

    def _check_params(self) -> None:
        for name in ("n_bits", "n_negatives"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a whole number from 1, got {value!r}")
        if not self.alpha > 0:
            raise ValueError(f"alpha must be above 0 (it may be inf), got {self.alpha}")
        check_ridge(self.ridge)

    def _solve(
        self,
        features: list[NDArray[np.float32]],
        pairs: Pairs,
        similar: Similar,
        rng: np.random.Generator,
    ) -> tuple[Matrix, Matrix]:
        """Directions of both maps, shapes (n_bits, width)."""
        means = [values.mean(axis=0, dtype=np.float64) for values in features]
        match, other = (self._cross(features, means, pairs[similar == flag]) for flag in (1, 0))
        moment = match if np.isinf(self.alpha) else self.alpha * match - other
        roots = []
        with one_blas_thread():
            for values in features:
                step = -(-len(values) // _SPREAD_ROWS)
                spread = covariance(values[::step], self.n_jobs)
                unit = np.trace(spread) / len(spread)
                spread += (self.ridge * unit + 1e-12 * max(unit, 1e-30)) * np.eye(len(spread))
                roots.append(scipy.linalg.cholesky(spread, lower=True))
            half = scipy.linalg.solve_triangular(roots[0], moment, lower=True)
            inner = scipy.linalg.solve_triangular(roots[1], half.T, lower=True).T
            left, values, right = np.linalg.svd(inner, full_matrices=False)
            if values[0] == 0:
                raise ValueError("nothing that X says follows from Y: are all rows equal?")
            weights = (values[: self.n_bits] / values[0]) ** 2
            rotation = np.linalg.qr(rng.standard_normal((self.n_bits, self.n_bits)))[0]
            # The largest entry of each left vector is positive, so that any solver will do.
            left, right = left[:, : self.n_bits].T, right[: self.n_bits]
            largest = np.abs(left).argmax(axis=1)
            signs = np.where(left[np.arange(len(left)), largest] < 0, -1.0, 1.0)
            mixed = rotation * (signs * weights)
            found = [
                scipy.linalg.solve_triangular(root, (mixed @ vectors).T, lower=True, trans=1).T
                for root, vectors in zip(roots, (left, right), strict=True)
            ]
        return found[0], found[1]

    def _cross(
        self, features: list[NDArray[np.float32]], means: list[Matrix], pairs: Pairs
    ) -> Matrix:
        """Mean of the outer products of both members."""

        def term(start: int, stop: int) -> Matrix:
            x, y = (
                values[pairs[start:stop, side]] - means[side]
                for side, values in enumerate(features)
            )
            return np.asarray(x.T @ y)

        shape = (features[0].shape[1], features[1].shape[1])
        return sum_tiles(lambda: term, len(pairs), _TILE, shape, self.n_jobs) / len(pairs)

    def _find_thresholds(
        self, sides: list[Any], rows: list[Any], pairs: Pairs, similar: Similar
    ) -> None:
        """Thresholds ``min FNR + FPR`` of each bit, of one map while the other's is held."""
        columns = [
            Encoder(side.preprocess, side._feature_map(), side.directions_).columns(
                data, self.n_jobs
            )
            for side, data in zip(sides, rows, strict=True)
        ]
        # A pair that should match weighs as much as all such pairs together weigh 1.
        weights = np.where(similar, 1 / similar.sum(), -1 / (~similar).sum())
        found = np.empty((2, self.n_bits), np.float32)

        def solve(bit: int) -> None:
            values = [columns[side][bit, pairs[:, side]] for side in (0, 1)]
            orders = [np.argsort(v, kind="stable") for v in values]
            cuts = [np.float32(np.median(v)) for v in values]
            for turn in range(2 * _ROUNDS):
                side = turn % 2
                one = values[1 - side] > cuts[1 - side]
                cuts[side] = _best_cut(values[side], orders[side], np.where(one, weights, -weights))
            found[:, bit] = cuts

        run([lambda bit=bit: solve(bit) for bit in range(self.n_bits)], self.n_jobs)  # type: ignore[misc]
        ones, fnr, fpr = np.empty((2, self.n_bits)), np.empty(self.n_bits), np.empty(self.n_bits)
        for bit in range(self.n_bits):
            above = [columns[side][bit, pairs[:, side]] > found[side, bit] for side in (0, 1)]
            ones[:, bit] = above[0].mean(), above[1].mean()
            unlike = above[0] != above[1]
            fnr[bit], fpr[bit] = unlike[similar].mean(), 1 - unlike[~similar].mean()
        for side in (0, 1):
            sides[side]._take_bit_rates(BitRates(found[side], fnr, fpr, ones[side]))


def _best_cut(
    values: NDArray[np.float32], order: NDArray[np.int64], gains: NDArray[np.float64]
) -> np.float32:
    """The cut above which the gains of all values sum up to most, in the middle of its gap."""
    ordered = values[order]
    above = gains.sum() - np.cumsum(gains[order])
    above[:-1][ordered[1:] == ordered[:-1]] = -np.inf  # no cut within equal values
    best = int(above.argmax())
    low = ordered[best]
    high = ordered[min(best + 1, len(ordered) - 1)]
    middle = np.float32((np.float64(low) + np.float64(high)) / 2)
    return middle if low <= middle < high else low
