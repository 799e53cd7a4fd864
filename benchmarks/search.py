"""Exact Hamming search beside its peers and beside the limits of the machine, in one run.

Cases: a million codes, random and real (encoded from scenes, repeated with noise), the ten nearest
of 100 queries. FAISS has the best of several settings. `fraction_of_limit` is, for one query alone,
the share of the speed at which memory can be read, and for more the speed beside that of xor,
popcount and add on 64-bit words that lie in the first cache; search by bit slices needs fewer
instructions than that and can be above 1. All times are medians of runs that take turns.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
from support.code_sets import BITS, random_codes, real_codes
from support.harness import RESULTS, arguments, interleaved, load, report, say
from support.markdown import machine_note, table

from kdiffhash import HammingIndex
from kdiffhash.codes import truncate

# Threads of FAISS that have nothing to do would otherwise spin on the cores of who is next.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

FAISS = ((True, 32), (True, 8192), (False, 32), (False, 8192))  # heap or counts, batch


# -- cases --------------------------------------------------------------------------------------


def measure(
    data: str,
    codes: np.ndarray,
    queries: np.ndarray,
    n_bits: int,
    k: int,
    threads: int,
    repeats: int,
    peers: bool = False,
) -> dict[str, Any]:
    import faiss
    from support.hardware_ceiling import popcounts_per_s, read_seconds

    faiss.omp_set_num_threads(threads)
    codes, queries = truncate(codes, n_bits), truncate(queries, n_bits)
    index, flat = HammingIndex(codes), faiss.IndexBinaryFlat(n_bits)
    flat.add(codes)

    def by_faiss(heap: bool, batch: int) -> Any:
        flat.use_heap, flat.query_batch_size = heap, batch
        return flat.search(queries, k)

    ours = partial(index.search, queries, k, n_jobs=threads)
    some = queries[:100]
    np.testing.assert_array_equal(index.search(some, k, n_jobs=threads)[0], flat.search(some, k)[0])
    functions: dict[str, Any] = {"kdiffhash": ours}
    for setting in FAISS if len(queries) <= 100 else FAISS[1:2]:
        functions[f"faiss {setting}"] = partial(by_faiss, *setting)
    words = np.frombuffer(codes, np.uint64)
    if len(queries) == 1:
        read_seconds(words, threads)
        functions["read"] = partial(read_seconds, words, threads)
    seconds = interleaved(functions, repeats)
    mine = seconds["kdiffhash"]
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
        "ratio_to_faiss": min(v for name, v in seconds.items() if name[:5] == "faiss") / mine,
        "fraction_of_limit": limit / mine,
        "queries_per_s": len(queries) / mine,
        "ns_per_comparison": 1e9 * mine / len(queries) / len(codes),
    }
    if peers:
        times = peer_seconds(codes, queries, k)
        case |= {f"ratio_to_{name}": value / mine for name, value in times.items()}
    told = ("n_bits", "data", "batch", "k", "threads", "n", "ratio_to_faiss", "fraction_of_limit")
    say(*(f"{name}={case[name]:.4g}" if name != "data" else data for name in told))
    return case


def peer_seconds(codes: np.ndarray, queries: np.ndarray, k: int) -> dict[str, float]:
    """One thread each, with a tenth of the codes, times ten."""
    import cv2
    import usearch.index

    cv2.setNumThreads(1)
    matcher, part = cv2.BFMatcher(cv2.NORM_HAMMING), codes[: len(codes) // 10]
    words, wanted = np.frombuffer(part, np.uint64).reshape(len(part), -1), queries.view(np.uint64)

    def by_numpy() -> None:
        for query in wanted:
            distances = np.bitwise_count(words ^ query).sum(axis=1, dtype=np.uint16)
            best = np.argpartition(distances, k)[:k]
            best[np.argsort(distances[best])]

    def by_usearch() -> None:
        usearch.index.search(
            part, queries, k, usearch.index.MetricKind.Hamming, exact=True, threads=1
        )

    functions = {
        "opencv": lambda: matcher.knnMatch(queries, part, k),
        "numpy": by_numpy,
        "usearch": by_usearch,
    }
    return {name: 10 * value for name, value in interleaved(functions, 3).items()}


def recall(real: dict[str, Any]) -> list[dict[str, Any]]:
    """Share of a descriptor's other views among its ten nearest (of ten, if there are more).

    By the real projections (before they become bits), by Hamming distance, and re-ranked.
    """
    hasher, rows, points, order = (real[name] for name in ("hasher", "rows", "points", "order"))
    n = len(order) - len(real["base"])
    asked, others = order[:2000], order[n:]
    number = np.bincount(points[others], minlength=points.max() + 1)[points[asked]]
    seen = number > 0

    def share(ids: np.ndarray) -> float:
        same = (points[others][ids] == points[asked][:, None]).sum(axis=1)
        return float(np.mean(same[seen] / np.minimum(number[seen], 10)))

    def nearest_floats(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.argpartition((b**2).sum(axis=1) - 2 * a @ b.T, 10, axis=1)[:, :10]

    some, rest = hasher.project(rows[asked]), hasher.project(rows[others])
    roots = [np.sqrt(rows[i] / rows[i].sum(axis=1, keepdims=True, dtype=np.float32))
             for i in (asked, others)]  # fmt: skip
    out = [{"n_bits": None, "of": "RootSIFT", "float": share(nearest_floats(*roots))}]
    for n_bits in BITS:
        index = HammingIndex(truncate(real["base"], n_bits))
        queries = truncate(real["queries"][: len(asked)], n_bits)
        row = {
            "n_bits": n_bits,
            "of": "projections",
            "float": share(nearest_floats(some[:, :n_bits], rest[:, :n_bits])),
            "hash": share(index.search(queries, 10)[1]),
            "reranked": share(index.search(queries, 10, rerank_projections=some[:, :n_bits])[1]),
        }
        row["recovered"] = (row["reranked"] - row["hash"]) / (row["float"] - row["hash"])
        say("  recall", row)
        out.append(row)
    return out


def plot() -> None:
    """Queries per second on one thread, by length, beside the peers and the limit."""
    import matplotlib.pyplot as plt

    found = load("search")
    cases = [c for c in found["cases"] if c["batch"] == 100 and c["threads"] == 1]
    colours = {"kdiffhash": "#0b6e99", "FAISS": "#e08b3e", "OpenCV": "#7a9e5a", "NumPy": "#999999",
               "usearch": "#b06a9c"}  # fmt: skip
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, data in zip(axes, ("random", "real")):
        some = [c for c in cases if c["data"] == data]
        for number, (name, colour) in enumerate(colours.items()):
            key = f"ratio_to_{name.lower()}"
            speeds = [c["queries_per_s"] / c.get(key, 1) for c in some]
            axis.bar(np.arange(len(some)) + 0.16 * (number - 2), speeds, 0.15, color=colour,
                     label=name)  # fmt: skip
        for i, case in enumerate(some):
            limit = case["queries_per_s"] / case["fraction_of_limit"]
            axis.plot([i - 0.42, i + 0.42], [limit, limit], color="#c0392b", linewidth=1.2,
                      label="xor, popcount, add" if i == 0 else None)  # fmt: skip
            axis.annotate(f"{case['ratio_to_faiss']:.1f} x", (i - 0.32, case["queries_per_s"]),
                          xytext=(0, 2), textcoords="offset points", ha="center", fontsize=8,
                          color=colours["kdiffhash"])  # fmt: skip
        axis.set_yscale("log")
        axis.set_xticks(range(len(some)), [f"{c['n_bits']}" for c in some])
        axis.set_xlabel("bits")
        axis.set_title(f"{data} codes", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#dddddd", linewidth=0.5)
        axis.set_axisbelow(True)
    axes[0].set_ylabel("queries a second, one thread")
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, frameon=False, ncols=6,
                  loc="outside lower center")  # fmt: skip
    folder = RESULTS.parent.parent / "docs" / "search"
    folder.mkdir(exist_ok=True)
    plt.rcParams["svg.hashsalt"] = "kdiffhash"
    figure.savefig(folder / "speed.svg", metadata={"Date": None})


# -- tables -----------------------------------------------------------------------------------


def search_table(found: dict[str, Any]) -> str:
    rows = []
    for case in found["cases"]:
        if case["batch"] == 100 and case["threads"] == 1:
            of = [c for c in found["cases"] if c["n_bits"] == case["n_bits"]]
            of = [c for c in of if c["data"] == case["data"]]
            alone = next(c for c in of if c["batch"] == 1 and c["threads"] == 1)
            both = next(c for c in of if c["batch"] == 100 and c["threads"] == 2)
            many = next(c for c in of if c["batch"] > 100)
            peers = [f"{case[f'ratio_to_{name}']:.0f} x" for name in ("opencv", "usearch", "numpy")]
            rows.append(
                [
                    str(case["n_bits"]),
                    case["data"],
                    f"{case['queries_per_s']:,.0f}",
                    f"**{case['ratio_to_faiss']:.1f} x**",
                    *peers,
                    f"{case['fraction_of_limit']:.2f}",
                    f"{both['ratio_to_faiss']:.1f} x",
                    f"{many['ratio_to_faiss']:.1f} x",
                    f"{alone['ratio_to_faiss']:.1f} x, {100 * alone['fraction_of_limit']:.0f} %",
                ]
            )
    header = [
        "bits",
        "codes",
        "queries/s",
        "FAISS",
        "OpenCV",
        "usearch",
        "NumPy",
        "xor, popcount, add",
        "2 threads, FAISS",
        "batch of 10,000, 2 threads, FAISS",
        "one query: FAISS, share of reading",
    ]
    growth = max(row["ratio"] for row in found["growth"])
    note = (
        f"{machine_note(found)}. A million codes, the ten nearest of a batch of 100 queries, one "
        "thread where nothing else is said; how many times as quick as each peer (FAISS "
        "`IndexBinaryFlat` in its best of four settings, in its default one for the batch of "
        "10,000), and beside the machine's limits: the "
        "rate of xor, popcount and add in the first cache, and for one query the time to read "
        "the codes once. At ten million codes a comparison takes at most "
        f"{growth:.2f} times as long as at one million. (`python benchmarks/search.py`)"
    )
    return note + "\n\n" + table(header, rows)


def short_table(found: dict[str, Any]) -> str:
    cases = [c for c in found["cases"] if c["batch"] == 100 and c["threads"] == 1]
    cases = [c for c in cases if c["data"] == "real"]
    rows = [
        ["kdiffhash, queries/s", *[f"{c['queries_per_s']:,.0f}" for c in cases]],
        ["beside FAISS", *[f"**{c['ratio_to_faiss']:.1f} x**" for c in cases]],
        ["beside OpenCV's BFMatcher", *[f"{c['ratio_to_opencv']:.0f} x" for c in cases]],
        ["beside NumPy", *[f"{c['ratio_to_numpy']:.0f} x" for c in cases]],
    ]
    note = f"{machine_note(found)}. (`python benchmarks/search.py`)"
    return table(["", *[f"{c['n_bits']} bits" for c in cases]], rows) + "\n\n" + note


def early_table(found: dict[str, Any]) -> str:
    cases = {(c["data"], c["k"]): c for c in found["early_stop"]}
    rows = []
    for k in (1, 2):
        random, real = cases["random", k], cases["real", k]
        gain = real["queries_per_s"] / random["queries_per_s"]
        speeds = [
            f"{c['queries_per_s']:,.0f} ({c['ratio_to_faiss']:.1f} x)" for c in (random, real)
        ]
        rows.append([str(k), *speeds, f"{gain:.2f} x"])
    header = ["512 bits, k", "random codes, queries/s (FAISS)", "real codes", "gain"]
    return table(header, rows)


def recall_table(found: dict[str, Any]) -> str:
    floats, *rows = found["recall"]
    cells = [
        [
            str(row["n_bits"]),
            f"{100 * row['float']:.1f}",
            f"{100 * row['hash']:.1f}",
            f"{100 * row['reranked']:.1f}",
            f"{100 * row['recovered']:.0f} %",
        ]
        for row in rows
    ]
    header = ["bits", "real projections", "codes", "re-ranked, factor 10", "of the loss recovered"]
    note = (
        "Other views of a descriptor that are among its ten nearest, in percent, on scenes that "
        f"were not learned from (RootSIFT, Euclidean: {100 * floats['float']:.1f}). The stored "
        "side is bits only, and with few bits that is where most is lost: the query's "
        "projections cannot bring it back."
    )
    return note + "\n\n" + table(header, cells)


def tables(found: dict[str, Any]) -> dict[str, str]:
    return {
        "search": search_table(found),
        "README.md:search": short_table(found),
        "early": early_table(found),
        "recall": recall_table(found),
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
    for data, (database, asked) in sets.items():
        for n_bits in BITS:
            for threads in (1, 2):
                one = partial(measure, data, database, n_bits=n_bits, k=10, threads=threads)
                cases.append(one(queries=asked[:100], repeats=options.repeats,
                                 peers=threads == 1))  # fmt: skip
                cases.append(one(queries=asked[:1], repeats=3 * options.repeats))
            cases.append(one(queries=asked, repeats=1))
    early = []
    for data, (database, asked) in sets.items():
        for k in (1, 2):
            early.append(measure(data, database, asked[:100], 512, k, 1, options.repeats))
    large, asked = random_codes(options.large, 100)
    growth = []
    for n_bits in BITS:
        case = measure("random", large, asked, n_bits, 10, 1, 3)
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
