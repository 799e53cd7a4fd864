"""The passes over a tile between and after its matrix products."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True, boundscheck=False)
def squared_norms(rows: NDArray[np.float32], n_rows: int, out: NDArray[np.float32]) -> None:
    """Squared lengths of the first rows; four partial sums, in an order fixed by the width."""
    width = rows.shape[1]
    whole = width // 4 * 4
    for i in range(n_rows):
        a = b = c = d = np.float32(0)
        for j in range(0, whole, 4):
            a += rows[i, j] * rows[i, j]
            b += rows[i, j + 1] * rows[i, j + 1]
            c += rows[i, j + 2] * rows[i, j + 2]
            d += rows[i, j + 3] * rows[i, j + 3]
        for j in range(whole, width):
            a += rows[i, j] * rows[i, j]
        out[i] = (a + b) + (c + d)


@njit(fastmath=True, cache=True, nogil=True, boundscheck=False)
def exp2_of_expanded_square(
    products: NDArray[np.float32],
    row_terms: NDArray[np.float32],
    column_terms: NDArray[np.float32],
    n_rows: int,
) -> None:
    """In place: ``p[i, j] <- 2 ** min(p[i, j] - row[i] - column[j], 0)``.

    2^t is the exponent field for floor(t) times a polynomial for the rest (minimax of degree 5 on
    [0, 1], relative error 2e-7), all of which compiles to vector instructions; exp does not.
    """
    width = len(column_terms)
    for i in range(n_rows):
        row = products[i]
        as_int = row.view(np.int32)
        term = row_terms[i]
        for j in range(width):
            t = min(row[j] - term - column_terms[j], np.float32(0))
            t = max(t, np.float32(-126))
            whole = np.floor(t)
            r = t - whole
            p = np.float32(1.8775767e-3)
            p = p * r + np.float32(8.9893397e-3)
            p = p * r + np.float32(5.5826318e-2)
            p = p * r + np.float32(2.4015361e-1)
            p = p * r + np.float32(6.9315308e-1)
            p = p * r + np.float32(9.9999994e-1)
            row[j] = p
            as_int[j] += np.int32(whole) << 23


@njit(cache=True, nogil=True, boundscheck=False)
def pack_above(
    values: NDArray[np.float32], thresholds: NDArray[np.float32], codes: NDArray[np.uint8]
) -> None:
    """Write the bits ``values > thresholds`` into packed codes; the first bit is the top bit."""
    n, n_bits = len(codes), len(thresholds)
    whole = n_bits // 8
    for i in range(n):
        for c in range(whole):
            byte = 0
            for b in range(8):
                byte = byte << 1 | (values[i, 8 * c + b] > thresholds[8 * c + b])
            codes[i, c] = byte
        if n_bits % 8:
            byte = 0
            for b in range(8 * whole, n_bits):
                byte = byte << 1 | (values[i, b] > thresholds[b])
            codes[i, whole] = byte << (-n_bits % 8)
