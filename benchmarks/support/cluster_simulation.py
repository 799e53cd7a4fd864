"""Simulate a search on a cluster: send queries, search one partition per worker, merge the results.

`dask_scaling.py` measures the cost of each step on one machine, and compares the predicted time
with complete searches on one and two workers. From the same costs, the simulation predicts searches
with more workers, a slower network or workers that are slow at times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from support.harness import RESULTS, load
from support.markdown import duration, machine_note, size, table

PER_THREAD = 4  # partitions, as in kdiffhash.engines.dask.partitions, which needs Dask


@dataclass(frozen=True)
class Costs:
    """Costs of the steps of a search, in seconds unless stated otherwise.

    scan: comparing one code with one query, on one thread
    sharing: relative increase of `scan` while all cores of a machine scan
    spread: relative standard deviation of the scan time
    answer: round trip of an empty task
    task: each further task, in client and scheduler
    bandwidth: bytes per second into the client
    merge: merging one list of k results for one query
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
    seconds: float | None = None,
    k: int = 10,
    slow_share: float = 0.0,
    slow_factor: float = 1.0,
    n_runs: int = 1000,
    seed: int = 0,
) -> np.ndarray:
    """Return the simulated seconds of a search, one value per run.

    A worker is slow by `slow_factor` (its machine is busy) with probability `slow_share`. The
    search ends when the last worker has answered. With more than one worker, all cores of each
    machine are assumed to be busy. `seconds` is the time in which one worker searches its codes;
    None computes that of an exact scan.
    """
    rng = np.random.default_rng(seed)
    factor = np.exp(costs.spread * rng.standard_normal((n_runs, n_workers)))
    factor *= np.where(rng.random((n_runs, n_workers)) < slow_share, slow_factor, 1.0)
    scan = costs.scan * n_codes / n_workers * n_queries if seconds is None else seconds
    if n_workers > 1:
        scan *= 1 + costs.sharing
    answers = n_workers * n_queries * k * 12 / costs.bandwidth
    merge = (n_workers - 1) * n_queries * costs.merge
    fixed = costs.answer + (n_workers - 1) * costs.task + answers + merge
    return scan * factor.max(axis=1) + fixed


def seconds_with_cells(n_codes: float, n_queries: int) -> float:
    """Return the time in which a worker searches codes with recall 0.95.

    `cells_on_disk.py` measured it on one thread; `ClusterIndex` divides the codes of a thread into
    `PER_THREAD` partitions, each of which has its own cells. Times are interpolated between numbers
    of codes by a power law, and extrapolated beyond them by that of the two largest.
    """
    rows = load("cells_on_disk")["rows"]
    sizes, times = (np.log([row[key] for row in rows]) for key in ("n", "cells_us"))
    size = np.log(n_codes / PER_THREAD)
    at = min(max(int(np.searchsorted(sizes, size)), 1), len(sizes) - 1)
    slope = (times[at] - times[at - 1]) / (sizes[at] - sizes[at - 1])
    return 1e-6 * n_queries * PER_THREAD * float(np.exp(times[at] + slope * (size - sizes[at])))


# -- tables, from the result of `dask_scaling.py` ----------------------------------------------


def unit_costs(result: dict[str, Any]) -> dict[str, float]:
    """Return seconds per descriptor or code, seconds of a fit, and bytes per code in PostgreSQL."""
    pg, index = load("postgres_store"), load("index_on_disk")
    encode = next(case for case in result["cases"] if case["task"] == "encode")
    fit = next(case for case in result["cases"] if case["task"] == "fit")
    return {
        "encode": encode["plain_seconds"] / encode["n"],
        "fit": fit["plain_seconds"],
        "scan": result["simulation"]["costs"]["scan"],
        "load": pg["rows"][0]["seconds"] / pg["n"],
        "pg_bytes": pg["rows"][1]["bytes_per_code"],
        "build": index["rows"][0]["seconds"] / index["n"],
    }


def costs_table(result: dict[str, Any]) -> str:
    cost = unit_costs(result)
    rows = [
        [
            "fit, 300,000 pairs, 1,000 basis rows",
            f"{cost['fit']:.0f} s in total",
            "`dask_scaling.py`",
        ],
        ["encode, 128 bits", f"{1e6 * cost['encode']:.1f} µs", "`dask_scaling.py`"],
        ["add to an index file, 128 bits", f"{1e6 * cost['build']:.2f} µs", "`index_on_disk.py`"],
        [
            "load into PostgreSQL, 256 bits",
            f"{1e6 * cost['load']:.1f} µs, {cost['pg_bytes']:.0f} bytes on disk",
            "`postgres_store.py`",
        ],
        ["compare with one query, 128 bits", f"{1e9 * cost['scan']:.2f} ns", "`dask_scaling.py`"],
    ]
    other = machine_note(load("postgres_store")).removeprefix("Measured on ")
    note = (
        f"{machine_note(result)}, one thread; index files and PostgreSQL on {other}, all threads."
    )
    return (
        note
        + "\n\n"
        + table(["step", "cost per descriptor", "measured by, in `benchmarks/`"], rows)
    )


def worked_table(result: dict[str, Any]) -> str:
    cost = unit_costs(result)
    measured = Costs(**result["simulation"]["costs"])
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
        "workers with one thread",
        "descriptors on disk, 128 bytes each",
        "128-bit codes",
        "codes per worker",
        "encode",
        "1,000 queries",
        "load into one PostgreSQL server, 256 bits",
    ]
    return table(header, rows)


def fanout_table(result: dict[str, Any]) -> str:
    simulation = result["simulation"]
    measured = Costs(**simulation["costs"])
    validation = [
        [
            f"{row['workers']}",
            f"{row['predicted']:.2f} s",
            f"{row['measured']:.2f} s",
            f"{100 * row['error']:+.0f} %",
        ]
        for row in simulation["rows"]
    ]
    n = next(case["n"] for case in result["cases"] if case["task"] == "search")
    first = (
        f"{simulation['rows'][0]['n_queries']:,} queries against {n / 1e6:.0f} million codes of "
        "128 bits. The prediction is computed from local scans of half the codes, the round trip "
        "of an empty task, the bandwidth and the time of a merge; the measurement is of complete "
        "searches.\n\n" + table(["workers", "predicted", "measured", "difference"], validation)
    )
    header = [
        "workers",
        "search",
        "10⁹ codes, 1,000 queries: median",
        "99th percentile",
        "with 2 % of workers 3 times slower: median",
        "99th percentile",
        "10⁷ codes, one query",
    ]
    rows = [[str(w), "exact", *_predicted(measured, w)] for w in (1, 8, 64)]
    note = "Predicted for larger clusters"
    if (RESULTS / "cells_on_disk.json").exists():
        rows += [[str(w), "recall 0.95", *_predicted(measured, w, cells=True)] for w in (1, 8, 64)]
        cells = load("cells_on_disk")
        note += (
            ". Times with recall 0.95 are measured with up to "
            f"{cells['rows'][-1]['n']:,} codes and extrapolated beyond by a power law "
            f"(`cells_on_disk.py`; {machine_note(cells).replace('Measured', 'measured')})"
        )
    return f"{first}\n\n{note}:\n\n{table(header, rows)}"


def _predicted(costs: Costs, workers: int, *, cells: bool = False) -> list[str]:
    """Return the predicted times of searches by a cluster."""
    shown = []
    for slow in (0.0, 0.02):
        seconds = simulate(
            *(costs, 1e9, workers, 1000),
            seconds=seconds_with_cells(1e9 / workers, 1000) if cells else None,
            slow_share=slow,
            slow_factor=3.0,
        )
        shown += [duration(float(q)) for q in np.quantile(seconds, (0.5, 0.99))]
    single = np.median(simulate(costs, 1e7, workers, 1))
    return [*shown, "-" if cells else duration(float(single))]


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {
        "costs": costs_table(result),
        "worked": worked_table(result),
        "fanout": fanout_table(result),
    }
