"""Accuracy per bit: every method at every length, leaving one scene out at a time.

A method is trained on three scenes and tested on the fourth: the positives of its longest test list
and a million negatives of the same scene. Methods with a grid use the setting with the lowest FNR
at 0.1 % FPR on held-out points of the training scenes. Differences are paired: the objects of the
test scene are resampled in the same way for both methods. `--methods WORD` measures only the
methods whose name contains WORD and keeps the stored rows of the others; "kernel" includes both
methods that the differences need.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from support.harness import arguments, log, report, stored_rows
from support.held_out import SCENES, test_set, training_data
from support.markdown import rates, table, with_interval

import kdiffhash
from kdiffhash import draw_pairs, hamming, roc
from kdiffhash.codes import truncate
from kdiffhash.evaluate.bootstrap import bootstrap_difference
from kdiffhash.study.baselines import KSHHash, RandomHyperplaneHash, SDHHash
from kdiffhash.study.selection import choose_setting

BITS = (32, 64, 128, 256, 512)
STEPS = 1000
BEST, CLOSED = "kernel LDA-hash, refined", "kernel LDA-hash, closed form"
KSH_GRID = {"n_rows": (1000, 3000), "n_basis": (300,)}
SDH_GRID = {"nu": (1e-5, 1e-2), "n_rows": (10_000,)}

Make = Callable[..., kdiffhash.BaseHasher]
# Name, class, fixed settings, grid, longest code, whether shorter codes are prefixes.
METHODS: list[tuple[str, Make, dict[str, Any], dict[str, tuple[Any, ...]], int, bool]] = [
    ("random hyperplanes", RandomHyperplaneHash, {}, {}, 512, True),
    ("ITQ", kdiffhash.ITQHash, {}, {}, 128, False),
    ("DIF", kdiffhash.DiffHash, {}, {}, 128, True),
    ("LDA-hash", kdiffhash.LDAHash, {}, {}, 128, True),
    ("boosted SSH", kdiffhash.BoostedHash, {"n_positives": 50_000}, {}, 128, True),
    ("KSH", KSHHash, {}, KSH_GRID, 128, False),
    ("SDH", SDHHash, {}, SDH_GRID, 512, False),
    ("kDIF", kdiffhash.KernelDiffHash, {}, {}, 512, True),
    (CLOSED, kdiffhash.KernelLDAHash, {"gamma": "median", "ridge": 1e-3}, {}, 512, True),
    ("kernel LDA-hash, decaying regularisation", kdiffhash.KernelLDAHash, {}, {}, 512, True),
    ("LDA-hash, refined", kdiffhash.LDAHash, {"refine": STEPS}, {}, 128, True),
    (BEST, kdiffhash.KernelLDAHash, {"refine": STEPS}, {}, 512, True),
]


def choose(make: Make, settings: dict[str, Any], grid: dict[str, Any], data: Any) -> dict[str, Any]:
    """Return the setting with the lowest error at 64 bits on a held-out third of the labels."""
    if not grid:
        return {}
    labels = np.unique(data.labels, return_inverse=True)[1]
    held_out = np.random.default_rng(0).random(labels.max() + 1)[labels] < 1 / 3
    rows = np.asarray(data.rows)
    pairs, similar = draw_pairs(labels[held_out], 20_000, 200_000, random_state=1)

    def fit(setting: dict[str, Any]) -> kdiffhash.BaseHasher:
        hasher = make(64, preprocess="hellinger", random_state=0, **settings, **setting)
        return hasher.fit(rows[~held_out], labels[~held_out])

    best, table = choose_setting(grid, fit, rows[held_out], pairs, similar, [64])
    log(table)
    return best


def measure(method: tuple[Any, ...], data: Any, test: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return error rates, distances of the test pairs and training time by length."""
    _, make, settings, grid, longest, nested = method
    lengths = [n_bits for n_bits in BITS if n_bits <= longest]
    chosen = choose(make, settings, grid, data)
    measured = {}
    for group in [lengths] if nested else [[n_bits] for n_bits in lengths]:
        start = time.perf_counter()
        hasher = make(group[-1], preprocess="hellinger", random_state=0, **settings, **chosen)
        if isinstance(hasher, RandomHyperplaneHash | kdiffhash.ITQHash):
            hasher.fit(np.asarray(data.rows))
        else:
            pairs, similar = draw_pairs(data.labels, random_state=0)
            hasher.fit_pairs(data.rows, pairs, similar, data.labels)
        seconds = time.perf_counter() - start
        codes = hasher.transform(test["rows"])
        for n_bits in group:
            short = truncate(codes, n_bits)
            distances = hamming(*(short[side] for side in test["pairs"].T))
            curve = roc(distances, test["similar"])
            measured[n_bits] = {
                "fnr_at_1e-3": curve.fnr_at(1e-3),
                "fnr_at_1e-4": curve.fnr_at(1e-4),
                "fpr95": curve.fpr95,
                "fit_seconds": seconds,
                "distances": distances.astype(np.int16),
                "chosen": chosen,
            }
    return measured


def frontier_table(result: dict[str, Any]) -> str:
    cells: dict[str, dict[int, dict]] = {}
    for row in result["rows"]:
        cells.setdefault(row["method"], {})[row["n_bits"]] = row
    best = {n: min(c[n]["fnr_at_1e-3"] for c in cells.values() if n in c) for n in BITS}
    rows = []
    for method, by_length in cells.items():
        cells_of_row = [method]
        for n in BITS:
            if n not in by_length:
                cells_of_row.append("-")
                continue
            row = by_length[n]
            text = rates(row)
            cells_of_row.append(f"**{text}**" if row["fnr_at_1e-3"] == best[n] else text)
        rows.append(
            [*cells_of_row, f"{max(row['fit_seconds'] for row in by_length.values()):.0f} s"]
        )
    gaps = []
    for row in result["recommended_minus_closed_form"]:
        text = with_interval(row["difference"], *row["interval"])
        gaps.append((row["test"], row["n_bits"], text))
    scenes = list(dict.fromkeys(test for test, _, _ in gaps))
    by_cell = {(test, n): text for test, n, text in gaps}
    gap_rows = [[scene, *(by_cell[scene, n] for n in BITS)] for scene in scenes]
    note = (
        "Trained on three of herz-jesus-p25, castle-p30, caliterra and boruszyn and tested on the "
        "fourth, for all four, on RootSIFT: mean FNR in percent at 0.1 % FPR, with FPR95 in "
        "brackets. The lowest FNR of each length is bold. KSH must be trained for each length and "
        "was trained up to 128 bits. KSH and SDH use the better of two settings, KSH of 1,000 or "
        "3,000 rows, SDH of nu = 1e-5 or 1e-2. (`python benchmarks/frontier.py`)"
    )
    header = [f"{n} bits" for n in BITS]
    title = (
        f"Paired difference in FNR, {result['recommended']} minus closed form, in percentage "
        "points, with 95 % confidence intervals:"
    )
    return "\n\n".join(
        [
            note,
            table(["method", *header, "longest training time"], rows),
            title,
            table(["tested on", *header], gap_rows),
        ]
    )


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"frontier": frontier_table(result)}


def main() -> None:
    options = arguments(__doc__, methods="")
    warnings.simplefilter("ignore", kdiffhash.ConstantBitWarning)
    by_scene, rows, differences = [], {}, []
    for scene in SCENES:
        data, test = training_data(scene), test_set(scene)
        distances = {}
        for method in METHODS:
            name = method[0]
            if options.methods and options.methods not in name:
                continue
            for n_bits, measured in measure(method, data, test).items():
                pair_distances, chosen = measured.pop("distances"), measured.pop("chosen")
                by_scene.append({"test": scene, "method": name, "n_bits": n_bits, **measured})
                by_scene[-1] |= {"chosen": chosen} if chosen else {}
                rows.setdefault((name, n_bits), []).append(measured)
                log(by_scene[-1])
                if name in (BEST, CLOSED):
                    distances[name, n_bits] = pair_distances
        for n_bits in BITS:
            if (BEST, n_bits) in distances and (CLOSED, n_bits) in distances:
                gap = bootstrap_difference(
                    lambda curve: curve.fnr_at(1e-3),
                    distances[BEST, n_bits],
                    distances[CLOSED, n_bits],
                    test["similar"],
                    test["objects"],
                    n_resamples=200,
                    random_state=0,
                )
                differences.append(
                    {
                        "test": scene,
                        "n_bits": n_bits,
                        "difference": gap.value,
                        "interval": [gap.low, gap.high],
                    }
                )
                log(differences[-1])
    means = [
        {"method": name, "n_bits": n_bits}
        | {key: float(np.mean([scene[key] for scene in scenes])) for key in scenes[0]}
        for (name, n_bits), scenes in rows.items()
    ]
    if options.methods:
        names = [method[0] for method in METHODS]

        def keep(row: dict[str, Any]) -> bool:
            return options.methods not in row["method"]

        means += stored_rows("frontier", keep)
        by_scene += stored_rows("frontier", keep, "by_scene")
        means.sort(key=lambda row: names.index(row["method"]))
    result = {"rows": means, "recommended": BEST, "by_scene": by_scene}
    report("frontier", {**result, "recommended_minus_closed_form": differences}, options)


if __name__ == "__main__":
    main()
