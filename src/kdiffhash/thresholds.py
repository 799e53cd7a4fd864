"""The threshold of each bit: ``argmin over a of weight * FNR(a) + FPR(a)`` (eqs. 5 and 6).

The search is exact. Between two neighbouring projections of the training rows nothing changes, so
every gap between neighbours is tried, and the threshold is the middle of the best gap.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ._numba import sweep
from .codes import Codes
from .pairs import Pairs, Similar, check_both_kinds
from .parallel import run

_IN_MEMORY = 2**28  # bytes of projections beyond which batches wait in a temporary file


@dataclass(frozen=True)
class BitRates:
    """What the threshold search found, one entry a bit.

    Attributes
    ----------
    thresholds : float32 array of shape (n_bits,)
    fnr, fpr : float64 arrays of shape (n_bits,)
        Share of similar pairs whose bits differ, share of dissimilar pairs whose bits agree.
    ones : float64 array of shape (n_bits,)
        Share of rows whose bit is 1; near 0 or 1 the bit says nothing.
    """

    thresholds: NDArray[np.float32]
    fnr: NDArray[np.float64]
    fpr: NDArray[np.float64]
    ones: NDArray[np.float64]


class ThresholdSearch:
    """Collects projections and pairs, batch by batch, and finds the thresholds for all of them.

    Searches over batches and over everything at once give the same thresholds. Projections beyond
    256 MB are kept in an unnamed temporary file.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash.thresholds import ThresholdSearch
    >>> projections = np.array([[0.0, 1.0, 4.0, 5.0]], np.float32)  # one bit, four rows
    >>> search = ThresholdSearch()
    >>> search.add(projections, np.array([[0, 1], [2, 3], [1, 2]]), np.array([True, True, False]))
    >>> search.solve().thresholds
    array([2.5], dtype=float32)
    """

    def __init__(self) -> None:
        self._columns: list[NDArray[np.float32]] = []  # a (n_bits, n_rows) array a batch
        self._positives: list[NDArray[np.int32]] = []
        self._negatives: list[NDArray[np.int32]] = []
        self._n_rows = 0
        self._bytes = 0

    def add(self, columns: NDArray[np.float32], pairs: Pairs, similar: Similar) -> None:
        """Add a batch: projections, shape (n_bits, n), and pairs of its rows."""
        self._bytes += columns.nbytes
        if self._bytes > _IN_MEMORY and self._columns:
            with tempfile.TemporaryFile() as file:
                columns.tofile(file)  # a full disk is an OSError here, not a crash at some access
                columns = np.memmap(file, np.float32, "r", shape=columns.shape)
        members = (pairs + self._n_rows).astype(np.int32)
        self._columns.append(columns)
        self._positives.append(members[similar])
        self._negatives.append(members[~similar])
        self._n_rows += columns.shape[1]

    def solve(self, weight: float = 1.0, n_jobs: int | None = None) -> BitRates:
        """Thresholds and rates of all bits over everything that was added."""
        positives, negatives = _sides(self._positives), _sides(self._negatives)
        n_positives, n_negatives = positives.shape[1], negatives.shape[1]
        check_both_kinds(n_positives, n_negatives)
        n_bits = len(self._columns[0])
        thresholds = np.empty(n_bits, np.float32)
        fnr, fpr, ones = np.empty((3, n_bits))

        def solve_bit(bit: int) -> None:
            column = np.concatenate([batch[bit] for batch in self._columns])
            ranks, distinct = sweep.rank(column)
            # Losses are whole numbers for weight 1, so that ties are real ties.
            cut, n_missed, n_split = sweep.best_cut(
                distinct,
                sweep.count_steps(ranks, *positives, len(distinct)),
                sweep.count_steps(ranks, *negatives, len(distinct)),
                weight * n_negatives,
                float(n_positives),
            )
            thresholds[bit] = cut_value(distinct, cut)
            fnr[bit], fpr[bit] = n_missed / n_positives, 1 - n_split / n_negatives
            ones[bit] = np.mean(ranks > cut)

        run([partial(solve_bit, bit) for bit in range(n_bits)], n_jobs)
        return BitRates(thresholds, fnr, fpr, ones)


def rates_at(
    thresholds: NDArray[np.float32], codes: Codes, pairs: Pairs, similar: Similar
) -> BitRates:
    """Rates of bits whose thresholds are known, from the codes of the rows in pairs."""
    n_bits = len(thresholds)

    def share_that_differ(chosen: Pairs) -> NDArray[np.float64]:
        total = np.zeros(n_bits)
        for part in np.array_split(chosen, -(-len(chosen) // 2**16)):
            differ = codes[part[:, 0]] ^ codes[part[:, 1]]
            total += np.unpackbits(differ, axis=1, count=n_bits).sum(axis=0, dtype=np.int64)
        return total / len(chosen)

    ones = sum(
        np.unpackbits(part, axis=1, count=n_bits).sum(axis=0, dtype=np.int64)
        for part in np.array_split(codes, -(-len(codes) // 2**16))
    )
    fnr, split = share_that_differ(pairs[similar]), share_that_differ(pairs[~similar])
    return BitRates(thresholds, fnr, 1 - split, ones / len(codes))


def _sides(pairs: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    """Left and right members of all pairs, shape (2, p), the left ones in order for the cache."""
    members = np.concatenate(pairs) if pairs else np.empty((0, 2), np.int32)
    return np.ascontiguousarray(members[np.argsort(members[:, 0])].T)


def cut_value(distinct: NDArray[np.float32], cut: int) -> np.float32:
    """The middle t of the gap above rank `cut`: distinct[cut] <= t < distinct[cut + 1]."""
    low = np.float32(distinct[cut])
    if cut == len(distinct) - 1:
        return low
    high = np.float32(distinct[cut + 1])
    middle = np.float32((np.float64(low) + np.float64(high)) / 2)
    return middle if low <= middle < high else low
