"""Kernels, and the features k(x, b_1), ..., k(x, b_l) of a row x on basis rows b.

A feature map works on tiles: buffers of `tile` rows, of which the first `n_rows` count. It must
treat each row alike wherever it stands in a tile, so that codes do not depend on batches.
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
MEDIAN_ROWS = 2_000  # rows whose distances to the basis are enough for `median_gamma`
_GROUPS = 10  # of k-means for each basis row, where there are rows enough
_GROUP_SIZE = 10  # rows of a group, about, at least
_SMALL_GROUP = 4  # rows of a group that is too small to be chosen
_EIGENVALUE_FLOOR = 1e-4  # relative to the largest; keeps inverse roots of covariances tame


class FeatureMap(Protocol):
    """Turns tiles of preprocessed rows, minus `shift`, into tiles of features."""

    tile: ClassVar[int]  # rows of a tile

    @property
    def shift(self) -> Rows | None:
        """What is taken from every row beforehand, shape (d,)."""

    @property
    def input_width(self) -> int:
        """Number of values in a row."""

    @property
    def width(self) -> int:
        """Number of features."""

    @property
    def in_unit_interval(self) -> bool:
        """Whether all features lie in [0, 1], so that their moments can be exact."""

    def start_thread(self) -> TileFunction:
        """A function from a tile and its number of rows to features, with buffers of its own."""


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
        """Hand the tile on as it is."""
        return lambda rows, _: rows


@dataclass(frozen=True, eq=False)
class BasisMap:
    """Kernel values of a row with each of the basis rows."""

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
    """``exp(-gamma ||A(x - b)||^2)`` for every basis row b; A is the identity or `metric`.

    One product gives all x'b of a tile. The square is expanded around the mean of the basis, so
    that a common offset of the data does not drown the differences. (Basis rows are float32: an
    offset of a million times the differences is lost beforehand.)
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
        """What rows are multiplied with, so that squares stay in range for data of any scale."""
        return np.float32(np.sqrt(self.gamma * LOG2_E))

    @cached_property
    def panels(self) -> tuple[Rows, Rows, Rows | None]:
        """What rows are multiplied with, packed: basis, its squared norms, metric."""
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
        """Two or three passes: (metric,) product, exponential."""
        return _GaussianTile(self)

    @cached_property
    def _basis_in_double(self) -> NDArray[np.float64]:
        basis = self.basis.astype(np.float64) - self.shift
        if self.metric is not None:
            with one_blas_thread():
                basis = basis @ self.metric.astype(np.float64)
        return basis

    def in_double(self, rows: Rows) -> NDArray[np.float64]:
        """Features of a few rows, minus `shift`, in double precision."""
        exact = rows.astype(np.float64)
        if self.metric is not None:
            metric = self.metric.astype(np.float64)
            exact = np.stack([row @ metric for row in exact])  # each by itself
        features = np.empty((len(rows), self.width))
        gaussians(exact, self._basis_in_double, self.gamma * LOG2_E, features)
        return features


class _GaussianTile:
    """The buffers of one thread for a `GaussianMap`."""

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
    """Any kernel that scikit-learn names, or a function of two matrices of rows.

    Kernels of inner products are made here, since scikit-learn leaves these to BLAS, which treats
    rows differently by their place. For the same reason functions always get a whole tile, filled
    up with zeros.
    """

    tile: ClassVar[int] = 240
    shift: ClassVar[Rows | None] = None
    kernel: Kernel
    params: Mapping[str, Any]

    @property
    def in_unit_interval(self) -> bool:
        """True of the kernels that are exponentials of a distance."""
        return self.kernel in ("laplacian", "chi2")

    def start_thread(self) -> TileFunction:
        """Call the kernel on the tile and the basis."""
        of_product = _of_inner_product(self.kernel, self.params)
        return self._call if of_product is None else partial(self._of_products, of_product)

    @cached_property
    def _panels(self) -> Rows:
        return pack_panels(_unit_rows(self.basis) if self.kernel == "cosine" else self.basis)

    @cached_property
    def _own_basis(self) -> Rows:
        """A copy, which scikit-learn wants to be writable, and a function must not write to."""
        basis = self.basis.copy()
        basis.flags.writeable = not callable(self.kernel)
        return basis

    def _of_products(
        self, function: Callable[[NDArray[Any]], NDArray[Any]], rows: Rows, n_rows: int
    ) -> Rows:
        products = empty_result(self.tile, self._panels)
        rows = _unit_rows(rows) if self.kernel == "cosine" else rows
        multiply(rows, self._panels, n_rows, products)
        return self._checked(function(products[:n_rows, : self.width]), n_rows)

    def _call(self, rows: Rows, n_rows: int) -> Rows:
        rows[n_rows:] = 0
        with np.errstate(invalid="ignore", divide="ignore"):  # on the rows that fill up the tile
            values = np.asarray(kernel_matrix(self.kernel, rows, self._own_basis, self.params))
        if values.shape != (len(rows), self.width):
            raise ValueError(
                f"the kernel gave shape {values.shape} for {len(rows)} rows and {self.width} "
                f"basis rows; it must give ({len(rows)}, {self.width})"
            )
        return self._checked(values[:n_rows], n_rows)

    def _checked(self, values: NDArray[Any], n_rows: int) -> Rows:
        """The values at the top of a tile of their own."""
        if not np.isfinite(values).all():
            raise ValueError("the kernel gave NaN or infinity; check its parameters")
        tile = np.zeros((self.tile, self.width), np.float32)
        tile[:n_rows] = values
        return tile


def _of_inner_product(
    kernel: Kernel, params: Mapping[str, Any]
) -> Callable[[NDArray[Any]], NDArray[Any]] | None:
    """The kernel as a function of x'b, with scikit-learn's defaults, if it is one."""
    gamma, shift = params.get("gamma", 1.0), params.get("coef0", 1)
    if kernel in ("linear", "cosine"):
        return lambda product: product
    if kernel in ("poly", "polynomial"):
        return lambda product: (gamma * product + shift) ** params.get("degree", 3)
    if kernel == "sigmoid":
        return lambda product: np.tanh(gamma * product + shift)
    return None


def _unit_rows(rows: Rows) -> Rows:
    squares = np.empty(len(rows), np.float32)
    squared_norms(np.ascontiguousarray(rows), rows.shape[1], len(rows), squares)
    lengths = np.sqrt(squares)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1)[:, None], np.float32)


def kernel_matrix(kernel: Kernel, a: Rows, b: Rows, params: Mapping[str, Any]) -> NDArray[Any]:
    """Kernel of each row of `a` with each of `b`."""
    if callable(kernel):
        return kernel(a, b, **params)
    from sklearn.metrics.pairwise import pairwise_kernels

    matrix: NDArray[Any] = pairwise_kernels(a, b, metric=kernel, **params)
    return matrix


def check_kernel(kernel: object) -> None:
    """Refuse an unknown kernel name."""
    if callable(kernel) or kernel == "mahalanobis":
        return
    from sklearn.metrics.pairwise import PAIRWISE_KERNEL_FUNCTIONS

    if kernel not in PAIRWISE_KERNEL_FUNCTIONS:
        names = ", ".join(["mahalanobis", *sorted(PAIRWISE_KERNEL_FUNCTIONS)])
        raise ValueError(f"kernel must be a function or one of {names}; got {kernel!r}")


def takes_gamma(kernel: Kernel) -> bool:
    """Whether the kernel has a bandwidth called gamma."""
    return kernel in ("rbf", "mahalanobis", "laplacian", "chi2", "poly", "polynomial", "sigmoid")


def median_gamma(kernel: Kernel, rows: NDArray[Any], basis: NDArray[Any]) -> float:
    """One over the median of the distance inside the kernel; 1/d where there is no distance.

    The paper's Gaussian has no bandwidth, and without one it is nearly 0 or nearly constant on real
    descriptors. Rows and basis are in the kernel's own metric.
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
    middle = float(np.median(distances))
    if middle <= 0:  # more than half of the rows are copies of basis rows
        middle = float(distances.mean())
    return 1.0 / middle if middle > 0 else 1.0


def inverse_fourth_root(covariance: NDArray[np.float64]) -> Rows:
    """``covariance ** (-1/4)``, the whitening map inside the paper's Mahalanobis kernel."""
    values, vectors = np.linalg.eigh(covariance)
    top = values.max(initial=0.0)
    if top <= 0:
        return np.eye(len(covariance), dtype=np.float32)
    values = np.maximum(values, _EIGENVALUE_FLOOR * top)
    root: Rows = ((vectors * values**-0.25) @ vectors.T).astype(np.float32)
    return root


def kmeans_basis(rows: Rows, n_basis: int, rng: np.random.Generator) -> Rows:
    """Some of the centres of k-means over preprocessed rows, at most as many as there are rows.

    There are more groups than are needed, and a random choice of them is taken: centres of large
    groups are all alike, and a hasher on them is less accurate than on random rows. Where there
    are rows enough, no centre is a row itself: each is the mean of several.
    """
    from sklearn.cluster import MiniBatchKMeans
    from threadpoolctl import threadpool_limits

    n_basis = min(n_basis, len(rows))
    means = MiniBatchKMeans(
        max(n_basis, min(_GROUPS * n_basis, len(rows) // _GROUP_SIZE)),
        init="random",
        batch_size=max(4096, len(rows) // 5),
        n_init=1,
        max_iter=3,
        random_state=int(rng.integers(2**31)),
    )
    with threadpool_limits(1, user_api="openmp"):
        groups = means.fit(rows).predict(rows)
    sizes = np.bincount(groups, minlength=means.n_clusters)
    chosen = rng.permutation(means.n_clusters)
    chosen = chosen[np.argsort(sizes[chosen] < _SMALL_GROUP, kind="stable")][:n_basis]
    order = np.argsort(groups, kind="stable")
    ends = np.cumsum(sizes)
    centres: Rows = means.cluster_centers_[chosen].astype(np.float32)
    for i, group in enumerate(chosen):  # where its rows are; the last step of k-means was before
        if sizes[group]:
            centres[i] = rows[order[ends[group] - sizes[group] : ends[group]]].mean(axis=0)
    return centres
