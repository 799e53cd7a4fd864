"""Linear hashers: bits are signs of affine functions of the row."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..learn.directions import Moment, diff_directions, lda_directions, round_directions
from ..learn.kernels import IdentityMap
from ..learn.moments import PairMoments
from ..learn.preprocess import Preprocess, preprocess_rows
from ..learn.rows import Numbers
from .closed_form import ClosedFormHasher

_MEAN_ROWS = 100_000  # sample size for the offset


def alpha_for(moment: Moment, alpha: float | None) -> float:
    """Return the weight of the positive pairs: the given one, or the default of the moment."""
    if moment not in ("difference", "cross"):
        raise ValueError(f"moment must be 'difference' or 'cross', got {moment!r}")
    if alpha is None:
        return 2.0 if moment == "difference" else 25.0
    if not alpha > 0:
        raise ValueError(f"alpha must be a positive number or inf, got {alpha}")
    return float(alpha)


def check_ridge(ridge: float) -> None:
    """Raise an error unless `ridge` is a finite, non-negative number."""
    is_number = isinstance(ridge, int | float | np.integer | np.floating)
    if not is_number or not 0 <= ridge < np.inf:
        raise ValueError(f"ridge must be a finite, non-negative number, got {ridge!r}")


class LinearHasher(ClosedFormHasher):
    """Base class of the linear hashers with a closed form."""

    offset_: NDArray[np.float32]

    _fitted: ClassVar[tuple[str, ...]] = (*ClosedFormHasher._fitted, "offset_")

    def _draw_samples(self, n_rows: int) -> dict[str, Numbers]:
        return {"offset": np.arange(0, n_rows, -(-n_rows // _MEAN_ROWS))}

    def _fit_feature_map(self, rows: Any, samples: dict[str, Numbers]) -> None:
        sample = preprocess_rows(rows[samples["offset"]], self.preprocess)
        mean, spread = sample.mean(axis=0, dtype=np.float64), sample.std(axis=0, dtype=np.float64)
        # An offset is subtracted only where it would cost precision.
        self.offset_ = np.where(np.abs(mean) > 16 * spread, mean, 0).astype(np.float32)

    def _feature_map(self) -> IdentityMap:
        return IdentityMap(self.offset_)

    def _too_many_bits(self, n_bits: int, width: int) -> str:
        return (
            f"{type(self).__name__} gives at most one bit per feature: n_bits={n_bits}, but X has "
            f"{width} feature(s); lower n_bits, or use Kernel{type(self).__name__} for longer codes"
        )


class DiffHash(LinearHasher):
    """Diff-hash: directions are eigenvectors of a difference of pair moments.

    Parameters
    ----------
    n_bits : int or None, default=None
        Length of the codes, at most the number of features. None means 128, or the number of
        features if that is smaller.
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
    directions_ : float32 array of shape (n_bits, d)
        One projection direction per bit.
    thresholds_ : float32 array of shape (n_bits,)
        One threshold per bit.
    offset_ : float32 array of shape (d,)
        Subtracted from each row before projection, to keep precision: the mean of features whose
        mean exceeds 16 standard deviations, 0 for all others.
    bit_fnr_ : float64 array of shape (n_bits,)
        False negative rate of each bit on the training pairs.
    bit_fpr_ : float64 array of shape (n_bits,)
        False positive rate of each bit on the training pairs.
    bit_ones_ : float64 array of shape (n_bits,)
        Share of training rows for which the bit is 1.
    bit_spread_ : float64 array of shape (n_bits,)
        Standard deviation of the projections of training rows.

    References
    ----------
    C. Strecha, A. Bronstein, M. Bronstein, P. Fua: LDAHash: improved matching with smaller
    descriptors. IEEE TPAMI 34(1), 2012.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash import DiffHash
    >>> X, y = load_digits(return_X_y=True)
    >>> DiffHash(n_bits=6, random_state=0).fit(X, y).transform(X).shape
    (1797, 1)
    """

    def __init__(
        self,
        n_bits: int | None = None,
        *,
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

    @property
    def _needs_cross(self) -> bool:
        return self.moment == "cross"

    def _directions(
        self, positive: PairMoments, negative: PairMoments, n_bits: int
    ) -> NDArray[np.float64]:
        # Moments are taken around the offset; without centring they are needed around zero.
        directions = diff_directions(
            positive,
            negative,
            n_bits,
            moment=self.moment,
            alpha=alpha_for(self.moment, self.alpha),
            origin=None if self.center else -self.offset_.astype(np.float64),
        )
        return round_directions(directions)


class LDAHash(LinearHasher):
    """LDA-hash: directions are generalised eigenvectors of pair moments, ``D_P v = lambda D_N v``.

    Parameters
    ----------
    n_bits : int or None, default=None
        Length of the codes, at most the number of features. None means 128, or the number of
        features if that is smaller.
    ridge : float, default=1e-3
        Regularisation: `ridge` times the mean eigenvalue of D_N is added to the diagonal of D_P,
        and a tenth of that to the diagonal of D_N.
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
    directions_ : float32 array of shape (n_bits, d)
        One projection direction per bit.
    thresholds_ : float32 array of shape (n_bits,)
        One threshold per bit.
    offset_ : float32 array of shape (d,)
        Subtracted from each row before projection, to keep precision: the mean of features whose
        mean exceeds 16 standard deviations, 0 for all others.
    bit_fnr_ : float64 array of shape (n_bits,)
        False negative rate of each bit on the training pairs.
    bit_fpr_ : float64 array of shape (n_bits,)
        False positive rate of each bit on the training pairs.
    bit_ones_ : float64 array of shape (n_bits,)
        Share of training rows for which the bit is 1.
    bit_spread_ : float64 array of shape (n_bits,)
        Standard deviation of the projections of training rows.

    References
    ----------
    C. Strecha, A. Bronstein, M. Bronstein, P. Fua: LDAHash: improved matching with smaller
    descriptors. IEEE TPAMI 34(1), 2012.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from kdiffhash import LDAHash
    >>> X, y = load_digits(return_X_y=True)
    >>> LDAHash(n_bits=9, random_state=0).fit(X, y).project(X).shape
    (1797, 9)
    """

    def __init__(
        self,
        n_bits: int | None = None,
        *,
        ridge: float = 1e-3,
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
        check_ridge(self.ridge)

    def _directions(
        self, positive: PairMoments, negative: PairMoments, n_bits: int
    ) -> NDArray[np.float64]:
        return round_directions(lda_directions(positive, negative, n_bits, ridge=self.ridge))
