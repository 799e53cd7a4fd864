"""Measure encoding, search and fitting on single-threaded Dask workers against a local call.

The scheduler and each worker run in their own process. `overhead` is the additional time of one
worker relative to the local call on one thread; `speedup` is the throughput of two workers relative
to one. The steps of a search are also timed separately, and the time that
`support/cluster_simulation.py` predicts from them is compared with a complete search.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from support.cluster_simulation import Costs, simulate
from support.cluster_simulation import tables as simulation_tables
from support.harness import arguments, log, report
from support.markdown import machine_note, table

from kdiffhash import HammingIndex, KernelLDAHash, draw_pairs
from kdiffhash.engines.dask import ClusterIndex, connect, encode, fit_pairs
from kdiffhash.search.scan import merge_results
from kdiffhash.shards import Shards, open_shards
from kdiffhash.shards.code_folder import shards_to_write, write_shard

SHARD = 100_000
ROUNDS = 25  # of encoding, 8 shards each; shorter than the machine's slow and fast phases
SEARCHES = 10
K = 10
WORKERS = (1, 2)


@contextmanager
def cluster(folder: Path, n_workers: int) -> Iterator[Any]:
    """Start a cluster of local processes and yield its client."""
    dask = [sys.executable, "-m", "dask"]
    address_file = folder / f"scheduler-{n_workers}.json"
    network = ["--host", "127.0.0.1", "--scheduler-file", str(address_file), "--no-dashboard"]
    single_threaded = ["--nthreads", "1", "--no-nanny", "--memory-limit", "0"]
    with ExitStack() as stack:

        def start(*command: str) -> None:
            quiet = subprocess.DEVNULL
            process = subprocess.Popen([*dask, *command], stdout=quiet, stderr=quiet, cwd=folder)
            stack.callback(process.wait)
            stack.callback(process.kill)

        start("scheduler", "--port", "0", *network)
        while not address_file.exists():
            time.sleep(0.1)
        for _ in range(n_workers):
            start("worker", *network, *single_threaded)
        client = stack.enter_context(connect(json.loads(address_file.read_text())["address"]))
        client.wait_for_workers(n_workers, timeout=60)
        yield client


def timed(function: Any, *arguments: Any, **keywords: Any) -> float:
    """Return the seconds of a call."""
    start = time.perf_counter()
    function(*arguments, **keywords)
    return time.perf_counter() - start


def peak_memory() -> float:
    """Return the peak memory of this process in MB since the last call, and reset it."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def cases_of(
    task: str, n: int, seconds: dict[int, list[float]], share: float = 1.0
) -> list[dict[str, Any]]:
    """Return the rows of the report, one per number of workers; 0 workers is the local call.

    Measurements alternate in rounds, and a ratio is the median over rounds, because the noise of a
    machine lasts longer than a round. One round processes `share` of the data.
    """
    rows = []
    for workers in WORKERS:
        elapsed, local, single = (np.array(seconds[w]) for w in (workers, 0, 1))
        rows.append(
            {
                "task": task,
                "n": n,
                "workers": workers,
                "seconds": float(np.median(elapsed)) / share,
                "plain_seconds": float(np.median(local)) / share,
                "speedup": float(np.median(single / elapsed)),
                "overhead": float(np.median(elapsed * workers / local)) - 1,
            }
        )
        log(rows[-1])
    return rows


def bench_encode(
    clients: dict[int, Any], hasher: KernelLDAHash, rows: Shards, folder: Path
) -> list[dict[str, Any]]:
    """Time the encoding of all shards; the clusters and the local call alternate."""
    seconds: dict[int, list[float]] = {w: [] for w in (0, *WORKERS)}

    def encode_locally(shards: Shards, out: Path) -> None:
        for shard, target in shards_to_write(hasher, shards, out):
            write_shard(hasher, shard, target)

    for number in range(ROUNDS):
        shards = Shards(rows.files[number::ROUNDS])
        for workers in seconds:
            out = folder / f"codes-{workers}-{number}"
            if workers:
                elapsed = timed(encode, hasher, shards, out, client=clients[workers])
            else:
                elapsed = timed(encode_locally, shards, out)
            seconds[workers].append(elapsed)
            log("encode", number, workers, f"{elapsed:.1f} s")
    return cases_of("encode", len(rows), seconds, 1 / ROUNDS)


def bench_search(
    clients: dict[int, Any], shards: Shards, n_queries: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Time complete searches, and the local scans that the simulation is based on."""
    codes = shards[:]
    queries = codes[:: len(codes) // n_queries][:n_queries] ^ np.uint8(1)
    index = HammingIndex(codes)
    halves = [HammingIndex(half) for half in np.array_split(codes, 2)]
    indexes = {w: ClusterIndex(shards, client=clients[w]) for w in WORKERS}
    expected = index.search(queries, K, n_jobs=1)
    seconds: dict[int, list[float]] = {w: [] for w in (0, *WORKERS)}
    idle, busy = [], []  # scans of half the codes: on one core, on both cores at once

    def scan(half: HammingIndex) -> float:
        return timed(half.search, queries, K, n_jobs=1)

    with ThreadPoolExecutor(2) as pool:
        for number in range(SEARCHES + 1):
            results: Any = expected
            for workers in seconds:
                start = time.perf_counter()
                if workers:
                    results = indexes[workers].search(queries, K)
                else:
                    index.search(queries, K, n_jobs=1)
                seconds[workers].append(time.perf_counter() - start)
                for actual, wanted in zip(results, expected):
                    np.testing.assert_array_equal(actual, wanted)
            idle.append(scan(halves[0]))
            busy.append(statistics.mean(pool.map(scan, halves)))
            log("search", number, [f"{times[-1]:.2f} s" for times in seconds.values()])
    seconds = {w: times[1:] for w, times in seconds.items()}  # the first is a warm-up
    one_scan = statistics.median(idle[1:])
    costs = Costs(
        scan=one_scan / len(halves[0]) / len(queries),
        sharing=max(0.0, statistics.median(busy[1:]) / one_scan - 1),
        spread=statistics.stdev(idle[1:]) / one_scan,
        **measure_communication(clients[1], expected),
    )
    log(costs)
    rows = []
    for workers in WORKERS:
        predicted = float(np.median(simulate(costs, len(codes), workers, len(queries))))
        measured = statistics.median(seconds[workers])
        rows.append(
            {
                "workers": workers,
                "n_queries": len(queries),
                "predicted": predicted,
                "measured": measured,
                "error": predicted / measured - 1,
            }
        )
        log(rows[-1])
    return cases_of("search", len(codes), seconds), {"costs": asdict(costs), "rows": rows}


def measure_communication(client: Any, results: Any) -> dict[str, float]:
    """Return the costs of a search other than the scan: tasks, transfer of results, merging."""

    def round_trip(n: int) -> float:
        start = time.perf_counter()
        client.gather([client.submit(abs, i, pure=False) for i in range(n)])
        return time.perf_counter() - start

    answer = statistics.median(round_trip(1) for _ in range(20))
    task = max(0.0, (statistics.median(round_trip(50) for _ in range(5)) - answer) / 49)
    size = 2**26
    array = client.submit(np.zeros, size, np.uint8, pure=False)
    client.submit(len, array).result()
    bandwidth = size / timed(array.result)
    merge_results([results, results], K)
    merge = statistics.median(timed(merge_results, [results, results], K) for _ in range(5))
    return {
        "answer": answer,
        "task": task,
        "bandwidth": bandwidth,
        "merge": merge / len(results[0]),
    }


def bench_fit(clients: dict[int, Any], rows: Shards) -> list[dict[str, Any]]:
    """Time fitting from given pairs; the clusters and the local call alternate."""
    pairs, similar = draw_pairs(np.arange(len(rows)) // 2, 100_000, 200_000, random_state=0)
    seconds: dict[int, list[float]] = {w: [] for w in (0, *WORKERS)}
    for _ in range(5):
        for workers in seconds:
            hasher = KernelLDAHash(n_bits=128, random_state=0, preprocess="hellinger", n_jobs=1)
            if workers:
                elapsed = timed(fit_pairs, hasher, rows, pairs, similar, client=clients[workers])
            else:
                elapsed = timed(hasher.fit_pairs, rows, pairs, similar)
            seconds[workers].append(elapsed)
        log("fit", [f"{times[-1]:.2f} s" for times in seconds.values()])
    return cases_of("fit", len(rows), seconds)


def scale_table(result: dict[str, Any]) -> str:
    names = {
        "encode": "encode, 128 bits, 1,000 basis rows",
        "search": f"{result['n_queries']:,} queries, 10 nearest neighbours",
        "fit": "fit from 300,000 pairs",
    }
    rows = []
    for task, name in names.items():
        one, two = (case for case in result["cases"] if case["task"] == task)
        rows.append(
            [
                name,
                f"{one['n'] / 1e6:.0f} million",
                f"{one['plain_seconds']:.1f} s",
                f"{one['seconds']:.1f} s ({100 * one['overhead']:+.0f} %)",
                f"{two['seconds']:.1f} s",
                f"**{two['speedup']:.2f}x**",
            ]
        )
    header = [
        "task",
        "rows or codes",
        "local call, one thread",
        "one worker (overhead)",
        "two workers",
        "speedup, two workers over one",
    ]
    memory = max(result["worker_mb_while_encoding"].values())
    note = (
        f"{machine_note(result)}. The scheduler and the workers are processes on this machine, "
        f"with one thread each. While encoding {result['n_shards']} shards, the peak memory of a "
        f"worker was {memory:.0f} MB. For a fit, the workers only read the sampled rows; the "
        "client gathers them and fits the model, so more workers do not make it faster. "
        "(`python benchmarks/dask_scaling.py`)"
    )
    return note + "\n\n" + table(header, rows)


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"scale": scale_table(result), **simulation_tables(result)}


def main() -> None:
    options = arguments(__doc__, n=20_000_000, queries=1000)
    # In memory if possible, because disks are not what is measured.
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        rng = np.random.default_rng(0)
        views = np.repeat(rng.gamma(1.0, 30.0, (SHARD // 2, 128)), 2, axis=0)  # two per object
        views *= rng.uniform(0.5, 1.5, views.shape)
        base = np.clip(views, 0, 255).astype(np.uint8)
        (folder / "rows").mkdir()
        for number in range(options.n // SHARD):
            np.save(folder / "rows" / f"{number:03d}.npy", np.roll(base, 3 * number, axis=1))
        rows = open_shards(folder / "rows")
        labels = np.arange(20_000) // 2
        hasher = KernelLDAHash(n_bits=128, random_state=0, preprocess="hellinger", n_jobs=1)
        hasher.fit(base[:20_000], labels)
        with ExitStack() as stack:
            clients = {w: stack.enter_context(cluster(folder, w)) for w in WORKERS}
            for workers, client in clients.items():  # warm up
                shards = Shards(rows.files[: 2 * workers])
                encode(hasher, shards, folder / f"warm-{workers}", client=client)
                client.run(peak_memory)
            cases = bench_encode(clients, hasher, rows, folder)
            memory = {w: max(clients[w].run(peak_memory).values()) for w in WORKERS}
            files = [open_shards(folder / f"codes-1-{i}").files for i in range(ROUNDS)]
            codes = Shards(tuple(file for shards in files for file in shards))
            assert codes.shape == (options.n, 16)
            search_cases, simulation = bench_search(clients, codes, options.queries)
            cases += search_cases
            cases += bench_fit(clients, rows)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = {
        "cases": cases,
        "simulation": simulation,
        "worker_mb_while_encoding": memory,
        "n_shards": len(rows.files),
        "n_bits": 128,
        "n_queries": options.queries,
    }
    report("dask_scaling", result, options)


if __name__ == "__main__":
    main()
