"""Baselines that learn from rows alone: PCA-hash, spectral hashing, SKLSH and kernelised LSH."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ..codes import Codes, pack
from ..hashers import BaseHasher
from ..hashers.itq import UnsupervisedHasher
from ..hashers.model_file import register
from ..learn.directions import smallest_eigenvectors
from ..learn.encoder import compute_features
from ..learn.kernels import MEDIAN_ROWS, GaussianMap, Rows, median_gamma
from ..learn.preprocess import Preprocess, preprocess_rows

_BATCH = 50_000  # rows whose projections are in memory at once


@register
class PCAHash(UnsupervisedHasher):
    """Signs of the principal components, at most one bit per feature.

    Parameters
    ----------
    n_bits : int or None, default=None
        Length of the codes, at most the number of features. None means 128, or the number of
        features if that is smaller.
    preprocess : {None, "unit", "hellinger"}, default=None
        Preprocessing of each row, stored with the model: none, scaling to Euclidean length 1, or
        scaling to sum 1 followed by square roots (turns SIFT into RootSIFT).
    random_state : int, RandomState instance or None, default=None
        Seed of the sample of rows that is used if there are more than a million.
    n_jobs : int or None, default=None
        Number of threads; None uses all cores. The result does not depend on it.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash.study.baselines import PCAHash
    >>> PCAHash(16).fit_transform(load_digits().data).shape
    (1797, 2)
    """

    def _find_directions(self, rows: Rows) -> NDArray[Any]:
        width = rows.shape[1]
        n_bits = min(128, width) if self.n_bits is None else int(self.n_bits)
        if n_bits > width:
            raise ValueError(
                f"PCAHash gives at most one bit per feature: n_bits={n_bits}, but X has "
                f"{width} feature(s)"
            )
        return smallest_eigenvectors(-(rows.T @ rows).astype(np.float64), n_bits)


@register
class KLSHHash(UnsupervisedHasher):
    """Kernelised locality-sensitive hashing: random hyperplanes in the space of a Gaussian kernel.

    A hyperplane is the mean of `n_subset` random basis rows, whitened by the kernel matrix of all
    basis rows, which makes it nearly normally distributed in that space.

    Parameters
    ----------
    n_bits : int or None, default=None
        Length of the codes. None means 128.
    n_basis : int, default=300
        Number of basis rows.
    n_subset : int, default=30
        Number of basis rows per hyperplane.
    gamma_factor : float, default=1.0
        Bandwidth of the kernel, as a multiple of the reciprocal median squared distance.
    preprocess : {None, "unit", "hellinger"}, default=None
        Preprocessing of each row, stored with the model: none, scaling to Euclidean length 1, or
        scaling to sum 1 followed by square roots (turns SIFT into RootSIFT).
    random_state : int, RandomState instance or None, default=None
        Seed of the basis rows and hyperplanes.
    n_jobs : int or None, default=None
        Number of threads; None uses all cores. The result does not depend on it.

    References
    ----------
    B. Kulis, K. Grauman: Kernelized locality-sensitive hashing for scalable image search. ICCV
    2009.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash.study.baselines import KLSHHash
    >>> KLSHHash(100, random_state=0).fit_transform(load_digits().data).shape
    (1797, 13)
    """

    basis_: NDArray[np.float32]
    gamma_: float

    _fitted: ClassVar[tuple[str, ...]] = (*BaseHasher._fitted, "basis_", "gamma_")

    def __init__(
        self,
        n_bits: int | None = None,
        *,
        n_basis: int = 300,
        n_subset: int = 30,
        gamma_factor: float = 1.0,
        preprocess: Preprocess = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(n_bits, preprocess=preprocess, random_state=random_state, n_jobs=n_jobs)
        self.n_basis = n_basis
        self.n_subset = n_subset
        self.gamma_factor = gamma_factor

    def _learn(self, X: Any, *pairs: object) -> None:  # noqa: ARG002
        rng = self._rng("basis")
        numbers = np.sort(rng.choice(len(X), min(self.n_basis, len(X)), replace=False))
        self.basis_ = preprocess_rows(X[numbers], self.preprocess)
        some = np.sort(rng.choice(len(X), min(MEDIAN_ROWS, len(X)), replace=False))
        rows = preprocess_rows(X[some], self.preprocess)
        self.gamma_ = self.gamma_factor * median_gamma("rbf", rows, self.basis_)
        gram = compute_features(self.basis_, None, self._feature_map(), self.n_jobs)
        mean = gram.mean(axis=0, dtype=np.float64)
        centred = gram - mean - (mean - mean.mean())[:, None]
        values, vectors = np.linalg.eigh((centred + centred.T) / 2)
        kept = values > 1e-6 * values.max()
        root = (vectors[:, kept] / np.sqrt(values[kept])) @ vectors[:, kept].T
        n_bits, n = self.n_bits or 128, len(numbers)
        chosen = np.zeros((n_bits, n))
        for row in chosen:
            row[rng.choice(n, min(self.n_subset, n), replace=False)] = 1
        directions = chosen @ root
        directions -= directions.mean(axis=1, keepdims=True)
        self.directions_ = np.ascontiguousarray(directions, np.float32)
        self.thresholds_ = (self.directions_ @ mean).astype(np.float32)

    def _find_directions(self, rows: Rows) -> NDArray[Any]:
        raise NotImplementedError  # `_learn` does it

    def _feature_map(self) -> GaussianMap:  # type: ignore[override]
        return GaussianMap(self.basis_, self.gamma_)


class _WavesOfProjections(TransformerMixin, BaseEstimator):
    """Base class: bits are where cos(w . x + phase) + shift is above zero."""

    n_bits: int
    preprocess: Preprocess
    directions_: NDArray[np.float64]
    phases_: NDArray[np.float64]
    shifts_: NDArray[np.float64]

    def transform(self, X: ArrayLike) -> Codes:
        """Encode rows.

        Parameters
        ----------
        X : array of shape (n, d)
            Rows of any numeric type.

        Returns
        -------
        codes : uint8 array of shape (n, ceil(n_bits / 8))
            Packed codes.
        """
        check_is_fitted(self)
        checked = validate_data(self, X, reset=False, dtype="numeric")
        out = []
        for start in range(0, len(checked), _BATCH):
            rows = preprocess_rows(checked[start : start + _BATCH], self.preprocess)
            waves = np.cos(rows @ self.directions_.T + self.phases_) + self.shifts_
            out.append(pack(waves > 0))
        return np.concatenate(out)

    def _rows(self, X: ArrayLike) -> NDArray[np.float64]:
        checked = validate_data(self, X, dtype="numeric", ensure_min_samples=2)
        return preprocess_rows(checked, self.preprocess).astype(np.float64)


class SpectralHash(_WavesOfProjections):
    """Spectral hashing: harmonics along the principal components, the smoothest ones first.

    Rows are taken to be uniform in a box along `n_bits` principal components (at most all); bits
    are signs of the eigenfunctions of the Laplacian of that box with the smallest eigenvalues.

    Parameters
    ----------
    n_bits : int, default=128
        Length of the codes.
    preprocess : {None, "unit", "hellinger"}, default=None
        Preprocessing of each row, stored with the model: none, scaling to Euclidean length 1, or
        scaling to sum 1 followed by square roots (turns SIFT into RootSIFT).

    References
    ----------
    Y. Weiss, A. Torralba, R. Fergus: Spectral hashing. NIPS 2008.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash.study.baselines import SpectralHash
    >>> SpectralHash(100).fit_transform(load_digits().data).shape
    (1797, 13)
    """

    def __init__(self, n_bits: int = 128, *, preprocess: Preprocess = None) -> None:
        self.n_bits = n_bits
        self.preprocess = preprocess

    def fit(self, X: ArrayLike, y: object = None) -> Self:  # noqa: ARG002
        """Compute the principal components and the extent of the rows along them.

        Parameters
        ----------
        X : array of shape (n, d)
            Training rows.
        y : object, default=None
            Ignored.

        Returns
        -------
        self : SpectralHash
            The fitted hasher.
        """
        rows = self._rows(X)
        mean = rows.mean(axis=0)
        n = min(self.n_bits, rows.shape[1])
        components = smallest_eigenvectors(-np.cov(rows.T), n)
        projections = (rows - mean) @ components.T
        low, high = projections.min(axis=0), projections.max(axis=0)
        spans = np.maximum(high - low, 1e-12)
        most = int(np.ceil((self.n_bits + 1) * spans.max() / spans.sum())) + self.n_bits
        modes = np.arange(1, most + 1)
        frequencies = modes / spans[:, None]
        first = np.argsort(frequencies.ravel(), kind="stable")[: self.n_bits]
        axes, orders = first // most, modes[first % most]
        omega = orders * np.pi / spans[axes]
        self.directions_ = omega[:, None] * components[axes]
        self.phases_ = -omega * low[axes] - self.directions_ @ mean
        self.shifts_ = np.zeros(self.n_bits)
        return self


class SKLSHHash(_WavesOfProjections):
    """Locality-sensitive hashing for the Gaussian kernel, by random cosines with random thresholds.

    Parameters
    ----------
    n_bits : int, default=128
        Length of the codes.
    gamma_factor : float, default=1.0
        Bandwidth of the kernel, as a multiple of the reciprocal median squared distance.
    preprocess : {None, "unit", "hellinger"}, default=None
        Preprocessing of each row, stored with the model: none, scaling to Euclidean length 1, or
        scaling to sum 1 followed by square roots (turns SIFT into RootSIFT).
    random_state : int or None, default=None
        Seed of the cosines.

    References
    ----------
    M. Raginsky, S. Lazebnik: Locality-sensitive binary codes from shift-invariant kernels. NIPS
    2009.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash.study.baselines import SKLSHHash
    >>> SKLSHHash(100, random_state=0).fit_transform(load_digits().data).shape
    (1797, 13)
    """

    def __init__(
        self,
        n_bits: int = 128,
        *,
        gamma_factor: float = 1.0,
        preprocess: Preprocess = None,
        random_state: int | None = None,
    ) -> None:
        self.n_bits = n_bits
        self.gamma_factor = gamma_factor
        self.preprocess = preprocess
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: object = None) -> Self:  # noqa: ARG002
        """Estimate the bandwidth, and draw the random cosines.

        Parameters
        ----------
        X : array of shape (n, d)
            Training rows.
        y : object, default=None
            Ignored.

        Returns
        -------
        self : SKLSHHash
            The fitted hasher.
        """
        rows = self._rows(X)
        rng = np.random.default_rng(self.random_state)
        some = rows[rng.choice(len(rows), min(MEDIAN_ROWS, len(rows)), replace=False)]
        gamma = self.gamma_factor * median_gamma("rbf", some, some[::-1][: len(some) // 2 + 1])
        normal = rng.standard_normal((self.n_bits, rows.shape[1]))
        self.directions_ = np.sqrt(2 * gamma) * normal
        self.phases_ = rng.uniform(0, 2 * np.pi, self.n_bits)
        self.shifts_ = rng.uniform(-1, 1, self.n_bits)
        return self
