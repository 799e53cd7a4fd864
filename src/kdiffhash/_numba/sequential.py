"""Deciding pairs of codes part by part."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .llvm import popcount


@njit(cache=True, nogil=True, boundscheck=False)
def decide(
    a: NDArray[np.uint32],
    b: NDArray[np.uint32],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    accept: NDArray[np.int32],
    reject: NDArray[np.int32],
    similar: NDArray[np.bool_],
    parts: NDArray[np.uint16],
) -> None:
    """Read the codes of each pair, 32 bits at a time, until their distance says enough.

    After part k a distance of at most accept[k] decides for similar, one of at least reject[k]
    against; ``accept[-1] + 1 == reject[-1]``. Writes the decision and how many parts were read.
    """
    for i in range(len(left)):
        x, y = a[left[i]], b[right[i]]
        distance = np.int32(0)
        for k in range(len(accept)):
            distance += np.int32(popcount(np.uint64(x[k] ^ y[k])))
            if distance <= accept[k] or distance >= reject[k]:
                similar[i] = distance <= accept[k]
                parts[i] = k + 1
                break
