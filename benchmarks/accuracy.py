"""Error rates of every method at every length on real scenes, averaged over seeds.

Trained on one scene (100,000 positive pairs drawn uniformly over pairs, 200,000 negative), tested
on two others: the positives of the longest test list and a million negatives of the same scene.
`--methods WORD` measures only the methods whose name contains WORD and keeps the stored rows of the
others.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from support.harness import arguments, report, stored_rows
from support.held_out import code_rates, test_set
from support.markdown import rates, table

import kdiffhash
from kdiffhash import draw_pairs, roc
from kdiffhash.datasets import load_scene
from kdiffhash.evaluate.pair_distances import euclidean
from kdiffhash.study.baselines import MahalanobisMetric, RandomHyperplaneHash

TRAIN, TESTS = "herz-jesus-p25", ("boruszyn", "castle-p30")
TITLES = {"boruszyn": "boruszyn (rural)", "castle-p30": "castle-p30 (architecture)"}
BITS = (32, 64, 128, 256, 512)
ROOT = {"preprocess": "hellinger"}
RKHS = {"n_basis": 1000}
PAPER = dict(kdiffhash.PAPER_SETTING)

Hash = kdiffhash.BaseHasher
METHODS: dict[str, Callable[[int, int], Hash]] = {
    "DIF, cross, SIFT": lambda m, s: kdiffhash.DiffHash(m, moment="cross", random_state=s),
    "DIF, cross, RootSIFT": lambda m, s: kdiffhash.DiffHash(
        m, moment="cross", random_state=s, **ROOT
    ),
    "DIF, difference, SIFT": lambda m, s: kdiffhash.DiffHash(m, random_state=s),
    "DIF, difference, RootSIFT": lambda m, s: kdiffhash.DiffHash(m, random_state=s, **ROOT),
    "LDA-hash, RootSIFT": lambda m, s: kdiffhash.LDAHash(m, random_state=s, **ROOT),
    "kDIF, the paper's setting, SIFT": lambda m, s: kdiffhash.KernelDiffHash(
        m, random_state=s, **PAPER
    ),
    "kDIF, cross, RootSIFT": lambda m, s: kdiffhash.KernelDiffHash(
        m, moment="cross", random_state=s, **RKHS, **ROOT
    ),
    "kDIF, difference, SIFT": lambda m, s: kdiffhash.KernelDiffHash(m, random_state=s, **RKHS),
    "kDIF, difference, RootSIFT": lambda m, s: kdiffhash.KernelDiffHash(
        m, random_state=s, **RKHS, **ROOT
    ),
    "kernel LDA-hash, RootSIFT": lambda m, s: kdiffhash.KernelLDAHash(
        m, random_state=s, **RKHS, **ROOT
    ),
    "kernel LDA-hash, refined, RootSIFT": lambda m, s: kdiffhash.KernelLDAHash(
        m, refine=1000, random_state=s, **RKHS, **ROOT
    ),
    "boosted SSH, projection, RootSIFT": lambda m, s: kdiffhash.BoostedHash(
        m, random_state=s, **ROOT
    ),
    "boosted SSH, axis, RootSIFT": lambda m, s: kdiffhash.BoostedHash(
        m, weak="axis", random_state=s, **ROOT
    ),
    "random hyperplanes, RootSIFT": lambda m, s: RandomHyperplaneHash(m, random_state=s, **ROOT),
    "ITQ, RootSIFT": lambda m, s: kdiffhash.ITQHash(m, random_state=s, **ROOT),
}
LEARNED_FLOAT = "learned float (Mahalanobis), same pairs, RootSIFT"
FLOATS = ("SIFT, Euclidean", "RootSIFT, Euclidean", LEARNED_FLOAT)
DIMENSION_BOUND = ("DIF", "LDA-hash", "ITQ")  # at most one bit per feature


def table_cells(result: dict[str, Any], test: str) -> dict[str, dict[int, str]]:
    """Return cells "FNR (FPR95)" by method and length; the lowest FNR of each length is bold."""
    rows = [row for row in result["rows"] if row["test"] == test]
    best: dict[int, float] = {}
    for row in rows:
        length = row["n_bits"]
        best[length] = min(best.get(length, 1), row["fnr_at_1e-3"])
    cells: dict[str, dict[int, str]] = {}
    for row in rows:
        text = rates(row)
        if row["fnr_at_1e-3"] == best[row["n_bits"]] and row["method"] not in FLOATS:
            text = f"**{text}**"
        cells.setdefault(row["method"], {})[row["n_bits"]] = text
    return cells


def full_table(result: dict[str, Any]) -> str:
    """Return one table per test scene, with all methods and lengths."""
    scene_tables = []
    for test, title in TITLES.items():
        rows = []
        for method, cells in table_cells(result, test).items():
            if method in FLOATS:
                (size,) = cells
                rows.append([f"{method} ({size} bits)", *[""] * 4, cells[size]])
            else:
                rows.append([method, *[cells.get(n, "-") for n in BITS]])
        header = [f"tested on {title}", *[f"{n} bits" for n in BITS]]
        scene_tables.append(table(header, rows))
    return "\n\n".join(scene_tables)


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"accuracy": full_table(result)}


def main() -> None:
    options = arguments(__doc__, seeds=5, methods="")
    warnings.simplefilter("ignore", kdiffhash.ConstantBitWarning)
    train = load_scene(TRAIN)
    tests = {name: test_set(name) for name in TESTS}
    rows = []
    if not options.methods:
        rows = [row for name, test in tests.items() for row in euclidean_rows(name, test)]
    if options.methods in LEARNED_FLOAT:
        rows += learned_float_rows(train, tests, options.seeds)
    for method, make in METHODS.items():
        if options.methods and options.methods not in method:
            continue
        longest = 128 if method.startswith(DIMENSION_BOUND) else 512
        rates: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for seed in range(options.seeds):
            pairs, similar = draw_pairs(train.points, random_state=seed)
            lengths = [m for m in BITS if m <= longest]
            # Prefixes of a code are good shorter codes for all methods except ITQ.
            groups = [[m] for m in lengths] if method.startswith("ITQ") else [lengths]
            for group in groups:
                hasher = make(group[-1], seed)
                hasher.fit_pairs(train.descriptors, pairs, similar, train.points)
                for name, test in tests.items():
                    codes = hasher.transform(test["rows"])
                    for n_bits in group:
                        rates.setdefault((name, n_bits), []).append(code_rates(codes, n_bits, test))
        for (name, n_bits), values in rates.items():
            fnr, fpr95 = np.mean(values, axis=0)
            rows.append(row(method, name, n_bits, fnr, fpr95, float(np.std(values, axis=0)[0])))
            print(rows[-1], file=sys.stderr)
    if options.methods:
        rows += stored_rows("accuracy", lambda row: options.methods not in row["method"])
        order = [*FLOATS, *METHODS]
        rows.sort(key=lambda row: order.index(row["method"]))
    report("accuracy", {"seeds": options.seeds, "rows": rows}, options)


def euclidean_rows(name: str, test: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the error rates of the Euclidean distances of SIFT and RootSIFT."""
    rows = []
    for method, preprocess in zip(FLOATS, (None, "hellinger")):
        curve = roc(euclidean(test["rows"], test["pairs"], preprocess), test["similar"])
        rows.append(row(method, name, 1024, curve.fnr_at(1e-3), curve.fpr95, 0.0))
    return rows


def learned_float_rows(train: Any, tests: dict[str, Any], n_seeds: int) -> list[dict[str, Any]]:
    """Return the error rates of a metric learned from the same pairs, before any binarisation."""
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in tests}
    for seed in range(n_seeds):
        pairs, similar = draw_pairs(train.points, random_state=seed)
        metric = MahalanobisMetric(**ROOT).fit_pairs(train.descriptors, pairs, similar)
        for name, test in tests.items():
            distances = euclidean(metric.transform(test["rows"]), test["pairs"], None)
            curve = roc(distances, test["similar"])
            rates[name].append((curve.fnr_at(1e-3), curve.fpr95))
    return [
        row(LEARNED_FLOAT, name, 4096, *np.mean(each, axis=0), float(np.std(each, axis=0)[0]))
        for name, each in rates.items()
    ]


def row(method: str, test: str, n_bits: int, fnr: float, fpr95: float, std: float) -> dict:
    return {
        "method": method,
        "train": TRAIN,
        "test": test,
        "n_bits": n_bits,
        "fnr_at_1e-3": float(fnr),
        "fpr95": float(fpr95),
        "std": std,
    }


if __name__ == "__main__":
    main()
