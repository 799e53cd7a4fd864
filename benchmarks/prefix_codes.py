"""A prefix of a refined code of 512 bits beside a code that was refined for its length alone.

Learned from three scenes and tested on the fourth, with a million negatives. `--scenes` tests on
some, and takes the others from the last result.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from frontier import STEPS
from refinement_cost import SETTINGS
from support.harness import arguments, report, rows_before, say
from support.held_out import SCENES, code_rates, test_set, without
from support.markdown import table

import kdiffhash
from kdiffhash import KernelLDAHash, draw_pairs
from kdiffhash.learn.preprocess import preprocess_rows
from kdiffhash.learn.refinement import Hash, Refinement, refine

LENGTHS = (32, 64, 128, 256)


def compare(scene: str) -> list[dict[str, Any]]:
    data, test = without(scene), test_set(scene)
    pairs, similar = draw_pairs(data.labels, random_state=0)
    rows = preprocess_rows(np.asarray(data.rows), "hellinger")
    ids = np.unique(data.labels, return_inverse=True)[1]

    def learn(n_bits: int, shortest: int) -> Any:
        hasher = KernelLDAHash(n_bits, **SETTINGS).fit_pairs(data.rows, pairs, similar)
        settings = Refinement(STEPS, shortest=shortest)
        drawn, flags = draw_pairs(ids, STEPS * settings.batch, 1, random_state=0)
        start = Hash(hasher._feature_map(), hasher.directions_, hasher.thresholds_)
        rng = np.random.default_rng(0)
        found = refine(start, rows, drawn[flags], ids, settings, rng)
        hasher.basis_ = found.features.basis
        hasher.directions_, hasher.thresholds_ = found.directions, found.thresholds
        return hasher.transform(test["rows"])

    nested, found = learn(512, 32), []
    for n_bits in LENGTHS:
        alone = code_rates(learn(n_bits, n_bits), n_bits, test)[0]
        prefix = code_rates(nested, n_bits, test)[0]
        found.append({"test": scene, "n_bits": n_bits, "nested": prefix, "alone": alone})
        say(found[-1])
    return found


def nesting_table(found: dict[str, Any]) -> str:
    rows = found["rows"]
    for n in dict.fromkeys(row["n_bits"] for row in rows):
        same = [row for row in rows if row["n_bits"] == n]
        means = {key: sum(row[key] for row in same) / len(same) for key in ("nested", "alone")}
        rows = [*rows, {"test": "mean", "n_bits": n, **means}]
    lines = [
        [
            row["test"],
            str(row["n_bits"]),
            f"{100 * row['nested']:.1f}",
            f"{100 * row['alone']:.1f}",
            f"{100 * (row['nested'] - row['alone']):+.1f}",
        ]
        for row in rows
    ]
    note = (
        "Percent missed at 0.1 % false positives by prefixes of 512 bits, and by codes that were "
        "refined for one length alone; learned from the other three scenes. "
        "(`python benchmarks/prefix_codes.py`)"
    )
    header = ["tested on", "bits", "prefix", "alone", "difference"]
    return f"{note}\n\n{table(header, lines)}"


def tables(found: dict[str, Any]) -> dict[str, str]:
    return {"nesting": nesting_table(found)}


def main() -> None:
    options = arguments(__doc__, scenes=" ".join(SCENES))
    warnings.simplefilter("ignore", kdiffhash.ConstantBitWarning)
    wanted = options.scenes.split()
    rows = [row for scene in wanted for row in compare(scene)]
    if set(wanted) != set(SCENES):
        rows += rows_before("prefix_codes", lambda row: row["test"] not in wanted)
        rows.sort(key=lambda row: SCENES.index(row["test"]))
    report("prefix_codes", {"steps": STEPS, "rows": rows}, options)


if __name__ == "__main__":
    main()
