"""Kernel hashers: bits are signs of functions ``sum_i beta_i k(b_i, x) + a`` (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ..directions import Moment, diff_directions, lda_directions
from ..encode import compute_features
from ..kernels import (
    MEDIAN_ROWS,
    FeatureMap,
    GaussianMap,
    Kernel,
    PairwiseMap,
    check_kernel,
    inverse_fourth_root,
    kmeans_basis,
    median_gamma,
    takes_gamma,
)
from ..moments import PairMoments, covariance
from ..parallel import one_blas_thread
from ..preprocess import Preprocess, preprocess_rows
from ..rows import Numbers
from .closed_form import ClosedFormHasher
from .linear import alpha_for, check_ridge

_SAMPLE = 100_000  # rows that k-means and the covariance see
_GRAM_FLOOR = 1e-4  # what is added to the Gram matrix, relative to its size

#: Parameters of `KernelDiffHash` that are the paper's own setting, as far as its text can be read:
#: cross moments with alpha = 25 that are not centred, the Gaussian of a Mahalanobis distance, and
#: coefficient vectors of length 1, on 8-bit SIFT as it is.
PAPER_SETTING: Mapping[str, Any] = {
    "kernel": "mahalanobis",
    "moment": "cross",
    "alpha": 25.0,
    "norm": "euclidean",
    "center": False,
    "preprocess": None,
    "n_basis": 1000,
}


class KernelHasher(ClosedFormHasher):
    """Base class of the kernel closed forms."""

    kernel: Kernel
    gamma: float | Literal["median", "wide"]
    kernel_params: Mapping[str, Any] | None
    basis: Literal["random", "kmeans"] | NDArray[Any]
    n_basis: int

    basis_: NDArray[np.float32]
    gamma_: float
    metric_: NDArray[np.float32]

    _fitted: ClassVar[tuple[str, ...]] = (*ClosedFormHasher._fitted, "basis_", "gamma_", "metric_")

    def _check_params(self) -> None:
        super()._check_params()
        check_kernel(self.kernel)
        if isinstance(self.basis, str):
            if self.basis not in ("random", "kmeans"):
                raise ValueError(
                    f"basis must be 'random', 'kmeans' or an array of rows, got {self.basis!r}"
                )
            if not isinstance(self.n_basis, int | np.integer) or self.n_basis < 1:
                raise ValueError(f"n_basis must be a whole number from 1, got {self.n_basis!r}")
            if self.n_bits is not None and self.n_bits > self.n_basis:
                raise ValueError(self._too_many_bits(self.n_bits, self.n_basis))
        gamma: Any = self.gamma
        is_number = isinstance(gamma, int | float | np.integer | np.floating)
        if not (0 < gamma < np.inf if is_number else gamma in ("median", "wide")):
            raise ValueError(
                f"gamma must be a number above 0, 'median' or 'wide', got {self.gamma!r}"
            )
        if self.kernel_params and self.kernel in ("rbf", "mahalanobis"):
            raise ValueError(f"kernel={self.kernel!r} takes gamma and no kernel_params")

    def _draw_samples(self, n_rows: int) -> dict[str, Numbers]:
        """Random rows for the basis and, where they follow from data, for metric and bandwidth."""
        sizes = {}
        if isinstance(self.basis, str):
            n = self.n_basis
            sizes["basis"] = max(_SAMPLE, 2 * n) if self.basis == "kmeans" else n
        if self.kernel == "mahalanobis":
            sizes["metric"] = _SAMPLE
        if self.gamma in ("median", "wide"):
            sizes["gamma"] = MEDIAN_ROWS
        return {
            purpose: np.arange(n_rows)
            if size >= n_rows
            else np.sort(self._rng(purpose).choice(n_rows, size, replace=False))
            for purpose, size in sizes.items()
        }

    def _fix_features(self, rows: Any, samples: dict[str, Numbers]) -> None:
        sample = {
            purpose: preprocess_rows(rows[numbers], self.preprocess)
            for purpose, numbers in samples.items()
        }
        if not isinstance(self.basis, str):
            self.basis_ = self._given_basis(rows.shape[1])
        elif self.basis == "kmeans":
            self.basis_ = kmeans_basis(sample["basis"], self.n_basis, self._rng("kmeans"))
        else:
            self.basis_ = sample["basis"]
        to_metric = np.eye(rows.shape[1], dtype=np.float32)
        if self.kernel == "mahalanobis":
            self.metric_ = inverse_fourth_root(covariance(sample["metric"], self.n_jobs))
            to_metric = self.metric_
        if self.gamma in ("median", "wide"):
            gamma = median_gamma(self.kernel, sample["gamma"] @ to_metric, self.basis_ @ to_metric)
            self.gamma_ = gamma / 3 if self.gamma == "wide" else gamma
        else:
            self.gamma_ = float(self.gamma)

    def _given_basis(self, width: int) -> NDArray[np.float32]:
        basis = np.asarray(self.basis)
        if basis.ndim != 2 or basis.shape[1] != width or not len(basis):
            raise ValueError(
                f"basis must have shape (n_basis, {width}) like the rows of X, got {basis.shape}"
            )
        return preprocess_rows(basis, None)

    def _feature_map(self) -> FeatureMap:
        if self.kernel in ("rbf", "mahalanobis"):
            metric = self.metric_ if self.kernel == "mahalanobis" else None
            return GaussianMap(self.basis_, self.gamma_, metric)
        params = dict(self.kernel_params or {})
        if takes_gamma(self.kernel):
            params.setdefault("gamma", self.gamma_)
        return PairwiseMap(self.basis_, self.kernel, params)

    def _gram(self) -> NDArray[np.float64]:
        """Gram matrix of the basis, made safely positive."""
        values = compute_features(self.basis_, None, self._feature_map(), self.n_jobs)
        gram = values.astype(np.float64)
        gram = (gram + gram.T) / 2
        size = np.abs(gram).sum(axis=1).max()  # bounds the largest eigenvalue
        if size == 0:
            raise ValueError("the kernel is zero on all basis rows; choose another gamma or kernel")
        floor = _GRAM_FLOOR * size
        with one_blas_thread():
            if self.kernel in ("sigmoid", "additive_chi2") or callable(self.kernel):
                # Maybe not positive definite: lift the eigenvalues that are too small.
                values64, vectors = np.linalg.eigh(gram)
                return np.asarray((vectors * np.maximum(values64, floor)) @ vectors.T)
        return np.asarray(gram + floor * np.eye(len(gram)))

    def _too_many_bits(self, n_bits: int, width: int) -> str:
        return (
            f"{type(self).__name__} gives at most one bit per basis row: n_bits={n_bits}, but "
            f"there are {width} basis rows; raise n_basis, give more training rows, or lower n_bits"
        )


class KernelDiffHash(KernelHasher):
    """Kernel diff-hash (Algorithm 1): diff-hash in the feature space of a kernel.

    Parameters
    ----------
    n_bits : int, optional
        At most the number of basis rows. By default 128, or as many as there are basis rows.
    kernel : str or callable
        ``"rbf"`` is ``exp(-gamma |x - b|^2)``; ``"mahalanobis"`` the paper's
        ``exp(-gamma (x - b)' S^(-1/2) (x - b))`` with S the covariance of X; or any name of
        `sklearn.metrics.pairwise.pairwise_kernels`, or a function that takes rows (n, d) and basis
        rows (l, d) and returns (n, l).
    gamma : float, "median" or "wide"
        Bandwidth; ``"median"`` is one over the median of the distance in the kernel, ``"wide"`` a
        third of that.
    kernel_params : dict, optional
        More parameters for a named kernel or function.
    basis : {"random", "kmeans"} or array of shape (n_basis, d)
        Basis rows: random rows of X, k-means centres, or given ones, in the space after
        `preprocess` (as `basis_` of another hasher).
    n_basis : int
        Number of basis rows; all rows of X are taken where there are fewer.
    norm : {"rkhs", "euclidean"}
        What has length 1: the function in the kernel's space, or its vector of coefficients.
    moment, alpha, center
        As in `DiffHash`, in feature space.
    threshold_weight, refine, preprocess, n_positives, n_negatives, random_state, n_jobs, verbose
        As in `DiffHash`.

    Attributes
    ----------
    directions_ : float32 array of shape (n_bits, n_basis)
        Coefficients of the basis functions.
    thresholds_ : float32 array of shape (n_bits,)
    basis_ : float32 array of shape (n_basis, d)
    gamma_ : float
    metric_ : float32 array of shape (d, d)
        Only for the Mahalanobis kernel: distances are Euclidean after this map.
    bit_fnr_, bit_fpr_, bit_ones_ : arrays of shape (n_bits,)
        Error rates of each bit on the training pairs, and its share of ones.

    Notes
    -----
    ``KernelDiffHash(**PAPER_SETTING)`` is the setting of the paper. The defaults (difference moment
    with alpha = 2, RKHS norm) are more accurate at every length.

    References
    ----------
    M. M. Bronstein: Kernel diff-hash. arXiv:1111.0466, 2011.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash import KernelDiffHash
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = KernelDiffHash(n_bits=64, n_basis=300, random_state=0).fit(X[::2], y[::2])
    >>> hasher.transform(X[1::2])[0]
    array([...], dtype=uint8)
    """

    def __init__(
        self,
        n_bits: int | None = None,
        *,
        kernel: Kernel = "rbf",
        gamma: float | Literal["median", "wide"] = "median",
        kernel_params: Mapping[str, Any] | None = None,
        basis: Literal["random", "kmeans"] | NDArray[Any] = "random",
        n_basis: int = 1000,
        norm: Literal["rkhs", "euclidean"] = "rkhs",
        moment: Moment = "difference",
        alpha: float | None = None,
        center: bool = True,
        threshold_weight: float = 1.0,
        refine: int = 0,
        preprocess: Preprocess = None,
        n_positives: int = 100_000,
        n_negatives: int = 200_000,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.n_bits = n_bits
        self.kernel = kernel
        self.gamma = gamma
        self.kernel_params = kernel_params
        self.basis = basis
        self.n_basis = n_basis
        self.norm = norm
        self.moment = moment
        self.alpha = alpha
        self.center = center
        self.threshold_weight = threshold_weight
        self.refine = refine
        self.preprocess = preprocess
        self.n_positives = n_positives
        self.n_negatives = n_negatives
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _check_params(self) -> None:
        super()._check_params()
        alpha_for(self.moment, self.alpha)
        if self.norm not in ("rkhs", "euclidean"):
            raise ValueError(f"norm must be 'rkhs' or 'euclidean', got {self.norm!r}")

    @property
    def _needs_cross(self) -> bool:
        return self.moment == "cross"

    def _directions(
        self, positive: PairMoments, negative: PairMoments, n_bits: int
    ) -> NDArray[np.float64]:
        return diff_directions(
            positive,
            negative,
            n_bits,
            moment=self.moment,
            alpha=alpha_for(self.moment, self.alpha),
            origin=None if self.center else np.zeros(len(self.basis_)),
            gram=self._gram() if self.norm == "rkhs" else None,
        )


class KernelLDAHash(KernelHasher):
    """Kernel LDA-hash: LDA-hash in the feature space of a kernel.

    Not in the paper; from 128 bits on the most accurate of the closed forms.

    Parameters
    ----------
    n_bits, kernel, gamma, kernel_params, basis, n_basis
        As in `KernelDiffHash`.
    ridge : float or "falling"
        Regularisation as in `LDAHash`; lengths are measured in the kernel's space. One that falls
        is 0.5 for the first 32 bits and 20 times smaller after each doubling, so that short
        prefixes are as good as codes that were learned for their length.
    threshold_weight, refine, preprocess, n_positives, n_negatives, random_state, n_jobs, verbose
        As in `DiffHash`.

    Attributes
    ----------
    directions_, thresholds_, basis_, gamma_, metric_, bit_fnr_, bit_fpr_, bit_ones_
        As in `KernelDiffHash`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash import KernelLDAHash
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = KernelLDAHash(n_bits=64, n_basis=300, random_state=0).fit(X[::2], y[::2])
    >>> hasher.truncate(32).transform(X).shape
    (1797, 4)
    """

    def __init__(
        self,
        n_bits: int | None = None,
        *,
        kernel: Kernel = "rbf",
        gamma: float | Literal["median", "wide"] = "wide",
        kernel_params: Mapping[str, Any] | None = None,
        basis: Literal["random", "kmeans"] | NDArray[Any] = "random",
        n_basis: int = 1000,
        ridge: float | Literal["falling"] = "falling",
        threshold_weight: float = 1.0,
        refine: int = 0,
        preprocess: Preprocess = None,
        n_positives: int = 100_000,
        n_negatives: int = 200_000,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.n_bits = n_bits
        self.kernel = kernel
        self.gamma = gamma
        self.kernel_params = kernel_params
        self.basis = basis
        self.n_basis = n_basis
        self.ridge = ridge
        self.threshold_weight = threshold_weight
        self.refine = refine
        self.preprocess = preprocess
        self.n_positives = n_positives
        self.n_negatives = n_negatives
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _check_params(self) -> None:
        super()._check_params()
        if self.ridge != "falling":
            check_ridge(self.ridge)

    def _directions(
        self, positive: PairMoments, negative: PairMoments, n_bits: int
    ) -> NDArray[np.float64]:
        return lda_directions(positive, negative, n_bits, ridge=self.ridge, gram=self._gram())
