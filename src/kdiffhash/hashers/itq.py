"""Iterative quantisation (ITQ), and the base class of unsupervised hashers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from .._util.threads import one_blas_thread
from ..learn.directions import smallest_eigenvectors
from ..learn.kernels import IdentityMap, Rows
from ..learn.preprocess import Preprocess, preprocess_rows
from ..learn.refinement import Hash, Refinement, refine
from ..learn.rows import gather
from .base import BaseHasher

_MAX_ROWS = 1_000_000  # training uses a random sample beyond this


class UnsupervisedHasher(BaseHasher):
    """Base class of hashers that learn from unlabelled rows, with thresholds at the mean."""

    offset_: NDArray[np.float32]

    _fitted: ClassVar[tuple[str, ...]] = (*BaseHasher._fitted, "offset_")

    n_positives = 100_000  # number of pairs drawn by `score`
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
        """Learn from unlabelled rows, at most a random million of them.

        Parameters
        ----------
        X : array of shape (n, d)
            Training rows: an array, a memory map, the result of `kdiffhash.shards.open_shards`, or
            a dask array.
        y : object, default=None
            Ignored.
        groups : object, default=None
            Ignored.

        Returns
        -------
        self : object
            The fitted hasher.
        """
        self._forget()
        rows, _ = self._check_training_rows(X)
        none = np.empty((0, 2), np.int64)
        return self._fit_checked(rows, none, np.empty(0, bool), None)

    def _learn(self, X: Any, *pairs: object) -> None:  # noqa: ARG002
        n = len(X)
        numbers = np.arange(n)
        if n > _MAX_ROWS:
            numbers = np.sort(self._rng("rows").choice(n, _MAX_ROWS, replace=False))
        rows = preprocess_rows(gather(X, numbers)[numbers], self.preprocess)
        self.offset_ = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        rows -= self.offset_
        with one_blas_thread():
            self.directions_ = np.ascontiguousarray(self._find_directions(rows), np.float32)
        self.thresholds_ = np.zeros(len(self.directions_), np.float32)
        self._improve(rows)

    def _improve(self, rows: Rows) -> None:
        """Change directions and thresholds after they were learned, given centred rows."""

    def _feature_map(self) -> IdentityMap:
        return IdentityMap(self.offset_)

    @abstractmethod
    def _find_directions(self, rows: Rows) -> NDArray[Any]:
        """Return directions of shape (n_bits, d), learned from centred rows."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags


class ITQHash(UnsupervisedHasher):
    """Iterative quantisation: principal components, rotated to minimise the quantisation error.

    Learns from unlabelled rows. With `refine`, gradient descent follows, which makes codes keep
    more of the nearest neighbours by cosine similarity. Every length needs its own model: a prefix
    of a code is not a good shorter code.

    Parameters
    ----------
    n_bits : int or None, default=None
        Length of the codes, at most the number of features. None means 128, or the number of
        features if that is smaller.
    n_iter : int, default=50
        Number of alternations between updating the codes and updating the rotation.
    refine : int, default=0
        Maximum number of steps of stochastic gradient descent on a loss that compares the order of
        codes with that of the rows (see `kdiffhash.learn.refinement`). 300 suffice; 0 disables
        refinement.
    preprocess : {None, "unit", "hellinger"}, default=None
        Preprocessing of each row, stored with the model: none, scaling to Euclidean length 1, or
        scaling to sum 1 followed by square roots (turns SIFT into RootSIFT).
    random_state : int, RandomState instance or None, default=None
        Seed of all random choices; an int makes the model reproducible.
    n_jobs : int or None, default=None
        Number of threads; None uses all cores. The result does not depend on it.
    verbose : bool, default=False
        Show the progress of refinement on a terminal.

    Attributes
    ----------
    directions_ : float32 array of shape (n_bits, d)
        One projection direction per bit.
    thresholds_ : float32 array of shape (n_bits,)
        One threshold per bit: zeros, which is at the mean, without refinement.
    offset_ : float32 array of shape (d,)
        Mean of the training rows, subtracted from each row before projection.

    References
    ----------
    Y. Gong, S. Lazebnik: Iterative quantization: a procrustean approach to learning binary codes.
    CVPR 2011.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash import ITQHash
    >>> X, _ = load_digits(return_X_y=True)
    >>> ITQHash(n_bits=32, random_state=0).fit(X).transform(X).shape
    (1797, 4)
    """

    _nested: ClassVar[bool] = False

    def __init__(
        self,
        n_bits: int | None = None,
        *,
        n_iter: int = 50,
        refine: int = 0,
        preprocess: Preprocess = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(n_bits, preprocess=preprocess, random_state=random_state, n_jobs=n_jobs)
        self.n_iter = n_iter
        self.refine = refine
        self.verbose = verbose

    def _check_params(self) -> None:
        super()._check_params()
        if not isinstance(self.refine, int | np.integer) or self.refine < 0:
            raise ValueError(f"refine must be a non-negative integer, got {self.refine!r}")

    def _improve(self, rows: Rows) -> None:
        if not self.refine:
            return
        rows += self.offset_  # cosine similarity is that of the rows as they are
        numbers = np.arange(len(rows))
        start = Hash(self._feature_map(), self.directions_, self.thresholds_)
        result = refine(
            *(start, rows, np.repeat(numbers, 2).reshape(-1, 2), numbers),
            Refinement.for_neighbors(int(self.refine)),
            self._rng("refine"),
            n_jobs=self.n_jobs,
            verbose=self.verbose,
        )
        self.directions_, self.thresholds_ = result.directions, result.thresholds

    def _find_directions(self, rows: Rows) -> NDArray[Any]:
        width = rows.shape[1]
        n_bits = min(128, width) if self.n_bits is None else int(self.n_bits)
        if n_bits > width:
            raise ValueError(
                f"ITQHash gives at most one bit per feature: n_bits={n_bits}, but X has "
                f"{width} feature(s); lower n_bits"
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
