"""Baselines, for comparison only, as their papers describe them.

They are hashers like those of `kdiffhash.hashers`; `kdiffhash.load` reads their model files once
this module has been imported.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import NDArray

from .._util.threads import one_blas_thread
from ..hashers import BaseHasher
from ..hashers.itq import UnsupervisedHasher
from ..hashers.linear import check_ridge
from ..hashers.model_file import register
from ..learn.encoder import compute_features
from ..learn.kernels import MEDIAN_ROWS, GaussianMap, Rows, median_gamma
from ..learn.pairs import Labels, Pairs, Similar, check_both_kinds, labels_from_pairs
from ..learn.preprocess import Preprocess, preprocess_rows
from .float_baselines import MahalanobisMetric, ProductQuantizer
from .unsupervised_baselines import KLSHHash, PCAHash, SKLSHHash, SpectralHash

__all__ = [
    "KLSHHash",
    "KSHHash",
    "MahalanobisMetric",
    "PCAHash",
    "ProductQuantizer",
    "RandomHyperplaneHash",
    "SDHHash",
    "SKLSHHash",
    "SpectralHash",
]

Matrix = NDArray[np.float64]


@register
class RandomHyperplaneHash(UnsupervisedHasher):
    """Random hyperplanes through the mean: locality-sensitive hashing for angles.

    Parameters
    ----------
    n_bits : int or None, default=None
        Length of the codes. None means 128.
    preprocess : {None, "unit", "hellinger"}, default=None
        Preprocessing of each row, stored with the model: none, scaling to Euclidean length 1, or
        scaling to sum 1 followed by square roots (turns SIFT into RootSIFT).
    random_state : int, RandomState instance or None, default=None
        Seed of all random choices; an int makes the model reproducible.
    n_jobs : int or None, default=None
        Number of threads; None uses all cores. The result does not depend on it.

    References
    ----------
    M. Charikar: Similarity estimation techniques from rounding algorithms. STOC 2002.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash.study.baselines import RandomHyperplaneHash
    >>> RandomHyperplaneHash(100, random_state=0).fit_transform(load_digits().data).shape
    (1797, 13)
    """

    def _find_directions(self, rows: Rows) -> NDArray[Any]:
        n_bits = 128 if self.n_bits is None else int(self.n_bits)
        return self._rng("hyperplanes").standard_normal((n_bits, rows.shape[1]))


class LabelledKernelHasher(BaseHasher):
    """Base class: functions of a Gaussian kernel on random basis rows, learned from labelled rows.

    It learns from `n_rows` of the rows in pairs, all rows of a label before those of another;
    labels come in random order. A model is learned for one length: a prefix of its codes is not a
    good shorter code.
    """

    basis_: NDArray[np.float32]
    gamma_: float

    _fitted: ClassVar[tuple[str, ...]] = (*BaseHasher._fitted, "basis_", "gamma_")
    _nested: ClassVar[bool] = False

    def __init__(
        self,
        n_bits: int | None = None,
        *,
        n_basis: int = 300,
        n_rows: int = 2000,
        n_iter: int = 50,
        preprocess: Preprocess = None,
        n_positives: int = 100_000,
        n_negatives: int = 200_000,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_bits = n_bits
        self.n_basis = n_basis
        self.n_rows = n_rows
        self.n_iter = n_iter
        self.preprocess = preprocess
        self.n_positives = n_positives
        self.n_negatives = n_negatives
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _learn(self, X: Any, pairs: Pairs, similar: Similar, labels: Labels | None) -> None:
        check_both_kinds(int(similar.sum()), int((~similar).sum()))
        y = labels_from_pairs(pairs[similar], len(X)) if labels is None else labels.ids
        used = np.unique(pairs)
        if (y[used] == y[used[0]]).all():
            raise ValueError("all rows in pairs have one label; at least two are needed")
        order = self._rng("objects").permutation(int(y.max()) + 1)[y[used]]
        chosen = np.sort(used[np.argsort(order, kind="stable")[: self.n_rows]])
        rows = preprocess_rows(X[chosen], self.preprocess)
        ids = np.unique(y[chosen], return_inverse=True)[1]
        if ids.max() == 0:
            raise ValueError(f"the {len(ids)} rows that were drawn have one label; raise n_rows")
        if (rows == rows[0]).all():
            raise ValueError("all training rows are equal, so no bit can separate them")
        rng = self._rng("basis")
        n_basis = min(self.n_basis, len(rows))
        self.basis_ = rows[np.sort(rng.choice(len(rows), n_basis, replace=False))]
        some = rng.permutation(len(rows))[:MEDIAN_ROWS]
        self.gamma_ = median_gamma("rbf", rows[some], self.basis_)
        features = compute_features(rows, None, self._feature_map(), self.n_jobs)
        mean = features.mean(axis=0, dtype=np.float64)
        with one_blas_thread():
            directions = self._find_directions(features - mean, ids, self.n_bits or 128)
            self.directions_ = np.ascontiguousarray(directions, np.float32)
            self.thresholds_ = (self.directions_ @ mean).astype(np.float32)

    @abstractmethod
    def _find_directions(self, features: Matrix, ids: NDArray[np.int64], n_bits: int) -> Matrix:
        """Directions, shape (n_bits, n_basis), from centred features and labels 0..k-1."""

    def _check_params(self) -> None:
        super()._check_params()
        for name, least in (("n_basis", 2), ("n_rows", 2), ("n_iter", 1)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")

    def _feature_map(self) -> GaussianMap:
        return GaussianMap(self.basis_, self.gamma_)


@register
class KSHHash(LabelledKernelHasher):
    """Supervised hashing with kernels: inner products of codes fitted to +1 and -1, bit by bit.

    Every length needs its own model: a prefix of a code is not a good shorter code.

    Parameters
    ----------
    n_bits : int or None, default=None
        Length of the codes. None means 128.
    n_basis : int, default=300
        Number of basis rows; 300 as in its paper.
    n_rows : int, default=2000
        Number of rows to learn from; all pairs of them are used.
    n_iter : int, default=50
        Number of steps of accelerated gradient descent per bit.
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

    References
    ----------
    W. Liu, J. Wang, R. Ji, Y.-G. Jiang, S.-F. Chang: Supervised hashing with kernels. CVPR 2012.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash.study.baselines import KSHHash
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = KSHHash(8, n_basis=50, n_rows=200, n_iter=5, random_state=0)
    >>> hasher.fit_transform(X, y).shape
    (1797, 1)
    """

    def _find_directions(self, features: Matrix, ids: NDArray[np.int64], n_bits: int) -> Matrix:
        residue = np.where(ids[:, None] == ids, float(n_bits), -float(n_bits))
        second = features.T @ features
        second += 1e-6 * np.trace(second) / len(second) * np.eye(len(second))
        root = scipy.linalg.cholesky(second, lower=True)
        weighted = features.T @ residue @ features
        directions = np.empty((n_bits, features.shape[1]))
        for bit in range(n_bits):
            half = scipy.linalg.solve_triangular(root, weighted, lower=True)
            inner = scipy.linalg.solve_triangular(root, half.T, lower=True)
            last = len(inner) - 1
            top = scipy.linalg.eigh((inner + inner.T) / 2, subset_by_index=(last, last))[1][:, 0]
            relaxed = scipy.linalg.solve_triangular(root, top, lower=True, trans=1)
            relaxed *= np.sqrt(len(features))
            descended = self._descend(features, residue, relaxed)
            signs = [np.where(features @ one > 0, 1.0, -1.0) for one in (relaxed, descended)]
            gains = [sign @ residue @ sign for sign in signs]
            better = int(gains[1] > gains[0])
            directions[bit] = (relaxed, descended)[better]
            residue -= np.outer(signs[better], signs[better])
            seen = features.T @ signs[better]
            weighted -= np.outer(seen, seen)
        return directions

    def _descend(self, features: Matrix, residue: Matrix, start: Matrix) -> Matrix:
        """Nesterov's descent on ``-b' R b``, b the sigmoid of the projections from -1 to 1."""

        def value_and_gradient(at: Matrix) -> tuple[float, Matrix]:
            soft = np.tanh(features @ at / 2)
            pull = residue @ soft
            return -float(soft @ pull), -features.T @ (pull * (1 - soft * soft))

        here, ahead, momentum = start, start, 1.0
        _, slope = value_and_gradient(start)
        step = np.linalg.norm(start) / max(float(np.linalg.norm(slope)), 1e-30)
        for _ in range(self.n_iter):
            value, slope = value_and_gradient(ahead)
            while step > 1e-12:
                trial = ahead - step * slope
                if value_and_gradient(trial)[0] <= value - 0.5 * step * float(slope @ slope):
                    break
                step /= 2
            else:
                break
            following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            ahead = trial + (momentum - 1) / following * (trial - here)
            here, momentum = trial, following
        return here


@register
class SDHHash(LabelledKernelHasher):
    """Supervised discrete hashing: codes from which a linear map predicts the label of a row.

    Every length needs its own model: a prefix of a code is not a good shorter code.

    Parameters
    ----------
    n_bits : int or None, default=None
        Length of the codes. None means 128.
    n_basis : int, default=1000
        Number of basis rows; 1000 as in its paper.
    n_rows : int, default=20_000
        Number of rows to learn from.
    nu : float, default=1e-5
        Weight of the distance between the codes and the functions that predict them.
    ridge : float, default=1.0
        Regularisation of the map from codes to labels.
    n_iter : int, default=5
        Number of alternations between updating the map, the codes and the functions.
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

    References
    ----------
    F. Shen, C. Shen, W. Liu, H. T. Shen: Supervised discrete hashing. CVPR 2015.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash.study.baselines import SDHHash
    >>> X, y = load_digits(return_X_y=True)
    >>> SDHHash(16, n_basis=100, random_state=0).fit_transform(X, y).shape
    (1797, 2)
    """

    def __init__(
        self,
        n_bits: int | None = None,
        *,
        n_basis: int = 1000,
        n_rows: int = 20_000,
        nu: float = 1e-5,
        ridge: float = 1.0,
        n_iter: int = 5,
        preprocess: Preprocess = None,
        n_positives: int = 100_000,
        n_negatives: int = 200_000,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(
            n_bits,
            n_basis=n_basis,
            n_rows=n_rows,
            n_iter=n_iter,
            preprocess=preprocess,
            n_positives=n_positives,
            n_negatives=n_negatives,
            random_state=random_state,
            n_jobs=n_jobs,
        )
        self.nu = nu
        self.ridge = ridge

    def _check_params(self) -> None:
        super()._check_params()
        check_ridge(self.ridge)
        if not 0 < self.nu < np.inf:
            raise ValueError(f"nu must be above 0, got {self.nu}")

    def _find_directions(self, features: Matrix, ids: NDArray[np.int64], n_bits: int) -> Matrix:
        n = len(ids)
        labels = scipy.sparse.csr_array((np.ones(n), (np.arange(n), ids)))
        second = features.T @ features
        second += 1e-6 * np.trace(second) / len(second) * np.eye(len(second))
        factor = scipy.linalg.cho_factor(second)
        codes = np.where(self._rng("codes").standard_normal((n, n_bits)) > 0, 1.0, -1.0)
        functions = scipy.linalg.cho_solve(factor, features.T @ codes)
        for _ in range(self.n_iter):
            # The map from codes to labels, by least squares: (B'B + ridge) W = B'Y.
            to_labels = scipy.linalg.solve(
                codes.T @ codes + self.ridge * np.eye(n_bits), (labels.T @ codes).T, assume_a="pos"
            )
            # The codes, one bit after the other, given all others.
            wanted = to_labels[:, ids].T + self.nu * (features @ functions)
            overlap = to_labels @ to_labels.T
            np.fill_diagonal(overlap, 0)
            for _ in range(3):
                before = codes.copy()
                for bit in range(n_bits):
                    codes[:, bit] = np.where(wanted[:, bit] > codes @ overlap[bit], 1.0, -1.0)
                if (codes == before).all():
                    break
            functions = scipy.linalg.cho_solve(factor, features.T @ codes)
        return np.asarray(functions.T)
