"""Hamming distances of each code with each, on 64-bit words."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .llvm import popcount


@njit(cache=True, nogil=True, boundscheck=False)
def each_with_each(a: NDArray[np.uint64], b: NDArray[np.uint64], out: NDArray[np.uint16]) -> None:
    """Fill out[i, j] with the number of bits in which rows a[i] and b[j] differ.

    The words of `b` are given column by column, shape (words, n), so that the inner loop runs over
    neighbouring codes and becomes vector code.
    """
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            out[i, j] = np.uint16(popcount(a[i, 0] ^ b[0, j]))
        for w in range(1, a.shape[1]):
            for j in range(b.shape[1]):
                out[i, j] += np.uint16(popcount(a[i, w] ^ b[w, j]))
