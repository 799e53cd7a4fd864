"""Centres of cells: means of codes, learned from a sample by k-means on two levels.

A centre holds, for each bit, the majority of its codes and a weight from 0 to 3 that says how clear
the majority is. Codes are compared with the centres by integers only, so cells are the same with
every instruction set and number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._util.threads import run_tiles
from .segment import BLOCK, Words, aligned_zeros

UNUSED = 65535  # the bias of an unused centre
_ROUNDS = 6
_SPREAD = 0.5  # weight of the variance of a cell's bits in its score
_LOOK = 4  # groups whose cells are compared with a code to find its cell
_GROUP_SAMPLE = 256  # codes per group that groups are learned from
_TILE = 8192

Numbers = NDArray[np.uint32]
Sums = NDArray[np.int32]


@dataclass(frozen=True)
class Centres:
    """Centres, in blocks of eight.

    Attributes
    ----------
    planes : uint64 array of shape (n / 8, n_words, 3, 8)
        For each bit the majority, and the lower and the upper bit of its weight.
    bias : uint16 array of shape (n,)
        Where scores start; 65535 for unused centres.
    """

    planes: Words
    bias: NDArray[np.uint16]

    @classmethod
    def of(cls, sums: NDArray[Any], sizes: NDArray[Any]) -> Centres:
        """Return the centres of cells, given by the sums of bits and the number of their codes."""
        n, n_bits = sums.shape
        used = sizes > 0
        means = sums / np.maximum(sizes, 1)[:, None]
        majority = means > 0.5
        weights = np.rint(3 * np.abs(1 - 2 * means)).astype(np.uint8) * used[:, None]
        minority = np.minimum(means, 1 - means)
        spread = (minority**2 + _SPREAD * means * (1 - means)).sum(axis=1)
        scale = 24 if n_bits <= 2048 else 12  # of a bit; scores must fit into 16 bits
        bias = np.where(used, np.rint(scale * spread), UNUSED)
        planes = np.stack([majority & used[:, None], weights & 1, weights >> 1], axis=1)
        words = np.packbits(planes.astype(bool), axis=2, bitorder="little").view("<u8")
        padded = np.zeros((-(-n // BLOCK) * BLOCK, *words.shape[1:]), np.uint64)
        padded[:n] = words
        biases = np.full(len(padded), UNUSED, np.uint16)
        biases[:n] = bias
        blocks = aligned_zeros(len(padded) // BLOCK, n_bits // 64, 3, BLOCK)
        blocks[:] = padded.reshape(-1, BLOCK, 3, n_bits // 64).transpose(0, 3, 2, 1)
        return cls(blocks, biases)

    @classmethod
    def joined(cls, parts: list[Centres]) -> Centres:
        """Return all centres of several parts."""
        planes = aligned_zeros(sum(len(part.planes) for part in parts), *parts[0].planes.shape[1:])
        np.concatenate([part.planes for part in parts], out=planes)
        return cls(planes, np.concatenate([part.bias for part in parts]))

    @property
    def arguments(self) -> tuple[Words, NDArray[np.uint16]]:
        """The centres as arguments of the core."""
        return self.planes, self.bias

    def __len__(self) -> int:
        return len(self.bias)


@dataclass(frozen=True)
class TwoLevels:
    """Cells, and groups of cells; group g has the cells ``firsts[g]`` to ``firsts[g + 1]``."""

    groups: Centres
    cells: Centres
    firsts: NDArray[np.int64]

    @property
    def arguments(
        self,
    ) -> tuple[Words, NDArray[np.uint16], Words, NDArray[np.uint16], NDArray[np.int64]]:
        """The centres as arguments of the core."""
        return (*self.groups.arguments, *self.cells.arguments, self.firsts)

    def assign(self, codes: Words, n_jobs: int | None) -> Numbers:
        """Return the cell of each code."""
        return _assign(self.groups, self.cells, self.firsts, _LOOK, codes, n_jobs)


def train(sample: Words, n_cells: int, rng: np.random.Generator, n_jobs: int | None) -> TwoLevels:
    """Learn about `n_cells` cells from a sample of codes."""
    n_groups = max(1, round(n_cells**0.5))
    step = max(1, len(sample) // (n_groups * _GROUP_SAMPLE))
    groups = _k_means(np.ascontiguousarray(sample[::step]), n_groups, rng, n_jobs)
    group_of = _nearest(groups, sample, n_jobs)
    order = np.argsort(group_of, kind="stable")
    stops = np.cumsum(np.bincount(group_of, minlength=len(groups)))
    cells, firsts = [], [0]
    for start, stop in zip(np.append(0, stops), stops):
        n_own = BLOCK * round((stop - start) / len(sample) * n_cells / BLOCK)
        if start < stop:
            own = sample[order[start:stop]]
            cells.append(_k_means(own, max(BLOCK, n_own), rng, n_jobs))
        firsts.append(firsts[-1] + (len(cells[-1]) if start < stop else 0))
    return TwoLevels(groups, Centres.joined(cells), np.array(firsts, np.int64))


def add_bits(codes: Words, cells: Numbers, sums: Sums) -> None:
    """Add the bits of codes to the sums of their cells."""
    _core.add_bits(codes, cells, sums)


def _nearest(centres: Centres, codes: Words, n_jobs: int | None) -> Numbers:
    """Return the nearest centre of each code."""
    group = Centres.of(np.zeros((1, 64 * codes.shape[1])), np.ones(1))
    firsts = np.zeros(len(group) + 1, np.int64)
    firsts[1:] = len(centres)
    return _assign(group, centres, firsts, 1, codes, n_jobs)


def _assign(
    groups: Centres,
    cells: Centres,
    firsts: NDArray[np.int64],
    look: int,
    codes: Words,
    n_jobs: int | None,
) -> Numbers:
    """Return the cell of each code, from the `look` nearest groups."""
    out = np.empty(len(codes), np.uint32)
    centres = (*groups.arguments, *cells.arguments, firsts, look)

    def assign(start: int, stop: int) -> None:
        _core.assign_cells(*centres, codes[start:stop], out[start:stop])

    run_tiles(lambda: assign, len(codes), _TILE, n_jobs, blas=False)
    return out


def _k_means(codes: Words, k: int, rng: np.random.Generator, n_jobs: int | None) -> Centres:
    """Return k centres, in blocks of eight; some may be unused."""
    k = min(k, len(codes))
    cells = np.full(len(codes), k, np.uint32)
    cells[rng.permutation(len(codes))[:k]] = np.arange(k)
    for number in range(_ROUNDS + 1):
        sums = np.zeros((k + 1, 64 * codes.shape[1]), np.int32)
        _core.add_bits(codes, cells, sums)
        sizes = np.bincount(cells, minlength=k)[:k]
        # Centres of single codes get lower weights, so that other codes join them.
        centres = Centres.of(sums[:k], sizes) if number else Centres.of(1 + 2 * sums[:k], 4 * sizes)
        if number < _ROUNDS:
            cells = _nearest(centres, codes, n_jobs)
    return centres
