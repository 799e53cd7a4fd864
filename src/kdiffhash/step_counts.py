"""The threshold search where nobody sees all projections: counts that add up, and exact cuts.

`thresholds` sorts the projections of all rows. Here they are spread over machines, and each part of
the pairs gives

1. counts of where pairs begin and end, in bins of equal width (`StepCounts`). Their sum bounds the
   loss inside every bin, so that only a few bins can hold the best cut;
2. the exact values in those few bins (`Steps`).

Both are small whatever the number of pairs, add up in any order, and give the very thresholds that
`thresholds` finds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._numba import sweep
from ._numba.sweep import N_BINS
from .pairs import Pairs, Similar, check_both_kinds
from .thresholds import BitRates, cut_value

_SLACK = 1e-9  # of the largest loss: what rounding may add to a bound

Columns = NDArray[np.float32]  # projections, shape (n_bits, n)
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Grid:
    """Equal bins on the line of each bit; the outer ones reach to infinity.

    Attributes
    ----------
    low, scale : float64 arrays of shape (n_bits,)
        A projection v is in bin ``(v - low) * scale``, rounded down.
    """

    low: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def over(cls, columns: Columns) -> Grid:
        """Bins from the least to the greatest of some projections, and a little beyond."""
        low, high = columns.min(axis=1).astype(np.float64), columns.max(axis=1).astype(np.float64)
        margin = 0.05 * (high - low)
        width = high - low + 2 * margin
        return cls(low - margin, np.where(width > 0, N_BINS / np.where(width > 0, width, 1), 0.0))


@dataclass(frozen=True)
class StepCounts:
    """How many pairs begin and end in each bin: at their lower and at their higher projection.

    Attributes
    ----------
    counts : int32 array of shape (5, n_bits, N_BINS)
        Beginnings and ends of similar pairs, of dissimilar pairs, and rows.
    lowest : float32 array of shape (n_bits, N_BINS)
        The least projection in each bin; infinity in an empty one.
    n_positives, n_negatives : int
    """

    counts: NDArray[np.int32]
    lowest: NDArray[np.float32]
    n_positives: int
    n_negatives: int

    @classmethod
    def of(
        cls, grid: Grid, columns: Columns, pairs: Pairs, similar: Similar, new: Flags
    ) -> StepCounts:
        """Count the pairs of rows whose projections are `columns`.

        `new` says which rows no other part of the data counts.
        """
        n_bits = len(columns)
        counts = np.zeros((5, n_bits, N_BINS), np.int32)
        lowest = np.full((n_bits, N_BINS), np.inf, np.float32)
        left, right = np.ascontiguousarray(pairs.T)
        for bit in range(n_bits):
            sweep.count_bins(
                columns[bit],
                left,
                right,
                similar,
                new,
                grid.low[bit],
                grid.scale[bit],
                counts[:, bit],
                lowest[bit],
            )
        return cls(counts, lowest, int(similar.sum()), int((~similar).sum()))

    def __add__(self, other: StepCounts) -> StepCounts:
        """Counts of both parts together."""
        return StepCounts(
            self.counts + other.counts,
            np.minimum(self.lowest, other.lowest),
            self.n_positives + other.n_positives,
            self.n_negatives + other.n_negatives,
        )

    def candidates(self, weight: float) -> Flags:
        """Which bins may hold the best cut, or its tie, shape (n_bits, N_BINS).

        Within a bin the loss falls by no more than the ends of similar and the beginnings of
        dissimilar pairs in it, from the left, and likewise from the right.
        """
        check_both_kinds(self.n_positives, self.n_negatives)
        up, down, other_up, other_down, rows = self.counts.astype(np.float64)
        a, b = weight * self.n_negatives, float(self.n_positives)
        at_right = np.cumsum(a * (up - down) - b * (other_up - other_down), axis=1)
        at_left = at_right - (a * (up - down) - b * (other_up - other_down))
        least = np.maximum(at_left - a * down - b * other_up, at_right - a * up - b * other_down)
        filled = rows > 0
        known = np.minimum(np.where(filled, at_right, 0.0).min(axis=1), 0.0)
        slack = _SLACK * (a * self.n_positives + b * self.n_negatives)
        chosen = filled & (least <= known[:, None] + slack)
        last = N_BINS - 1 - np.argmax(filled[:, ::-1], axis=1)
        chosen[np.arange(len(chosen)), last] = True  # its greatest value is the cut above all
        return np.asarray(chosen)


@dataclass(frozen=True)
class Steps:
    """The distinct projections in chosen bins, and what begins and ends at each.

    Attributes
    ----------
    starts : int64 array of shape (n_bits + 1,)
        Bit i has the values ``values[starts[i] : starts[i + 1]]``, which rise.
    values : float32 array of shape (m,)
    steps : int32 array of shape (m, 3)
        Beginnings less ends of similar pairs, of dissimilar pairs, and rows.
    """

    starts: NDArray[np.int64]
    values: NDArray[np.float32]
    steps: NDArray[np.int32]

    @classmethod
    def of(
        cls,
        grid: Grid,
        chosen: Flags,
        columns: Columns,
        pairs: Pairs,
        similar: Similar,
        new: Flags,
    ) -> Steps:
        """The steps of the same pairs and rows that `StepCounts.of` has counted."""
        left, right = np.ascontiguousarray(pairs.T)
        return cls._joined(
            sweep.steps_inside(
                column, left, right, similar, new, grid.low[bit], grid.scale[bit], chosen[bit]
            )
            for bit, column in enumerate(columns)
        )

    def __add__(self, other: Steps) -> Steps:
        """Steps of both parts together."""
        n_bits = len(self.starts) - 1
        return self._joined(
            sweep.merge_steps(*self.of_bit(bit), *other.of_bit(bit)) for bit in range(n_bits)
        )

    def of_bit(self, bit: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Values and steps of one bit."""
        some = slice(self.starts[bit], self.starts[bit + 1])
        return self.values[some], self.steps[some]

    @classmethod
    def _joined(cls, bits: Iterable[tuple[NDArray[np.float32], NDArray[np.int32]]]) -> Steps:
        values, steps = zip(*bits)
        starts = np.cumsum([0, *map(len, values)])
        return cls(starts, np.concatenate(values), np.concatenate(steps))


def solve(grid: Grid, counts: StepCounts, steps: Steps, weight: float) -> BitRates:
    """Thresholds and rates of all bits, as `ThresholdSearch.solve` finds them."""
    n_bits = len(counts.lowest)
    thresholds = np.empty(n_bits, np.float32)
    fnr, fpr, ones = np.empty((3, n_bits))
    for bit in range(n_bits):
        values, changes = steps.of_bit(bit)
        positive, negative, rows = changes.T
        up, down, other_up, other_down, rows_in = counts.counts[:, bit].astype(np.int64)
        bins = np.empty(len(values), np.int32)
        sweep.find_bins(values, grid.low[bit], grid.scale[bit], bins)
        positives = _running(positive, bins, up - down)
        negatives = _running(negative, bins, other_up - other_down)
        rows_below = _running(rows, bins, rows_in)
        following = _next_values(values, bins, counts.lowest[bit])
        loss = weight * counts.n_negatives * positives - float(counts.n_positives) * negatives
        # Least loss, then widest gap, then lowest. The cut above all values has loss and gap 0.
        gap = following - values
        best = np.lexsort((-gap, loss))[0]
        thresholds[bit] = cut_value(np.array([values[best], following[best]]), 0)
        fnr[bit] = positives[best] / counts.n_positives
        fpr[bit] = 1 - negatives[best] / counts.n_negatives
        ones[bit] = (rows_in.sum() - rows_below[best]) / rows_in.sum()
    return BitRates(thresholds, fnr, fpr, ones)


def _running(
    steps: NDArray[np.int32], bins: NDArray[np.int32], per_bin: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The running sum at each value: what all bins below add up to, and the steps in its own."""
    before = np.cumsum(per_bin) - per_bin
    total = np.cumsum(steps, dtype=np.int64)
    first = np.searchsorted(bins, bins)
    return np.asarray(before[bins] + total - (total - steps)[first])


def _next_values(
    values: NDArray[np.float32], bins: NDArray[np.int32], lowest: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The next higher projection after each value; after the last, that value itself."""
    after = np.append(np.minimum.accumulate(lowest[::-1])[::-1][1:], np.float32(np.inf))
    out = after[bins]
    same = bins[1:] == bins[:-1]
    out[:-1][same] = values[1:][same]
    return np.asarray(np.where(np.isinf(out), values, out), np.float32)
