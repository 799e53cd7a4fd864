"""The passes of a step of refinement between its matrix products.

Items are the members of pairs: the first members of all, then the second ones in the same order.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

_FAR = np.float32(-1e30)  # less than any similarity


@njit(cache=True, nogil=True, boundscheck=False)
def negative_sizes(
    projections: NDArray[np.float32],
    thresholds: NDArray[np.float32],
    factor: np.float32,
    out: NDArray[np.float32],
) -> None:
    """``out[i, j] = -factor * |projections[i, j] - thresholds[j]|``."""
    for i in range(len(projections)):
        for j in range(len(thresholds)):
            out[i, j] = -factor * abs(projections[i, j] - thresholds[j])


@njit(cache=True, nogil=True, boundscheck=False)
def to_tanh(
    decays: NDArray[np.float32],
    projections: NDArray[np.float32],
    thresholds: NDArray[np.float32],
) -> None:
    """In place: tanh from ``d = exp(-2|u|)``, which is (1 - d) / (1 + d) with the sign of u."""
    one = np.float32(1)
    for i in range(len(projections)):
        for j in range(len(thresholds)):
            size = (one - decays[i, j]) / (one + decays[i, j])
            decays[i, j] = size if projections[i, j] > thresholds[j] else -size


@njit(cache=True, nogil=True, boundscheck=False)
def hide_same(similarity: NDArray[np.float32], first: int, things: NDArray[np.int64]) -> None:
    """Make items of one thing unlike each other; row r stands for item ``first + r``."""
    for r in range(len(similarity)):
        mine, row = things[first + r], similarity[r]
        for j in range(len(things)):
            if things[j] == mine:
                row[j] = _FAR


@njit(fastmath={"reassoc", "nnan", "nsz"}, cache=True, nogil=True, boundscheck=False)
def find_largest(
    similarity: NDArray[np.float32], where: NDArray[np.int32], value: NDArray[np.float32]
) -> None:
    """The largest entry of each row, and the first place that has it."""
    for r in range(len(similarity)):
        row = similarity[r]
        top = _FAR
        for j in range(len(row)):
            top = max(top, row[j])
        place = 0
        while row[place] < top:
            place += 1
        where[r], value[r] = place, top


@njit(fastmath={"reassoc", "contract"}, cache=True, nogil=True, boundscheck=False)
def add_partners(
    soft: NDArray[np.float32], low: int, high: int, first: int, out: NDArray[np.float32]
) -> None:
    """Add the inner product with its partner over soft bits low to high for items from `first`."""
    n = len(soft)
    for r in range(len(out)):
        mine, partner = soft[first + r], soft[(first + r + n // 2) % n]
        total = np.float32(0)
        for c in range(low, high):
            total += mine[c] * partner[c]
        out[r] += total


@njit(cache=True, nogil=True, boundscheck=False)
def add_gradient(
    soft: NDArray[np.float32],
    nearest: NDArray[np.int32],
    slopes: NDArray[np.float32],
    prefixes: NDArray[np.int64],
    low: int,
    high: int,
    out: NDArray[np.float32],
) -> None:
    """Add the gradient of the loss by soft bits low to high.

    ``slopes[k, i]`` is the derivative by the inner product of item i with the nearest other item
    over prefix k, and minus the derivative by that with its partner.
    """
    n = len(soft)
    for k in range(len(prefixes)):
        if prefixes[k] <= low:
            continue
        for i in range(n):
            slope = slopes[k, i]
            partner, other = (i + n // 2) % n, nearest[k, i]
            for c in range(low, min(high, prefixes[k])):
                mine = slope * soft[i, c]
                out[i, c] += slope * (soft[other, c] - soft[partner, c])
                out[partner, c] -= mine
                out[other, c] += mine


@njit(cache=True, nogil=True, boundscheck=False)
def adam_step(
    values: NDArray[np.float32],
    gradient: NDArray[np.float32],
    mean: NDArray[np.float32],
    square: NDArray[np.float32],
    number: int,
    rate: float,
) -> None:
    """Adam with its usual constants, in place; arrays are flat, and `number` counts from 1."""
    keep, keep_square = np.float32(0.9), np.float32(0.999)
    new, new_square = np.float32(1 - 0.9), np.float32(1 - 0.999)
    size = np.float32(rate / (1 - 0.9**number))
    scale = np.float32(1 / (1 - 0.999**number))
    for i in range(len(values)):
        g = gradient[i]
        mean[i] = keep * mean[i] + new * g
        square[i] = keep_square * square[i] + new_square * g * g
        values[i] -= size * mean[i] / (np.sqrt(scale * square[i]) + np.float32(1e-12))
