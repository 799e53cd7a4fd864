"""The closed forms: directions along which similar pairs stay close and dissimilar ones part.

Both methods reduce to the smallest eigenvectors of a symmetric matrix of pair moments. With a
kernel, a direction is a vector beta of coefficients on the basis; its length is measured by the
`gram` matrix of the basis (so that the function it stands for has length 1 in the kernel's space),
or by the identity.
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

_FIRST_PREFIX, _FIRST_RIDGE, _FALL = 32, 0.5, 20  # of a ridge that falls
_FULL_SOLVER_LIMIT = 1500  # beyond this size a part of the spectrum is quicker than all of it


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
    """Diff-hash (eq. 4): the smallest eigenvectors of a weighted difference of moments.

    ``"difference"``: alpha D_P - D_N; ``"cross"``: C_N - alpha C_P, around `origin`, by default
    the mean of all members. An infinite alpha leaves the positives alone. Returns (n_bits, d).
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
    """LDA-hash: the smallest generalised eigenvectors of D_P v = lambda D_N v.

    Both sides get a multiple of the `gram` matrix: `ridge` times the mean eigenvalue of D_N (in the
    metric of `gram`) on the left, a tenth of it on the right. Returns shape (n_bits, d).

    A ridge that falls is 0.5 for the first 32 bits and 20 times smaller after each doubling. With a
    small one, the first functions of a kernel are harmonics of a few smooth ones: each is a good
    bit, but together they leave many objects alike. Each such block of directions is uncorrelated,
    over dissimilar pairs, with those before it.
    """
    d_p, d_n = positive.difference, negative.difference
    metric = np.eye(len(d_n)) if gram is None else gram
    with one_blas_thread():
        whole = np.trace(d_n if gram is None else scipy.linalg.solve(gram, d_n, assume_a="pos"))
    unit = whole / len(d_n)
    if unit == 0:  # all rows are equal: any direction will do
        unit = 1.0
    found = np.empty((0, len(d_n)))
    for n_wanted, weight in _decaying_ridges(n_bits) if ridge == "decay" else [(n_bits, ridge)]:
        scale = weight * unit
        left, right = d_p + scale * metric, d_n + 0.1 * scale * metric
        if len(found) == 0:
            found = smallest_eigenvectors(left, n_wanted, right)
            continue
        with one_blas_thread():
            free = scipy.linalg.qr((found @ d_n).T)[0][:, len(found) :]
            left, right = free.T @ left @ free, free.T @ right @ free
            more = smallest_eigenvectors(left, n_wanted - len(found), right) @ free.T
        found = np.concatenate([found, _with_fixed_signs(more)])
    return found


def _decaying_ridges(n_bits: int) -> list[tuple[int, float]]:
    """How many bits there are to be, and with which ridge those that are missing are found."""
    steps, length, ridge = [], _FIRST_PREFIX, _FIRST_RIDGE
    while length < n_bits:
        steps.append((length, ridge))
        length, ridge = 2 * length, ridge / _FALL
    return [*steps, (n_bits, ridge)]


def smallest_eigenvectors(matrix: Matrix, n: int, metric: Matrix | None = None) -> Matrix:
    """The `n` smallest solutions of A v = lambda B v as rows, v'Bv = 1, most negative first.

    The largest entry of each is made positive, so that the result does not depend on the solver.
    """
    with one_blas_thread():
        if metric is None:
            vectors = _lowest(matrix, n)
        else:
            try:
                lower = np.linalg.cholesky(metric)
            except np.linalg.LinAlgError:
                raise ValueError(
                    "the matrix on the right-hand side is singular: features are constant or "
                    "depend on each other; raise ridge"
                ) from None
            half = scipy.linalg.solve_triangular(lower, matrix, lower=True)
            inner = scipy.linalg.solve_triangular(lower, half.T, lower=True)
            vectors = scipy.linalg.solve_triangular(
                lower, _lowest((inner + inner.T) / 2, n), lower=True, trans=1
            )
    return _with_fixed_signs(vectors.T)


def _with_fixed_signs(rows: Matrix) -> Matrix:
    largest = np.abs(rows).argmax(axis=1)
    signs = np.where(rows[np.arange(len(rows)), largest] < 0, -1.0, 1.0)
    fixed: Matrix = np.ascontiguousarray(rows * signs[:, None])
    return fixed


def round_directions(directions: Matrix) -> Matrix:
    """Directions with 16 significant bits, relative to the largest entry of each.

    Moments summed in another order differ in their last digits. Rounding hides this almost
    always, so that the same pairs give the same thresholds and codes however they are split.
    """
    step = 2.0 ** (np.ceil(np.log2(np.abs(directions).max(axis=1, keepdims=True))) - 16)
    rounded: Matrix = np.rint(directions / step) * step
    return rounded


def _lowest(matrix: Matrix, n: int) -> Matrix:
    if len(matrix) <= _FULL_SOLVER_LIMIT or 2 * n > len(matrix):
        return np.linalg.eigh(matrix)[1][:, :n]
    vectors: Matrix = scipy.linalg.eigh(matrix, subset_by_index=(0, n - 1))[1]
    return vectors
