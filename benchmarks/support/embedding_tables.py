"""The tables that `embeddings.py` writes."""

from __future__ import annotations

from typing import Any

from .markdown import machine_note, table, with_interval

LENGTHS = (8, 16, 32, 48, 64)
SHOWN = {  # for the page of embeddings: baselines centred per side, which is better for all of them
    "sign bits": "sign bits",
    "sign bits, centred": "sign bits, centred",
    "random rotation, centred": "random rotation, centred",
    "ITQ, centred": "ITQ, centred",
    "ITQ, refined, centred": "ITQ, refined, centred",
    "PQ, centred": "PQ, centred",
    "OPQ + PQ, centred": "OPQ + PQ, centred",
    "RaBitQ after PCA, centred": "RaBitQ after PCA, centred",
}
COMMAND = "(`python benchmarks/embeddings.py`)"


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {
        "embeddings": by_length(result),
        "embeddings-difference": differences(result, "recall_at_10"),
        "embeddings-vectors": without_pairs(result),
        "embeddings-domain": other_domain(result),
        "embeddings-all": all_rows(result),
    }


def on_packages(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in result["rows"] if row["data"] == "debian"]


def lines_by_length(
    rows: list[dict[str, Any]], measure: str, names: dict[str, str]
) -> list[list[str]]:
    """Return one line per method and kind of query, with a measure for each length."""
    lines = []
    for name, title in names.items():
        for kind in ("bits", "float"):
            own = {
                r["bytes"]: r[measure] for r in rows if (r["method"], r["query"]) == (name, kind)
            }
            if own.keys() & set(LENGTHS):
                cells = [f"{own[n]:.3f}" if n in own else "-" for n in LENGTHS]
                lines.append([title, kind, *cells])
    return lines


def value_of(rows: list[dict[str, Any]], method: str, measure: str) -> float:
    return next(row[measure] for row in rows if row["method"] == method)


def by_length(result: dict[str, Any]) -> str:
    """Return recall@10 of the baselines and of all methods that learn from pairs."""
    rows = on_packages(result)
    learned = {row["method"]: row["method"] for row in rows if row["learned_from"] == "pairs"}
    floats = [
        value_of(rows, name, "recall_at_10") for name in ("float cosine", "float cosine, centred")
    ]
    note = (
        "Recall@10 by bytes per document: short descriptions of Debian packages as queries, long "
        f"ones as documents, embedded by MiniLM; {result['n_queries']:,} queries among "
        f"{result['n_documents']:,} documents of the test split, learned from "
        f"{result['n_train']:,} pairs of the training split. The floats (1,536 bytes) have "
        f"{floats[0]:.3f}, and {floats[1]:.3f} if the mean of each side is subtracted. {COMMAND}"
    )
    header = ["method", "query", *(f"{n} bytes" for n in LENGTHS)]
    return f"{note}\n\n{table(header, lines_by_length(rows, 'recall_at_10', SHOWN | learned))}"


def differences(result: dict[str, Any], measure: str) -> str:
    """Return the recipe against the best baseline of at most as many bytes."""
    lines = [
        [
            str(row["bytes"]),
            row["query"],
            f"{row['value']:.3f}",
            f"{row['baseline']} ({row['baseline_bytes']} bytes): {row['baseline_value']:.3f}",
            "{:+.3f} ({:+.3f} to {:+.3f})".format(row["difference"], *row["difference_interval"]),
        ]
        for row in result["comparisons"]
        if row["measure"] == measure
    ]
    note = (
        f"Recall@10 of {result['recipe']} minus that of the best method without pairs at the same "
        "or fewer bytes and the same kind of query, with 95 % confidence intervals over queries. "
        f"The best is chosen on the same queries, in its favour. {COMMAND}"
    )
    return f"{note}\n\n{table(['bytes', 'query', 'learned', 'best baseline', 'difference'], lines)}"


def without_pairs(result: dict[str, Any]) -> str:
    """Return the share of the float's ten nearest that methods without pairs find."""
    rows = [row for row in on_packages(result) if row["learned_from"] != "pairs"]
    names = {row["method"]: row["method"] for row in rows if "float" not in row["method"]}
    note = (
        "Share of the ten nearest documents by cosine similarity that are among the first ten, for "
        f"methods that learn from vectors alone, and RaBitQ with its factors counted. {COMMAND}"
    )
    header = ["method", "query", *(f"{n} bytes" for n in LENGTHS)]
    return f"{note}\n\n{table(header, lines_by_length(rows, 'overlap_at_10', names))}"


def other_domain(result: dict[str, Any]) -> str:
    """Return what codes that were learned on packages are worth for other texts."""
    lines = []
    for row in result["rows"]:
        if row["data"] != "wordnet":
            continue
        learned = {"debian": "packages", "wordnet": "WordNet"}[row["learned_on"]]
        lines.append(
            [
                row["method"],
                learned if row["learned_from"] != "nothing" else "-",
                str(row["bytes"]),
                row["query"],
                with_interval(row["recall_at_10"], *row["recall_at_10_interval"]),
                f"{row['ndcg_at_10']:.3f}",
            ]
        )
    note = (
        "Recall@10 in percent, and nDCG@10, on another domain: the words of WordNet's nouns as "
        f"queries, their definitions as documents. {COMMAND}"
    )
    header = ["method", "learned on", "bytes", "query", "recall@10", "nDCG@10"]
    return f"{note}\n\n{table(header, lines)}"


def all_rows(result: dict[str, Any]) -> str:
    """Return every measure of every row."""
    lines = [
        [
            row["method"],
            str(row["bytes"]),
            row["query"],
            f"{row['recall_at_1']:.3f}",
            "{:.3f} ({:.3f} to {:.3f})".format(row["recall_at_10"], *row["recall_at_10_interval"]),
            f"{row['recall_at_100']:.3f}",
            f"{row['ndcg_at_10']:.3f}",
            f"{row['overlap_at_10']:.3f}",
            f"{100 * row['fnr_at_1e-3']:.1f}",
            f"{row['fit_s']:.1f}",
            f"{row['encode_us']:.1f}",
        ]
        for row in on_packages(result)
    ]
    note = (
        "All measures on the test split of the packages; the FNR is in percent, at 0.1 % FPR, with "
        f"a million negative pairs. {machine_note(result)}, one thread. {COMMAND}"
    )
    header = ["method", "bytes", "query", "recall@1", "recall@10", "recall@100", "nDCG@10"]
    header += ["overlap@10", "FNR", "fit in s", "encode in µs"]
    return f"{note}\n\n{table(header, lines)}"
