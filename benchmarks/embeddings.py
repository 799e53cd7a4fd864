"""Codes of text embeddings: every method and length, learned on and searched in Debian packages.

Queries are short descriptions, documents long ones; the relevant document of a query is that of the
same package. Methods (`support/embedding_methods.py`) learn from the training split. They are
measured on the test split, or with `--split valid` on the validation split, on which settings are
chosen. Some are also measured on another domain, the words and definitions of WordNet. Each
measured row is kept in the folder `--out`; `--methods "ITQ; PQ"` measures these again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from support.embedding_tables import tables as tables
from support.embeddings import TextPairs, draw_negatives, load_debian
from support.harness import arguments, log, report

from kdiffhash.evaluate import (
    mean_over_queries,
    ndcg_at_k,
    nearest_by_cosine,
    overlap_at_k,
    recall_at_k,
)

MEASURES = (
    *("recall_at_1", "recall_at_10", "recall_at_100", "ndcg_at_10"),
    *("overlap_at_10", "fnr_at_1e-3"),
)
N_NEGATIVES = 1_000_000
OURS = "LDAHash, refined"  # the recipe of docs/embeddings.md for pairs, chosen on `valid`
OTHER_DOMAIN = ("float cosine", "sign bits", "sign bits, centred", "ITQ, centred", OURS)
OTHER_DOMAIN_LENGTHS = (16, 48, 1536)
UNLABELLED = ("nothing", "vectors")
UNLABELLED_RECIPE = ""  # that of `fit(X)`, if there is one

Found = list[tuple[dict[str, Any], np.ndarray]]  # rows without measures, and values by query


# -- measuring ---------------------------------------------------------------------------------


class Measurements:
    """Measures of each query, kept in a folder by method, bytes and kind of query."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, method: str, n_bytes: int) -> Path:
        name = "".join(c if c.isalnum() else "-" for c in method)
        return self.folder / f"{name}.{n_bytes}.npz"

    def save(self, head: dict[str, Any], values: dict[str, np.ndarray]) -> None:
        path = self.path(head["method"], head["bytes"])
        np.savez_compressed(path, head=np.array(json.dumps(head)), **values)

    def load(self, method: str, n_bytes: int) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        """Yield a row without its measures, and the measures by query, for each kind of query."""
        path = self.path(method, n_bytes)
        if path.exists():
            with np.load(path) as stored:
                head = json.loads(str(stored["head"]))
                for kind in stored.files[1:]:
                    yield {**head, "query": kind}, stored[kind].astype(np.float64)


class Task:
    """Queries and documents, what the floats find, and the pairs for the FNR."""

    def __init__(self, data: TextPairs) -> None:
        self.data, n = data, len(data)
        self.nearest = nearest_by_cosine(self.data.queries, self.data.documents, 10)
        negatives = draw_negatives(self.data, N_NEGATIVES) - np.array([0, n])
        pairs = np.concatenate([np.stack([np.arange(n)] * 2, axis=1), negatives])
        order = np.argsort(pairs[:, 0], kind="stable")
        self.pairs, self.similar = pairs[order], order < n

    def measure(self, learned: Any, kind: str, stored: Any) -> np.ndarray:
        """Return the value of each measure for each query, shape (measures, queries)."""
        data = self.data
        ids = learned.search(kind, data.queries, stored, 100)
        own = np.arange(len(data))
        distances = learned.distances(kind, data.queries, stored, self.pairs)
        return np.stack(
            [
                *(recall_at_k(ids, own, k) for k in (1, 10, 100)),
                ndcg_at_k(ids, own, 10),
                overlap_at_k(ids, self.nearest, 10),
                false_negatives(distances[self.similar], distances[~self.similar], 1e-3),
            ]
        )


def false_negatives(positives: np.ndarray, negatives: np.ndarray, fpr: float) -> np.ndarray:
    """Return which positives are rejected at a false positive rate: 0 or 1, a share for ties.

    The threshold is that of all negatives. Where it falls among equal distances, each pair at this
    distance is accepted with the probability that gives the wanted rate.
    """
    accepted = fpr * len(negatives)
    threshold = np.sort(negatives)[int(accepted)]
    below, at = (negatives < threshold).sum(), (negatives == threshold).sum()
    tied = 1 - (accepted - below) / at
    return np.where(positives == threshold, tied, positives > threshold)


def measure_method(method: Any, n_bytes: int, train: TextPairs, task: Task) -> tuple[Any, Any]:
    """Learn a method for a length; return its row without measures, and its measures by query."""
    start = time.perf_counter()
    learned = method.learn(train, n_bytes)
    elapsed = time.perf_counter() - start
    fit_s = getattr(learned, "fit_s", None) or elapsed
    if learned.n_bytes != n_bytes:
        raise ValueError(f"{method.name} stores {learned.n_bytes} bytes, not {n_bytes}")
    some = task.data.documents[:2000]
    learned.encode(some)  # compiles, and packs what encoding needs once
    start = time.perf_counter()
    learned.encode(some)
    encode_us = 1e6 * (time.perf_counter() - start) / len(some)
    stored = learned.encode(task.data.documents)
    values = {kind: task.measure(learned, kind, stored) for kind in learned.queries}
    head = {
        "data": "debian",
        "method": method.name,
        "bytes": n_bytes,
        "fit_s": round(fit_s, 2),
        "encode_us": round(encode_us, 2),
    }
    return head, values


# -- results -----------------------------------------------------------------------------------


def with_measures(head: dict[str, Any], values: np.ndarray, sources: np.ndarray) -> dict[str, Any]:
    """Return a row with the mean of each measure and its confidence interval over queries."""
    row = dict(head)
    intervals = mean_over_queries(values, groups=sources, random_state=0)
    for name, interval in zip(MEASURES, intervals):
        row[name] = round(interval.value, 4)
        row[f"{name}_interval"] = [round(interval.low, 4), round(interval.high, 4)]
    return row


def compare(
    found: Found,
    ours: str,
    measure: str,
    learned_from: tuple[str, ...],
    sources: np.ndarray,
) -> list[dict[str, Any]]:
    """Compare a method with the best baseline of at most as many bytes, query by query.

    Baselines are not learned from pairs. The best is the one with the highest measure on the same
    queries, which favours the baselines.
    """
    column, rows = MEASURES.index(measure), []
    for head, values in found:
        if head["method"] != ours:
            continue
        rivals = [
            (float(other_values[column].mean()), other, other_values[column])
            for other, other_values in found
            if other["bytes"] <= head["bytes"]
            and other["query"] == head["query"]
            and other["learned_from"] in learned_from
            and other["method"] != ours
        ]
        if not rivals:
            continue
        value, best, theirs = max(rivals, key=lambda rival: rival[0])
        difference = mean_over_queries(values[column] - theirs, groups=sources, random_state=0)[0]
        rows.append(
            {
                "measure": measure,
                "bytes": head["bytes"],
                "query": head["query"],
                "method": ours,
                "value": round(float(values[column].mean()), 4),
                "baseline": best["method"],
                "baseline_bytes": best["bytes"],
                "baseline_value": round(value, 4),
                "difference": round(difference.value, 4),
                "difference_interval": [round(difference.low, 4), round(difference.high, 4)],
            }
        )
    return rows


def measure_all(
    lines: list[tuple[Any, int]], kept: Measurements, train: TextPairs, task: Task, asked: list[str]
) -> Found:
    """Return rows without measures and their values by query; measure what is not kept."""
    found = []
    for method, n_bytes in lines:
        if method.name in asked or not kept.path(method.name, n_bytes).exists():
            kept.save(*measure_method(method, n_bytes, train, task))
        for head, values in kept.load(method.name, n_bytes):
            found.append(({**head, "learned_from": method.learned_from}, values))
            recall, overlap = values[1].mean(), values[4].mean()
            log(f"{method.name} {n_bytes} {head['query']}: {recall:.4f}, {overlap:.4f}")
    return found


def other_domain(folder: Path, train: TextPairs, asked: list[str]) -> list[dict[str, Any]]:
    """Measure some methods on WordNet; the recipe is learned there, and on the packages."""
    from support.embedding_methods import METHODS
    from support.wordnet import load_wordnet

    task, rows = Task(load_wordnet("test", folder)), []
    chosen = [
        (m, n)
        for m in METHODS
        if m.name in OTHER_DOMAIN
        for n in m.lengths
        if n in OTHER_DOMAIN_LENGTHS
    ]
    for name, side in (("wordnet", load_wordnet("train", folder)), ("debian", train)):
        lines = [line for line in chosen if name == "wordnet" or line[0].name == OURS]
        kept = Measurements(folder / f"wordnet-from-{name}")
        for head, values in measure_all(lines, kept, side, task, asked):
            head = {**head, "data": "wordnet", "learned_on": name}
            rows.append(with_measures(head, values, task.data.sources))
    return rows


def main() -> None:
    options = arguments(__doc__, split="test", methods="", out="embeddings-report")
    from support.embedding_methods import METHODS

    asked = [name.strip() for name in options.methods.split(";") if name.strip()]
    if unknown := set(asked) - {method.name for method in METHODS}:
        raise SystemExit(f"no such method: {', '.join(sorted(unknown))}")
    folder = Path(options.out)
    train, task = load_debian("train"), Task(load_debian(options.split))
    lines = [(method, n_bytes) for method in METHODS for n_bytes in method.lengths]
    found = measure_all(lines, Measurements(folder / options.split), train, task, asked)
    sources = task.data.sources
    rows = [with_measures({**head, "learned_on": "debian"}, v, sources) for head, v in found]
    rows += other_domain(folder, train, asked) if options.split == "test" else []
    result = {
        "split": options.split,
        "n_train": len(train),
        "n_queries": len(task.data),
        "n_documents": len(task.data),
        "recipe": OURS,
        "rows": rows,
        "comparisons": [
            *compare(found, OURS, "recall_at_10", UNLABELLED, sources),
            *(
                compare(found, UNLABELLED_RECIPE, "overlap_at_10", UNLABELLED, sources)
                if UNLABELLED_RECIPE
                else ()
            ),
        ],
    }
    options.no_save |= options.split != "test"  # only the test split is reported
    report("embeddings", result, options)


if __name__ == "__main__":
    main()
