"""A matrix product whose rows do not know their neighbours.

BLAS rounds an entry differently depending on where its row stands in the block, on the height of
the block and on the number of threads. `_core.multiply` makes every entry by the same chain of
multiply-adds, so a row gives the same bits alone, in any batch, on any thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .._core import multiply as multiply
from .._core import panel as PANEL  # noqa: N812


def pack_panels(columns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Pack the right-hand factor, given as one row per column, shape (n, k), into panels.

    Returns shape (ceil(n / PANEL), k, PANEL), with zeros in the spare columns.
    """
    n, k = columns.shape
    panels = np.zeros((-(-n // PANEL), k, PANEL), np.float32)
    for p in range(len(panels)):
        part = columns[p * PANEL : (p + 1) * PANEL]
        panels[p, :, : len(part)] = part.T
    return panels


def empty_result(n_rows: int, panels: NDArray[np.float32]) -> NDArray[np.float32]:
    """An array for the product of `n_rows` rows with these panels."""
    return np.empty((n_rows, len(panels) * PANEL), np.float32)
