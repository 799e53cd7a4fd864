"""Find the number of real codes from which FAISS's HNSW is faster than exact search.

For each code length and a growing number of codes: time per query of exact search in batches of
100, and of HNSW at the lowest `ef_search` that reaches a recall of 95 % of the ten nearest
neighbours, on one thread.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from support.code_sets import BITS, real_codes
from support.harness import arguments, log, report
from support.markdown import machine_note, table

from kdiffhash import HammingIndex
from kdiffhash.codes import truncate


def best_of(function: Any, times: int = 3) -> float:
    """Return the shortest time of a few calls, in seconds."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def crossover_table(result: dict[str, Any]) -> str:
    rows = [
        [
            str(row["n_bits"]),
            f"{row['n']:,}",
            f"{1000 * row['exact_ms']:.0f}",
            f"{1000 * row['hnsw_ms']:.0f}",
            f"{100 * row['recall']:.0f} %",
        ]
        for row in result["rows"]
    ]
    header = [
        "bits",
        "number of codes",
        "exact search, µs per query",
        "FAISS HNSW, µs per query",
        "recall of HNSW",
    ]
    note = (
        f"Real codes, 10 nearest neighbours, one thread, batches of 100. {machine_note(result)}. "
        "(`python benchmarks/hnsw_crossover.py`)"
    )
    return table(header, rows) + "\n\n" + note


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"crossover": crossover_table(result)}


def main() -> None:
    import faiss

    options = arguments(__doc__, largest=400_000)
    real = real_codes(options.largest, 1000)
    if real is None:
        return
    rows = []
    for n_bits in BITS:
        queries = truncate(real["queries"][:100], n_bits)
        n = 25_000
        while n <= options.largest:
            codes = truncate(real["codes"][:n], n_bits)
            index = HammingIndex(codes)
            faiss.omp_set_num_threads(2)
            graph = faiss.IndexBinaryHNSW(n_bits, 32)
            graph.add(codes)
            faiss.omp_set_num_threads(1)
            distances, _ = index.search(queries, 10, n_jobs=1)
            exact = best_of(lambda index=index, q=queries: index.search(q, 10, n_jobs=1))
            for ef_search in (16, 32, 64, 128, 256, 512, 1024):
                graph.hnsw.efSearch = ef_search
                approximate_distances = graph.search(queries, 10)[0]
                # By distance: another code at the same distance counts as correct.
                recall = float(np.mean(np.sort(approximate_distances, axis=1) <= distances[:, -1:]))
                if recall >= 0.95:
                    break
            approximate = best_of(lambda g=graph, q=queries: g.search(q, 10))
            times = {"exact_ms": 10 * exact, "hnsw_ms": 10 * approximate}  # per query
            rows.append(
                {"n_bits": n_bits, "n": n, **times, "recall": recall, "ef_search": ef_search}
            )
            log(rows[-1])
            n *= 2
    report("hnsw_crossover", {"rows": rows}, options)


if __name__ == "__main__":
    main()
