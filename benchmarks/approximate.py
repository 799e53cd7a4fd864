"""Approximate search at equal recall: cells compared with FAISS's HNSW graph and inverted lists.

Ten nearest neighbours, one thread, in batches of 100 and one by one. A code counts as found if it
is not farther than the exact tenth neighbour. Queries are held out from the codes. Each method is
run with a series of settings; times at a recall are interpolated between them. Settings of all
methods alternate, so noise affects all alike. Inverted lists are measured with two numbers of lists
from two million codes on; the better one counts at each recall.

Data: `real`, all descriptors of the scenes; `big`, these and variants that lie between two views of
a point; `random`, uniform random codes; `text`, embeddings of texts. `--level avx2` restricts both
sides to AVX2. Results of other data and levels are kept. The graph and the inverted lists are
cached with the time that it took to build them on this CPU.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from support import approximate_codes
from support.approximate_codes import OTHER, SCENES, CodeSet, folder, scene_codes
from support.harness import RESULTS, arguments, log, machine, report, stored_rows
from support.markdown import machine_note, table

K, BATCH, N_SINGLE = 10, 100, 300
RECALLS = (0.9, 0.95, 0.99)
EF_SEARCH = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
N_LISTS, N_LISTS_BIG, BIG = 2048, 8192, 2_000_000
N_PROBE_IVF = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
N_PROBE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
LEVELS = {"avx512": {}, "avx2": {"KDIFFHASH_CPU": "avx2", "FAISS_SIMD_LEVEL": "AVX2"}}

Search = Callable[[np.ndarray], np.ndarray]  # queries to distances


# -- methods -------------------------------------------------------------------------------------


class Built(NamedTuple):
    """An index, the seconds that it took to build, and its bytes per code."""

    method: str
    index: Any
    build_s: float
    bytes_per_code: float


def build(data: str, codes: np.ndarray) -> list[Built]:
    """Return the indexes of all methods."""
    from kdiffhash import HammingIndex

    start = time.perf_counter()
    own = HammingIndex(codes)
    own.build_cells()
    built = [Built("kdiffhash", own, time.perf_counter() - start, own.nbytes / len(codes))]
    built.append(cached(f"{data}-hnsw", "faiss-hnsw", build_graph, codes))
    for n_lists in (N_LISTS, N_LISTS_BIG) if len(codes) >= BIG else (N_LISTS,):
        make = partial(build_lists, n_lists)
        built.append(cached(f"{data}-ivf-{n_lists}", "faiss-ivf", make, codes))
    return built


def build_graph(codes: np.ndarray) -> Any:
    import faiss

    index = faiss.IndexBinaryHNSW(8 * codes.shape[1], 32)
    index.add(codes)
    return index


def build_lists(n_lists: int, codes: np.ndarray) -> Any:
    import faiss

    n_bits = 8 * codes.shape[1]
    quantizer = faiss.IndexBinaryFlat(n_bits)
    index = faiss.IndexBinaryIVF(quantizer, n_bits, n_lists)
    index.train(codes[:: max(1, len(codes) // 200_000)])
    index.add(codes)
    return index


def cached(name: str, method: str, make: Callable[[np.ndarray], Any], codes: np.ndarray) -> Built:
    """Return an index of FAISS from the cache, or build it with all cores."""
    import faiss

    path = folder() / f"{name}-{8 * codes.shape[1]}-{len(codes)}.faiss"
    notes, cpu = path.with_suffix(".json"), machine()["cpu"]
    if not notes.exists() or json.loads(notes.read_text())["cpu"] != cpu:
        notes.unlink(missing_ok=True)
        faiss.omp_set_num_threads(os.cpu_count() or 1)
        start = time.perf_counter()
        made = make(codes)
        seconds = time.perf_counter() - start
        faiss.write_index_binary(made, str(path))
        notes.write_text(json.dumps({"build_s": seconds, "cpu": cpu}))
        log(f"{name}: built in {seconds:.1f} s")
    seconds = json.loads(notes.read_text())["build_s"]
    index = faiss.read_index_binary(str(path))
    return Built(method, index, seconds, path.stat().st_size / len(codes))


def settings(built: list[Built]) -> list[tuple[Built, int, Search]]:
    """Return all settings of all methods: index, parameter and function."""
    found: list[tuple[Built, int, Search]] = []
    for own in built:
        if own.method == "kdiffhash" and "cells" not in own.index.info():
            found.append((own, 0, partial(search_exactly, own.index)))
            continue
        search, parameters = SEARCHES[own.method]
        found += [(own, number, partial(search, own.index, number)) for number in parameters]
    return found


def search_exactly(index: Any, queries: np.ndarray) -> np.ndarray:
    return index.search(queries, K, n_jobs=1)[0]


def search_cells(index: Any, n_probe: int, queries: np.ndarray) -> np.ndarray:
    return index.search(queries, K, n_probe=n_probe, n_jobs=1)[0]


def search_graph(index: Any, ef_search: int, queries: np.ndarray) -> np.ndarray:
    index.hnsw.efSearch = ef_search
    return index.search(queries, K)[0]


def search_lists(index: Any, n_probe: int, queries: np.ndarray) -> np.ndarray:
    index.nprobe = n_probe
    return index.search(queries, K)[0]


SEARCHES = {
    "kdiffhash": (search_cells, N_PROBE),
    "faiss-hnsw": (search_graph, EF_SEARCH),
    "faiss-ivf": (search_lists, N_PROBE_IVF),
}


# -- measurements ----------------------------------------------------------------------------------


def measure(data: str, level: str, codes: CodeSet, repeats: int) -> list[dict[str, Any]]:
    """Return one row for each setting and batch size."""
    import faiss

    built = build(data, codes.codes)
    faiss.omp_set_num_threads(1)
    limits = built[0].index.search(codes.queries, K)[0][:, -1:]  # exact without n_probe
    timed = codes.queries[:1000]
    rows = []
    for own, parameter, search in settings(built):
        recall = float(np.mean(search(codes.queries) <= limits))
        row = {
            "n": len(codes.codes),
            "n_bits": 8 * codes.codes.shape[1],
            "data": data,
            "instructions": level,
            "method": own.method,
            "parameter": parameter,
            "recall": recall,
            "build_s": own.build_s,
            "bytes_per_code": own.bytes_per_code,
        }
        if own.method == "faiss-ivf":
            row["lists"] = own.index.nlist
        rows.append((row, search))
    measured = []
    for batch, n in ((BATCH, len(timed)), (1, N_SINGLE)):
        times: list[list[float]] = [[] for _ in rows]
        for _ in range(repeats):
            for (_, search), seconds_of in zip(rows, times):
                start = time.perf_counter()
                for i in range(0, n, batch):
                    search(timed[i : i + batch])
                seconds_of.append(time.perf_counter() - start)
        for (row, _), seconds_of in zip(rows, times):
            seconds = sorted(seconds_of)[len(seconds_of) // 2]
            measured.append(row | {"batch": batch, "us_per_query": 1e6 * seconds / n})
    return measured


def kept_recall(data: str, level: str, codes: CodeSet, n_bits: int) -> list[dict[str, Any]]:
    """Return the recall asked for and found, by queries that are not among the codes."""
    from kdiffhash import HammingIndex

    sets = {"held-out": codes}
    if data == "big":  # queries like the stored codes, and queries that are all descriptors
        sets = {"held-out": approximate_codes.split(codes.codes), "held-out descriptors": codes}
    if data == "real":
        others = [scene_codes(name, n_bits)[0] for name in SCENES if name != OTHER]
        queries = approximate_codes.split(scene_codes(OTHER, n_bits)[0]).queries
        sets[f"{OTHER}, not in the index"] = CodeSet(np.concatenate(others), queries)
    rows = []
    for name, chosen in sets.items():
        index = HammingIndex(chosen.codes)
        index.build_cells()
        for k in (1, 10, 100):
            limits = index.search(chosen.queries, k)[0][:, -1:]  # exact without recall
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
        f"equal recall, interpolated; HNSW with M=32, IVF with {N_LISTS:,} lists, from two million "
        f"codes on also with {N_LISTS_BIG:,}; the ratio is to the fastest of these. Codes without "
        "clusters are searched exactly. "
        f"{machine_note(result)}. (`python benchmarks/approximate.py`)"
    )
    return table(header, rows) + "\n\n" + note


def build_table(result: dict[str, Any]) -> str:
    seen: dict[tuple[str, str, str], dict[str, Any]] = {}
    for case in result["cases"]:
        lists = f", {case['lists']:,} lists" if "lists" in case else ""
        seen.setdefault((case["data"], case["instructions"], case["method"] + lists), case)
    rows = [
        [
            *(f"{case['n']:,} {NAMES[data]}", LEVEL_NAMES[level], method),
            *(f"{case['build_s']:.1f} s", f"{case['bytes_per_code']:.1f}"),
        ]
        for (data, level, method), case in sorted(seen.items())
    ]
    header = ["codes", "CPU", "index", "build", "bytes per code"]
    note = (
        f"Codes of 256 bits take 32 bytes. Built with {result['machine']['cores']} threads. The "
        "graph and the lists are built once, and used at both levels. "
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
    parts = speed_table(result), build_table(result), recall_table(result)
    return {"approximate": "\n\n".join(parts)}


def check_level(level: str) -> None:
    """Exit unless both libraries use this instruction set."""
    import faiss

    from kdiffhash import _core

    of_faiss = faiss.SIMDConfig.get_level_name().lower()  # avx512 also has variants
    if _core.level != level or of_faiss.split("_")[0] != level:
        raise SystemExit(
            f"this CPU or the environment gives {_core.level} for kdiffhash and {of_faiss} for "
            f"FAISS, not {level}"
        )
    log(f"kdiffhash with {_core.level}, FAISS with {of_faiss}")


def main() -> None:
    options = arguments(__doc__, data="real", level="avx512", n_bits=256, repeats=5)
    if options.level not in LEVELS:
        raise SystemExit(f"--level must be one of {', '.join(LEVELS)}, got {options.level!r}")
    wanted = LEVELS[options.level]
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | wanted)
    check_level(options.level)
    codes = approximate_codes.load(options.data, options.n_bits)
    new = {
        "cases": measure(options.data, options.level, codes, options.repeats),
        "kept": kept_recall(options.data, options.level, codes, options.n_bits),
    }

    def is_other(row: dict[str, Any]) -> bool:
        return (row["data"], row["instructions"]) != (options.data, options.level)

    for key in new if (RESULTS / "approximate.json").exists() else ():
        new[key] = stored_rows("approximate", is_other, key) + new[key]
    report("approximate", new, options)
    for row in summary(new):
        log(row)


if __name__ == "__main__":
    main()
