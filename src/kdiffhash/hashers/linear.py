"""Linear hashers: bits are signs of affine functions of the row itself."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..directions import Moment, diff_directions, lda_directions, round_directions
from ..kernels import IdentityMap
from ..moments import PairMoments
from ..preprocess import Preprocess, preprocess_rows
from ..rows import Numbers
from .closed_form import ClosedFormHasher

_MEAN_ROWS = 100_000  # rows that the offset is estimated from


def alpha_for(moment: Moment, alpha: float | None) -> float:
    """The weight of the positives: the default that suits the moment, or the checked value."""
    if moment not in ("difference", "cross"):
        raise ValueError(f"moment must be 'difference' or 'cross', got {moment!r}")
    if alpha is None:
        return 2.0 if moment == "difference" else 25.0
    if not alpha > 0:
        raise ValueError(f"alpha must be above 0 (it may be inf), got {alpha}")
    return float(alpha)


def check_ridge(ridge: float) -> None:
    """Refuse a ridge that is negative or not a number."""
    is_number = isinstance(ridge, int | float | np.integer | np.floating)
    if not is_number or not 0 <= ridge < np.inf:
        raise ValueError(f"ridge must be a finite number from 0, got {ridge!r}")


class LinearHasher(ClosedFormHasher):
    """Base class of the linear closed forms."""

    offset_: NDArray[np.float32]

    _fitted: ClassVar[tuple[str, ...]] = (*ClosedFormHasher._fitted, "offset_")

    def _draw_samples(self, n_rows: int) -> dict[str, Numbers]:
        return {"offset": np.arange(0, n_rows, -(-n_rows // _MEAN_ROWS))}

    def _fix_features(self, rows: Any, samples: dict[str, Numbers]) -> None:
        sample = preprocess_rows(rows[samples["offset"]], self.preprocess)
        mean, spread = sample.mean(axis=0, dtype=np.float64), sample.std(axis=0, dtype=np.float64)
        # Only an offset that would cost precision is taken away.
        self.offset_ = np.where(np.abs(mean) > 16 * spread, mean, 0).astype(np.float32)

    def _feature_map(self) -> IdentityMap:
        return IdentityMap(self.offset_)

    def _too_many_bits(self, n_bits: int, width: int) -> str:
        return (
            f"{type(self).__name__} gives at most one bit per feature: n_bits={n_bits}, but X has "
            f"{width} feature(s); use Kernel{type(self).__name__} for longer codes"
        )


class DiffHash(LinearHasher):
    """Diff-hash: eigenvectors of a difference of pair moments.

    Parameters
    ----------
    n_bits : int, optional
        At most the number of features. By default 128, or as many as there are features.
    moment : {"difference", "cross"}
        Which moments of the pairs are weighed against each other: those of the differences within
        pairs, ``alpha D_P - D_N``, or the cross moments, ``C_N - alpha C_P`` (the paper's).
    alpha : float, optional
        Weight of the similar pairs, also ``inf``. By default 2 for the difference and 25 for the
        cross moment, which hardly depends on it.
    center : bool
        Take cross moments around the mean. Difference moments do not depend on it.
    threshold_weight : float
        Thresholds minimise ``threshold_weight * FNR + FPR`` of each bit. Large values make bits
        constant.
    refine : int
        Steps of stochastic descent that follow the closed form, on the loss that codes are judged
        by (see `kdiffhash.refinement`). 1000 are plenty; 0 for none.
    preprocess : {None, "unit", "hellinger"}
        What is done to each row first; see `kdiffhash.preprocess`.
    n_positives, n_negatives : int
        Pairs that `fit` draws.
    random_state : int, RandomState or None
    n_jobs : int, optional
        Threads, by default all. The result does not depend on it.
    verbose : bool
        Show the progress of refinement on a terminal.

    Attributes
    ----------
    directions_ : float32 array of shape (n_bits, d)
    thresholds_ : float32 array of shape (n_bits,)
    offset_ : float32 array of shape (d,)
        Taken from each row before it is projected: the mean of features whose mean is more than 16
        standard deviations from zero, 0 for all others.
    bit_fnr_, bit_fpr_, bit_ones_ : arrays of shape (n_bits,)
        Error rates of each bit on the training pairs, and its share of ones.

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
        # Moments are around the offset; without centring they are wanted around zero.
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
    """LDA-hash: eigenvectors of a ratio of pair moments, ``D_P v = lambda D_N v``.

    Parameters
    ----------
    n_bits : int, optional
        At most the number of features. By default 128, or as many as there are features.
    ridge : float
        Regularisation: this share of the mean eigenvalue of D_N is added to the diagonal of D_P,
        and a tenth of it to that of D_N.
    threshold_weight, refine, preprocess, n_positives, n_negatives, random_state, n_jobs, verbose
        As in `DiffHash`.

    Attributes
    ----------
    directions_, thresholds_, offset_, bit_fnr_, bit_fpr_, bit_ones_
        As in `DiffHash`.

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
