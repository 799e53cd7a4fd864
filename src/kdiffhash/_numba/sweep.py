"""The exact threshold search over one column of projections."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

_DIGIT = 11  # bits per pass of the radix sort: three passes over 32-bit keys


@njit(cache=True, nogil=True, boundscheck=False)
def rank(values: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Rank of every value among the distinct values, and those values in rising order.

    Least-significant-digit radix sort on keys whose unsigned order is the order of the floats.
    """
    n = len(values)
    keys, other_keys = np.empty(n, np.uint32), np.empty(n, np.uint32)
    order, other_order = np.empty(n, np.int32), np.empty(n, np.int32)
    counts = np.zeros((3, 1 << _DIGIT), np.int64)
    mask = np.uint32((1 << _DIGIT) - 1)
    bits = (values + np.float32(0)).view(np.uint32)  # -0.0 + 0.0 is 0.0
    for i in range(n):
        b = bits[i]
        key = ~b if b >> np.uint32(31) else b | np.uint32(0x80000000)
        keys[i] = key
        order[i] = i
        for d in range(3):
            counts[d, (key >> np.uint32(d * _DIGIT)) & mask] += 1
    for d in range(3):
        shift = np.uint32(d * _DIGIT)
        position = counts[d]
        total = 0
        for c in range(1 << _DIGIT):
            total, position[c] = total + position[c], total
        for i in range(n):
            c = (keys[i] >> shift) & mask
            to = position[c]
            position[c] = to + 1
            other_keys[to] = keys[i]
            other_order[to] = order[i]
        keys, other_keys = other_keys, keys
        order, other_order = other_order, order

    ranks, distinct = np.empty(n, np.int32), np.empty(n, np.float32)
    k = -1
    for i in range(n):
        if i == 0 or keys[i] != keys[i - 1]:
            k += 1
            distinct[k] = values[order[i]]
        ranks[order[i]] = k
    return ranks, distinct[: k + 1]


@njit(cache=True, nogil=True, boundscheck=False)
def count_steps(
    ranks: NDArray[np.int32], left: NDArray[np.int32], right: NDArray[np.int32], n_distinct: int
) -> NDArray[np.int32]:
    """Steps whose running sum at c is the number of pairs that cut c separates.

    Cut c puts ranks up to c on one side. It separates a pair if c is at least the lower of its
    ranks and below the higher one, so each pair counts up at one place and down at another.
    """
    steps = np.zeros(n_distinct, np.int32)
    for i in range(len(left)):
        a, b = ranks[left[i]], ranks[right[i]]
        steps[min(a, b)] += 1
        steps[max(a, b)] -= 1
    return steps


@njit(cache=True, nogil=True, boundscheck=False)
def weigh_steps(
    ranks: NDArray[np.int32],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    weights: NDArray[np.float64],
    n_distinct: int,
) -> NDArray[np.float64]:
    """As `count_steps`, for pairs that count by weight."""
    steps = np.zeros(n_distinct)
    for i in range(len(left)):
        a, b = ranks[left[i]], ranks[right[i]]
        steps[min(a, b)] += weights[i]
        steps[max(a, b)] -= weights[i]
    return steps


@njit(cache=True, nogil=True, boundscheck=False)
def best_cut(
    distinct: NDArray[np.float32],
    positive_steps: NDArray[np.generic],
    negative_steps: NDArray[np.generic],
    positive_weight: float,
    negative_weight: float,
) -> tuple[int, float, float]:
    """The cut that minimises ``positive_weight * separated positives - negative_weight * ...``.

    Among equal losses the widest gap wins, then the lowest cut. Returns the cut and the separated
    positives and negatives; the cut above all values separates nothing.
    """
    best, best_positives, best_negatives = len(distinct) - 1, 0.0, 0.0
    best_loss, best_gap = 0.0, np.float32(0)
    positives = negatives = 0.0
    for c in range(len(distinct) - 1):
        positives += positive_steps[c]
        negatives += negative_steps[c]
        loss = positive_weight * positives - negative_weight * negatives
        gap = distinct[c + 1] - distinct[c]
        if loss < best_loss or (loss == best_loss and gap > best_gap):
            best, best_positives, best_negatives = c, positives, negatives
            best_loss, best_gap = loss, gap
    return best, best_positives, best_negatives


@njit(cache=True, nogil=True, boundscheck=False)
def best_real_cut(distinct: NDArray[np.float32], steps: NDArray[np.float64]) -> tuple[int, float]:
    """The cut between two values with the least running sum of steps, and that sum.

    Unlike `best_cut` it never puts all values on one side, unless they are all equal.
    """
    best, best_loss, loss = 0, np.inf, 0.0
    for c in range(len(distinct) - 1):
        loss += steps[c]
        if loss < best_loss:
            best, best_loss = c, loss
    return best, best_loss
