"""Classification of pairs from as few bits as needed (Wald's sequential test).

Codes are read in words of 32 bits. After each word, the likelihood ratio of the distance so far
decides whether to accept the pair, to reject it, or to read the next word. The two distributions
that the ratio compares are those of positive and negative pairs that the whole codes classify
correctly. Most negative pairs are far apart and are rejected after the first words.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
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
from .schema import Array, Value, check_params
from .serialization import section

_WORD = 32  # bits read at a time
_MAX_BITS = _WORD * (2**16 - 1)  # words read are counted in 16 bits
_EARLY_SHARE = 0.5  # share of the target FPR that may be used up before the last word
_EXTRA_FNR = 0.001  # increase of the FNR allowed for stopping early, if `fnr` is None
_SMOOTHING = 1e-6  # keeps the likelihood ratio finite where positives and negatives do not overlap

Thresholds = tuple[NDArray[np.int32], NDArray[np.int32]]  # to accept and to reject, per word


class Decisions(NamedTuple):
    """Result of `SequentialMatcher.decide`.

    Attributes
    ----------
    similar : bool array of shape (p,)
        True for pairs classified as positive.
    bits_read : int64 array of shape (p,)
        Number of bits read for each pair.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash.hashers.sequential_matcher import Decisions
    >>> decisions = Decisions(similar=np.array([True, False]), bits_read=np.array([96, 32]))
    >>> decisions.bits_read.mean()
    np.float64(64.0)
    """

    similar: NDArray[np.bool_]
    bits_read: NDArray[np.int64]


@dataclass(frozen=True)
class Expected:
    """Error rates and bits read of a fitted `SequentialMatcher`, on its training pairs.

    Attributes
    ----------
    fpr : float
        False positive rate of the sequential test.
    fnr : float
        False negative rate of the sequential test.
    fpr_interval : tuple of float
        95 % interval for the false positive rate on new data. With groups it is a prediction
        interval for an unseen group, estimated from the variation between groups; otherwise the
        Clopper-Pearson confidence interval.
    fnr_interval : tuple of float
        The same for the false negative rate.
    whole_fnr : float
        False negative rate of whole codes at the same false positive rate.
    bits_similar : float
        Mean number of bits read for positive pairs.
    bits_dissimilar : float
        Mean number of bits read for negative pairs.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import SequentialMatcher
    >>> codes = np.random.default_rng(0).integers(256, size=(1000, 32), dtype=np.uint8)
    >>> pairs = [(i, (i + step) % 1000) for step in (0, 1, 2, 3, 4) for i in range(1000)]
    >>> similar = np.arange(5000) < 1000  # rows paired with themselves
    >>> expected = SequentialMatcher(fpr=1e-3).fit(codes, pairs, similar).expected_
    >>> expected.fnr, expected.bits_dissimilar < 64
    (0.0, True)
    """

    fpr: float
    fnr: float
    fpr_interval: tuple[float, float]
    fnr_interval: tuple[float, float]
    whole_fnr: float
    bits_similar: float
    bits_dissimilar: float


class SequentialMatcher(Model):
    """Classify pairs of codes as positive or negative, reading only as many bits as needed.

    Parameters
    ----------
    fpr : float, default=1e-3
        Target false positive rate.
    fnr : float or None, default=None
        Target false negative rate; `fit` raises an error if whole codes do not reach it. None means
        0.1 percentage points above the false negative rate of whole codes.
    n_jobs : int or None, default=None
        Number of threads; None uses all cores. The result does not depend on it.

    Attributes
    ----------
    accept_ : int32 array of shape (ceil(n_bits / 32),)
        After each 32 bits, the distance up to which a pair is accepted.
    reject_ : int32 array of shape (ceil(n_bits / 32),)
        After each 32 bits, the distance from which on a pair is rejected.
    n_bits_ : int
        Length of the codes.
    expected_ : Expected
        Error rates and mean number of bits read.

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
        """Learn the thresholds from pairs of codes.

        Use pairs of objects that the hasher was not trained on, as for `calibrate_threshold`.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
            Packed codes.
        pairs : int array of shape (p, 2)
            Row numbers of both members of each pair.
        similar : bool array of shape (p,)
            True for positive pairs.
        n_bits : int or None, default=None
            Length of the codes. None means 8 bits per byte.
        groups : array of shape (p,) or None, default=None
            Group of each pair, for example the scene or catalogue it comes from. If given, the
            intervals in `expected_` are for an unseen group.

        Returns
        -------
        self : SequentialMatcher
            The fitted matcher.
        """
        if self.fnr is not None and not 0 < self.fnr < 1:
            raise ValueError(f"fnr must lie between 0 and 1, got {self.fnr}")
        words = _as_words(codes, n_bits)
        length = 8 * np.asarray(codes).shape[1] if n_bits is None else n_bits
        checked, flags = check_pairs(pairs, similar, len(words))
        check_both_kinds(int(flags.sum()), int((~flags).sum()))
        group = None if groups is None else np.asarray(groups)
        if group is not None and group.shape != flags.shape:
            raise ValueError(
                f"groups must have one entry for each of the {len(flags)} pairs, got shape "
                f"{group.shape}"
            )
        partial_distances = np.cumsum(
            [np.bitwise_count(a ^ b) for a, b in zip(*(words[side].T for side in checked.T))],
            axis=0,
            dtype=np.int32,
        )
        whole = calibrate(partial_distances[-1].astype(np.int64), flags, fpr=self.fpr)
        lowest_fnr = 1 - whole.tpr
        extra_fnr = _EXTRA_FNR if self.fnr is None else self.fnr - lowest_fnr
        if lowest_fnr == 1 or extra_fnr <= 0:
            raise ValueError(
                f"codes of {length} bits have a false negative rate of {lowest_fnr:.3g} at a "
                f"false positive rate of {self.fpr:g} on these pairs"
                + (f", more than fnr={self.fnr:g}" if self.fnr is not None else "")
                + "; use longer codes, or allow higher error rates"
            )
        thresholds = self._find_thresholds(partial_distances, flags, whole.distance, extra_fnr)
        accepted, n_words = self._decide(words, words, checked, thresholds)
        bits = np.minimum(_WORD * n_words.astype(np.int64), length)
        fpr = float(accepted[~flags].mean())
        nearest_negative = partial_distances[-1][~flags].min()
        self.expected_ = Expected(
            fpr=fpr,
            fnr=float(1 - accepted[flags].mean()),
            fpr_interval=_interval(accepted[~flags], None if group is None else group[~flags]),
            fnr_interval=_interval(~accepted[flags], None if group is None else group[flags]),
            whole_fnr=roc(partial_distances[-1], flags).fnr_at(fpr)
            if fpr
            else float((partial_distances[-1][flags] >= nearest_negative).mean()),
            bits_similar=float(bits[flags].mean()),
            bits_dissimilar=float(bits[~flags].mean()),
        )
        self.accept_, self.reject_ = thresholds
        self.n_bits_ = int(length)
        return self

    def _find_thresholds(
        self,
        partial_distances: NDArray[np.int32],
        similar: Similar,
        distance: int,
        extra_fnr: float,
    ) -> Thresholds:
        """Return the distances at which to accept and to reject after each word.

        `distance` is the threshold on whole codes, and `extra_fnr` the share of positive pairs that
        may be lost by stopping early.
        """
        near = partial_distances[-1] <= distance
        correct = near == similar
        ratios = [
            _log_likelihood_ratio(distances[correct], similar[correct], _WORD * (k + 1))
            for k, distances in enumerate(partial_distances[:-1])
        ]
        max_lost = int(extra_fnr * similar.sum())
        max_false = int(_EARLY_SHARE * self.fpr * (~similar).sum())
        lower = np.log(extra_fnr)
        upper = np.log(near[similar].mean() / (_EARLY_SHARE * self.fpr))
        widen = 0.2
        while True:  # start from Wald's bounds and widen them until both error budgets are met
            accept = np.array([(r > upper).sum() - 1 for r in ratios] + [-1], np.int32)
            reject = np.array([(r >= lower).sum() for r in ratios] + [0], np.int32)
            accepted, undecided = _before_last_word(partial_distances, accept, reject)
            too_low = int((similar & near & ~accepted & ~undecided).sum()) > max_lost
            too_high = int((~similar & accepted).sum()) > max_false
            if not too_low and not too_high:
                break
            lower, upper, widen = lower - widen * too_low, upper + widen * too_high, 1.2 * widen
        left = int(self.fpr * (~similar).sum() + 1e-9) - int((~similar & accepted).sum())
        last = np.sort(partial_distances[-1][undecided & ~similar])
        accept[-1] = int(last[left]) - 1 if left < len(last) else int(partial_distances[-1].max())
        reject[-1] = accept[-1] + 1
        return accept, reject

    def decide(self, a: ArrayLike, b: ArrayLike, pairs: ArrayLike) -> Decisions:
        """Classify pairs of a code in `a` and a code in `b`, which may be the same array.

        Parameters
        ----------
        a : uint8 array of shape (n, n_bytes)
            Packed codes.
        b : uint8 array of shape (m, n_bytes)
            Packed codes of the same length.
        pairs : int array of shape (p, 2)
            A row number of `a` and a row number of `b` for each pair.

        Returns
        -------
        decisions : Decisions
            Named tuple with the arrays `similar` and `bits_read`, each of shape (p,).
        """
        self._check_fitted()
        left = _as_words(a, self.n_bits_)
        right = left if b is a else _as_words(b, self.n_bits_)
        rows = np.asarray(pairs)
        if rows.size == 0:
            return Decisions(np.empty(0, bool), np.empty(0, np.int64))
        checked, _ = check_pairs(rows, np.ones(len(rows), bool), (len(left), len(right)), "ab")
        accepted, n_words = self._decide(left, right, checked, (self.accept_, self.reject_))
        return Decisions(accepted, np.minimum(n_words.astype(np.int64) * _WORD, self.n_bits_))

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
        params, scalars = section(header, "params"), section(header, "scalars")
        check_params(params, {}, ("fpr", "fnr"))
        matcher = cls(**params)
        n_bits: Any = scalars.get("n_bits_")
        Value(1, _MAX_BITS, whole=True).check("n_bits_", n_bits)
        sizes = {"words": -(-n_bits // _WORD)}
        for name in ("accept_", "reject_"):
            if name not in arrays:
                raise ValueError(f"{name} is missing")
            Array(np.int32, ("words",), -1, n_bits + 1).check(name, arrays[name], sizes)
        matcher.accept_, matcher.reject_ = arrays["accept_"], arrays["reject_"]
        matcher.n_bits_ = n_bits
        matcher.expected_ = _expected(section(scalars, "expected_"), n_bits)
        return matcher

    def _check_fitted(self) -> None:
        if not hasattr(self, "accept_"):
            raise ValueError("this SequentialMatcher is not fitted; call fit first")

    def _decide(
        self,
        left: NDArray[np.uint32],
        right: NDArray[np.uint32],
        pairs: Pairs,
        thresholds: Thresholds,
    ) -> tuple[NDArray[np.bool_], NDArray[np.uint16]]:
        """Return which pairs are accepted, and the number of words read for each."""
        accepted, n_words = np.empty(len(pairs), bool), np.empty(len(pairs), np.uint16)
        first, second = np.ascontiguousarray(pairs.T)
        bounds = np.linspace(0, len(pairs), n_threads(self.n_jobs) + 1).astype(int)
        tasks = [
            partial(
                _core.decide,
                left,
                right,
                first[low:high],
                second[low:high],
                *thresholds,
                accepted[low:high],
                n_words[low:high],
            )
            for low, high in pairwise(bounds)
        ]
        run(tasks, self.n_jobs)
        return accepted, n_words


def _expected(rates: dict[str, Any], n_bits: int) -> Expected:
    """Return the error rates in a model file, after checking names and ranges."""
    found: dict[str, Any] = {}
    for field in fields(Expected):
        value = rates.get(field.name)
        is_interval = field.name.endswith("_interval")
        values = value if is_interval and isinstance(value, list | tuple) else [value]
        high = n_bits if field.name.startswith("bits_") else 1
        for number in values:
            Value(0, high).check(field.name, number)
        if len(values) != 1 + is_interval:
            raise ValueError(f"{field.name} must be a pair of numbers")
        found[field.name] = tuple(values) if is_interval else value
    return Expected(**found)


def _before_last_word(
    partial_distances: NDArray[np.int32], accept: NDArray[np.int32], reject: NDArray[np.int32]
) -> tuple[Similar, Similar]:
    """Return which pairs are accepted before the last word, and which are still undecided."""
    accepted, undecided = (
        np.zeros(partial_distances.shape[1], bool),
        np.ones(partial_distances.shape[1], bool),
    )
    for distances, low, high in zip(partial_distances[:-1], accept, reject):
        accepted |= undecided & (distances <= low)
        undecided &= (distances > low) & (distances < high)
    return accepted, undecided


def _interval(errors: NDArray[np.bool_], groups: NDArray[Any] | None) -> tuple[float, float]:
    """Return a 95 % interval for the error rate in an unseen group or, without groups, sample."""
    from scipy.stats import t

    if groups is None or (groups == groups[0]).all():
        return clopper_pearson(int(errors.sum()), len(errors), 0.025)
    counts = [(errors[groups == g].sum(), (groups == g).sum()) for g in np.unique(groups)]
    logits = [np.log((n_errors + 0.5) / (n - n_errors + 0.5)) for n_errors, n in counts]
    half_width = (
        t.ppf(0.975, len(logits) - 1) * np.std(logits, ddof=1) * np.sqrt(1 + 1 / len(logits))
    )
    low, high = (1 / (1 + np.exp(-(np.mean(logits) + sign * half_width))) for sign in (-1, 1))
    return float(low), float(high)


def _as_words(codes: ArrayLike, n_bits: int | None) -> NDArray[np.uint32]:
    """Check codes, and return them as 32-bit words."""
    rows = check_codes(codes, n_bits)
    if rows.ndim != 2:
        raise ValueError(f"codes must have shape (n, n_bytes), got {rows.shape}")
    return as_words(rows, _WORD)


def _log_likelihood_ratio(
    distances: NDArray[np.int32], similar: Similar, n_bits: int
) -> NDArray[np.float64]:
    """Return ``log P(d | positive) - log P(d | negative)`` for d = 0..n_bits, non-increasing.

    Histograms have no counts at some distances, so a parabola is fitted to the log odds by logistic
    regression. Beyond its vertex it is replaced by a constant.
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
    constant, linear, quadratic = model.coef_[0]
    vertex = -linear / (2 * quadratic) if quadratic else np.inf
    clipped = np.maximum(grid, vertex) if quadratic < 0 else np.minimum(grid, vertex)
    return np.asarray(constant + clipped * (linear + quadratic * clipped))
