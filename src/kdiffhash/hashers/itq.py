"""Iterative quantisation (ITQ), and the base class of hashers that learn from rows alone."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..directions import smallest_eigenvectors
from ..kernels import IdentityMap, Rows
from ..parallel import one_blas_thread
from ..preprocess import Preprocess, preprocess_rows
from ..rows import gather
from .base import BaseHasher

_MOST_ROWS = 1_000_000  # that are learned from


class UnsupervisedHasher(BaseHasher):
    """Base class of the hashers that learn from rows without pairs; thresholds are at the mean."""

    offset_: NDArray[np.float32]

    _fitted: ClassVar[tuple[str, ...]] = (*BaseHasher._fitted, "offset_")

    n_positives = 100_000  # pairs that `score` draws
    n_negatives = 200_000

    def __init__(
        self,
        n_bits: int | None = None,
        *,
        preprocess: Preprocess = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_bits = n_bits
        self.preprocess = preprocess
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: object = None, groups: object = None) -> Self:  # noqa: ARG002
        """Learn from rows, from a random million of them if there are more.

        `y` and `groups` are ignored.
        """
        self._forget()
        rows, _ = self._check_training_rows(X)
        none = np.empty((0, 2), np.int64)
        return self._fit_checked(rows, none, np.empty(0, bool), None)

    def _learn(self, X: Any, *pairs: object) -> None:  # noqa: ARG002
        n = len(X)
        numbers = np.arange(n)
        if n > _MOST_ROWS:
            numbers = np.sort(self._rng("rows").choice(n, _MOST_ROWS, replace=False))
        rows = preprocess_rows(gather(X, numbers)[numbers], self.preprocess)
        self.offset_ = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        rows -= self.offset_
        with one_blas_thread():
            self.directions_ = np.ascontiguousarray(self._find_directions(rows), np.float32)
        self.thresholds_ = np.zeros(len(self.directions_), np.float32)

    def _feature_map(self) -> IdentityMap:
        return IdentityMap(self.offset_)

    @abstractmethod
    def _find_directions(self, rows: Rows) -> NDArray[Any]:
        """Directions, shape (n_bits, d), from centred rows."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags


class ITQHash(UnsupervisedHasher):
    """Iterative quantisation: principal components, rotated to lie close to the corners of a cube.

    A model is learned for one length: a prefix of its codes is not a good shorter code.

    Parameters
    ----------
    n_bits : int, optional
        At most the number of features. By default 128, or as many as there are features.
    n_iter : int
        Number of alternations between codes and rotation.
    preprocess, random_state, n_jobs
        As in `DiffHash`.

    References
    ----------
    Y. Gong, S. Lazebnik: Iterative quantization: a procrustean approach to learning binary codes.
    CVPR 2011.
    """

    _nested: ClassVar[bool] = False

    def __init__(
        self,
        n_bits: int | None = None,
        *,
        n_iter: int = 50,
        preprocess: Preprocess = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(n_bits, preprocess=preprocess, random_state=random_state, n_jobs=n_jobs)
        self.n_iter = n_iter

    def _find_directions(self, rows: Rows) -> NDArray[Any]:
        width = rows.shape[1]
        n_bits = min(128, width) if self.n_bits is None else int(self.n_bits)
        if n_bits > width:
            raise ValueError(
                f"ITQHash gives at most one bit per feature: n_bits={n_bits}, but X has "
                f"{width} feature(s)"
            )
        covariance = (rows.T @ rows).astype(np.float64) / len(rows)
        components = smallest_eigenvectors(-covariance, n_bits)
        reduced = rows @ components.T.astype(np.float32)
        rotation, _ = np.linalg.qr(self._rng("rotation").standard_normal((n_bits, n_bits)))
        for _ in range(self.n_iter):
            corners = np.where(
                reduced @ rotation.astype(np.float32) > 0, np.float32(1), np.float32(-1)
            )
            u, _, v = np.linalg.svd((reduced.T @ corners).astype(np.float64))
            rotation = u @ v
        directions: NDArray[np.float64] = rotation.T @ components
        return directions
