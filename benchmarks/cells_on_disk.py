"""Cells of up to 100 million codes of 128 bits in a file: time, memory and recall.

Codes are those of all scenes, and variants that lie between two views of a point. They are added to
a file in parts, grouped into cells, and searched for the ten nearest neighbours of 1,000 of them
that are held out, exactly and with recall 0.95, on one thread. `support/cluster_simulation.py`
predicts searches of clusters from these times.
"""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from support.approximate_codes import variants
from support.harness import arguments, interleaved, log, report
from support.markdown import duration, machine_note, table
from support.memory import MemoryMonitor, anonymous_mb, resident_mb

from kdiffhash import HammingIndex

K, RECALL, N_QUERIES = 10, 0.95, 1000


def peaks(function: Callable[[], Any]) -> tuple[float, float]:
    """Return the peaks of the anonymous and of all resident memory in MB during a call."""
    monitors = MemoryMonitor(anonymous_mb), MemoryMonitor(resident_mb)
    for monitor in monitors:
        monitor.start()
    function()
    for monitor in monitors:
        monitor.done.set()
        monitor.join()
    return max(monitors[0].peak, anonymous_mb()), max(monitors[1].peak, resident_mb())


def searched_mb(path: Path, queries: np.ndarray) -> float:
    """Return the MB by which this process grows if it opens a file and searches it."""
    HammingIndex(queries).search(queries, K, n_jobs=1)  # warm up
    before = resident_mb()

    def search() -> None:
        with HammingIndex.open(path) as index:
            index.search(queries, K, recall=RECALL, n_jobs=1)

    return peaks(search)[1] - before


def fill(path: Path, n: int, n_bits: int) -> np.ndarray:
    """Write a file of n codes; return queries, which are spread over the codes and held out."""
    first, queries, step = 0, [], (n + N_QUERIES) // N_QUERIES
    with HammingIndex.open(path, "a", n_bits=n_bits) as index:
        for codes in variants(n_bits, n + N_QUERIES)[0]:
            number = np.arange(first, first + len(codes))
            held_out = (number % step == 0) & (number < step * N_QUERIES)
            queries.append(codes[held_out])
            index.add(codes[~held_out])
            first += len(codes)
    return np.concatenate(queries)


def measure(folder: Path, n: int, n_bits: int, repeats: int) -> dict[str, Any]:
    """Return the row of one number of codes."""
    path, start = folder / f"{n}.index", time.perf_counter()
    queries = fill(path, n, n_bits)
    add_s = time.perf_counter() - start
    log(f"added {n:,} codes in {add_s:.0f} s")

    def build() -> None:
        with HammingIndex.open(path, "a") as index:
            assert index.build_cells()

    start = time.perf_counter()
    anonymous, resident = peaks(build)
    build_s = time.perf_counter() - start
    log(f"built cells in {build_s:.0f} s; {anonymous:.0f} MB, with the file {resident:.0f} MB")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        searched = pool.apply(searched_mb, (path, queries))
    with HammingIndex.open(path) as index:
        limits = index.search(queries, K, n_jobs=1)[0][:, -1:]
        found = index.search(queries, K, recall=RECALL, n_jobs=1)[0]
        by_query = np.mean(found <= limits, axis=1)
        searches = {
            "exact": lambda: index.search(queries, K, n_jobs=1),
            "cells": lambda: index.search(queries, K, recall=RECALL, n_jobs=1),
        }
        seconds, plan = interleaved(searches, repeats), index.explain(K, recall=RECALL)
        row = {
            "n": n,
            "add_s": add_s,
            "build_s": build_s,
            "build_anonymous_mb": anonymous,
            "build_resident_mb": resident,
            "cells": index.info()["cells"],
            "bytes_per_code": index.nbytes / n,
            "file_bytes_per_code": path.stat().st_size / n,
            "search_resident_mb": searched,
            "exact_us": 1e6 * seconds["exact"] / len(queries),
            "cells_us": 1e6 * seconds["cells"] / len(queries),
            "recall": float(by_query.mean()),
            "standard_error": float(by_query.std() / len(by_query) ** 0.5),
            "compared": plan["compared"],
        }
    path.unlink()
    log(row)
    return row


def cells_table(result: dict[str, Any]) -> str:
    code = result["n_bits"] / 8
    rows = [
        [
            f"{row['n']:,}",
            duration(row["build_s"]),
            f"{row['build_anonymous_mb']:,.0f} MB",
            f"{row['build_resident_mb']:,.0f} MB",
            f"{row['bytes_per_code'] / code:.2f}",
            f"{2**20 * row['search_resident_mb'] / code / row['n']:.2f}",
            f"{row['exact_us']:,.0f}",
            f"{row['cells_us']:,.0f}",
            f"{100 * row['recall']:.1f} ± {196 * row['standard_error']:.1f} %",
        ]
        for row in result["rows"]
    ]
    header = [
        "codes",
        "build",
        "anonymous memory",
        "with pages of the file",
        "index / codes",
        "memory of a search / codes",
        "exact, µs per query",
        "recall 0.95, µs per query",
        "recall",
    ]
    note = (
        f"Codes of {result['n_bits']} bits in a file; real ones and variants between two views of "
        f"a point. Cells are built with {result['machine']['cores']} threads, and searched with "
        "one, for the ten nearest neighbours of 1,000 queries. Memory while building is the peak "
        "of the process. The index has ids beside its codes; a search of a file reads only those "
        "of results, and only the codes of the cells searched; its memory is that by which a "
        f"process grows, pages of the file included. {machine_note(result)}. "
        "(`python benchmarks/cells_on_disk.py`)"
    )
    return table(header, rows) + "\n\n" + note


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"cells_on_disk": cells_table(result)}


def main() -> None:
    options = arguments(__doc__, n=100_000_000, n_bits=128, repeats=3)
    folder = Path(tempfile.mkdtemp())
    needed = 4 * options.n * options.n_bits // 8
    try:
        if shutil.disk_usage(folder).free < needed:
            raise SystemExit(
                f"{folder} has less than {needed / 1e9:.0f} GB free; set TMPDIR to a larger disk"
            )
        sizes = (options.n // 100, options.n // 10, options.n)
        rows = [measure(folder, n, options.n_bits, options.repeats) for n in sizes]
    finally:
        shutil.rmtree(folder)
    report("cells_on_disk", {"n_bits": options.n_bits, "rows": rows}, options)


if __name__ == "__main__":
    main()
