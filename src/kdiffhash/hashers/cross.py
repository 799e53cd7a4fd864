"""Cross-modal hashing: one hash function per kind of descriptor, learned jointly."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from .._util.threads import one_blas_thread, run, sum_tiles
from ..codes import Codes
from ..learn.encoder import Encoder, compute_features
from ..learn.moments import covariance
from ..learn.pairs import Pairs, Similar, check_both_kinds, pairs_of_sides
from ..learn.thresholds import BitRates
from .kernel import KernelDiffHash
from .linear import DiffHash, check_ridge
from .model_file import Arrays, Header, Model, to_json
from .schema import check_params
from .serialization import from_file, params_from, section, to_file

Matrix = NDArray[np.float64]

_TILE = 1024  # pairs per product; the order of summation, and so the result, depends on it
_COVARIANCE_ROWS = 50_000  # sample size for the covariance of the features
_STORED = ("n_bits", "alpha", "ridge", "n_negatives", "random_state")
_ROUNDS = 3  # alternations of the threshold search between the two maps


class CrossDiffHash(Model, BaseEstimator):
    """Diff-hash across two modalities: one hash function per kind of descriptor, learned jointly.

    Codes of both kinds are comparable: bit i of a row x of the first kind is the sign of
    ``p_i . x - a_i``, that of a row y of the second kind the sign of ``q_i . y - b_i``. All p and q
    come from one singular value decomposition of ``alpha C_P - C_N``, the cross moments of positive
    and negative pairs (x, y), after whitening both kinds of features with regularisation `ridge`.
    Singular vectors are weighted by the squares of their singular values and mixed by a random
    rotation shared by both maps, so that weak components do not become weak bits.

    Parameters
    ----------
    n_bits : int, default=128
        Length of the codes, at most the number of features of either kind.
    x : DiffHash or KernelDiffHash or None, default=None
        Features of the first kind: an unfitted hasher whose preprocessing, kernel and basis are
        used; its other parameters are ignored. None means ``DiffHash()``.
    y : DiffHash or KernelDiffHash or None, default=None
        Features of the second kind, given in the same way.
    alpha : float, default=2.0
        Weight of the positive pairs; ``inf`` ignores the negatives.
    ridge : float, default=1e-2
        Regularisation of the whitening, relative to the mean eigenvalue of the covariance.
    n_negatives : int, default=200_000
        Number of negative pairs that `fit` draws.
    random_state : int, RandomState instance or None, default=None
        Seed of all random choices; an int makes the model reproducible.
    n_jobs : int or None, default=None
        Number of threads; None uses all cores. The result does not depend on it.

    Attributes
    ----------
    x_ : DiffHash or KernelDiffHash
        Fitted hasher of the first kind. It can encode, be saved and be exported by itself.
    y_ : DiffHash or KernelDiffHash
        Fitted hasher of the second kind.

    References
    ----------
    M. M. Bronstein: Kernel diff-hash. arXiv:1111.0466, 2011 (its derivation has two maps).

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import CrossDiffHash, hamming
    >>> rng = np.random.default_rng(0)
    >>> objects = rng.normal(size=(500, 4))
    >>> X, Y = objects @ rng.normal(size=(4, 8)), objects @ rng.normal(size=(4, 12))
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

    def fit(self, X: ArrayLike, Y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Learn from aligned rows: row i of X and row i of Y belong to the same object.

        The same as ``fit_pairs(X, Y=Y, groups=groups)``.

        Parameters
        ----------
        X : array of shape (n, d)
            Descriptors of the first kind.
        Y : array of shape (n, e)
            Descriptors of the second kind.
        groups : array of shape (n,) or None, default=None
            Rows of equal groups are never used as a negative pair, for instance rows of the same
            object. None means that every row belongs to a different object.

        Returns
        -------
        self : CrossDiffHash
            The fitted model.
        """
        return self.fit_pairs(X, groups=groups, Y=Y)

    def fit_pairs(
        self,
        X: ArrayLike,
        pairs: ArrayLike | None = None,
        similar: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        Y: ArrayLike,
    ) -> Self:
        """Learn from pairs of a row of X and a row of Y.

        Parameters
        ----------
        X : array of shape (n, d)
            Descriptors of the first kind.
        pairs : int array of shape (p, 2) or None, default=None
            A row number of X and a row number of Y for each pair. None pairs row i of X with row i
            of Y.
        similar : bool array of shape (p,) or None, default=None
            True for positive pairs. None means that all pairs are positive; `n_negatives` pairs of
            a row of X and a row of Y are drawn, of which those that are not positive are negative.
        groups : array of shape (n,) or None, default=None
            Group of each row of X; a row of Y belongs to the groups of its partners. Rows of equal
            groups are never used as a negative pair.
        Y : array of shape (m, e)
            Descriptors of the second kind.

        Returns
        -------
        self : CrossDiffHash
            The fitted model.
        """
        self._check_params()
        sides = [self._side("x"), self._side("y")]
        rows = [
            validate_data(side, data, dtype="numeric", ensure_min_samples=2)
            for side, data in zip(sides, (X, Y), strict=True)
        ]
        n_rows = len(rows[0]), len(rows[1])
        rng = sides[0]._rng("negatives")
        numbered, flags, _ = pairs_of_sides(
            n_rows, pairs, similar, groups, self.n_negatives, rng, across=True
        )
        checked = numbered - np.array([0, n_rows[0]])
        check_both_kinds(int(flags.sum()), int((~flags).sum()))
        features = []
        for side, data in zip(sides, rows, strict=True):
            side._check_params()
            with one_blas_thread():
                side._fit_feature_map(data, side._draw_samples(len(data)))
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
        """Encode rows of both kinds; `x_.transform` and `y_.transform` encode one kind.

        Parameters
        ----------
        X : array of shape (n, d)
            Descriptors of the first kind.
        Y : array of shape (m, e)
            Descriptors of the second kind.

        Returns
        -------
        codes_x : uint8 array of shape (n, ceil(n_bits / 8))
            Packed codes of X.
        codes_y : uint8 array of shape (m, ceil(n_bits / 8))
            Packed codes of Y.
        """
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
        for name in ("x", "y"):
            side = section(section(header, "sides"), name)
            own = {k.removeprefix(f"{name}."): a for k, a in arrays.items() if k[:2] == f"{name}."}
            kinds = [kind for kind in (DiffHash, KernelDiffHash) if kind.__name__ == side["class"]]
            if not kinds:
                raise ValueError(f"its hasher {name} must be a DiffHash or a KernelDiffHash")
            sides[name] = from_file(kinds[0], side, own)
        params = params_from(header)
        check_params(params, {}, _STORED)
        model = cls(**params, x=clone(sides["x"]), y=clone(sides["y"]))
        model._check_params()
        model.x_, model.y_ = sides["x"], sides["y"]
        if not model.x_.n_bits_ == model.y_.n_bits_ == model.n_bits:
            raise ValueError("its two hashers have different numbers of bits")
        return model

    # -- the steps ------------------------------------------------------------------------------

    def _side(self, name: Literal["x", "y"]) -> Any:
        """Return an unfitted hasher of one kind with the common parameters set."""
        given = getattr(self, name)
        if given is not None and not isinstance(given, DiffHash | KernelDiffHash):
            raise ValueError(f"{name} must be a DiffHash or KernelDiffHash, got {given!r}")
        common = {"n_bits": self.n_bits, "random_state": self.random_state, "n_jobs": self.n_jobs}
        return (DiffHash() if given is None else clone(given)).set_params(**common, refine=0)

    def _check_params(self) -> None:
        for name in ("n_bits", "n_negatives"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if not self.alpha > 0:
            raise ValueError(f"alpha must be a positive number or inf, got {self.alpha}")
        check_ridge(self.ridge)

    def _solve(
        self,
        features: list[NDArray[np.float32]],
        pairs: Pairs,
        similar: Similar,
        rng: np.random.Generator,
    ) -> tuple[Matrix, Matrix]:
        """Return the directions of both maps, each of shape (n_bits, number of features)."""
        means = [values.mean(axis=0, dtype=np.float64) for values in features]
        positive = self._cross(features, means, pairs[similar])
        negative = self._cross(features, means, pairs[~similar])
        moment = positive if np.isinf(self.alpha) else self.alpha * positive - negative
        roots = []
        with one_blas_thread():
            for values in features:
                step = -(-len(values) // _COVARIANCE_ROWS)
                scatter = covariance(values[::step], self.n_jobs)
                unit = np.trace(scatter) / len(scatter)
                scatter += (self.ridge * unit + 1e-12 * max(unit, 1e-30)) * np.eye(len(scatter))
                roots.append(scipy.linalg.cholesky(scatter, lower=True))
            half = scipy.linalg.solve_triangular(roots[0], moment, lower=True)
            inner = scipy.linalg.solve_triangular(roots[1], half.T, lower=True).T
            left, values, right = np.linalg.svd(inner, full_matrices=False)
            if values[0] == 0:
                raise ValueError(
                    "X and Y are uncorrelated over the pairs, so there is nothing to learn; check "
                    "whether all rows are equal"
                )
            weights = (values[: self.n_bits] / values[0]) ** 2
            rotation = np.linalg.qr(rng.standard_normal((self.n_bits, self.n_bits)))[0]
            # Signs are fixed (largest entry positive), since they depend on the solver.
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
        """Return the mean outer product of the members of pairs."""

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
        """Minimise FNR + FPR of each bit over the two thresholds, alternating between them."""
        columns = [
            Encoder(side.preprocess, side._feature_map(), side.directions_).columns(
                data, self.n_jobs
            )
            for side, data in zip(sides, rows, strict=True)
        ]
        # Positive and negative pairs have a total weight of 1 each.
        weights = np.where(similar, 1 / similar.sum(), -1 / (~similar).sum())
        found = np.empty((2, self.n_bits), np.float32)

        def solve(bit: int) -> None:
            values = [columns[side][bit, pairs[:, side]] for side in (0, 1)]
            orders = [np.argsort(v, kind="stable") for v in values]
            thresholds = [np.float32(np.median(v)) for v in values]
            for turn in range(2 * _ROUNDS):
                side = turn % 2
                one = values[1 - side] > thresholds[1 - side]
                gains = np.where(one, weights, -weights)
                thresholds[side] = _best_threshold(values[side], orders[side], gains)
            found[:, bit] = thresholds

        run([lambda bit=bit: solve(bit) for bit in range(self.n_bits)], self.n_jobs)  # type: ignore[misc]
        ones, fnr, fpr = np.empty((2, self.n_bits)), np.empty(self.n_bits), np.empty(self.n_bits)
        for bit in range(self.n_bits):
            above = [columns[side][bit, pairs[:, side]] > found[side, bit] for side in (0, 1)]
            ones[:, bit] = above[0].mean(), above[1].mean()
            differ = above[0] != above[1]
            fnr[bit], fpr[bit] = differ[similar].mean(), 1 - differ[~similar].mean()
        for side in (0, 1):
            sides[side]._take_bit_rates(BitRates(found[side], fnr, fpr, ones[side]))


def _best_threshold(
    values: NDArray[np.float32], order: NDArray[np.int64], gains: NDArray[np.float64]
) -> np.float32:
    """Return the threshold that maximises the sum of gains above it, midway between values."""
    ordered = values[order]
    above = gains.sum() - np.cumsum(gains[order])
    above[:-1][ordered[1:] == ordered[:-1]] = -np.inf  # no threshold between equal values
    best = int(above.argmax())
    low = ordered[best]
    high = ordered[min(best + 1, len(ordered) - 1)]
    middle = np.float32((np.float64(low) + np.float64(high)) / 2)
    return middle if low <= middle < high else low
