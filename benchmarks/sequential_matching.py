"""Error rates, bits read and speed of sequential matching on held-out scenes.

The hasher (512 bits, refined) is trained on caliterra. `SequentialMatcher` is fitted on two other
scenes and tested on a third, for all three. The confidence intervals of its rates come from the
variation between the two scenes. Complete codes are compared at the same FPR.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from support.harness import arguments, interleaved, log, report
from support.held_out import test_set
from support.markdown import table

from kdiffhash import KernelLDAHash, SequentialMatcher, bootstrap, hamming
from kdiffhash.datasets import load_scene

TRAIN = "caliterra"
SCENES = ("herz-jesus-p25", "castle-p30", "boruszyn")
RATES = (1e-3, 1e-2)


def complete_distances(codes: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the Hamming distances of pairs of complete codes."""
    return hamming(codes[left], codes[right])


def sequential_table(result: dict[str, Any]) -> str:
    rows = []
    for row in result["rows"]:
        low, high = (100 * number for number in row["complete_fnr_interval"])
        rows.append(
            [
                row["test"],
                f"{100 * row['wanted_fpr']:g} %",
                f"{100 * row['fpr']:.2f} %",
                f"{100 * row['fnr']:.1f} %",
                f"{100 * row['complete_fnr_at_fpr']:.1f} % ({low:.1f} to {high:.1f})",
                f"{row['bits_positive']:.0f}",
                f"{row['bits_negative']:.0f}",
                f"**{100 * row['share_read']:.0f} %**",
                f"{row['speedup']:.1f}x",
            ]
        )
    note = (
        f"Codes of {result['n_bits']} bits, trained on {result['trained_on']}; the matcher is "
        "fitted on two scenes and tested on a third. The FNR of complete codes is at the FPR that "
        "the sequential test had, with 95 % confidence intervals. The share of bits read is for "
        "equal numbers of positive and negative pairs. Speed is relative to computing the "
        "distances of complete codes. (`python benchmarks/sequential_matching.py`)"
    )
    header = [
        "tested on",
        "wanted FPR",
        "FPR",
        "FNR",
        "FNR of complete codes",
        "bits read, positive pairs",
        "bits read, negative pairs",
        "share of bits read",
        "relative speed",
    ]
    return note + "\n\n" + table(header, rows)


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"sequential": sequential_table(result)}


def main() -> None:
    options = arguments(__doc__, steps=500)
    scene = load_scene(TRAIN)
    hasher = KernelLDAHash(512, preprocess="hellinger", refine=options.steps, random_state=0)
    hasher.fit(np.asarray(scene.descriptors), scene.points)
    tests = {name: test_set(name) for name in SCENES}
    codes = {name: hasher.transform(test["rows"]) for name, test in tests.items()}
    rows = []
    for name in SCENES:
        others = [other for other in SCENES if other != name]
        starts = np.cumsum([0, *(len(codes[other]) for other in others)])
        pairs = np.concatenate([tests[o]["pairs"] + s for o, s in zip(others, starts)])
        similar = np.concatenate([tests[other]["similar"] for other in others])
        groups = np.repeat(others, [len(tests[other]["pairs"]) for other in others])
        fit_codes = np.concatenate([codes[other] for other in others])
        test, test_codes = tests[name], codes[name]
        left, right = test["pairs"].T
        distances = complete_distances(test_codes, left, right)
        for fpr in RATES:
            matcher = SequentialMatcher(fpr).fit(fit_codes, pairs, similar, groups=groups)
            decisions = matcher.decide(test_codes, test_codes, test["pairs"])
            times = interleaved(
                {
                    "sequential": partial(matcher.decide, test_codes, test_codes, test["pairs"]),
                    "complete": partial(complete_distances, test_codes, left, right),
                },
                5,
            )
            measured_fpr = float(decisions.similar[~test["similar"]].mean())
            measured_fnr = float(1 - decisions.similar[test["similar"]].mean())
            at_rate = bootstrap(
                lambda curve, rate=measured_fpr: curve.fnr_at(rate),
                distances,
                test["similar"],
                test["objects"],
                n_resamples=200,
                random_state=0,
            )
            bits = [float(decisions.bits_read[test["similar"] == kind].mean()) for kind in (1, 0)]
            rows.append(
                {
                    "test": name,
                    "wanted_fpr": fpr,
                    "fpr": measured_fpr,
                    "fpr_interval": matcher.expected_.fpr_interval,
                    "fnr": measured_fnr,
                    "fnr_interval": matcher.expected_.fnr_interval,
                    "complete_fnr_at_fpr": at_rate.value,
                    "complete_fnr_interval": [at_rate.low, at_rate.high],
                    "bits_positive": bits[0],
                    "bits_negative": bits[1],
                    "share_read": float(np.mean(bits)) / 512,
                    "speedup": times["complete"] / times["sequential"],
                }
            )
            log(rows[-1])
    report("sequential_matching", {"trained_on": TRAIN, "n_bits": 512, "rows": rows}, options)


if __name__ == "__main__":
    main()
