"""How many cells to search for a recall: measured with stored codes as queries."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

KS = (1, 10, 100)  # numbers of neighbours for which recall is measured
N_NEIGHBOURS = 150  # neighbours of a query that are known, so that most ties are among them
N_QUERIES = 1000
Z = 1.96  # standard errors of a 95 % confidence interval
_MARGIN = 2  # standard errors by which the measured recall must exceed the one asked for
_GRID_RATIO = 1.1
# Cells are scored in the nearest groups, which have about this many times the cells to search.
_GROUPS_FACTOR, _MIN_GROUPS = 20, 8
_WORTHWHILE = 1 / 3  # of the codes: searching more of them is slower than an exact scan

Curve = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """Recall by number of cells searched.

    Attributes
    ----------
    n_codes, n_cells, n_groups, n_queries : int
        What was measured: numbers of codes, of cells and of groups of cells, and of queries.
    n_probe : int64 array of shape (m,)
        Numbers of cells searched, ascending.
    compared : float64 array of shape (m,)
        Mean number of codes compared with a query.
    recall, error : float64 arrays of shape (3, m)
        Mean recall of the 1, 10 and 100 nearest neighbours, and its standard error.
    chosen : dict
        Cached results of `choose`.
    """

    n_codes: int
    n_cells: int
    n_groups: int
    n_queries: int
    n_probe: NDArray[np.int64]
    compared: Curve
    recall: Curve
    error: Curve
    chosen: dict[tuple[int, float], int | None] = field(default_factory=dict, compare=False)

    def choose(self, k: int, recall: float) -> int | None:
        """Return the number of cells to search; None if an exact search is no slower."""
        if (k, recall) not in self.chosen:
            self.chosen[k, recall] = self._choose(k, recall)
        return self.chosen[k, recall]

    def _choose(self, k: int, recall: float) -> int | None:
        if k > KS[-1]:
            return None
        first = next(i for i, measured in enumerate(KS) if k <= measured)
        # The single nearest code is found more easily by stored codes, which often have a near
        # duplicate, than by other queries. So k = 1 must have enough cells for k = 10, too.
        curves = slice(first, max(first, KS.index(10)) + 1)
        lower = self.recall[curves] - _MARGIN * self.error[curves]
        enough = np.flatnonzero(lower.min(axis=0) >= recall)
        if not len(enough):
            return None
        cost = self.compared[enough[0]] + 3 * self.cells_scored(int(self.n_probe[enough[0]]))
        return int(self.n_probe[enough[0]]) if cost < _WORTHWHILE * self.n_codes else None

    def expected(self, k: int, n_probe: int) -> tuple[float, float, float] | None:
        """Return the recall measured for a number of cells, and its 95 % confidence interval."""
        at = np.searchsorted(self.n_probe, n_probe, "right") - 1
        if k > KS[-1] or at < 0:
            return None
        curve = next(i for i, measured in enumerate(KS) if k <= measured)
        recall, error = float(self.recall[curve, at]), float(self.error[curve, at])
        return recall, max(0.0, recall - Z * error), min(1.0, recall + Z * error)

    def groups_for(self, n_probe: int) -> int:
        """Return the number of groups whose cells are scored."""
        return groups_for(n_probe, self.n_cells, self.n_groups)

    def cells_scored(self, n_probe: int) -> float:
        """Return the approximate number of centres that a query is compared with."""
        share = self.groups_for(n_probe) / self.n_groups
        return self.n_groups + share * self.n_cells


def groups_for(n_probe: int, n_cells: int, n_groups: int) -> int:
    """Return the number of groups whose cells are scored to find the nearest cells."""
    return min(n_groups, _MIN_GROUPS + -(-_GROUPS_FACTOR * n_probe * n_groups // n_cells))


def grid(n_cells: int) -> NDArray[np.int64]:
    """Return the numbers of cells for which recall is measured: about a geometric sequence."""
    n = int(np.log(max(n_cells, 2)) / np.log(_GRID_RATIO)) + 2
    steps = np.ceil(_GRID_RATIO ** np.arange(n)).astype(np.int64)
    return np.unique(np.append(steps[steps < n_cells], n_cells))


def needed(
    cell_ranks: NDArray[np.int64], group_ranks: NDArray[np.int64], n_cells: int, n_groups: int
) -> NDArray[np.int64]:
    """Return how many cells must be searched to find neighbours, as an entry of the grid.

    Parameters
    ----------
    cell_ranks, group_ranks : int64 arrays of shape (n, k)
        Ranks of the cells of the neighbours among all cells, and of their groups among all
        groups, ordered by their scores for the query; from 0.
    """
    sizes = grid(n_cells)
    groups = np.array([groups_for(int(n), n_cells, n_groups) for n in sizes])
    by_cells = np.searchsorted(sizes, cell_ranks + 1)
    by_groups = np.searchsorted(groups, group_ranks + 1)
    return np.maximum(by_cells, by_groups)


def recall_curves(
    needed: NDArray[np.int64], distances: NDArray[np.int32], n_grid: int
) -> tuple[Curve, Curve]:
    """Return recall and its standard error by number of neighbours and entry of the grid.

    A code at the distance of the k-th neighbour counts as much as that neighbour.
    """
    n = len(needed)
    recall, error = np.ones((len(KS), n_grid)), np.zeros((len(KS), n_grid))
    for i, k in enumerate(KS):
        near = distances <= distances[:, k - 1 : k]
        own = np.sort(np.where(near, needed, n_grid), axis=1)[:, :k]
        for at in range(n_grid):
            found = (own <= at).mean(axis=1)
            recall[i, at] = found.mean()
            error[i, at] = found.std(ddof=1) / n**0.5
            if found.min() == 1:  # no query has missed a neighbour: the rule of three
                error[i, at] = 1.5 / n
    return recall, error
