"""Kernel hashers: bits are signs of functions ``sum_i beta_i k(b_i, x) + a`` (Algorithm 1)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from .._util.threads import one_blas_thread
from ..learn.directions import Moment, diff_directions, lda_directions
from ..learn.encoder import compute_features
from ..learn.kernels import (
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
from ..learn.moments import PairMoments, covariance
from ..learn.preprocess import Preprocess, preprocess_rows
from ..learn.rows import Numbers
from .closed_form import ClosedFormHasher
from .linear import alpha_for, check_ridge

_SAMPLE = 100_000  # rows used for k-means and for the covariance
_NUMBER = r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_MULTIPLE_OF_MEDIAN = re.compile(rf"((?P<factor>{_NUMBER})\*)?median(/(?P<divisor>{_NUMBER}))?")
_GRAM_FLOOR = 1e-4  # regularisation of the Gram matrix, relative to a bound on its norm

PAPER_SETTING: Mapping[str, Any] = {
    "kernel": "mahalanobis",
    "gamma": "0.1*median",
    "moment": "cross",
    "alpha": 25.0,
    "norm": "euclidean",
    "center": False,
    "preprocess": None,
    "n_basis": 1000,
}
"""Parameters of `KernelDiffHash` for the method of the paper.

The paper specifies cross moments, alpha = 25, no centring, a Gaussian kernel of a Mahalanobis
distance, and SIFT descriptors without preprocessing. It does not specify the rest, which was chosen
here: coefficient vectors of unit length, which solve the printed eigenvalue problem; 1000 random
basis rows; the bandwidth (the paper's formula has none), a tenth of the reciprocal of the median,
from a grid on training data; and thresholds that minimise FNR + FPR, because with the factor alpha
of eq. 5 nearly all bits become constant.

Examples
--------
>>> from kdiffhash import PAPER_SETTING, KernelDiffHash
>>> hasher = KernelDiffHash(n_bits=128, **PAPER_SETTING)
"""


class KernelHasher(ClosedFormHasher):
    """Base class of the kernel hashers with a closed form."""

    kernel: Kernel
    gamma: float | str
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
                    "basis must be 'random', 'kmeans' or an array of basis rows, "
                    f"got {self.basis!r}"
                )
            if not isinstance(self.n_basis, int | np.integer) or self.n_basis < 1:
                raise ValueError(f"n_basis must be a positive integer, got {self.n_basis!r}")
            if self.n_bits is not None and self.n_bits > self.n_basis:
                raise ValueError(self._too_many_bits(self.n_bits, self.n_basis))
        _parse_gamma(self.gamma)
        _check_kernel_params(self.kernel, self.kernel_params or {})

    def _draw_samples(self, n_rows: int) -> dict[str, Numbers]:
        """Draw row numbers for the basis and, if estimated from data, metric and bandwidth."""
        sizes = {}
        if isinstance(self.basis, str):
            n = self.n_basis
            sizes["basis"] = max(_SAMPLE, 2 * n) if self.basis == "kmeans" else n
        if self.kernel == "mahalanobis":
            sizes["metric"] = _SAMPLE
        if isinstance(self.gamma, str):
            sizes["gamma"] = MEDIAN_ROWS
        return {
            purpose: np.arange(n_rows)
            if size >= n_rows
            else np.sort(self._rng(purpose).choice(n_rows, size, replace=False))
            for purpose, size in sizes.items()
        }

    def _fit_feature_map(self, rows: Any, samples: dict[str, Numbers]) -> None:
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
        value, divisor = _parse_gamma(self.gamma)
        if value is None:
            value = median_gamma(self.kernel, sample["gamma"] @ to_metric, self.basis_ @ to_metric)
        self.gamma_ = value / divisor

    def _given_basis(self, width: int) -> NDArray[np.float32]:
        basis = np.asarray(self.basis)
        if basis.ndim != 2 or basis.shape[1] != width or not len(basis):
            raise ValueError(
                f"basis must have shape (n_basis, {width}) to match X, got {basis.shape}"
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
        """Return the regularised Gram matrix of the basis."""
        values = compute_features(self.basis_, None, self._feature_map(), self.n_jobs)
        gram = values.astype(np.float64)
        gram = (gram + gram.T) / 2
        size = np.abs(gram).sum(axis=1).max()  # bounds the largest eigenvalue
        if size == 0:
            raise ValueError(
                "the kernel is zero between all basis rows; choose another gamma or kernel"
            )
        floor = _GRAM_FLOOR * size
        with one_blas_thread():
            if self.kernel in ("sigmoid", "additive_chi2") or callable(self.kernel):
                # These kernels may be indefinite: clip the eigenvalues from below.
                values64, vectors = np.linalg.eigh(gram)
                return np.asarray((vectors * np.maximum(values64, floor)) @ vectors.T)
        return np.asarray(gram + floor * np.eye(len(gram)))

    def _too_many_bits(self, n_bits: int, width: int) -> str:
        return (
            f"{type(self).__name__} gives at most one bit per basis row: n_bits={n_bits}, but "
            f"there are {width} basis rows; raise n_basis, give more training rows, or lower n_bits"
        )


def _check_kernel_params(kernel: Kernel, params: Mapping[str, Any]) -> None:
    """Raise ValueError for parameters that a kernel does not have, or that are not numbers."""
    if callable(kernel) or not params:
        return
    if kernel in ("rbf", "mahalanobis"):
        raise ValueError(f"kernel={kernel!r} takes no kernel_params; set gamma instead")
    from sklearn.metrics.pairwise import KERNEL_PARAMS

    known = KERNEL_PARAMS[kernel]
    for name, value in params.items():
        if name not in known:
            accepted = f"takes only {', '.join(sorted(known))}" if known else "takes none"
            raise ValueError(f"kernel_params has {name!r}, but kernel={kernel!r} {accepted}")
        is_number = isinstance(value, int | float | np.integer | np.floating)
        if not is_number or not (-np.inf if name == "coef0" else 0) < value < np.inf:
            raise ValueError(
                f"kernel_params[{name!r}] must be a finite number"
                f"{'' if name == 'coef0' else ' above 0'}, got {value!r}"
            )


def _parse_gamma(gamma: object) -> tuple[float | None, float]:
    """Return the value of a numeric `gamma` (None for the median), and what it is divided by."""
    if isinstance(gamma, str):
        match = _MULTIPLE_OF_MEDIAN.fullmatch(gamma)
        if match:
            factor, divisor = float(match["factor"] or 1), float(match["divisor"] or 1)
            if 0 < factor < np.inf and 0 < divisor < np.inf:
                return None, divisor / factor
    elif isinstance(gamma, int | float | np.integer | np.floating) and 0 < gamma < np.inf:
        return float(gamma), 1.0
    raise ValueError(
        "gamma must be a number above 0, 'median', or a multiple of the median such as "
        f"'median/3' or '0.1*median'; got {gamma!r}"
    )


class KernelDiffHash(KernelHasher):
    """Kernel diff-hash (Algorithm 1 of the paper): diff-hash in the feature space of a kernel.

    Parameters
    ----------
    n_bits : int or None, default=None
        Length of the codes, at most the number of basis rows. None means 128, or the number of
        basis rows if that is smaller.
    kernel : str or callable, default="rbf"
        ``"rbf"`` is ``exp(-gamma |x - b|^2)``; ``"mahalanobis"`` is the paper's
        ``exp(-gamma (x - b)' S^(-1/2) (x - b))``, where S is the covariance of X. Also any name
        known to `sklearn.metrics.pairwise.pairwise_kernels`, or a function of rows (n, d) and basis
        rows (l, d) that returns an array (n, l).
    gamma : float or str, default="median"
        Bandwidth. ``"median"`` is the reciprocal of the median distance between training rows and
        basis rows (the squared one for Gaussians); ``"median/3"`` or ``"0.1*median"`` is a multiple
        of that. Kernels without a distance (``"poly"``, ``"sigmoid"``) use ``1 / d`` instead.
    kernel_params : dict or None, default=None
        Further parameters of a scikit-learn kernel or a function.
    basis : "random", "kmeans" or array of shape (n_basis, d), default="random"
        Basis rows: random rows of X, k-means centres, or the given ones, which must be
        preprocessed already (like `basis_` of another hasher).
    n_basis : int, default=1000
        Number of basis rows; if X has fewer rows, all of them are used.
    norm : {"rkhs", "euclidean"}, default="rkhs"
        Normalisation of a direction: unit norm of the function in the kernel's Hilbert space, or
        of its vector of coefficients.
    moment : {"difference", "cross"}, default="difference"
        Pair moments to compare: of the differences within pairs, ``alpha D_P - D_N``, or the cross
        moments used in the paper, ``C_N - alpha C_P``.
    alpha : float or None, default=None
        Weight of the positive pairs; ``inf`` ignores the negatives. None means 2 for difference
        moments and 25 for cross moments.
    center : bool, default=True
        Whether cross moments are taken around the mean. Difference moments do not depend on it.
    threshold_weight : float, default=1.0
        The threshold of each bit minimises ``threshold_weight * FNR + FPR`` on the training pairs.
        Large values make bits constant.
    refine : int, default=0
        Maximum number of steps of stochastic gradient descent after the closed form, on a smooth
        ranking loss (see `kdiffhash.learn.refinement`). 1000 suffice, and 100 for queries and
        documents; 0 disables refinement.
    nested : bool, default=True
        Whether refinement also makes every prefix a good code. False gives slightly better codes of
        the full length.
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
    verbose : bool, default=False
        Show the progress of refinement on a terminal.

    Attributes
    ----------
    directions_ : float32 array of shape (n_bits, n_basis)
        Coefficients of the kernel expansion, one row per bit.
    thresholds_ : float32 array of shape (n_bits,)
        One threshold per bit.
    basis_ : float32 array of shape (n_basis, d)
        Basis rows after preprocessing.
    gamma_ : float
        Bandwidth in use.
    metric_ : float32 array of shape (d, d)
        Only for ``kernel="mahalanobis"``: the map ``S^(-1/4)`` applied to rows and basis.
    bit_fnr_ : float64 array of shape (n_bits,)
        False negative rate of each bit on the training pairs.
    bit_fpr_ : float64 array of shape (n_bits,)
        False positive rate of each bit on the training pairs.
    bit_ones_ : float64 array of shape (n_bits,)
        Share of training rows for which the bit is 1.
    bit_spread_ : float64 array of shape (n_bits,)
        Standard deviation of the projections of training rows.

    See Also
    --------
    PAPER_SETTING : Parameters of the paper, with a number of basis rows and a bandwidth that it
        does not state.
    KernelLDAHash : Lower mean FNR at every length in ``docs/frontier.md``.

    Notes
    -----
    The defaults (difference moments with alpha = 2, RKHS norm) on RootSIFT give a lower FNR at
    0.1 % FPR than ``KernelDiffHash(**PAPER_SETTING)`` on SIFT at every length on boruszyn and
    castle-p30 (``docs/results.md``), but not below 256 bits on notredame-2007 after training on
    other scenes.

    References
    ----------
    M. M. Bronstein: Kernel diff-hash. arXiv:1111.0466, 2011.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash import KernelDiffHash
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = KernelDiffHash(n_bits=64, n_basis=300, random_state=0).fit(X[::2], y[::2])
    >>> hasher.transform(X[1::2]).shape
    (898, 8)
    """

    def __init__(
        self,
        n_bits: int | None = None,
        *,
        kernel: Kernel = "rbf",
        gamma: float | str = "median",
        kernel_params: Mapping[str, Any] | None = None,
        basis: Literal["random", "kmeans"] | NDArray[Any] = "random",
        n_basis: int = 1000,
        norm: Literal["rkhs", "euclidean"] = "rkhs",
        moment: Moment = "difference",
        alpha: float | None = None,
        center: bool = True,
        threshold_weight: float = 1.0,
        refine: int = 0,
        nested: bool = True,
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
        self.nested = nested
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

    The paper does not have this method. Of the closed forms it has the lowest mean FNR at every
    length in ``docs/frontier.md``.

    Parameters
    ----------
    n_bits : int or None, default=None
        Length of the codes, at most the number of basis rows. None means 128, or the number of
        basis rows if that is smaller.
    kernel : str or callable, default="rbf"
        ``"rbf"`` is ``exp(-gamma |x - b|^2)``; ``"mahalanobis"`` is the paper's
        ``exp(-gamma (x - b)' S^(-1/2) (x - b))``, where S is the covariance of X. Also any name
        known to `sklearn.metrics.pairwise.pairwise_kernels`, or a function of rows (n, d) and basis
        rows (l, d) that returns an array (n, l).
    gamma : float or str, default="median/3"
        Bandwidth. ``"median"`` is the reciprocal of the median distance between training rows and
        basis rows (the squared one for Gaussians); ``"median/3"`` or ``"0.1*median"`` is a multiple
        of that. Kernels without a distance (``"poly"``, ``"sigmoid"``) use ``1 / d`` instead.
    kernel_params : dict or None, default=None
        Further parameters of a scikit-learn kernel or a function.
    basis : "random", "kmeans" or array of shape (n_basis, d), default="random"
        Basis rows: random rows of X, k-means centres, or the given ones, which must be
        preprocessed already (like `basis_` of another hasher).
    n_basis : int, default=1000
        Number of basis rows; if X has fewer rows, all of them are used.
    ridge : float or "decay", default="decay"
        Regularisation: `ridge` times the mean eigenvalue of D_N, in the metric of the kernel's
        Hilbert space, is added to D_P, and a tenth of that to D_N. ``"decay"`` starts at 0.5 for
        the first 32 bits and divides by 20 each time the length doubles, so that a short prefix is
        as good as a code learned for that length.
    threshold_weight : float, default=1.0
        The threshold of each bit minimises ``threshold_weight * FNR + FPR`` on the training pairs.
        Large values make bits constant.
    refine : int, default=0
        Maximum number of steps of stochastic gradient descent after the closed form, on a smooth
        ranking loss (see `kdiffhash.learn.refinement`). 1000 suffice, and 100 for queries and
        documents; 0 disables refinement.
    nested : bool, default=True
        Whether refinement also makes every prefix a good code. False gives slightly better codes of
        the full length.
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
    verbose : bool, default=False
        Show the progress of refinement on a terminal.

    Attributes
    ----------
    directions_ : float32 array of shape (n_bits, n_basis)
        Coefficients of the kernel expansion, one row per bit.
    thresholds_ : float32 array of shape (n_bits,)
        One threshold per bit.
    basis_ : float32 array of shape (n_basis, d)
        Basis rows after preprocessing.
    gamma_ : float
        Bandwidth in use.
    metric_ : float32 array of shape (d, d)
        Only for ``kernel="mahalanobis"``: the map ``S^(-1/4)`` applied to rows and basis.
    bit_fnr_ : float64 array of shape (n_bits,)
        False negative rate of each bit on the training pairs.
    bit_fpr_ : float64 array of shape (n_bits,)
        False positive rate of each bit on the training pairs.
    bit_ones_ : float64 array of shape (n_bits,)
        Share of training rows for which the bit is 1.
    bit_spread_ : float64 array of shape (n_bits,)
        Standard deviation of the projections of training rows.

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
        gamma: float | str = "median/3",
        kernel_params: Mapping[str, Any] | None = None,
        basis: Literal["random", "kmeans"] | NDArray[Any] = "random",
        n_basis: int = 1000,
        ridge: float | Literal["decay"] = "decay",
        threshold_weight: float = 1.0,
        refine: int = 0,
        nested: bool = True,
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
        self.nested = nested
        self.preprocess = preprocess
        self.n_positives = n_positives
        self.n_negatives = n_negatives
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _check_params(self) -> None:
        super()._check_params()
        if self.ridge != "decay":
            check_ridge(self.ridge)

    def _directions(
        self, positive: PairMoments, negative: PairMoments, n_bits: int
    ) -> NDArray[np.float64]:
        return lda_directions(positive, negative, n_bits, ridge=self.ridge, gram=self._gram())
