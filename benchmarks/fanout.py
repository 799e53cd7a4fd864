"""A simulation of search on a cluster: queries go out, every worker scans its share, answers merge.

The costs are those of one machine, measured in parts (`scale.py` measures them, and compares what
is predicted from them with whole searches on one and two workers). A network, slow workers and more
of them are then a matter of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Costs:
    """Seconds, unless said otherwise.

    scan: for a code and a query, on one thread
    sharing: how much longer that takes where all cores of a machine scan, relative
    spread: standard deviation of the scan's time, relative
    answer: until a task that does nothing has answered
    task: for each further task, in client and scheduler
    bandwidth: bytes a second into the client
    merge: for a query and a list of k that is merged
    """

    scan: float
    sharing: float
    spread: float
    answer: float
    task: float
    bandwidth: float
    merge: float


def simulate(
    costs: Costs,
    n_codes: float,
    n_workers: int,
    n_queries: int,
    *,
    k: int = 10,
    slow_share: float = 0.0,
    slow_factor: float = 1.0,
    n_runs: int = 1000,
    seed: int = 0,
) -> np.ndarray:
    """Seconds of a search, in many runs.

    A worker is slow (its machine is busy) with probability `slow_share`; the search is over when
    the last worker has answered. Several workers are taken to fill the cores of their machines.
    """
    rng = np.random.default_rng(seed)
    factor = np.exp(costs.spread * rng.standard_normal((n_runs, n_workers)))
    factor *= np.where(rng.random((n_runs, n_workers)) < slow_share, slow_factor, 1.0)
    scan = costs.scan * n_codes / n_workers * n_queries
    if n_workers > 1:
        scan *= 1 + costs.sharing
    answers = n_workers * n_queries * k * 12 / costs.bandwidth
    merge = (n_workers - 1) * n_queries * costs.merge
    fixed = costs.answer + (n_workers - 1) * costs.task + answers + merge
    return scan * factor.max(axis=1) + fixed
