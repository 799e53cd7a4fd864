"""Float queries against stored bits: cost of a comparison, and recall against time.

Codes are those of Debian packages (see `embeddings.py`). Costs are measured on a million codes:
those of the packages, again and again with a tenth of the bits flipped. Recall and time are
measured on the test split; a callback re-ranks by the originals, as int8 or float16. One thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from support.embeddings import load_debian
from support.harness import arguments, interleaved, log, report
from support.markdown import machine_note, table

from kdiffhash import HammingIndex
from kdiffhash.codes import pack
from kdiffhash.evaluate import mean_over_queries, recall_at_k

FIGURE = Path(__file__).parents[1] / "docs" / "embeddings" / "float-queries.svg"
METHOD = "LDAHash, refined, prefixes"  # of embeddings.py
N_CODES = 1_000_000
BATCHES = (1, 100)
LENGTHS = (8, 16, 32, 48)
FACTORS = (2, 10, 50)  # candidates per result when re-ranking
REPEATS = 3
K = 10

# Colours that colour-blind readers can distinguish, and markers for print in grey.
STYLES = {
    "bits": ("#0072b2", "o"),
    "bits, re-ranked by projections": ("#56b4e9", "^"),
    "float query": ("#d55e00", "s"),
    "float query, re-ranked by int8 originals": ("#009e73", "D"),
    "RaBitQ after PCA": ("#555555", "X"),
}


# -- cost of a comparison ----------------------------------------------------------------------


def cost_rows(hasher: Any, documents: np.ndarray, queries: np.ndarray) -> list[dict[str, Any]]:
    """Return nanoseconds per comparison of a query with a code, by number of bits and queries."""
    rng, rows = np.random.default_rng(0), []
    for n_bytes in LENGTHS:
        shorter = hasher.truncate(8 * n_bytes)
        codes = shorter.transform(documents)[np.arange(N_CODES) % len(documents)]
        flips = rng.random((2**16, 8 * n_bytes)) < 0.1
        codes ^= pack(flips)[rng.integers(len(flips), size=N_CODES)]
        index = HammingIndex(codes)
        for n_queries in BATCHES:
            asked = queries[:n_queries]
            bits, floats = shorter.transform(asked), shorter.project(asked)
            search = partial(index.search, k=K, n_jobs=1)
            seconds = interleaved(
                {
                    "bits": partial(search, bits),
                    "reranked": partial(search, bits, rerank_projections=floats),
                    "float": partial(search, queries_float=floats),
                },
                REPEATS if n_queries > 1 else 20 * REPEATS,
            )
            ns = {name: 1e9 * value / n_queries / N_CODES for name, value in seconds.items()}
            rows.append(
                {
                    "bytes": n_bytes,
                    "queries": n_queries,
                    **{f"{name}_ns": round(value, 4) for name, value in ns.items()},
                    "ratio": round(ns["float"] / ns["bits"], 2),
                    "ratio_reranked": round(ns["float"] / ns["reranked"], 2),
                }
            )
            log(rows[-1])
    return rows


# -- recall against time -----------------------------------------------------------------------


def originals_distance(
    documents: np.ndarray, queries: np.ndarray
) -> Callable[[int, np.ndarray], np.ndarray]:
    """Return a callback that compares a query with stored originals, of any numeric type."""

    def distance(query: int, ids: np.ndarray) -> np.ndarray:
        rows = documents[ids].astype(np.float32)
        return -(rows @ queries[query]) / np.linalg.norm(rows, axis=1)

    return distance


def searches(
    hasher: Any, n_bytes: int, documents: np.ndarray, queries: np.ndarray
) -> dict[tuple[str, int], Callable[[], Any]]:
    """Return the searches to compare, by name and number of candidates per result."""
    shorter = hasher.truncate(8 * n_bytes)
    index = HammingIndex(shorter.transform(documents))
    search = partial(index.search, k=K, n_jobs=1)
    stored = {
        "int8": np.rint(documents * (127 / np.abs(documents).max())).astype(np.int8),
        "float16": documents.astype(np.float16),
    }

    def by_bits(**options: Any) -> Any:
        return search(shorter.transform(queries), **options)

    def by_floats(**options: Any) -> Any:
        return search(queries_float=shorter.project(queries), **options)

    found: dict[tuple[str, int], Callable[[], Any]] = {
        ("bits", 1): by_bits,
        ("float query", 1): by_floats,
    }
    for factor in FACTORS:
        found["bits, re-ranked by projections", factor] = partial(
            lambda factor: by_bits(
                rerank_projections=shorter.project(queries), rerank_factor=factor
            ),
            factor,
        )
    for kind, rows in stored.items():
        for name, first in (("bits", by_bits), ("float query", by_floats)):
            found[f"{name}, re-ranked by {kind} originals", 10] = partial(
                first, rerank=originals_distance(rows, queries), rerank_factor=10
            )
    return found


def rabitq(n_bytes: int, train: Any, data: Any, queries: np.ndarray) -> Any:
    """Return a search by RaBitQ after PCA, at eight bytes more for its factors."""
    from support.embedding_methods import RABITQ, centred

    learned = centred(RABITQ)(train, n_bytes + 8)
    index = learned.encode(data.documents)
    queries = learned.centring.of_queries(queries)
    return lambda: index.search(queries, K)


def recall_rows(
    hasher: Any, centring: Any, train: Any, data: Any, n_queries: int
) -> list[dict[str, Any]]:
    """Return recall@10 and microseconds per query, encoding of the query included.

    Rows are centred; for RaBitQ they are also scaled to length 1.
    """
    chosen = np.random.default_rng(0).choice(len(data), n_queries, replace=False)
    queries, rows = data.queries[chosen], []
    sides = centring.of_documents(data.documents), centring.of_queries(queries)
    for n_bytes in LENGTHS:
        compared = searches(hasher, n_bytes, *sides)
        compared["RaBitQ after PCA", 1] = rabitq(n_bytes, train, data, queries)
        results: dict[Any, Any] = {}

        def keep(key: Any, search: Callable[[], Any], results: Any = results) -> None:
            results[key] = search()[1]

        timed = {str(key): partial(keep, key, search) for key, search in compared.items()}
        seconds = interleaved(timed, REPEATS)
        for name, factor in compared:
            recall = mean_over_queries(
                recall_at_k(results[name, factor], chosen, K),
                groups=data.sources[chosen],
                random_state=0,
            )[0]
            rows.append(
                {
                    "method": name,
                    "factor": factor,
                    "bytes": n_bytes + 8 * (name == "RaBitQ after PCA"),
                    "recall_at_10": round(recall.value, 4),
                    "recall_at_10_interval": [round(recall.low, 4), round(recall.high, 4)],
                    "us_per_query": round(1e6 * seconds[str((name, factor))] / n_queries, 2),
                }
            )
            log(rows[-1])
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw recall against time, one line per method; points are lengths."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "kdiffhash"
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    for name, (colour, marker) in STYLES.items():
        for factor in sorted({row["factor"] for row in rows if row["method"] == name}):
            line = [row for row in rows if row["method"] == name and row["factor"] == factor]
            times = [row["us_per_query"] for row in line]
            axes.plot(
                times,
                [row["recall_at_10"] for row in line],
                color=colour,
                marker=marker,
                linestyle="-" if factor in (1, 10) else ":",
                label=f"{name} ({10 * factor} candidates)" if factor > 1 else name,
            )
            if name in ("bits", "RaBitQ after PCA") or "int8" in name:
                for row in line:
                    axes.annotate(
                        f"{row['bytes']}",
                        (row["us_per_query"], row["recall_at_10"]),
                        xytext=(0, 6 if "int8" in name else -13),
                        textcoords="offset points",
                        ha="center",
                        fontsize=8,
                        color=colour,
                    )
    axes.set_xscale("log")
    axes.set_xlabel("microseconds per query, one thread (numbers at points: bytes per document)")
    axes.set_ylabel("recall@10")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=8, loc="lower center")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


# -- tables ------------------------------------------------------------------------------------


def cost_table(result: dict[str, Any]) -> str:
    lines = [
        [
            str(row["bytes"]),
            str(row["queries"]),
            f"{row['bits_ns']:.3f}",
            f"{row['reranked_ns']:.3f}",
            f"{row['float_ns']:.3f}",
            f"{row['ratio']:.1f}",
            f"{row['ratio_reranked']:.1f}",
        ]
        for row in result["costs"]
    ]
    note = (
        "Nanoseconds per comparison of a query with one of a million codes, for the ten nearest, "
        f"on one thread. {machine_note(result)}. (`python benchmarks/float_queries.py`)"
    )
    header = ["bytes", "queries at a time", "bits", "bits, best 100 re-ranked by projections"]
    header += ["float query", "float query / bits", "float query / re-ranked"]
    return f"{note}\n\n{table(header, lines)}"


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"float-queries": cost_table(result)}


def main() -> None:
    options = arguments(__doc__, queries=2000, figure=str(FIGURE))
    from support.embedding_methods import METHODS

    train, data = load_debian("train"), load_debian("test")
    learned = next(m for m in METHODS if m.name == METHOD).learn(train, max(LENGTHS))
    hasher = learned.of_documents
    costs = cost_rows(hasher, load_debian().documents, data.queries)
    rows = recall_rows(hasher, learned.centring, train, data, options.queries)
    if not options.no_save:
        draw(rows, Path(options.figure))
    result = {"method": METHOD, "n_documents": len(data), "n_queries": options.queries}
    report("float_queries", {**result, "costs": costs, "rows": rows}, options)


if __name__ == "__main__":
    main()
