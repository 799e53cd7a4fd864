"""A matrix product in which the result for a row does not depend on the other rows.

BLAS rounds an entry differently depending on the position of its row in the block, the height of
the block and the number of threads. `_core.multiply` computes every entry by the same chain of
multiply-adds, so a row gives the same result alone, in any batch and on any thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .._core import multiply as multiply
from .._core import panel as PANEL  # noqa: N812


def pack_panels(columns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Pack the right-hand factor of a product into panels of columns.

    Parameters
    ----------
    columns : float32 array of shape (n, k)
        The transposed factor: one row for each of its columns.

    Returns
    -------
    panels : float32 array of shape (ceil(n / PANEL), k, PANEL)
        Spare columns are zero.
    """
    n, k = columns.shape
    panels = np.zeros((-(-n // PANEL), k, PANEL), np.float32)
    for p in range(len(panels)):
        chosen = columns[p * PANEL : (p + 1) * PANEL]
        panels[p, :, : len(chosen)] = chosen.T
    return panels


def empty_result(n_rows: int, panels: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return an uninitialised array for the product of `n_rows` rows with these panels."""
    return np.empty((n_rows, len(panels) * PANEL), np.float32)
