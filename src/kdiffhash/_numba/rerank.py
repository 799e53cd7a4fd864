"""Weighing the bits in which codes differ from queries that are known before their signs."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True, boundscheck=False)
def weigh_differing(
    words: NDArray[np.uint64], projections: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    """Sum of ``abs(projections[q, i])`` over the bits i in which ``words[q, c]`` has another sign.

    Bit i of a code is the bit that ``numpy.packbits`` writes to byte ``i // 8``, from the top.
    """
    n_bits = projections.shape[1]
    for q in range(len(words)):
        for c in range(words.shape[1]):
            total = np.float32(0)
            for i in range(n_bits):
                place = np.uint64(i % 64 // 8 * 8 + 7 - i % 8)
                bit = words[q, c, i // 64] >> place & np.uint64(1)
                value = projections[q, i]
                if (value > 0) != (bit == np.uint64(1)):
                    total += abs(value)
            out[q, c] = total
