"""Deciding pairs from as few bits as needed (Wald's sequential test).

Codes are read in parts of 32 bits. After each part, a likelihood ratio says whether the whole code
is going to take the pair for similar, is not, or whether the next part has to be read: that of the
distance so far, between similar pairs that whole codes find and dissimilar ones that they part.
Most pairs are far apart and say so early.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _core
from .._util.threads import n_threads, run
from ..codes import as_words, check_codes
from ..evaluate.calibration import calibrate, clopper_pearson
from ..evaluate.roc import roc
from ..learn.pairs import Pairs, Similar, check_both_kinds, check_pairs
from .model_file import Arrays, Header, Model

_PART = 32  # bits
_SHARE = 0.5  # of the wanted false-positive rate that may be spent before the last part
_SPARE = 0.001  # similar pairs that may be lost by stopping early, if `fnr` is not given
_SMOOTHING = 1e-6  # keeps a likelihood ratio finite where both kinds of pairs lie apart

Limits = tuple[NDArray[np.int32], NDArray[np.int32]]


class Decisions(NamedTuple):
    """What became of pairs.

    Attributes
    ----------
    similar : bool array of shape (p,)
    bits_read : int array of shape (p,)
    """

    similar: NDArray[np.bool_]
    bits_read: NDArray[np.int64]


@dataclass(frozen=True)
class Expected:
    """Rates and cost on the pairs that a matcher was fitted to.

    Attributes
    ----------
    fpr, fnr : float
        Error rates of the sequential test.
    fpr_interval, fnr_interval : tuple of float
        Where they are to be expected, at 95 %: with groups, in a group that was not seen, from how
        they differ from group to group; else on other pairs of this kind, by Clopper and Pearson.
    whole_fnr : float
        FNR of whole codes at the same FPR.
    bits_similar, bits_dissimilar : float
        Mean number of bits read.
    """

    fpr: float
    fnr: float
    fpr_interval: tuple[float, float]
    fnr_interval: tuple[float, float]
    whole_fnr: float
    bits_similar: float
    bits_dissimilar: float


class SequentialMatcher(Model):
    """Decides pairs of codes, reading them only as far as needed.

    Parameters
    ----------
    fpr : float
        The false-positive rate that is acceptable.
    fnr : float, optional
        The false-negative rate that is acceptable; one that whole codes do not reach is refused. By
        default a tenth of a point more than that of whole codes.
    n_jobs : int, optional

    Attributes
    ----------
    accept_, reject_ : int32 arrays
        After each 32 bits: the distances up to which a pair is similar, and from which it is not.
    expected_ : Expected

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import SequentialMatcher
    >>> rng = np.random.default_rng(0)
    >>> codes = rng.integers(256, size=(4000, 32), dtype=np.uint8)
    >>> copies = codes ^ (np.packbits(rng.random((4000, 256)) < 0.1, axis=1))
    >>> both = np.concatenate([codes, copies])
    >>> pairs = np.stack([np.arange(4000), np.arange(4000) + 4000], axis=1)
    >>> pairs = np.concatenate([pairs, rng.integers(4000, size=(9000, 2))])
    >>> pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    >>> matcher = SequentialMatcher(fpr=1e-3).fit(both, pairs, pairs[:, 1] >= 4000)
    >>> bool(matcher.expected_.bits_dissimilar < 64)
    True
    """

    accept_: NDArray[np.int32]
    reject_: NDArray[np.int32]
    n_bits_: int
    expected_: Expected

    def __init__(
        self, fpr: float = 1e-3, fnr: float | None = None, *, n_jobs: int | None = None
    ) -> None:
        self.fpr = fpr
        self.fnr = fnr
        self.n_jobs = n_jobs

    def fit(
        self,
        codes: ArrayLike,
        pairs: ArrayLike,
        similar: ArrayLike,
        n_bits: int | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Learn when to stop from pairs of codes.

        Use pairs of objects that the hasher was not trained on, as for `calibrate_threshold`.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
        pairs : int array of shape (p, 2)
        similar : bool array of shape (p,)
        n_bits : int, optional
            By default all bits.
        groups : array of shape (p,), optional
            Which scene, catalogue or the like each pair is from, for intervals that tell what to
            expect of another one.

        Returns
        -------
        self
        """
        if self.fnr is not None and not 0 < self.fnr < 1:
            raise ValueError(f"fnr must lie between 0 and 1, got {self.fnr}")
        words = _as_parts(codes, n_bits)
        length = 8 * np.asarray(codes).shape[1] if n_bits is None else n_bits
        checked, flags = check_pairs(pairs, similar, len(words))
        check_both_kinds(int(flags.sum()), int((~flags).sum()))
        each = None if groups is None else np.asarray(groups)
        if each is not None and each.shape != flags.shape:
            raise ValueError(f"groups must have one entry for each of {len(flags)} pairs")
        so_far = np.cumsum(
            [np.bitwise_count(a ^ b) for a, b in zip(*(words[side].T for side in checked.T))],
            axis=0,
            dtype=np.int32,
        )
        whole = calibrate(so_far[-1].astype(np.int64), flags, self.fpr)
        attainable = 1 - whole.tpr
        spare = _SPARE if self.fnr is None else self.fnr - attainable
        if attainable == 1 or spare <= 0:
            raise ValueError(
                f"codes of {length} bits miss {attainable:.3g} of these similar pairs at a "
                f"false-positive rate of {self.fpr:g}"
                + (f", more than fnr={self.fnr:g}" if self.fnr is not None else "")
                + "; give longer codes, or ask for less"
            )
        limits = self._find_limits(so_far, flags, whole.distance, spare)
        found, parts = self._decide(words, words, checked, limits)
        bits = np.minimum(_PART * parts.astype(np.int64), length)
        fpr = float(found[~flags].mean())
        nearest_other = so_far[-1][~flags].min()
        self.expected_ = Expected(
            fpr=fpr,
            fnr=float(1 - found[flags].mean()),
            fpr_interval=_interval(found[~flags], None if each is None else each[~flags]),
            fnr_interval=_interval(~found[flags], None if each is None else each[flags]),
            whole_fnr=roc(so_far[-1], flags).fnr_at(fpr)
            if fpr
            else float((so_far[-1][flags] >= nearest_other).mean()),
            bits_similar=float(bits[flags].mean()),
            bits_dissimilar=float(bits[~flags].mean()),
        )
        self.accept_, self.reject_ = limits
        self.n_bits_ = int(length)
        return self

    def _find_limits(
        self, so_far: NDArray[np.int32], similar: Similar, distance: int, spare: float
    ) -> Limits:
        """Distances to accept and to reject at, after each part.

        `distance` is that of whole codes, and `spare` the share of similar pairs that may be lost.
        """
        near = so_far[-1] <= distance
        telling = near == similar
        ratios = [
            _log_likelihood_ratio(distances[telling], similar[telling], _PART * (k + 1))
            for k, distances in enumerate(so_far[:-1])
        ]
        n_lost, n_false = int(spare * similar.sum()), int(_SHARE * self.fpr * (~similar).sum())
        lower, upper = np.log(spare), np.log(near[similar].mean() / (_SHARE * self.fpr))
        widen = 0.2
        while True:  # Wald's bounds, moved apart as long as they decide too much too early
            accept = np.array([(r > upper).sum() - 1 for r in ratios] + [-1], np.int32)
            reject = np.array([(r >= lower).sum() for r in ratios] + [0], np.int32)
            accepted, waiting = _before_the_last(so_far, accept, reject)
            too_low = int((similar & near & ~accepted & ~waiting).sum()) > n_lost
            too_high = int((~similar & accepted).sum()) > n_false
            if not too_low and not too_high:
                break
            lower, upper, widen = lower - widen * too_low, upper + widen * too_high, 1.2 * widen
        left = int(self.fpr * (~similar).sum() + 1e-9) - int((~similar & accepted).sum())
        last = np.sort(so_far[-1][waiting & ~similar])
        accept[-1] = int(last[left]) - 1 if left < len(last) else int(so_far[-1].max())
        reject[-1] = accept[-1] + 1
        return accept, reject

    def decide(self, a: ArrayLike, b: ArrayLike, pairs: ArrayLike) -> Decisions:
        """Decide pairs of a row of `a` and a row of `b`, which may be the same array.

        Parameters
        ----------
        a, b : uint8 arrays of shapes (n, n_bytes) and (m, n_bytes)
        pairs : int array of shape (p, 2)

        Returns
        -------
        Decisions
        """
        self._check_fitted()
        left = _as_parts(a, self.n_bits_)
        right = left if b is a else _as_parts(b, self.n_bits_)
        rows = np.asarray(pairs)
        if rows.size == 0:
            return Decisions(np.empty(0, bool), np.empty(0, np.int64))
        checked, _ = check_pairs(rows, np.ones(len(rows), bool), (len(left), len(right)), "ab")
        found, parts = self._decide(left, right, checked, (self.accept_, self.reject_))
        return Decisions(found, np.minimum(parts.astype(np.int64) * _PART, self.n_bits_))

    def _to_file(self) -> tuple[Header, Arrays]:
        self._check_fitted()
        header = {
            "class": type(self).__name__,
            "params": {"fpr": self.fpr, "fnr": self.fnr},
            "scalars": {"n_bits_": self.n_bits_, "expected_": asdict(self.expected_)},
        }
        return header, {"accept_": self.accept_, "reject_": self.reject_}

    @classmethod
    def _from_file(cls, header: Header, arrays: Arrays) -> Self:
        matcher, scalars = cls(**header["params"]), header["scalars"]
        matcher.n_bits_ = int(scalars["n_bits_"])
        matcher.accept_, matcher.reject_ = arrays["accept_"], arrays["reject_"]
        for limits in (matcher.accept_, matcher.reject_):
            if limits.shape != (-(-matcher.n_bits_ // _PART),) or limits.dtype != np.int32:
                raise ValueError(f"its limits do not fit codes of {matcher.n_bits_} bits")
        rates: dict[str, Any] = dict(scalars["expected_"])
        for name in ("fpr_interval", "fnr_interval"):
            rates[name] = tuple(rates[name])
        matcher.expected_ = Expected(**rates)
        return matcher

    def _check_fitted(self) -> None:
        if not hasattr(self, "accept_"):
            raise ValueError("this matcher has not learned when to stop; call fit first")

    def _decide(
        self, left: NDArray[np.uint32], right: NDArray[np.uint32], pairs: Pairs, limits: Limits
    ) -> tuple[NDArray[np.bool_], NDArray[np.uint16]]:
        found, parts = np.empty(len(pairs), bool), np.empty(len(pairs), np.uint16)
        first, second = np.ascontiguousarray(pairs.T)
        bounds = np.linspace(0, len(pairs), n_threads(self.n_jobs) + 1).astype(int)
        tasks = [
            partial(
                _core.decide,
                left,
                right,
                first[low:high],
                second[low:high],
                *limits,
                found[low:high],
                parts[low:high],
            )
            for low, high in pairwise(bounds)
        ]
        run(tasks, self.n_jobs)
        return found, parts


def _before_the_last(
    so_far: NDArray[np.int32], accept: NDArray[np.int32], reject: NDArray[np.int32]
) -> tuple[Similar, Similar]:
    """Which pairs are found similar before the last part, and which come to it."""
    accepted, waiting = np.zeros(so_far.shape[1], bool), np.ones(so_far.shape[1], bool)
    for distances, low, high in zip(so_far[:-1], accept, reject):
        accepted |= waiting & (distances <= low)
        waiting &= (distances > low) & (distances < high)
    return accepted, waiting


def _interval(errors: NDArray[np.bool_], groups: NDArray[Any] | None) -> tuple[float, float]:
    """Where the rate of errors is to be expected at 95 %: in a new group, or in a new sample."""
    from scipy.stats import t

    if groups is None or (groups == groups[0]).all():
        return clopper_pearson(int(errors.sum()), len(errors), 0.025)
    counts = [(errors[groups == one].sum(), (groups == one).sum()) for one in np.unique(groups)]
    logits = [np.log((hits + 0.5) / (n - hits + 0.5)) for hits, n in counts]
    reach = t.ppf(0.975, len(logits) - 1) * np.std(logits, ddof=1) * np.sqrt(1 + 1 / len(logits))
    low, high = (1 / (1 + np.exp(-(np.mean(logits) + sign * reach))) for sign in (-1, 1))
    return float(low), float(high)


def _as_parts(codes: ArrayLike, n_bits: int | None) -> NDArray[np.uint32]:
    """Return rows of codes as words of 32 bits, or say what is wrong with them."""
    rows = check_codes(codes, n_bits)
    if rows.ndim != 2:
        raise ValueError(f"codes must have shape (n, n_bytes), got {rows.shape}")
    return as_words(rows, _PART)


def _log_likelihood_ratio(
    distances: NDArray[np.int32], similar: Similar, n_bits: int
) -> NDArray[np.float64]:
    """``log P(d | similar) - log P(d | dissimilar)`` for d = 0..n_bits, falling.

    Counts alone say nothing where one kind has none, so a parabola is fitted to the log odds by
    logistic regression; beyond its top or bottom it is continued flat.
    """
    from sklearn.linear_model import LogisticRegression

    counts = np.array(
        [np.bincount(distances[similar == flag], minlength=n_bits + 1) for flag in (True, False)],
        np.float64,
    )
    counts /= np.maximum(counts.sum(axis=1, keepdims=True), 1)
    grid = np.arange(n_bits + 1) / n_bits
    basis = np.stack([np.ones_like(grid), grid, grid**2], axis=1)
    model = LogisticRegression(
        C=1 / _SMOOTHING, fit_intercept=False, solver="newton-cholesky", tol=1e-10, max_iter=1000
    )
    kinds = np.repeat([True, False], len(grid))
    model.fit(np.concatenate([basis, basis]), kinds, sample_weight=counts.ravel())
    constant, slope_at_0, bend = model.coef_[0]
    turn = -slope_at_0 / (2 * bend) if bend else np.inf
    falling = np.maximum(grid, turn) if bend < 0 else np.minimum(grid, turn)
    return np.asarray(constant + falling * (slope_at_0 + bend * falling))
