"""Choose settings on a validation set: one routine for the study and the benchmarks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import truncate
from ..evaluate.pair_distances import code_distances, euclidean
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
    """Return the setting of a grid with the lowest error on validation pairs, and all error rates.

    Parameters
    ----------
    grid : mapping
        Values to try for each parameter; every combination is a setting.
    fit : function
        Makes an estimator with a setting and fits it to the training set. Codes must be as long as
        the longest of `lengths`.
    rows : array of shape (n, d)
        Rows of the validation set.
    pairs, similar : arrays of shape (p, 2) and (p,)
        Pairs of validation rows.
    lengths : sequence of int
        The error of a setting is the FNR at 0.1 % FPR, averaged over the prefixes of these lengths.

    Returns
    -------
    best : dict
        The setting with the lowest error; the first one if several tie.
    table : list of dict
        `settings` and `fnr_at_1e-3`, in the order of the grid.
    """
    table: list[dict[str, Any]] = []
    for values in itertools.product(*grid.values()):
        setting = dict(zip(grid, values))
        codes = fit(setting).transform(rows)
        distances: list[NDArray[Any]]
        if codes.dtype == np.uint8:
            distances = [code_distances(truncate(codes, length), pairs) for length in lengths]
        else:
            distances = [euclidean(codes, pairs, None)]
        rates = [roc(one, similar).fnr_at(1e-3) for one in distances]
        table.append({"settings": setting, "fnr_at_1e-3": float(np.mean(rates))})
    best = min(table, key=lambda row: row["fnr_at_1e-3"])
    return best["settings"], table
