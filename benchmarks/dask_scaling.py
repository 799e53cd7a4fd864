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
from support.harness import arguments, report, say
from support.markdown import machine_note, table

from kdiffhash import HammingIndex, KernelLDAHash, draw_pairs
from kdiffhash.engines.dask import ClusterIndex, connect, encode, fit_pairs
from kdiffhash.search.scan import merge_found
from kdiffhash.shards import Shards, open_shards
from kdiffhash.shards.code_folder import shards_to_write, write_shard

SHARD = 100_000
TURNS = 25  # of encoding, 8 shards each: the machine's noise lasts longer than a turn
SEARCHES = 10
K = 10
WORKERS = (1, 2)


@contextmanager
def cluster(folder: Path, n_workers: int) -> Iterator[Any]:
    """A client of a new cluster."""
    dask = [sys.executable, "-m", "dask"]
    file = folder / f"scheduler-{n_workers}.json"
    here = ["--host", "127.0.0.1", "--scheduler-file", str(file), "--no-dashboard"]
    one = ["--nthreads", "1", "--no-nanny", "--memory-limit", "0"]
    with ExitStack() as stack:

        def start(*command: str) -> None:
            quiet = subprocess.DEVNULL
            process = subprocess.Popen([*dask, *command], stdout=quiet, stderr=quiet, cwd=folder)
            stack.callback(process.wait)
            stack.callback(process.kill)

        start("scheduler", "--port", "0", *here)
        while not file.exists():
            time.sleep(0.1)
        for _ in range(n_workers):
            start("worker", *here, *one)
        client = stack.enter_context(connect(json.loads(file.read_text())["address"]))
        client.wait_for_workers(n_workers, timeout=60)
        yield client


def timed(function: Any, *arguments: Any, **named: Any) -> float:
    start = time.perf_counter()
    function(*arguments, **named)
    return time.perf_counter() - start


def peak_memory() -> float:
    """MB that this process has held at most, since it was last asked."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def cases_of(
    task: str, n: int, seconds: dict[int, list[float]], share: float = 1.0
) -> list[dict[str, Any]]:
    """Rows of the report; 0 workers are the plain call.

    All take turns, so a ratio is the median over turns: noise of a machine lasts longer than one.
    A turn is `share` of the whole.
    """
    rows = []
    for workers in WORKERS:
        taken, plain, one = (np.array(seconds[w]) for w in (workers, 0, 1))
        rows.append(
            {
                "task": task,
                "n": n,
                "workers": workers,
                "seconds": float(np.median(taken)) / share,
                "plain_seconds": float(np.median(plain)) / share,
                "speedup": float(np.median(one / taken)),
                "overhead": float(np.median(taken * workers / plain)) - 1,
            }
        )
        say(rows[-1])
    return rows


def bench_encode(
    clients: dict[int, Any], hasher: KernelLDAHash, rows: Shards, folder: Path
) -> list[dict[str, Any]]:
    """Encode all shards, some at a time, in turns."""
    seconds: dict[int, list[float]] = {w: [] for w in (0, *WORKERS)}

    def plain(some: Shards, out: Path) -> None:
        for shard, target in shards_to_write(hasher, some, out):
            write_shard(hasher, shard, target)

    for turn in range(TURNS):
        some = Shards(rows.files[turn::TURNS])
        for workers in seconds:
            out = folder / f"codes-{workers}-{turn}"
            if workers:
                taken = timed(encode, hasher, some, out, client=clients[workers])
            else:
                taken = timed(plain, some, out)
            seconds[workers].append(taken)
            say("encode", turn, workers, f"{taken:.1f} s")
    return cases_of("encode", len(rows), seconds, 1 / TURNS)


def bench_search(
    clients: dict[int, Any], shards: Shards, n_queries: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Whole searches, and the scans that the simulation starts from, in turns."""
    codes = shards[:]
    queries = codes[:: len(codes) // n_queries][:n_queries] ^ np.uint8(1)
    index = HammingIndex(codes)
    halves = [HammingIndex(half) for half in np.array_split(codes, 2)]
    indexes = {w: ClusterIndex(shards, client=clients[w]) for w in WORKERS}
    expected = index.search(queries, K, n_jobs=1)
    seconds: dict[int, list[float]] = {w: [] for w in (0, *WORKERS)}
    alone, busy = [], []

    def scan(half: HammingIndex) -> float:
        return timed(half.search, queries, K, n_jobs=1)

    with ThreadPoolExecutor(2) as pool:
        for turn in range(SEARCHES + 1):
            found: Any = expected
            for workers in seconds:
                start = time.perf_counter()
                if workers:
                    found = indexes[workers].search(queries, K)
                else:
                    index.search(queries, K, n_jobs=1)
                seconds[workers].append(time.perf_counter() - start)
                for one, other in zip(found, expected):
                    np.testing.assert_array_equal(one, other)
            alone.append(scan(halves[0]))
            busy.append(statistics.mean(pool.map(scan, halves)))
            say("search", turn, [f"{times[-1]:.2f} s" for times in seconds.values()])
    seconds = {w: times[1:] for w, times in seconds.items()}  # the first is to warm up
    one_scan = statistics.median(alone[1:])
    costs = Costs(
        scan=one_scan / len(halves[0]) / len(queries),
        sharing=max(0.0, statistics.median(busy[1:]) / one_scan - 1),
        spread=statistics.stdev(alone[1:]) / one_scan,
        **measure_rest(clients[1], expected),
    )
    say(costs)
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
        say(rows[-1])
    return cases_of("search", len(codes), seconds), {"costs": asdict(costs), "rows": rows}


def measure_rest(client: Any, lists: Any) -> dict[str, float]:
    """What a search takes beside the scan: tasks, the way back, merging."""

    def ask(n: int) -> float:
        start = time.perf_counter()
        client.gather([client.submit(abs, i, pure=False) for i in range(n)])
        return time.perf_counter() - start

    answer = statistics.median(ask(1) for _ in range(20))
    task = max(0.0, (statistics.median(ask(50) for _ in range(5)) - answer) / 49)
    size = 2**26
    big = client.submit(np.zeros, size, np.uint8, pure=False)
    client.submit(len, big).result()
    bandwidth = size / timed(big.result)
    merge_found([lists, lists], K)
    merge = statistics.median(timed(merge_found, [lists, lists], K) for _ in range(5))
    return {
        "answer": answer,
        "task": task,
        "bandwidth": bandwidth,
        "merge": merge / len(lists[0]),
    }


def bench_fit(clients: dict[int, Any], rows: Shards) -> list[dict[str, Any]]:
    """Learn from pairs that were drawn before, in turns."""
    pairs, similar = draw_pairs(np.arange(len(rows)) // 2, 100_000, 200_000, random_state=0)
    seconds: dict[int, list[float]] = {w: [] for w in (0, *WORKERS)}
    for _ in range(5):
        for workers in seconds:
            hasher = KernelLDAHash(n_bits=128, random_state=0, preprocess="hellinger", n_jobs=1)
            if workers:
                taken = timed(fit_pairs, hasher, rows, pairs, similar, client=clients[workers])
            else:
                taken = timed(hasher.fit_pairs, rows, pairs, similar)
            seconds[workers].append(taken)
        say("fit", [f"{times[-1]:.2f} s" for times in seconds.values()])
    return cases_of("fit", len(rows), seconds)


def scale_table(found: dict[str, Any]) -> str:
    names = {
        "encode": "encode, 128 bits, 1,000 basis rows",
        "search": f"{found['n_queries']:,} queries, the ten nearest",
        "fit": "learn from 300,000 pairs",
    }
    rows = []
    for task, name in names.items():
        one, two = (case for case in found["cases"] if case["task"] == task)
        rows.append(
            [
                name,
                f"{one['n'] / 1e6:.0f} million",
                f"{one['plain_seconds']:.1f} s",
                f"{one['seconds']:.1f} s ({100 * one['overhead']:+.0f} %)",
                f"{two['seconds']:.1f} s",
                f"**{two['speedup']:.2f} x**",
            ]
        )
    header = [
        "task",
        "rows or codes",
        "plain call, one thread",
        "one worker",
        "two workers",
        "gain",
    ]
    memory = max(found["worker_mb_while_encoding"].values())
    note = (
        f"{machine_note(found)}. Scheduler and workers are processes on this machine, with one "
        f"thread each. Encoding {found['n_shards']} shards, a worker held at most {memory:.0f} MB. "
        "To learn, the workers read the rows in pairs and samples; the caller gathers them and "
        "learns, so that more workers do not make it faster. (`python benchmarks/dask_scaling.py`)"
    )
    return note + "\n\n" + table(header, rows)


def tables(found: dict[str, Any]) -> dict[str, str]:
    return {"scale": scale_table(found), **simulation_tables(found)}


def main() -> None:
    options = arguments(__doc__, n=20_000_000, queries=1000)
    # In memory where that is possible: disks are not what is measured.
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        rng = np.random.default_rng(0)
        views = np.repeat(rng.gamma(1.0, 30.0, (SHARD // 2, 128)), 2, axis=0)  # two of each object
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
            for workers, client in clients.items():  # load everything once
                some = Shards(rows.files[: 2 * workers])
                encode(hasher, some, folder / f"warm-{workers}", client=client)
                client.run(peak_memory)
            cases = bench_encode(clients, hasher, rows, folder)
            memory = {w: max(clients[w].run(peak_memory).values()) for w in WORKERS}
            files = [open_shards(folder / f"codes-1-{turn}").files for turn in range(TURNS)]
            codes = Shards(tuple(file for some in files for file in some))
            assert codes.shape == (options.n, 16)
            more, simulation = bench_search(clients, codes, options.queries)
            cases += more
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
