"""Choosing settings on held-out pairs: one routine for the study and the benchmarks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import hamming, truncate
from ..evaluate.roc import roc
from ..learn.pairs import Pairs, Similar

Setting = dict[str, Any]


def choose_setting(
    grid: Mapping[str, Sequence[Any]],
    fit: Callable[[Setting], Any],
    rows: NDArray[Any],
    pairs: Pairs,
    similar: Similar,
    lengths: Sequence[int],
) -> tuple[Setting, list[dict[str, Any]]]:
    """Return the setting of a grid that does best on held-out pairs, and the rates of all settings.

    Parameters
    ----------
    grid : mapping
        Values to try for each parameter; every combination is a setting.
    fit : function
        Makes a hasher with a setting and fits it to the rest of the training data. Its codes must
        be as long as the longest of `lengths`.
    rows : array of shape (n, d)
        The held-out rows.
    pairs, similar : arrays of shape (p, 2) and (p,)
        Pairs of held-out rows.
    lengths : sequence of int
        What counts is the mean, over the prefixes of these lengths, of the FNR at an FPR of 0.1 %.

    Returns
    -------
    best : dict
        Of settings that do equally well, the first.
    table : list of dict
        `settings` and `fnr_at_1e-3`, in the order of the grid.
    """
    table: list[dict[str, Any]] = []
    for values in itertools.product(*grid.values()):
        setting = dict(zip(grid, values))
        codes = fit(setting).transform(rows)
        rates = []
        for length in lengths:
            short = truncate(codes, length)
            distances = hamming(short[pairs[:, 0]], short[pairs[:, 1]])
            rates.append(roc(distances, similar).fnr_at(1e-3))
        table.append({"settings": setting, "fnr_at_1e-3": float(np.mean(rates))})
    best = min(table, key=lambda row: row["fnr_at_1e-3"])
    return best["settings"], table
