"""The sequential test on pairs of scenes that neither the hash nor the test has seen.

The hash (512 bits, refined) learns from caliterra. The test learns when to stop from two other
scenes and is applied to a third, all three in turn; intervals of its rates come from how they
differ between the two. Whole codes are compared at the same false-positive rate.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from support.harness import arguments, interleaved, report, say
from support.held_out import test_set
from support.markdown import table

from kdiffhash import KernelLDAHash, SequentialMatcher, bootstrap, hamming
from kdiffhash.datasets import load_scene

TRAIN = "caliterra"
SCENES = ("herz-jesus-p25", "castle-p30", "boruszyn")
RATES = (1e-3, 1e-2)


def distances(codes: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return hamming(codes[left], codes[right])


def sequential_table(found: dict[str, Any]) -> str:
    lines = []
    for row in found["rows"]:
        low, high = (100 * number for number in row["whole_fnr_interval"])
        lines.append(
            [
                row["test"],
                f"{100 * row['wanted_fpr']:g} %",
                f"{100 * row['fpr']:.2f} %",
                f"{100 * row['fnr']:.1f} %",
                f"{100 * row['whole_fnr_at_fpr']:.1f} % ({low:.1f} to {high:.1f})",
                f"{row['bits_similar']:.0f}",
                f"{row['bits_dissimilar']:.0f}",
                f"**{100 * row['share_read']:.0f} %**",
                f"{row['times_as_fast']:.1f} x",
            ]
        )
    note = (
        f"Codes of {found['n_bits']} bits learned from {found['trained_on']}; when to stop is "
        "learned from two scenes, and tested on a third. Whole codes are compared at the "
        "false-positive rate that the sequential test had there, with 95 % intervals. The share of "
        "bits read is that of as many similar pairs as others; time is that of decisions beside "
        "that of distances of whole codes. (`python benchmarks/sequential_matching.py`)"
    )
    header = [
        "tested on",
        "wanted FPR",
        "FPR",
        "FNR",
        "FNR of whole codes",
        "bits read, similar",
        "bits read, others",
        "share of bits",
        "times as fast",
    ]
    return note + "\n\n" + table(header, lines)


def tables(found: dict[str, Any]) -> dict[str, str]:
    return {"sequential": sequential_table(found)}


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
        learned = np.concatenate([codes[other] for other in others])
        test, mine = tests[name], codes[name]
        left, right = test["pairs"].T
        far = distances(mine, left, right)
        for fpr in RATES:
            matcher = SequentialMatcher(fpr).fit(learned, pairs, similar, groups=groups)
            found = matcher.decide(mine, mine, test["pairs"])
            times = interleaved(
                {
                    "sequential": partial(matcher.decide, mine, mine, test["pairs"]),
                    "whole": partial(distances, mine, left, right),
                },
                5,
            )
            measured = float(found.similar[~test["similar"]].mean())
            missed = float(1 - found.similar[test["similar"]].mean())
            at_rate = bootstrap(
                lambda curve, rate=measured: curve.fnr_at(rate),
                far,
                test["similar"],
                test["objects"],
                n_resamples=200,
                random_state=0,
            )
            bits = [float(found.bits_read[test["similar"] == kind].mean()) for kind in (1, 0)]
            rows.append(
                {
                    "test": name,
                    "wanted_fpr": fpr,
                    "fpr": measured,
                    "fpr_interval": matcher.expected_.fpr_interval,
                    "fnr": missed,
                    "fnr_interval": matcher.expected_.fnr_interval,
                    "whole_fnr_at_fpr": at_rate.value,
                    "whole_fnr_interval": [at_rate.low, at_rate.high],
                    "bits_similar": bits[0],
                    "bits_dissimilar": bits[1],
                    "share_read": float(np.mean(bits)) / 512,
                    "times_as_fast": times["whole"] / times["sequential"],
                }
            )
            say(rows[-1])
    report("sequential_matching", {"trained_on": TRAIN, "n_bits": 512, "rows": rows}, options)


if __name__ == "__main__":
    main()
