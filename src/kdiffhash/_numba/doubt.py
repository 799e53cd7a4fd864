"""Projections so near their thresholds that rounding could turn a bit, in double precision."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

_BLOCK = 64  # bits that are looked over at once
# Taylor's series of 2^r, for r from -1/2 to 1/2 good to 1e-11.
_C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9 = (
    math.log(2) ** k / math.factorial(k) for k in range(1, 10)
)


@njit(fastmath={"reassoc", "contract"}, cache=True, nogil=True, boundscheck=False)
def _inner_product(a: NDArray[np.floating], b: NDArray[np.float32]) -> float:
    total = 0.0
    for k in range(len(b)):
        total += np.float64(a[k]) * np.float64(b[k])
    return total


@njit(cache=True, nogil=True, boundscheck=False)
def _round_to_its_side(value: float, threshold: np.float32) -> np.float32:
    """To float32, but not across the threshold: above it stays above."""
    if value > threshold:
        return max(np.float32(value), np.nextafter(threshold, np.float32(np.inf)))
    return min(np.float32(value), threshold)


@njit(cache=True, nogil=True, boundscheck=False)
def settle_sums(
    projections: NDArray[np.float32],
    features: NDArray[np.float32],
    directions: NDArray[np.float32],
    thresholds: NDArray[np.float32],
    near: NDArray[np.float32],
    very_near: NDArray[np.float32],
    doubtful: NDArray[np.bool_],
) -> int:
    """Sum up again, in double precision, what is `near` its threshold.

    Rows in which a projection is `very_near` even so, so that the rounding of features could turn
    the bit, are marked as doubtful. Returns how many these are.
    """
    n_bits, n_doubtful = len(thresholds), 0
    for i in range(len(doubtful)):
        row = projections[i]
        doubtful[i] = False
        for low in range(0, n_bits, _BLOCK):
            high, any_near = min(low + _BLOCK, n_bits), False
            for j in range(low, high):
                any_near |= abs(row[j] - thresholds[j]) <= near[j]
            if not any_near:
                continue
            for j in range(low, high):
                if abs(row[j] - thresholds[j]) <= near[j]:
                    value = _inner_product(features[i], directions[j])
                    row[j] = _round_to_its_side(value, thresholds[j])
                    doubtful[i] |= abs(row[j] - thresholds[j]) <= very_near[j]
        n_doubtful += doubtful[i]
    return n_doubtful


@njit(cache=True, nogil=True, boundscheck=False)
def settle_rows(
    projections: NDArray[np.float32],
    places: NDArray[np.int64],
    features: NDArray[np.float64],
    directions: NDArray[np.float32],
    thresholds: NDArray[np.float32],
    very_near: NDArray[np.float32],
) -> None:
    """Sum up what is `very_near` in some rows once more, from better features."""
    for i in range(len(places)):
        row = projections[places[i]]
        for j in range(len(thresholds)):
            if abs(row[j] - thresholds[j]) <= very_near[j]:
                value = _inner_product(features[i], directions[j])
                row[j] = _round_to_its_side(value, thresholds[j])


@njit(fastmath={"reassoc", "contract"}, cache=True, nogil=True, boundscheck=False)
def gaussians(
    rows: NDArray[np.float64],
    basis: NDArray[np.float64],
    factor: float,
    out: NDArray[np.float64],
) -> None:
    """``2 ** (-factor ||x - b||^2)`` for each of `rows` and every row b of the basis."""
    n, width = len(basis), rows.shape[1]
    for k in range(0, n, 4):  # four at a time, the last ones again where there are fewer
        b0, b1, b2, b3 = k, min(k + 1, n - 1), min(k + 2, n - 1), min(k + 3, n - 1)
        for i in range(len(rows)):
            s0 = s1 = s2 = s3 = 0.0
            for c in range(width):
                x = rows[i, c]
                s0 += (x - basis[b0, c]) * (x - basis[b0, c])
                s1 += (x - basis[b1, c]) * (x - basis[b1, c])
                s2 += (x - basis[b2, c]) * (x - basis[b2, c])
                s3 += (x - basis[b3, c]) * (x - basis[b3, c])
            out[i, b3], out[i, b2], out[i, b1], out[i, b0] = s3, s2, s1, s0
    flat = out.reshape(-1)
    as_int = flat.view(np.int64)
    for i in range(len(flat)):
        t = max(-factor * flat[i], -1000.0)
        whole = np.floor(t + 0.5)
        r = t - whole
        p = _C9
        p = p * r + _C8
        p = p * r + _C7
        p = p * r + _C6
        p = p * r + _C5
        p = p * r + _C4
        p = p * r + _C3
        p = p * r + _C2
        p = p * r + _C1
        flat[i] = p * r + 1.0
        as_int[i] += np.int64(whole) << 52
