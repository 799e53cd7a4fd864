"""Hamming distances of each code with each, on 64-bit words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray


@intrinsic
def _popcount(typing_context: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@njit(cache=True, nogil=True, boundscheck=False)
def each_with_each(a: NDArray[np.uint64], b: NDArray[np.uint64], out: NDArray[np.uint16]) -> None:
    """Fill out[i, j] with the number of bits in which rows a[i] and b[j] differ.

    The words of `b` are given column by column, shape (words, n), so that the inner loop runs over
    neighbouring codes and becomes vector code.
    """
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            out[i, j] = np.uint16(_popcount(a[i, 0] ^ b[0, j]))
        for w in range(1, a.shape[1]):
            for j in range(b.shape[1]):
                out[i, j] += np.uint16(_popcount(a[i, w] ^ b[w, j]))
