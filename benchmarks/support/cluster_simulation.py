"""A simulation of search on a cluster: queries go out, every worker scans its share, answers merge.

The costs are those of one machine, measured in parts (`scale.py` measures them, and compares what
is predicted from them with whole searches on one and two workers). A network, slow workers and more
of them are then a matter of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from support.harness import load
from support.markdown import duration, machine_note, size, table


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


# -- tables, from the result of `scale.py` -----------------------------------------------------


def unit_costs(found: dict[str, Any]) -> dict[str, float]:
    """Seconds for a descriptor or code, on one thread; bytes in PostgreSQL."""
    pg, index = load("postgres_store"), load("index_on_disk")
    encode = next(case for case in found["cases"] if case["task"] == "encode")
    fit = next(case for case in found["cases"] if case["task"] == "fit")
    return {
        "encode": encode["plain_seconds"] / encode["n"],
        "fit": fit["plain_seconds"],
        "scan": found["simulation"]["costs"]["scan"],
        "load": pg["rows"][0]["seconds"] / pg["n"],
        "pg_bytes": pg["rows"][1]["bytes_per_code"],
        "build": index["rows"][0]["seconds"] / index["n"],
    }


def costs_table(found: dict[str, Any]) -> str:
    cost = unit_costs(found)
    rows = [
        ["learn, 300,000 pairs, 1,000 basis rows", f"{cost['fit']:.0f} s in all", "`scale.py`"],
        ["encode, 128 bits", f"{1e6 * cost['encode']:.1f} µs", "`scale.py`"],
        ["put into an index file", f"{1e6 * cost['build']:.2f} µs", "`index.py`"],
        [
            "load into PostgreSQL, 256 bits",
            f"{1e6 * cost['load']:.1f} µs, {cost['pg_bytes']:.0f} bytes on disk",
            "`postgres.py`",
        ],
        ["compare with a query, 128 bits", f"{1e9 * cost['scan']:.2f} ns", "`scale.py`"],
    ]
    note = f"{machine_note(found)}; one thread, but PostgreSQL and index files use more."
    return note + "\n\n" + table(["step", "cost", "measured by `benchmarks/`"], rows)


def worked_table(found: dict[str, Any]) -> str:
    cost = unit_costs(found)
    measured = Costs(**found["simulation"]["costs"])
    rows = []
    for n in (1e7, 1e8, 1e9):
        for workers in (1, 8, 64):
            search = simulate(measured, n, workers, 1000)
            rows.append(
                [
                    f"10{'⁷⁸⁹'[len(str(int(n))) - 8]}",
                    str(workers),
                    size(128 * n),
                    size(16 * n),
                    size(16 * n / workers),
                    duration(cost["encode"] * n / workers),
                    duration(float(np.median(search))),
                    f"{duration(cost['load'] * n)}, {size(cost['pg_bytes'] * n)}",
                ]
            )
    header = [
        "descriptors",
        "workers of one thread",
        "128-byte rows on disk",
        "128-bit codes",
        "codes a worker",
        "encode",
        "1,000 queries",
        "into one PostgreSQL, 256 bits",
    ]
    return table(header, rows)


def fanout_table(found: dict[str, Any]) -> str:
    simulation = found["simulation"]
    measured = Costs(**simulation["costs"])
    tried = [
        [
            f"{row['workers']}",
            f"{row['predicted']:.2f} s",
            f"{row['measured']:.2f} s",
            f"{100 * row['error']:+.0f} %",
        ]
        for row in simulation["rows"]
    ]
    n = next(case["n"] for case in found["cases"] if case["task"] == "search")
    first = (
        f"{simulation['rows'][0]['n_queries']:,} queries against {n / 1e6:.0f} million codes of "
        "128 bits: predicted from plain scans of half the codes, the round trip of an empty task, "
        "the bandwidth and the merge, and measured as a whole.\n\n"
        + table(["workers", "simulated", "measured", "difference"], tried)
    )
    rows = []
    for workers in (1, 8, 64):
        cells = []
        for slow in (0.0, 0.02):
            seconds = simulate(measured, 1e9, workers, 1000, slow_share=slow, slow_factor=3.0)
            low, high = np.quantile(seconds, (0.5, 0.99))
            cells += [duration(float(low)), duration(float(high))]
        few = simulate(measured, 1e7, workers, 1)
        rows.append([str(workers), *cells, duration(float(np.median(few)))])
    header = [
        "workers",
        "10⁹ codes, 1,000 queries: median",
        "99 % of the times",
        "one worker in fifty slow, threefold: median",
        "99 %",
        "10⁷ codes, one query",
    ]
    return first + "\n\nSimulated:\n\n" + table(header, rows)


def tables(found: dict[str, Any]) -> dict[str, str]:
    return {
        "costs": costs_table(found),
        "worked": worked_table(found),
        "fanout": fanout_table(found),
    }
