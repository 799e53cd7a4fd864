"""Deciding pairs from as few bits as needed (Wald's sequential test).

Codes are read in parts of 32 bits. After each part, the likelihood ratio of the distance so far,
learned from pairs, says whether the pair is similar, is not, or whether the next part has to be
read. Most pairs are far apart and say so in the first parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._numba import sequential
from .calibration import calibrate
from .codes import Codes, check_codes, n_bytes
from .metrics import roc
from .pairs import Pairs, Similar, check_both_kinds, check_pairs
from .parallel import n_threads, run

_PART = 32  # bits
_SHARE = 0.5  # of the wanted false-positive rate that may be spent before the last part
_SPARE = 0.005  # similar pairs that may be lost by stopping early, if `fnr` is not given


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
    whole_fnr : float
        FNR of whole codes at the same FPR.
    bits_similar, bits_dissimilar : float
        Mean number of bits read.
    """

    fpr: float
    fnr: float
    whole_fnr: float
    bits_similar: float
    bits_dissimilar: float


class SequentialMatcher:
    """Decides pairs of codes, reading them only as far as needed.

    Parameters
    ----------
    fpr : float
        The false-positive rate that is acceptable.
    fnr : float, optional
        The false-negative rate that is acceptable; one that whole codes do not reach is refused. By
        default half a point more than that of whole codes.
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
        self, codes: ArrayLike, pairs: ArrayLike, similar: ArrayLike, n_bits: int | None = None
    ) -> Self:
        """Learn when to stop from pairs of codes.

        Use pairs of things that the hasher was not trained on, as for `calibrate_threshold`.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
        pairs : int array of shape (p, 2)
        similar : bool array of shape (p,)
        n_bits : int, optional
            By default all bits.

        Returns
        -------
        self
        """
        words = _as_parts(check_codes(codes, n_bits))
        checked, flags = check_pairs(pairs, similar, len(words))
        check_both_kinds(int(flags.sum()), int((~flags).sum()))
        if self.fnr is not None and not 0 < self.fnr < 1:
            raise ValueError(f"fnr must lie between 0 and 1, got {self.fnr}")
        self.n_bits_ = 8 * n_bytes(n_bits or 8 * np.asarray(codes).shape[1])
        so_far = np.cumsum(
            [np.bitwise_count(a ^ b) for a, b in zip(*(words[side].T for side in checked.T))],
            axis=0,
            dtype=np.int32,
        )
        whole = calibrate(so_far[-1].astype(np.int64), flags, self.fpr)
        attainable = 1 - whole.tpr
        spare = _SPARE if self.fnr is None else self.fnr - attainable
        if spare <= 0:
            raise ValueError(
                f"codes of {self.n_bits_} bits miss {attainable:.3g} of these similar pairs at a "
                f"false-positive rate of {self.fpr:g}, more than fnr={self.fnr:g}; give longer "
                "codes, or ask for less"
            )
        lower, upper = np.log(spare), np.log((1 - attainable) / (_SHARE * self.fpr))
        self.accept_ = np.full(len(so_far), -1, np.int32)
        self.reject_ = np.full(len(so_far), 2**30, np.int32)
        for k, distances in enumerate(so_far[:-1]):
            ratio = _log_likelihood_ratio(distances, flags, _PART * (k + 1))
            self.accept_[k] = int((ratio > upper).sum()) - 1
            self.reject_[k] = len(ratio) - int((ratio < lower).sum())
        self._set_last(so_far, flags)
        found, parts = self._decide(words, words, checked)
        fpr = float(found[~flags].mean())
        self.expected_ = Expected(
            fpr=fpr,
            fnr=float(1 - found[flags].mean()),
            whole_fnr=roc(so_far[-1], flags).fnr_at(fpr),
            bits_similar=float(_PART * parts[flags].mean()),
            bits_dissimilar=float(_PART * parts[~flags].mean()),
        )
        return self

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
        if not hasattr(self, "accept_"):
            raise ValueError("this matcher has not learned when to stop; call fit first")
        left = _as_parts(check_codes(a, self.n_bits_))
        right = left if b is a else _as_parts(check_codes(b, self.n_bits_))
        rows = np.asarray(pairs)
        checked, _ = check_pairs(rows, np.ones(len(rows), bool), max(len(left), len(right)))
        for side, words in enumerate((left, right)):
            if checked[:, side].max() >= len(words):
                raise ValueError(
                    f"pairs name row {checked[:, side].max()}, but {'ab'[side]} has {len(words)}"
                )
        found, parts = self._decide(left, right, checked)
        return Decisions(found, np.minimum(parts.astype(np.int64) * _PART, self.n_bits_))

    def _decide(
        self, left: NDArray[np.uint32], right: NDArray[np.uint32], pairs: Pairs
    ) -> tuple[NDArray[np.bool_], NDArray[np.uint16]]:
        found, parts = np.empty(len(pairs), bool), np.empty(len(pairs), np.uint16)
        first, second = np.ascontiguousarray(pairs.T)
        bounds = np.linspace(0, len(pairs), n_threads(self.n_jobs) + 1).astype(int)
        tasks = [
            partial(
                sequential.decide,
                left,
                right,
                first[low:high],
                second[low:high],
                self.accept_,
                self.reject_,
                found[low:high],
                parts[low:high],
            )
            for low, high in pairwise(bounds)
        ]
        run(tasks, self.n_jobs)
        return found, parts

    def _set_last(self, so_far: NDArray[np.int32], similar: Similar) -> None:
        """Of the pairs that come to the last part, take as many as the wanted rate leaves."""
        waiting = np.ones(len(similar), bool)
        n_false = 0
        for distances, accept, reject in zip(so_far[:-1], self.accept_, self.reject_):
            n_false += int((waiting & ~similar & (distances <= accept)).sum())
            waiting &= (distances > accept) & (distances < reject)
        left = int(self.fpr * (~similar).sum() + 1e-9) - n_false
        last = np.sort(so_far[-1][waiting & ~similar])
        largest = int(so_far[-1].max())
        limit = int(last[left]) - 1 if 0 <= left < len(last) else largest if left >= 0 else -1
        self.accept_[-1], self.reject_[-1] = limit, limit + 1


def _as_parts(codes: Codes) -> NDArray[np.uint32]:
    """Rows as 32-bit words, padded with zero bytes where needed."""
    spare = -codes.shape[-1] % (_PART // 8)
    return np.ascontiguousarray(np.pad(codes, ((0, 0), (0, spare)))).view(np.uint32)


def _log_likelihood_ratio(
    distances: NDArray[np.int32], similar: Similar, n_bits: int
) -> NDArray[np.float64]:
    """``log P(d | similar) - log P(d | dissimilar)`` for d = 0..n_bits, falling.

    Counts alone say nothing where one kind has none, so a parabola is fitted to the log odds by
    logistic regression, and its falling branch is continued flat.
    """
    counts = np.array(
        [np.bincount(distances[similar == flag], minlength=n_bits + 1) for flag in (True, False)],
        np.float64,
    )
    counts /= counts.sum(axis=1, keepdims=True)
    grid = np.arange(n_bits + 1) / n_bits
    basis = np.stack([np.ones_like(grid), grid, grid**2], axis=1)
    weights = np.zeros(3)
    for _ in range(100):  # Newton's method; the sum of both classes weighs each distance
        share = 1 / (1 + np.exp(-np.clip(basis @ weights, -60, 60)))
        slope = basis.T @ (counts[0] * (1 - share) - counts[1] * share) - 1e-9 * weights
        curve = (basis * (counts.sum(axis=0) * share * (1 - share))[:, None]).T @ basis
        step = np.linalg.solve(curve + 1e-9 * np.eye(3), slope)
        weights += step
        if np.abs(step).max() < 1e-9:
            break
    ratio: NDArray[np.float64] = np.minimum.accumulate(basis @ weights)
    return ratio
