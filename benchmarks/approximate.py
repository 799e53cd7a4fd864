"""Approximate search at equal recall: cells compared with FAISS's HNSW graph and inverted lists.

Ten nearest neighbours, one thread, in batches of 100 and one by one. A code counts as found if it
is not farther than the exact tenth neighbour. Queries are held out from the codes. Each method is
run with a series of settings; times at a recall are interpolated between them. Settings of all
methods alternate, so noise affects all alike.

Data: `real`, all descriptors of the scenes; `big`, these and variants that lie between two views of
a point; `random`, uniform random codes; `text`, embeddings of texts. `--level avx2` restricts both
sides to AVX2. Results of other data and levels are kept. The graph and the inverted lists are
cached with the time that it took to build them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from support import approximate_codes
from support.approximate_codes import OTHER, SCENES, CodeSet, folder, scene_codes
from support.harness import RESULTS, arguments, log, report, stored_rows
from support.markdown import machine_note, table

K, BATCH, N_SINGLE = 10, 100, 300
RECALLS = (0.9, 0.95, 0.99)
EF_SEARCH = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
N_PROBE_IVF = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
N_PROBE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
LEVELS = {"avx512": {}, "avx2": {"KDIFFHASH_CPU": "avx2", "FAISS_OPT_LEVEL": "AVX2"}}

Search = Callable[[np.ndarray], np.ndarray]  # queries to distances


# -- methods -------------------------------------------------------------------------------------


def build(data: str, codes: np.ndarray) -> dict[str, tuple[Any, float, float]]:
    """Return each index with the seconds to build it and its bytes per code."""
    import faiss

    from kdiffhash import HammingIndex

    n_bits = 8 * codes.shape[1]
    own = HammingIndex(codes)
    start = time.perf_counter()
    own.build_cells()
    indexes = {"kdiffhash": (own, time.perf_counter() - start, own.nbytes / len(codes))}

    def graph() -> Any:
        index = faiss.IndexBinaryHNSW(n_bits, 32)
        index.add(codes)
        return index

    def lists() -> Any:
        quantizer = faiss.IndexBinaryFlat(n_bits)
        index = faiss.IndexBinaryIVF(quantizer, n_bits, 2048)
        index.own_fields, quantizer.this = True, quantizer.this.disown() or quantizer.this
        index.train(codes[:: max(1, len(codes) // 200_000)])
        index.add(codes)
        return index

    for name, make in (("faiss-hnsw", graph), ("faiss-ivf", lists)):
        path = folder() / f"{data}-{n_bits}-{len(codes)}-{name}.faiss"
        notes = path.with_suffix(".json")
        if not notes.exists():
            faiss.omp_set_num_threads(os.cpu_count() or 1)
            start = time.perf_counter()
            made = make()
            seconds = time.perf_counter() - start
            faiss.write_index_binary(made, str(path))
            notes.write_text(json.dumps({"build_s": seconds, "threads": os.cpu_count()}))
        index, seconds = (
            faiss.read_index_binary(str(path)),
            json.loads(notes.read_text())["build_s"],
        )
        indexes[name] = index, seconds, path.stat().st_size / len(codes)
        log(f"{name}: built in {seconds:.1f} s")
    return indexes


def settings(indexes: dict[str, Any]) -> list[tuple[str, int, Search]]:
    """Return the settings of all methods: name, parameter, and function."""
    own, graph, lists = (indexes[name][0] for name in ("kdiffhash", "faiss-hnsw", "faiss-ivf"))

    def search_graph(ef_search: int, queries: np.ndarray) -> np.ndarray:
        graph.hnsw.efSearch = ef_search
        return graph.search(queries, K)[0]

    def search_lists(n_probe: int, queries: np.ndarray) -> np.ndarray:
        lists.nprobe = n_probe
        return lists.search(queries, K)[0]

    def search_cells(n_probe: int, queries: np.ndarray) -> np.ndarray:
        return own.search(queries, K, n_probe=n_probe, n_jobs=1)[0]

    chosen = [("faiss-hnsw", ef, partial(search_graph, ef)) for ef in EF_SEARCH]
    chosen += [("faiss-ivf", n, partial(search_lists, n)) for n in N_PROBE_IVF]
    if "cells" in own.info():
        return chosen + [("kdiffhash", n, partial(search_cells, n)) for n in N_PROBE]
    return [*chosen, ("kdiffhash", 0, lambda queries: own.search(queries, K, n_jobs=1)[0])]


# -- measurements ----------------------------------------------------------------------------------


def measure(data: str, level: str, codes: CodeSet, repeats: int) -> list[dict[str, Any]]:
    """Return one row for each setting and batch size."""
    import faiss

    from kdiffhash import HammingIndex

    indexes = build(data, codes.codes)
    faiss.omp_set_num_threads(1)
    limits = HammingIndex(codes.codes).search(codes.queries, K)[0][:, -1:]
    timed = codes.queries[:1000]
    rows = []
    for name, parameter, search in settings(indexes):
        recall = float(np.mean(search(codes.queries) <= limits))
        _, build_s, n_bytes = indexes[name]
        row = {
            "n": len(codes.codes),
            "n_bits": 8 * codes.codes.shape[1],
            "data": data,
            "instructions": level,
            "method": name,
            "parameter": parameter,
            "recall": recall,
            "build_s": build_s,
            "bytes_per_code": n_bytes,
        }
        rows.append((row, search))
    measured = []
    for batch, n in ((BATCH, len(timed)), (1, N_SINGLE)):
        times: list[list[float]] = [[] for _ in rows]
        for _ in range(repeats):
            for (_, search), own in zip(rows, times):
                start = time.perf_counter()
                for i in range(0, n, batch):
                    search(timed[i : i + batch])
                own.append(time.perf_counter() - start)
        for (row, _), own in zip(rows, times):
            seconds = sorted(own)[len(own) // 2]
            measured.append(row | {"batch": batch, "us_per_query": 1e6 * seconds / n})
    return measured


def kept_recall(data: str, level: str, codes: CodeSet, n_bits: int) -> list[dict[str, Any]]:
    """Return the recall asked for and found, for held-out queries and another scene's."""
    sets = {"held-out": codes}
    if data == "real":
        others = [scene_codes(name, n_bits)[0] for name in SCENES if name != OTHER]
        queries = approximate_codes.split(scene_codes(OTHER, n_bits)[0]).queries
        sets[f"{OTHER}, not in the index"] = CodeSet(np.concatenate(others), queries)
    rows = []
    for name, chosen in sets.items():
        from kdiffhash import HammingIndex

        index, exact = HammingIndex(chosen.codes), HammingIndex(chosen.codes)
        index.build_cells()
        for k in (1, 10, 100):
            limits = exact.search(chosen.queries, k)[0][:, -1:]
            for asked in RECALLS:
                found = index.search(chosen.queries, k, recall=asked)[0] <= limits
                by_query = found.mean(axis=1)
                plan = index.explain(k, recall=asked)
                rows.append(
                    {
                        "data": data,
                        "instructions": level,
                        "n_bits": n_bits,
                        "queries": name,
                        "k": k,
                        "asked": asked,
                        "recall": float(by_query.mean()),
                        "standard_error": float(by_query.std() / len(by_query) ** 0.5),
                        "method": plan["method"],
                        "compared": plan["compared"] / len(index),
                    }
                )
    return rows


# -- tables ----------------------------------------------------------------------------------------


def time_at(rows: list[dict[str, Any]], recall: float) -> float | None:
    """Return microseconds per query at a recall, interpolated on a method's curve."""
    rows = sorted(rows, key=lambda row: row["us_per_query"])
    best: list[dict[str, Any]] = []
    for row in rows:  # a slower setting with a lower recall is never used
        if not best or row["recall"] > best[-1]["recall"]:
            best.append(row)
    if not best or best[-1]["recall"] < recall:
        return None
    recalls = [row["recall"] for row in best]
    return float(np.exp(np.interp(recall, recalls, np.log([row["us_per_query"] for row in best]))))


def summary(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return times at equal recall for each data set, level, batch size and recall."""
    keys = sorted({(c["data"], c["instructions"], c["batch"], c["n"]) for c in result["cases"]})
    out = []
    for data, level, batch, n in keys:
        own = [
            c
            for c in result["cases"]
            if (c["data"], c["instructions"], c["batch"]) == (data, level, batch)
        ]
        for recall in RECALLS:
            times = {
                name: time_at([c for c in own if c["method"] == name], recall)
                for name in ("kdiffhash", "faiss-hnsw", "faiss-ivf")
            }
            others = [times[name] for name in ("faiss-hnsw", "faiss-ivf") if times[name]]
            cells = times["kdiffhash"]
            ratio = min(others) / cells if others and cells else None
            key = {"data": data, "instructions": level, "batch": batch, "n": n, "recall": recall}
            out.append(key | times | {"ratio": ratio})
    return out


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


NAMES = {
    "real": "descriptors",
    "big": "descriptors and variants",
    "random": "uniform random",
    "text": "text embeddings",
}
LEVEL_NAMES = {"avx512": "AVX-512", "avx2": "AVX2"}


def speed_table(result: dict[str, Any]) -> str:
    rows = [
        [
            *(f"{row['n']:,} {NAMES[row['data']]}", LEVEL_NAMES[row["instructions"]]),
            *("batches of 100" if row["batch"] > 1 else "single", f"{100 * row['recall']:.0f} %"),
            *(_us(row[name]) for name in ("kdiffhash", "faiss-hnsw", "faiss-ivf")),
            "-" if row["ratio"] is None else f"**{row['ratio']:.1f}x**",
        ]
        for row in summary(result)
    ]
    header = ["codes", "CPU", "queries", "recall", "cells, µs", "HNSW, µs", "IVF, µs", "ratio"]
    note = (
        "256 bits, 10 nearest neighbours, one thread, held-out queries; microseconds per query at "
        "equal recall, interpolated; HNSW with M=32, IVF with 2,048 lists; the ratio is to the "
        "faster of the two. Codes without clusters are searched exactly. "
        f"{machine_note(result)}. (`python benchmarks/approximate.py`)"
    )
    return table(header, rows) + "\n\n" + note


def build_table(result: dict[str, Any]) -> str:
    seen: dict[tuple[str, str, str], dict[str, Any]] = {}
    for case in result["cases"]:
        seen.setdefault((case["data"], case["instructions"], case["method"]), case)
    rows = [
        [
            *(f"{case['n']:,} {NAMES[data]}", LEVEL_NAMES[level], method),
            *(f"{case['build_s']:.1f} s", f"{case['bytes_per_code']:.1f}"),
        ]
        for (data, level, method), case in sorted(seen.items())
    ]
    header = ["codes", "CPU", "index", "build", "bytes per code"]
    note = (
        "Codes of 256 bits take 32 bytes. Built with two threads; the graph and the lists are "
        "built once and cached. "
        f"{machine_note(result)}. (`python benchmarks/approximate.py`)"
    )
    return table(header, rows) + "\n\n" + note


def recall_table(result: dict[str, Any]) -> str:
    kept = [row for row in result["kept"] if row["k"] == 10 and row["method"] == "cells"]
    rows = [
        [
            *(NAMES[row["data"]], row["queries"], f"{100 * row['asked']:.0f} %"),
            f"{100 * row['recall']:.1f} ± {196 * row['standard_error']:.1f} %",
            f"{100 * row['compared']:.1f} %",
        ]
        for row in sorted(kept, key=lambda row: (row["data"], row["queries"], row["asked"]))
        if row["instructions"] == "avx512"
    ]
    header = ["codes", "queries", "asked", "recall of 10", "codes compared"]
    note = (
        f"2,000 queries, 256 bits; ± 1.96 standard errors. {machine_note(result)}. "
        "(`python benchmarks/approximate.py`)"
    )
    return table(header, rows) + "\n\n" + note


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {
        "approximate": speed_table(result),
        "approximate-build": build_table(result),
        "approximate-recall": recall_table(result),
    }


def main() -> None:
    options = arguments(__doc__, data="real", level="avx512", n_bits=256, repeats=3)
    if options.level not in LEVELS:
        raise SystemExit(f"--level must be one of {', '.join(LEVELS)}, got {options.level!r}")
    wanted = LEVELS[options.level]
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | wanted)
    from kdiffhash import _core

    if _core.level != options.level:
        raise SystemExit(f"this CPU or KDIFFHASH_CPU gives {_core.level}, not {options.level}")
    codes = approximate_codes.load(options.data, options.n_bits)
    new = {
        "cases": measure(options.data, options.level, codes, options.repeats),
        "kept": kept_recall(options.data, options.level, codes, options.n_bits),
    }

    def is_other(row: dict[str, Any]) -> bool:
        return (row["data"], row["instructions"]) != (options.data, options.level)

    for key in new if (RESULTS / "approximate.json").exists() else ():
        new[key] = stored_rows("approximate", is_other, key) + new[key]
    log(*summary(new), sep="\n")
    report("approximate", new, options)


if __name__ == "__main__":
    main()
