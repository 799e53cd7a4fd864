"""Prefixes of refined 512-bit codes compared with codes refined for one length only.

Trained on three scenes and tested on the fourth, with a million negatives. `--scenes` tests on some
scenes only and keeps the stored rows of the others.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from frontier import STEPS
from refinement_cost import SETTINGS
from support.harness import arguments, log, report, stored_rows
from support.held_out import SCENES, code_rates, test_set, training_data
from support.markdown import table

import kdiffhash
from kdiffhash import KernelLDAHash, draw_pairs
from kdiffhash.learn.preprocess import preprocess_rows
from kdiffhash.learn.refinement import Hash, Refinement, refine

LENGTHS = (32, 64, 128, 256)


def compare(scene: str) -> list[dict[str, Any]]:
    """Return the FNR of prefixes and of separately refined codes on a held-out scene."""
    data, test = training_data(scene), test_set(scene)
    pairs, similar = draw_pairs(data.labels, random_state=0)
    rows = preprocess_rows(np.asarray(data.rows), "hellinger")
    labels = np.unique(data.labels, return_inverse=True)[1]

    def refined_codes(n_bits: int, shortest: int) -> Any:
        hasher = KernelLDAHash(n_bits, **SETTINGS).fit_pairs(data.rows, pairs, similar)
        settings = Refinement(STEPS, shortest_prefix=shortest)
        drawn, drawn_similar = draw_pairs(labels, STEPS * settings.batch_size, 1, random_state=0)
        start = Hash(hasher._feature_map(), hasher.directions_, hasher.thresholds_)
        rng = np.random.default_rng(0)
        best = refine(start, rows, drawn[drawn_similar], labels, settings, rng)
        hasher.basis_ = best.features.basis
        hasher.directions_, hasher.thresholds_ = best.directions, best.thresholds
        return hasher.transform(test["rows"])

    codes, results = refined_codes(512, 32), []
    for n_bits in LENGTHS:
        separate = code_rates(refined_codes(n_bits, n_bits), n_bits, test)[0]
        prefix = code_rates(codes, n_bits, test)[0]
        results.append({"test": scene, "n_bits": n_bits, "prefix": prefix, "separate": separate})
        log(results[-1])
    return results


def prefix_table(result: dict[str, Any]) -> str:
    rows = result["rows"]
    for n in dict.fromkeys(row["n_bits"] for row in rows):
        same = [row for row in rows if row["n_bits"] == n]
        means = {key: sum(row[key] for row in same) / len(same) for key in ("prefix", "separate")}
        rows = [*rows, {"test": "mean", "n_bits": n, **means}]
    lines = [
        [
            row["test"],
            str(row["n_bits"]),
            f"{100 * row['prefix']:.1f}",
            f"{100 * row['separate']:.1f}",
            f"{100 * (row['prefix'] - row['separate']):+.1f}",
        ]
        for row in rows
    ]
    note = (
        "FNR in percent at 0.1 % FPR of prefixes of 512-bit codes and of codes refined for that "
        "length only, trained on the other three scenes. "
        "(`python benchmarks/prefix_codes.py`)"
    )
    header = ["tested on", "bits", "prefix of 512 bits", "refined for this length", "difference"]
    return f"{note}\n\n{table(header, lines)}"


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"prefixes": prefix_table(result)}


def main() -> None:
    options = arguments(__doc__, scenes=" ".join(SCENES))
    warnings.simplefilter("ignore", kdiffhash.ConstantBitWarning)
    scenes = options.scenes.split()
    rows = [row for scene in scenes for row in compare(scene)]
    if set(scenes) != set(SCENES):
        rows += stored_rows("prefix_codes", lambda row: row["test"] not in scenes)
        rows.sort(key=lambda row: SCENES.index(row["test"]))
    report("prefix_codes", {"steps": STEPS, "rows": rows}, options)


if __name__ == "__main__":
    main()
