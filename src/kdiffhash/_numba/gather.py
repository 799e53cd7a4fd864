"""Gathering pairs of feature rows for the moments."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True, boundscheck=False)
def combine_pairs(
    features: NDArray[np.float32],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    sign: float,
    out: NDArray[np.float64],
) -> None:
    """``out[i] = features[left[i]] + sign * features[right[i]]``."""
    for i in range(len(left)):
        a, b = features[left[i]], features[right[i]]
        for j in range(features.shape[1]):
            out[i, j] = np.float64(a[j]) + sign * np.float64(b[j])


@njit(cache=True, nogil=True, boundscheck=False)
def combine_rounded_pairs(
    features: NDArray[np.float32],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    sign: float,
    scale: np.float32,
    out: NDArray[np.float64],
) -> None:
    """``out[i] = rint(scale * features[left[i]]) + sign * rint(scale * features[right[i]])``."""
    for i in range(len(left)):
        a, b = features[left[i]], features[right[i]]
        for j in range(features.shape[1]):
            out[i, j] = np.float64(np.rint(a[j] * scale)) + sign * np.float64(np.rint(b[j] * scale))


@njit(cache=True, nogil=True, boundscheck=False)
def add_rounded_rows(
    features: NDArray[np.float32],
    weights: NDArray[np.float64],
    scale: np.float32,
    out: NDArray[np.float64],
) -> None:
    """``out += sum_i weights[i] * rint(scale * features[i])``."""
    for i in range(len(weights)):
        for j in range(features.shape[1]):
            out[j] += weights[i] * np.float64(np.rint(features[i, j] * scale))
