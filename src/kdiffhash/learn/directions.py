"""Closed-form directions: eigenvectors of matrices of pair moments.

Along these directions, positive pairs stay close and negative pairs are separated. Both methods
reduce to the smallest eigenvectors of a symmetric matrix. With a kernel, a direction is a vector
beta of coefficients on the basis rows. It is normalised either with the `gram` matrix of the basis,
so that the function it represents has norm 1 in the kernel's Hilbert space, or with the identity.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from .._util.threads import one_blas_thread
from .moments import PairMoments

Matrix = NDArray[np.float64]
Moment = Literal["difference", "cross"]

_FIRST_PREFIX, _FIRST_RIDGE, _DECAY = 32, 0.5, 20  # schedule of `ridge="decay"`
_FULL_SOLVER_LIMIT = 1500  # for larger matrices, part of the spectrum is faster than all of it


def diff_directions(
    positive: PairMoments,
    negative: PairMoments,
    n_bits: int,
    *,
    moment: Moment,
    alpha: float,
    origin: Matrix | None = None,
    gram: Matrix | None = None,
) -> Matrix:
    """Compute the directions of diff-hash (eq. 4).

    They are the smallest eigenvectors of a weighted difference of moments.

    Parameters
    ----------
    positive : PairMoments
        Moments of the positive pairs.
    negative : PairMoments
        Moments of the negative pairs.
    n_bits : int
        Number of directions.
    moment : {"difference", "cross"}
        The matrix is ``alpha D_P - D_N`` for ``"difference"`` and ``C_N - alpha C_P`` for
        ``"cross"``.
    alpha : float
        Weight of the positive pairs; ``inf`` ignores the negative pairs.
    origin : float64 array of shape (d,) or None, default=None
        Centre of the cross moments; None means the mean of all members.
    gram : float64 array of shape (d, d) or None, default=None
        Matrix that normalises the directions; None means the identity.

    Returns
    -------
    directions : float64 array of shape (n_bits, d)
    """
    if moment == "difference":
        pull, push = positive.difference, -negative.difference
    else:
        if origin is None:
            origin = (positive + negative).mean
        pull, push = -positive.cross_about(origin), negative.cross_about(origin)
    matrix = pull if np.isinf(alpha) else alpha * pull + push
    return smallest_eigenvectors(matrix, n_bits, gram)


def lda_directions(
    positive: PairMoments,
    negative: PairMoments,
    n_bits: int,
    *,
    ridge: float | Literal["decay"],
    gram: Matrix | None = None,
) -> Matrix:
    """Compute the directions of LDA-hash.

    They are the smallest generalised eigenvectors of ``D_P v = lambda D_N v``, regularised by
    multiples of the `gram` matrix.

    Parameters
    ----------
    positive : PairMoments
        Moments of the positive pairs.
    negative : PairMoments
        Moments of the negative pairs.
    n_bits : int
        Number of directions.
    ridge : float or "decay"
        Regularisation. `ridge` times the mean eigenvalue of D_N, in the metric of `gram`, is added
        to D_P, and a tenth of that to D_N. ``"decay"`` starts at 0.5 for the first 32 bits and
        divides by 20 each time the length doubles.
    gram : float64 array of shape (d, d) or None, default=None
        Matrix that normalises the directions; None means the identity.

    Returns
    -------
    directions : float64 array of shape (n_bits, d)

    Notes
    -----
    With weak regularisation, the first functions of a kernel hasher are harmonics of a few smooth
    ones: each is a good bit by itself, but together they fail to distinguish many objects. This is
    why the regularisation decays. The directions of each stage are uncorrelated, over the negative
    pairs, with those of the stages before.
    """
    d_p, d_n = positive.difference, negative.difference
    metric = np.eye(len(d_n)) if gram is None else gram
    with one_blas_thread():
        trace = np.trace(d_n if gram is None else scipy.linalg.solve(gram, d_n, assume_a="pos"))
    mean_eigenvalue = trace / len(d_n)
    if mean_eigenvalue == 0:  # all rows are equal, so any direction will do
        mean_eigenvalue = 1.0
    directions = np.empty((0, len(d_n)))
    for length, weight in _decaying_ridges(n_bits) if ridge == "decay" else [(n_bits, ridge)]:
        scale = weight * mean_eigenvalue
        left, right = d_p + scale * metric, d_n + 0.1 * scale * metric
        if len(directions) == 0:
            directions = smallest_eigenvectors(left, length, right)
            continue
        with one_blas_thread():  # restrict to the complement of the directions so far
            free = scipy.linalg.qr((directions @ d_n).T)[0][:, len(directions) :]
            left, right = free.T @ left @ free, free.T @ right @ free
            added = smallest_eigenvectors(left, length - len(directions), right) @ free.T
        directions = np.concatenate([directions, _with_fixed_signs(added)])
    return directions


def _decaying_ridges(n_bits: int) -> list[tuple[int, float]]:
    """Return, for each stage, the length of the code after it and its regularisation."""
    stages, length, ridge = [], _FIRST_PREFIX, _FIRST_RIDGE
    while length < n_bits:
        stages.append((length, ridge))
        length, ridge = 2 * length, ridge / _DECAY
    return [*stages, (n_bits, ridge)]


def smallest_eigenvectors(matrix: Matrix, n: int, metric: Matrix | None = None) -> Matrix:
    """Solve ``A v = lambda B v`` for the `n` smallest eigenvalues.

    Parameters
    ----------
    matrix : float64 array of shape (d, d)
        The symmetric matrix A.
    n : int
        Number of eigenvectors.
    metric : float64 array of shape (d, d) or None, default=None
        The positive definite matrix B; None means the identity.

    Returns
    -------
    vectors : float64 array of shape (n, d)
        Eigenvectors as rows, by ascending eigenvalue, with ``v' B v = 1``. The entry of largest
        magnitude of each is positive, so that signs do not depend on the solver.

    Raises
    ------
    ValueError
        If `metric` is singular.
    """
    with one_blas_thread():
        if metric is None:
            vectors = _smallest(matrix, n)
        else:
            try:
                lower = np.linalg.cholesky(metric)
            except np.linalg.LinAlgError:
                raise ValueError(
                    "the matrix on the right-hand side is singular, because features are constant "
                    "or linearly dependent; raise ridge"
                ) from None
            half = scipy.linalg.solve_triangular(lower, matrix, lower=True)
            inner = scipy.linalg.solve_triangular(lower, half.T, lower=True)
            vectors = scipy.linalg.solve_triangular(
                lower, _smallest((inner + inner.T) / 2, n), lower=True, trans=1
            )
    return _with_fixed_signs(vectors.T)


def _with_fixed_signs(rows: Matrix) -> Matrix:
    """Flip rows so that the entry of largest magnitude of each is positive."""
    largest = np.abs(rows).argmax(axis=1)
    signs = np.where(rows[np.arange(len(rows)), largest] < 0, -1.0, 1.0)
    fixed: Matrix = np.ascontiguousarray(rows * signs[:, None])
    return fixed


def round_directions(directions: Matrix) -> Matrix:
    """Round directions to 16 bits, relative to the largest entry of each.

    Moments that are summed in a different order differ in their last digits. Rounding nearly
    always removes the difference, so that the same pairs give the same thresholds and codes however
    they are split into batches.
    """
    step = 2.0 ** (np.ceil(np.log2(np.abs(directions).max(axis=1, keepdims=True))) - 16)
    rounded: Matrix = np.rint(directions / step) * step
    return rounded


def _smallest(matrix: Matrix, n: int) -> Matrix:
    """Return the eigenvectors of the `n` smallest eigenvalues as columns."""
    if len(matrix) <= _FULL_SOLVER_LIMIT or 2 * n > len(matrix):
        return np.linalg.eigh(matrix)[1][:, :n]
    vectors: Matrix = scipy.linalg.eigh(matrix, subset_by_index=(0, n - 1))[1]
    return vectors
