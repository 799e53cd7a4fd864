"""Distances of pairs of rows or codes, computed in batches of bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import hamming
from ..learn.preprocess import Preprocess, preprocess_rows


def code_distances(codes: NDArray[np.uint8], pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Compute the Hamming distances of pairs of codes."""
    out = np.empty(len(pairs), np.int64)
    for i in range(0, len(pairs), 200_000):
        a, b = pairs[i : i + 200_000].T
        out[i : i + 200_000] = hamming(codes[a], codes[b])
    return out


def euclidean(
    rows: NDArray[Any], pairs: NDArray[np.int64], kind: Preprocess
) -> NDArray[np.float32]:
    """Compute the Euclidean distances of pairs of rows after preprocessing."""
    prepared = preprocess_rows(np.asarray(rows), kind)
    out = np.empty(len(pairs), np.float32)
    for i in range(0, len(pairs), 100_000):
        a, b = pairs[i : i + 100_000].T
        gap = prepared[a] - prepared[b]
        out[i : i + 100_000] = np.sqrt(np.einsum("ij,ij->i", gap, gap))
    return out
