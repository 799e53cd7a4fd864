"""Kernels, and the features k(x, b_1), ..., k(x, b_l) of a row x for basis rows b.

A feature map works on tiles: buffers of `tile` rows, of which the first `n_rows` are in use. The
features of a row must not depend on its position in the tile, so that codes do not depend on how
rows are batched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from .._core import exp2_of_expanded_square, gaussians, squared_norms
from .._util.threads import one_blas_thread
from .product import empty_result, multiply, pack_panels

Kernel = str | Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[Any]]
Rows = NDArray[np.float32]
TileFunction = Callable[[Rows, int], Rows]

LOG2_E = 1.4426950408889634
MEDIAN_ROWS = 2_000  # rows whose distances to the basis suffice for `median_gamma`
_CLUSTERS_PER_BASIS_ROW = 10  # of k-means, if there are enough rows
_ROWS_PER_CLUSTER = 10  # minimum, on average
_SMALL_CLUSTER = 4  # clusters with fewer rows are chosen last
_EIGENVALUE_FLOOR = 1e-4  # relative to the largest; bounds inverse roots of covariances


class FeatureMap(Protocol):
    """Maps tiles of preprocessed rows, minus `shift`, to tiles of features."""

    tile: ClassVar[int]  # rows per tile

    @property
    def shift(self) -> Rows | None:
        """Offset subtracted from every row beforehand, shape (d,)."""

    @property
    def input_width(self) -> int:
        """Number of values in a row."""

    @property
    def width(self) -> int:
        """Number of features."""

    @property
    def in_unit_interval(self) -> bool:
        """Whether all features lie in [0, 1], so that moments can be computed exactly."""

    def start_thread(self) -> TileFunction:
        """Return a function of a tile and its number of rows, with buffers for one thread."""


@dataclass(frozen=True, eq=False)
class IdentityMap:
    """The linear case: the rows themselves."""

    tile: ClassVar[int] = 960
    in_unit_interval: ClassVar[bool] = False
    shift: Rows

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.shift)

    input_width = width

    def start_thread(self) -> TileFunction:
        """Return a function that returns the tile itself."""
        return lambda rows, _: rows


@dataclass(frozen=True, eq=False)
class BasisMap:
    """Base of the maps to kernel values of a row with each basis row."""

    basis: Rows

    @property
    def input_width(self) -> int:
        """Number of values in a basis row."""
        return int(self.basis.shape[1])

    @property
    def width(self) -> int:
        """Number of basis rows."""
        return len(self.basis)


@dataclass(frozen=True, eq=False)
class GaussianMap(BasisMap):
    """Map to ``exp(-gamma ||A(x - b)||^2)`` for every basis row b.

    A is the identity or `metric`. One matrix product gives all x'b of a tile. The square is
    expanded around the mean of the basis rows, so that a common offset of the data does not cancel
    the differences. Basis rows are float32, so with an offset of a million times the differences,
    precision is already lost before.
    """

    tile: ClassVar[int] = 240
    in_unit_interval: ClassVar[bool] = True
    gamma: float
    metric: Rows | None = None

    @cached_property
    def shift(self) -> Rows:
        """Mean of the basis rows."""
        mean: Rows = self.basis.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean

    @cached_property
    def scale(self) -> np.float32:
        """Factor on rows that keeps squares in range for data of any scale."""
        return np.float32(np.sqrt(self.gamma * LOG2_E))

    @cached_property
    def panels(self) -> tuple[Rows, Rows, Rows | None]:
        """Packed basis, its squared norms, and packed metric."""
        basis = self.basis - self.shift
        if self.metric is not None:
            with one_blas_thread():
                basis = (basis.astype(np.float64) @ self.metric).astype(np.float32)
        basis = basis * self.scale
        squares = np.empty(len(basis), np.float32)
        squared_norms(basis, basis.shape[1], len(basis), squares)
        metric = None if self.metric is None else pack_panels(self.metric.T)
        return pack_panels(2 * basis), squares, metric

    def start_thread(self) -> TileFunction:
        """Return a function that applies the metric, if any, the product and the exponential."""
        return _GaussianTile(self)

    @cached_property
    def _basis_in_double(self) -> NDArray[np.float64]:
        basis = self.basis.astype(np.float64) - self.shift
        if self.metric is not None:
            with one_blas_thread():
                basis = basis @ self.metric.astype(np.float64)
        return basis

    def in_double(self, rows: Rows) -> NDArray[np.float64]:
        """Compute the features of a few rows, minus `shift`, in double precision."""
        exact = rows.astype(np.float64)
        if self.metric is not None:
            metric = self.metric.astype(np.float64)
            # Row by row, since BLAS rounds a row differently depending on its position.
            exact = np.stack([row @ metric for row in exact])
        features = np.empty((len(rows), self.width))
        gaussians(exact, self._basis_in_double, self.gamma * LOG2_E, features)
        return features


class _GaussianTile:
    """Computes the features of a `GaussianMap`, with the buffers of one thread."""

    def __init__(self, features: GaussianMap) -> None:
        self.scale, (self.panels, self.column_terms, self.metric) = features.scale, features.panels
        self.width = features.input_width
        self.row_terms = np.empty(features.tile, np.float32)
        self.out = empty_result(features.tile, self.panels)
        self.mapped = None if self.metric is None else empty_result(features.tile, self.metric)

    def __call__(self, rows: Rows, n_rows: int) -> Rows:
        if self.metric is not None and self.mapped is not None:
            multiply(rows, self.metric, n_rows, self.mapped)
            rows = self.mapped
        rows[:n_rows] *= self.scale
        squared_norms(rows, self.width, n_rows, self.row_terms)
        multiply(rows, self.panels, n_rows, self.out)
        exp2_of_expanded_square(self.out, self.row_terms, self.column_terms, n_rows)
        return self.out


@dataclass(frozen=True, eq=False)
class PairwiseMap(BasisMap):
    """Map to the values of a kernel known to scikit-learn, or of a function of two sets of rows.

    Kernels that are functions of the inner product are computed here. scikit-learn computes them
    with BLAS, which rounds a row differently depending on its position. For the same reason,
    functions are always called with a whole tile, padded with zeros.
    """

    tile: ClassVar[int] = 240
    shift: ClassVar[Rows | None] = None
    kernel: Kernel
    params: Mapping[str, Any]

    @property
    def in_unit_interval(self) -> bool:
        """True for the kernels that are exponentials of a negative distance."""
        return self.kernel in ("laplacian", "chi2")

    def start_thread(self) -> TileFunction:
        """Return a function that computes the kernel between a tile and the basis."""
        function = _function_of_product(self.kernel, self.params)
        return self._call_kernel if function is None else partial(self._from_products, function)

    @cached_property
    def _panels(self) -> Rows:
        return pack_panels(_unit_rows(self.basis) if self.kernel == "cosine" else self.basis)

    @cached_property
    def _basis_copy(self) -> Rows:
        """A copy that is writable for scikit-learn, which requires it, but not for functions."""
        basis = self.basis.copy()
        basis.flags.writeable = not callable(self.kernel)
        return basis

    def _from_products(
        self, function: Callable[[NDArray[Any]], NDArray[Any]], rows: Rows, n_rows: int
    ) -> Rows:
        products = empty_result(self.tile, self._panels)
        rows = _unit_rows(rows) if self.kernel == "cosine" else rows
        multiply(rows, self._panels, n_rows, products)
        return self._to_tile(function(products[:n_rows, : self.width]), n_rows)

    def _call_kernel(self, rows: Rows, n_rows: int) -> Rows:
        rows[n_rows:] = 0
        with np.errstate(invalid="ignore", divide="ignore"):  # in the rows of padding
            values = np.asarray(kernel_matrix(self.kernel, rows, self._basis_copy, self.params))
        if values.shape != (len(rows), self.width):
            raise ValueError(
                f"the kernel returned shape {values.shape} for {len(rows)} rows and {self.width} "
                f"basis rows; it must return shape ({len(rows)}, {self.width})"
            )
        return self._to_tile(values[:n_rows], n_rows)

    def _to_tile(self, values: NDArray[Any], n_rows: int) -> Rows:
        """Copy finite values to the first rows of a new tile."""
        if not np.isfinite(values).all():
            raise ValueError("the kernel returned NaN or infinity; check its parameters")
        tile = np.zeros((self.tile, self.width), np.float32)
        tile[:n_rows] = values
        return tile


def _function_of_product(
    kernel: Kernel, params: Mapping[str, Any]
) -> Callable[[NDArray[Any]], NDArray[Any]] | None:
    """Return the kernel as a function of x'b, with scikit-learn's defaults, or None."""
    gamma, shift = params.get("gamma", 1.0), params.get("coef0", 1)
    if kernel in ("linear", "cosine"):
        return lambda product: product
    if kernel in ("poly", "polynomial"):
        return lambda product: (gamma * product + shift) ** params.get("degree", 3)
    if kernel == "sigmoid":
        return lambda product: np.tanh(gamma * product + shift)
    return None


def _unit_rows(rows: Rows) -> Rows:
    """Scale rows to Euclidean length 1; rows of zeros stay zero."""
    squares = np.empty(len(rows), np.float32)
    squared_norms(np.ascontiguousarray(rows), rows.shape[1], len(rows), squares)
    lengths = np.sqrt(squares)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1)[:, None], np.float32)


def kernel_matrix(kernel: Kernel, a: Rows, b: Rows, params: Mapping[str, Any]) -> NDArray[Any]:
    """Compute the kernel of each row of `a` with each row of `b`."""
    if callable(kernel):
        return kernel(a, b, **params)
    from sklearn.metrics.pairwise import pairwise_kernels

    matrix: NDArray[Any] = pairwise_kernels(a, b, metric=kernel, **params)
    return matrix


def check_kernel(kernel: object) -> None:
    """Raise ValueError for an unknown kernel name."""
    if callable(kernel) or kernel == "mahalanobis":
        return
    from sklearn.metrics.pairwise import PAIRWISE_KERNEL_FUNCTIONS

    if kernel not in PAIRWISE_KERNEL_FUNCTIONS:
        names = ", ".join(["mahalanobis", *sorted(PAIRWISE_KERNEL_FUNCTIONS)])
        raise ValueError(f"kernel must be a function or one of {names}; got {kernel!r}")


def takes_gamma(kernel: Kernel) -> bool:
    """Return whether the kernel has the parameter gamma."""
    return kernel in ("rbf", "mahalanobis", "laplacian", "chi2", "poly", "polynomial", "sigmoid")


def median_gamma(kernel: Kernel, rows: NDArray[Any], basis: NDArray[Any]) -> float:
    """Compute the bandwidth ``gamma="median"`` of a kernel.

    It is the reciprocal of the median distance between rows and basis rows (squared for Gaussians),
    or 1/d for kernels without a distance. The paper's Gaussian has no bandwidth, and without one it
    is nearly 0 or nearly constant on real descriptors.

    Parameters
    ----------
    kernel : str or callable
    rows : array of shape (n, d)
        Training rows, mapped to the kernel's metric.
    basis : array of shape (n_basis, d)
        Basis rows, mapped in the same way.

    Returns
    -------
    gamma : float
    """
    from sklearn.metrics.pairwise import (
        additive_chi2_kernel,
        euclidean_distances,
        manhattan_distances,
    )

    rows, basis = rows.astype(np.float64), basis.astype(np.float64)
    if kernel in ("rbf", "mahalanobis"):
        distances = euclidean_distances(rows, basis, squared=True)
    elif kernel == "laplacian":
        distances = manhattan_distances(rows, basis)
    elif kernel == "chi2":
        distances = -additive_chi2_kernel(rows, basis)
    else:
        return 1.0 / int(rows.shape[1])
    typical = float(np.median(distances))
    if typical <= 0:  # at least half of the distances are zero: rows are copies of basis rows
        typical = float(distances.mean())
    return 1.0 / typical if typical > 0 else 1.0


def inverse_fourth_root(covariance: NDArray[np.float64]) -> Rows:
    """Compute ``covariance ** (-1/4)``, the linear map of the paper's Mahalanobis kernel."""
    values, vectors = np.linalg.eigh(covariance)
    largest = values.max(initial=0.0)
    if largest <= 0:
        return np.eye(len(covariance), dtype=np.float32)
    values = np.maximum(values, _EIGENVALUE_FLOOR * largest)
    root: Rows = ((vectors * values**-0.25) @ vectors.T).astype(np.float32)
    return root


def kmeans_basis(rows: Rows, n_basis: int, rng: np.random.Generator) -> Rows:
    """Choose basis rows among the centres of k-means.

    K-means makes more clusters than needed, and a random subset of them is chosen: with as many
    clusters as basis rows, clusters are large, their centres resemble each other, and a hasher is
    less accurate than with random rows. If there are enough rows, no centre is itself a row: each
    is the mean of several.

    Parameters
    ----------
    rows : float32 array of shape (n, d)
        Preprocessed rows.
    n_basis : int
        Number of basis rows; if there are fewer rows, their number.
    rng : numpy.random.Generator

    Returns
    -------
    centres : float32 array of shape (min(n_basis, n), d)
    """
    from sklearn.cluster import MiniBatchKMeans
    from threadpoolctl import threadpool_limits

    n_basis = min(n_basis, len(rows))
    kmeans = MiniBatchKMeans(
        max(n_basis, min(_CLUSTERS_PER_BASIS_ROW * n_basis, len(rows) // _ROWS_PER_CLUSTER)),
        init="random",
        batch_size=max(4096, len(rows) // 5),
        n_init=1,
        max_iter=3,
        random_state=int(rng.integers(2**31)),
    )
    with threadpool_limits(1, user_api="openmp"):
        clusters = kmeans.fit(rows).predict(rows)
    sizes = np.bincount(clusters, minlength=kmeans.n_clusters)
    chosen = rng.permutation(kmeans.n_clusters)
    chosen = chosen[np.argsort(sizes[chosen] < _SMALL_CLUSTER, kind="stable")][:n_basis]
    order = np.argsort(clusters, kind="stable")
    ends = np.cumsum(sizes)
    centres: Rows = kmeans.cluster_centers_[chosen].astype(np.float32)
    for i, cluster in enumerate(chosen):  # the mean of the final assignment
        if sizes[cluster]:
            centres[i] = rows[order[ends[cluster] - sizes[cluster] : ends[cluster]]].mean(axis=0)
    return centres
