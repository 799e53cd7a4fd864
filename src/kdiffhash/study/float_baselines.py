"""Baselines that are not binary codes: product quantisation, and a metric learned from pairs.

They transform rows to real rows whose Euclidean distance is to be compared; `n_bits_` says how much
a row takes when it is stored.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from .._util.extras import need
from ..hashers.linear import check_ridge
from ..learn.moments import PairMoments
from ..learn.pairs import check_both_kinds, check_pairs, distinct_rows, draw_pairs
from ..learn.preprocess import Preprocess, preprocess_rows


class MahalanobisMetric(TransformerMixin, BaseEstimator):
    """Mahalanobis distance learned from pairs, as a float counterpart of linear codes.

    The matrix is the positive part of ``D_P^-1 - D_N^-1``, the moments of differences of positive
    and of negative pairs (KISSME): the likelihood ratio of two normal distributions of differences.

    Parameters
    ----------
    ridge : float, default=1e-3
        Regularisation: `ridge` times the mean eigenvalue of D_N is added to the diagonal of both
        moments.
    preprocess : {None, "unit", "hellinger"}, default=None
        Preprocessing of each row: none, scaling to Euclidean length 1, or
        scaling to sum 1 followed by square roots (turns SIFT into RootSIFT).
    n_positives : int, default=100_000
        Number of positive pairs that `fit` draws from the labels.
    n_negatives : int, default=200_000
        Number of negative pairs that `fit` draws from the labels.
    random_state : int or None, default=None
        Seed of the pairs; an int makes the result reproducible.

    Attributes
    ----------
    map_ : float32 array of shape (d, d)
        Matrix that rows are multiplied with.

    References
    ----------
    M. Koestinger, M. Hirzer, P. Wohlhart, P. M. Roth, H. Bischof: Large scale metric learning from
    equivalence constraints. CVPR 2012.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash.study.baselines import MahalanobisMetric
    >>> X, y = load_digits(return_X_y=True)
    >>> MahalanobisMetric(random_state=0).fit_transform(X, y).shape
    (1797, 64)
    """

    map_: NDArray[np.float32]

    def __init__(
        self,
        *,
        ridge: float = 1e-3,
        preprocess: Preprocess = None,
        n_positives: int = 100_000,
        n_negatives: int = 200_000,
        random_state: int | None = None,
    ) -> None:
        self.ridge = ridge
        self.preprocess = preprocess
        self.n_positives = n_positives
        self.n_negatives = n_negatives
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from labelled rows; training pairs are drawn from the labels.

        Parameters
        ----------
        X : array of shape (n, d)
            Training rows.
        y : array of shape (n,)
            Label of each row.

        Returns
        -------
        self : MahalanobisMetric
            The fitted metric.
        """
        rng = np.random.default_rng(self.random_state)
        pairs, similar = draw_pairs(y, self.n_positives, self.n_negatives, random_state=rng)
        return self.fit_pairs(X, pairs, similar)

    def fit_pairs(self, X: ArrayLike, pairs: ArrayLike, similar: ArrayLike) -> Self:
        """Learn from explicit pairs.

        Parameters
        ----------
        X : array of shape (n, d)
            Training rows.
        pairs : int array of shape (p, 2)
            Row numbers of both members of each pair.
        similar : bool array of shape (p,)
            True for positive pairs.

        Returns
        -------
        self : MahalanobisMetric
            The fitted metric.
        """
        check_ridge(self.ridge)
        checked = validate_data(self, X, dtype="numeric", ensure_min_samples=2)
        numbers, flags = check_pairs(pairs, similar, len(checked))
        check_both_kinds(int(flags.sum()), int((~flags).sum()))
        used, members = distinct_rows(numbers)
        rows = preprocess_rows(checked[used], self.preprocess)
        d_p, d_n = (PairMoments.of(rows, members[kind]).difference for kind in (flags, ~flags))
        floor = self.ridge * max(np.trace(d_n) / len(d_n), 1e-30) * np.eye(len(d_n))
        values, vectors = np.linalg.eigh(np.linalg.inv(d_p + floor) - np.linalg.inv(d_n + floor))
        self.map_ = (vectors * np.sqrt(np.maximum(values, 0))).astype(np.float32)
        return self

    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Map rows so that Euclidean distance becomes the learned distance.

        Parameters
        ----------
        X : array of shape (n, d)
            Rows of any numeric type.

        Returns
        -------
        mapped : float32 array of shape (n, d)
            The mapped rows.
        """
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype="numeric")
        mapped: NDArray[np.float32] = preprocess_rows(rows, self.preprocess) @ self.map_
        return mapped

    @property
    def n_bits_(self) -> int:
        """Bits of a transformed row."""
        return 32 * len(self.map_)


class ProductQuantizer(TransformerMixin, BaseEstimator):
    """Product quantisation with FAISS; rows are replaced by their nearest codewords.

    Distances between such rows are symmetric distances (SDC).

    Parameters
    ----------
    n_bits : int, default=128
        Bits of a code: one byte for each of ``n_bits / 8`` slices of equal width.
    preprocess : {None, "unit", "hellinger"}, default=None
        Preprocessing of each row: none, scaling to Euclidean length 1, or
        scaling to sum 1 followed by square roots (turns SIFT into RootSIFT).

    References
    ----------
    H. Jegou, M. Douze, C. Schmid: Product quantization for nearest neighbor search. PAMI 2011.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash.study.baselines import ProductQuantizer
    >>> ProductQuantizer(32).fit_transform(load_digits().data).shape
    (1797, 64)
    """

    def __init__(self, n_bits: int = 128, *, preprocess: Preprocess = None) -> None:
        self.n_bits = n_bits
        self.preprocess = preprocess

    def fit(self, X: ArrayLike, y: object = None) -> Self:  # noqa: ARG002
        """Learn the codewords by k-means.

        Parameters
        ----------
        X : array of shape (n, d)
            Training rows.
        y : object, default=None
            Ignored.

        Returns
        -------
        self : ProductQuantizer
            The fitted quantizer.
        """
        faiss = need("faiss", "faiss")
        rows = preprocess_rows(validate_data(self, X, dtype="numeric"), self.preprocess)
        width, n_slices = rows.shape[1], self.n_bits // 8
        if self.n_bits % 8 or not n_slices or width % n_slices:
            raise ValueError(
                f"n_bits must be 8 times a divisor of the {width} features, got {self.n_bits}"
            )
        self.quantizer_: Any = faiss.ProductQuantizer(width, n_slices, 8)
        self.quantizer_.train(np.ascontiguousarray(rows))
        return self

    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Replace rows by their nearest codewords.

        Parameters
        ----------
        X : array of shape (n, d)
            Rows of any numeric type.

        Returns
        -------
        rounded : float32 array of shape (n, d)
            The codewords.
        """
        check_is_fitted(self)
        checked = validate_data(self, X, reset=False, dtype="numeric")
        rows = np.ascontiguousarray(preprocess_rows(checked, self.preprocess))
        rounded: NDArray[np.float32] = self.quantizer_.decode(self.quantizer_.compute_codes(rows))
        return rounded

    @property
    def n_bits_(self) -> int:
        """Bits of a stored code."""
        check_is_fitted(self)
        return self.n_bits
