"""Throughput of exact Hamming search relative to other libraries and to hardware ceilings.

A million codes, random and real (encoded from scenes, repeated with noise), ten nearest neighbours
of 100 queries. FAISS is run in its fastest of four settings, numkong (`hammings_packed`, which
computes all distances but does not select neighbours) in its faster of two. `fraction_of_limit` is
the throughput relative to a ceiling. For one query, the ceiling is reading all codes once from
memory. For a batch, it is XOR, popcount and add on 64-bit words in L1 cache; bit-sliced counting
needs fewer instructions than that, so the fraction can exceed 1. All times are medians of
alternating runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from support.code_sets import BITS, random_codes, real_codes
from support.harness import RESULTS, arguments, interleaved, load, log, report
from support.markdown import machine_note, table

from kdiffhash import HammingIndex
from kdiffhash.codes import truncate

# Otherwise idle FAISS threads spin and slow down the function that is timed next.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

NUMKONG = (2048, 16384)  # codes compared at a time
FAISS = ((True, 32), (True, 8192), (False, 32), (False, 8192))  # (use_heap, query_batch_size)


# -- measurements ------------------------------------------------------------------------------


def measure(
    data: str,
    codes: np.ndarray,
    queries: np.ndarray,
    n_bits: int,
    k: int,
    threads: int,
    repeats: int,
    baselines: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Measure one case; with `baselines`, OpenCV, NumPy and usearch too."""
    import faiss
    from support.hardware_ceiling import popcounts_per_s, read_memory

    faiss.omp_set_num_threads(threads)
    codes, queries = truncate(codes, n_bits), truncate(queries, n_bits)
    index, flat = HammingIndex(codes), faiss.IndexBinaryFlat(n_bits)
    flat.add(codes)

    def search_faiss(heap: bool, batch: int) -> Any:
        flat.use_heap, flat.query_batch_size = heap, batch
        return flat.search(queries, k)

    first = queries[:100]
    expected = flat.search(first, k)[0]
    np.testing.assert_array_equal(index.search(first, k, n_jobs=threads)[0], expected)
    functions: dict[str, Any] = {"kdiffhash": partial(index.search, queries, k, n_jobs=threads)}
    for setting in FAISS if len(queries) <= 100 else FAISS[1:2]:
        functions[f"faiss {setting}"] = partial(search_faiss, *setting)
    if threads == 1 and len(codes) <= 10**6 and len(queries) <= 100:
        functions |= numkong_functions(codes, queries)
    words = np.frombuffer(codes, np.uint64)
    if len(queries) == 1:
        read_memory(words, threads)
        functions["read"] = partial(read_memory, words, threads)
    seconds = interleaved(functions, repeats, clock)
    own_seconds = seconds["kdiffhash"]
    n_words = n_bits // 64
    limit = (
        seconds["read"]
        if len(queries) == 1
        else len(queries) * len(codes) * n_words / popcounts_per_s(threads)
    )
    case = {
        "n_bits": n_bits,
        "n": len(codes),
        "k": k,
        "batch": len(queries),
        "threads": threads,
        "data": data,
        "ratio_to_faiss": min(v for name, v in seconds.items() if name[:5] == "faiss")
        / own_seconds,
        "fraction_of_limit": limit / own_seconds,
        "queries_per_s": len(queries) / own_seconds,
        "ns_per_comparison": 1e9 * own_seconds / len(queries) / len(codes),
    }
    numkong = [value for name, value in seconds.items() if name.startswith("numkong")]
    if numkong:
        case["ratio_to_numkong"] = min(numkong) / own_seconds
    if baselines:
        times = baseline_seconds(codes, queries, k, clock)
        case |= {f"ratio_to_{name}": value / own_seconds for name, value in times.items()}
    logged = ("n_bits", "data", "batch", "k", "threads", "n", "ratio_to_faiss", "fraction_of_limit")
    log(*(f"{name}={case[name]:.4g}" if name != "data" else data for name in logged))
    return case


def numkong_functions(codes: np.ndarray, queries: np.ndarray) -> dict[str, Any]:
    """Return functions that compute all distances with numkong, by the codes compared at a time."""
    import numkong

    def compare(blocks: list[Any], out: Any) -> None:
        for block in blocks:
            numkong.hammings_packed(queries, block, out=out)

    functions: dict[str, Any] = {}
    for size in NUMKONG:
        whole = codes[: len(codes) // size * size].reshape(-1, size, codes.shape[1])
        blocks = [numkong.hammings_pack(block, dtype="uint1") for block in whole]
        out = numkong.zeros((len(queries), size), dtype="uint32")
        compare(blocks[-1:], out)
        expected = np.bitwise_count(whole[-1] ^ queries[0]).sum(axis=1)
        np.testing.assert_array_equal(np.asarray(out)[0], expected)
        functions[f"numkong {size}"] = partial(compare, blocks, out)
    return functions


def baseline_seconds(
    codes: np.ndarray, queries: np.ndarray, k: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Return seconds on one thread, extrapolated from a tenth of the codes."""
    import cv2
    import usearch.index

    cv2.setNumThreads(1)
    matcher, sample = cv2.BFMatcher(cv2.NORM_HAMMING), codes[: len(codes) // 10]
    words, query_words = (
        np.frombuffer(sample, np.uint64).reshape(len(sample), -1),
        queries.view(np.uint64),
    )

    def search_numpy() -> None:
        for query in query_words:
            distances = np.bitwise_count(words ^ query).sum(axis=1, dtype=np.uint16)
            best = np.argpartition(distances, k)[:k]
            best[np.argsort(distances[best])]

    def search_usearch() -> None:
        usearch.index.search(
            sample, queries, k, usearch.index.MetricKind.Hamming, exact=True, threads=1
        )

    functions = {
        "opencv": lambda: matcher.knnMatch(queries, sample, k),
        "numpy": search_numpy,
        "usearch": search_usearch,
    }
    return {name: 10 * value for name, value in interleaved(functions, 3, clock).items()}


def recall(real: dict[str, Any]) -> list[dict[str, Any]]:
    """Return recall at 10 by real projections, by Hamming distance and after re-ranking.

    Relevant are the other descriptors of the query's 3D point; if there are more than ten, recall
    is relative to ten.
    """
    hasher, rows, points, order = (real[name] for name in ("hasher", "rows", "points", "order"))
    n = len(order) - len(real["base"])
    query_rows, database = order[:2000], order[n:]
    n_relevant = np.bincount(points[database], minlength=points.max() + 1)[points[query_rows]]
    has_relevant = n_relevant > 0

    def recall_at_10(ids: np.ndarray) -> float:
        hits = (points[database][ids] == points[query_rows][:, None]).sum(axis=1)
        return float(np.mean(hits[has_relevant] / np.minimum(n_relevant[has_relevant], 10)))

    def nearest_floats(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.argpartition((b**2).sum(axis=1) - 2 * a @ b.T, 10, axis=1)[:, :10]

    projections = hasher.project(rows[query_rows])
    database_projections = hasher.project(rows[database])
    rootsift = [
        np.sqrt(rows[i] / rows[i].sum(axis=1, keepdims=True, dtype=np.float32))
        for i in (query_rows, database)
    ]
    out = [{"n_bits": None, "of": "RootSIFT", "float": recall_at_10(nearest_floats(*rootsift))}]
    for n_bits in BITS:
        index = HammingIndex(truncate(real["base"], n_bits))
        queries = truncate(real["queries"][: len(query_rows)], n_bits)
        row = {
            "n_bits": n_bits,
            "of": "projections",
            "float": recall_at_10(
                nearest_floats(projections[:, :n_bits], database_projections[:, :n_bits])
            ),
            "hash": recall_at_10(index.search(queries, 10)[1]),
            "reranked": recall_at_10(
                index.search(queries, 10, rerank_projections=projections[:, :n_bits])[1]
            ),
        }
        row["recovered"] = (row["reranked"] - row["hash"]) / (row["float"] - row["hash"])
        log("  recall", row)
        out.append(row)
    return out


def plot() -> None:
    """Plot queries per second on one thread by code length, with baselines and the ceiling."""
    import matplotlib.pyplot as plt

    cases = [c for c in load("search")["cases"] if c["batch"] == 100 and c["threads"] == 1]
    colours = {"kdiffhash": "#0b6e99", "FAISS": "#e08b3e", "OpenCV": "#7a9e5a", "NumPy": "#999999",
               "usearch": "#b06a9c"}  # fmt: skip
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, data in zip(axes, ("random", "real")):
        shown = [c for c in cases if c["data"] == data]
        for number, (name, colour) in enumerate(colours.items()):
            key = f"ratio_to_{name.lower()}"
            speeds = [c["queries_per_s"] / c.get(key, 1) for c in shown]
            axis.bar(np.arange(len(shown)) + 0.16 * (number - 2), speeds, 0.15, color=colour,
                     label=name)  # fmt: skip
        for i, case in enumerate(shown):
            limit = case["queries_per_s"] / case["fraction_of_limit"]
            axis.plot([i - 0.42, i + 0.42], [limit, limit], color="#c0392b", linewidth=1.2,
                      label="XOR, popcount, add" if i == 0 else None)  # fmt: skip
            axis.annotate(f"{case['ratio_to_faiss']:.1f}x", (i - 0.32, case["queries_per_s"]),
                          xytext=(0, 2), textcoords="offset points", ha="center", fontsize=8,
                          color=colours["kdiffhash"])  # fmt: skip
        axis.set_yscale("log")
        axis.set_xticks(range(len(shown)), [f"{c['n_bits']}" for c in shown])
        axis.set_xlabel("bits")
        axis.set_title(f"{data} codes", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#dddddd", linewidth=0.5)
        axis.set_axisbelow(True)
    axes[0].set_ylabel("queries per second, one thread")
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, frameon=False, ncols=6,
                  loc="outside lower center")  # fmt: skip
    folder = RESULTS.parent.parent / "docs" / "search"
    folder.mkdir(exist_ok=True)
    plt.rcParams["svg.hashsalt"] = "kdiffhash"
    figure.savefig(folder / "speed.svg", metadata={"Date": None})


# -- tables -----------------------------------------------------------------------------------


def _ratio(case: dict[str, Any], name: str) -> str:
    ratio = case.get(f"ratio_to_{name}")
    return f"{ratio:.0f}x" if ratio else "-"


def search_table(result: dict[str, Any]) -> str:
    rows = []
    for case in result["cases"]:
        if case["batch"] == 100 and case["threads"] == 1:
            same = [c for c in result["cases"] if c["n_bits"] == case["n_bits"]]
            same = [c for c in same if c["data"] == case["data"]]
            single = next(c for c in same if c["batch"] == 1 and c["threads"] == 1)
            two_threads = next(c for c in same if c["batch"] == 100 and c["threads"] == 2)
            large = next(c for c in same if c["batch"] > 100)
            baselines = [_ratio(case, n) for n in ("opencv", "usearch", "numkong", "numpy")]
            rows.append(
                [
                    str(case["n_bits"]),
                    case["data"],
                    f"{case['queries_per_s']:,.0f}",
                    f"**{case['ratio_to_faiss']:.1f}x**",
                    *baselines,
                    f"{case['fraction_of_limit']:.2f}",
                    f"{two_threads['ratio_to_faiss']:.1f}x",
                    f"{large['ratio_to_faiss']:.1f}x",
                    f"{single['ratio_to_faiss']:.1f}x",
                    f"{100 * single['fraction_of_limit']:.0f} %",
                ]
            )
    header = [
        "bits",
        "codes",
        "queries/s",
        "/ FAISS",
        "/ OpenCV",
        "/ usearch",
        "/ numkong",
        "/ NumPy",
        "/ ceiling",
        "2 threads / FAISS",
        "2 threads, batch of 10,000 / FAISS",
        "one query / FAISS",
        "one query / memory bandwidth",
    ]
    growth = max(row["ratio"] for row in result["growth"])
    note = (
        "A million codes, ten nearest neighbours, batches of 100 queries and one thread unless "
        "stated otherwise. Columns with a slash are ratios of the throughput to that of a baseline "
        "on the same number of threads. FAISS is `IndexBinaryFlat` in its fastest of four "
        "settings; for the batch of 10,000 only `query_batch_size=8192` was run. numkong computes "
        "all distances and selects no neighbours. The "
        "ceiling is XOR, popcount and add on words in L1 cache; for one query it is reading the "
        "codes once from memory. At ten million codes, a comparison takes at most "
        f"{growth:.2f} times as long as at one million. {machine_note(result)}. "
        "(`python benchmarks/search.py`)"
    )
    return note + "\n\n" + table(header, rows)


def short_table(result: dict[str, Any]) -> str:
    """Return the table for the page on search: real codes only."""
    cases = [c for c in result["cases"] if c["batch"] == 100 and c["threads"] == 1]
    cases = [c for c in cases if c["data"] == "real"]
    rows = [
        ["kdiffhash, queries/s", *[f"{c['queries_per_s']:,.0f}" for c in cases]],
        ["relative to FAISS", *[f"**{c['ratio_to_faiss']:.1f}x**" for c in cases]],
        ["relative to OpenCV's BFMatcher", *[f"{c['ratio_to_opencv']:.0f}x" for c in cases]],
        ["relative to NumPy", *[f"{c['ratio_to_numpy']:.0f}x" for c in cases]],
    ]
    note = f"{machine_note(result)}. (`python benchmarks/search.py`)"
    return table(["", *[f"{c['n_bits']} bits" for c in cases]], rows) + "\n\n" + note


def early_table(result: dict[str, Any]) -> str:
    cases = {(c["data"], c["k"]): c for c in result["early_stop"]}
    rows = []
    for k in (1, 2):
        random, real = cases["random", k], cases["real", k]
        gain = real["queries_per_s"] / random["queries_per_s"]
        speeds = [f"{c['queries_per_s']:,.0f} ({c['ratio_to_faiss']:.1f}x)" for c in (random, real)]
        rows.append([str(k), *speeds, f"{gain:.2f}x"])
    header = [
        "k, at 512 bits",
        "random codes, queries/s (/ FAISS)",
        "real codes, queries/s (/ FAISS)",
        "real / random",
    ]
    return table(header, rows)


def recall_table(result: dict[str, Any]) -> str:
    floats, *rows = result["recall"]
    cells = [
        [
            str(row["n_bits"]),
            f"{100 * row['float']:.1f}",
            f"{100 * row['hash']:.1f}",
            f"{100 * row['reranked']:.1f}",
            # A share of almost no loss would mean nothing.
            f"{100 * row['recovered']:.0f} %" if row["float"] - row["hash"] > 0.01 else "-",
        ]
        for row in rows
    ]
    header = [
        "bits",
        "real projections",
        "codes",
        "re-ranked, factor 10",
        "share of the loss recovered",
    ]
    note = (
        "Recall in percent: the share of the other descriptors of the same 3D point among the ten "
        "nearest neighbours, on scenes that were not used for training (RootSIFT, Euclidean: "
        f"{100 * floats['float']:.1f}). Re-ranking uses the projections of the query, but only the "
        "bits of the stored codes; with few bits, most of the loss is on the stored side and is "
        "not recovered. (`python benchmarks/search.py`)"
    )
    return note + "\n\n" + table(header, cells)


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {
        "search": search_table(result),
        "docs/search.md:search": short_table(result),
        "early": early_table(result),
        "recall": recall_table(result),
    }


def main() -> None:
    from support.hardware_ceiling import popcounts_per_s

    options = arguments(__doc__, n=1_000_000, large=10_000_000, repeats=9)
    cases = []
    codes, queries = random_codes(options.n, 10_000)
    real = real_codes(options.n, 10_000)
    sets = {"random": (codes, queries)}
    if real:
        sets["real"] = (real["codes"], real["queries"])
    for data, (database, data_queries) in sets.items():
        for n_bits in BITS:
            for threads in (1, 2):
                run = partial(measure, data, database, n_bits=n_bits, k=10, threads=threads)
                cases.append(run(queries=data_queries[:100], repeats=options.repeats,
                                 baselines=threads == 1))  # fmt: skip
                cases.append(run(queries=data_queries[:1], repeats=3 * options.repeats))
            cases.append(run(queries=data_queries, repeats=1))
    early = []
    for data, (database, data_queries) in sets.items():
        for k in (1, 2):
            early.append(measure(data, database, data_queries[:100], 512, k, 1, options.repeats))
    large, large_queries = random_codes(options.large, 100)
    growth = []
    for n_bits in BITS:
        case = measure("random", large, large_queries, n_bits, 10, 1, 3)
        same = next(c for c in cases if c["n_bits"] == n_bits and c["batch"] == 100
                    and c["threads"] == 1 and c["data"] == "random")  # fmt: skip
        growth.append({"n_bits": n_bits, "n": options.large,
                       "ratio": case["ns_per_comparison"] / same["ns_per_comparison"]})  # fmt: skip
    result = {
        "cases": cases,
        "early_stop": early,
        "growth": growth,
        "recall": recall(real) if real else [],
        "limits": {
            "popcounts_per_s": {str(t): popcounts_per_s(t) for t in (1, 2)},
        },
    }
    report("search", result, options)
    if not options.no_save and real:
        plot()


if __name__ == "__main__":
    main()
