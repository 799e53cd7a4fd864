"""The paper's claims, each with the numbers behind it and a verdict.

Every claim has two columns. *The paper's method* is the method as the paper describes it, on raw
SIFT, compared with raw SIFT or with methods on raw SIFT. *The recommended method* is the same claim
about the defaults of this package, on RootSIFT, compared with RootSIFT or methods on RootSIFT.

A claim is a set of comparisons: one for each train-test case, code length and false positive rate
that it speaks of. `verdicts` says how they decide it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import numpy as np

from ..evaluate.bootstrap import Interval, interval_of
from .plan import describe
from .results import Results
from .verdicts import Claim, Finding, Verdict, in_words, judge

Measured = tuple[str, str, str, int | None]  # trained on, tested on, method, bits
Choose = Callable[[Results, "Roles"], Sequence[tuple[Measured, Measured]]]

LOW_FPR = {"fnr_at_1e-3": "0.1 %", "fnr_at_1e-4": "0.01 %"}


@dataclass(frozen=True)
class Roles:
    """The methods of one column."""

    kdif: str
    dif: str
    lda: str
    boosted: str
    floats: str
    title: str


PAPER = Roles("kdif-paper", "dif-paper", "lda-paper", "boosted-paper", "sift", "paper")
RECOMMENDED = Roles("kdif", "dif", "lda", "boosted", "rootsift", "recommended")


def decide(results: Results) -> list[Claim]:
    """Return all claims in the order of the paper, then our own rules."""
    return [
        _boosting_is_slower(results),
        _about_rates(
            results,
            "Boosting finds needlessly long hashes: at equal length its error is higher than DIF's",
            "Background, SSH",
            "FNR of boosted SSH minus DIF",
            lambda r, m: _same_length(r, m.boosted, m.dif, 128),
            wanted="above",
        ),
        _about_rates(
            results,
            "DIF is the best of the linear methods (here: LDA-hash and boosted SSH)",
            "Results, citing earlier work",
            "FNR of DIF minus the other method",
            lambda r, m: [
                *_same_length(r, m.dif, m.lda, 128),
                *_same_length(r, m.dif, m.boosted, 128),
            ],
        ),
        _alpha_25_is_best(results),
        _about_rates(
            results,
            "kDIF outperforms DIF consistently, on all scenes and at every common length",
            "Results, Figures 2 to 4",
            "FNR of kDIF minus DIF",
            lambda r, m: _same_length(r, m.kdif, m.dif, 128),
        ),
        _about_rates(
            results,
            "For a long enough hash, kDIF outperforms the descriptor itself",
            "Results, Figures 2 and 3",
            "FNR of kDIF at the longest length minus the float descriptor",
            lambda r, m: [
                ((*case, m.kdif, max(r.plan.lengths)), (*case, m.floats, None)) for case in r.cases
            ],
        ),
        _about_rates(
            results,
            "kDIF outperforms the descriptor while 2 to 4 times more compact",
            "Results, Figure 4",
            "FNR of kDIF at 256 and 512 bits minus the float descriptor of 1024 bits",
            lambda r, m: [
                ((*case, m.kdif, n), (*case, m.floats, None))
                for case in r.cases
                for n in (256, 512)
            ],
        ),
        _about_rates(
            results,
            "Hashes longer than 128 bits perform better",
            "Results, Figure 4",
            "FNR of kDIF at 256 and 512 bits minus kDIF at 128 bits",
            lambda r, m: [
                ((*case, m.kdif, n), (*case, m.kdif, 128)) for case in r.cases for n in (256, 512)
            ],
        ),
        _about_rates(
            results,
            "Training on nature costs some accuracy on architecture",
            "Results, Figures 2 and 3",
            "FNR of kDIF trained on nature minus kDIF trained on other architecture",
            _nature_for_architecture,
            wanted="above",
            missing="needs a natural and an architectural training scene and another to test on",
        ),
        _first_matches(results),
        _cheaper(results),
        *_our_rules(results),
    ]


def _our_rules(results: Results) -> list[Claim]:
    """Return rules that make a remark of the paper testable; the paper does not state them."""
    return [
        _about_rates(
            results,
            "Codes generalise gracefully: another training scene costs at most 5 points",
            "Our rule for a remark in Results",
            "FNR of kDIF minus kDIF trained on the test scene itself, minus 5",
            lambda r, m: [
                ((train, test, m.kdif, n), (test, test, m.kdif, n))
                for train, test in r.cases
                if train != test and (test, test) in r.cases and not r.plan.cases
                for n in r.plan.lengths
            ],
            margin=5.0,
            missing="needs all combinations of two scenes, measured on the same test pairs",
            is_ours=True,
        ),
        _other_descriptors(results),
    ]


def _about_rates(
    results: Results,
    claim: str,
    section: str,
    quantity: str,
    choose: Choose,
    *,
    wanted: Literal["below", "above"] = "below",
    margin: float = 0.0,
    missing: str = "the methods were not measured at these lengths",
    is_ours: bool = False,
) -> Claim:
    """Judge a claim that one FNR lies below (or above) another, plus a margin in points."""
    sign = 1 if wanted == "below" else -1

    def find(roles: Roles, rate: str) -> Finding:
        found, samples, lengths = [], [], []
        for first, second in choose(results, roles):
            a, b = results.rate(*first, rate), results.rate(*second, rate)
            if a is None or b is None:
                continue
            reliable = results.is_reliable(*first, rate) and results.is_reliable(*second, rate)
            n = min(len(a[1]), len(b[1]))
            samples.append(100 * (a[1][:n] - b[1][:n]) - margin)
            gap = interval_of(100 * (a[0] - b[0]) - margin, samples[-1], is_reliable=reliable)
            found.append((_name(results, first, second), gap))
            lengths.append(first[3] or 0)
        if not found:
            return Finding("not tested", missing)
        n = min(map(len, samples))
        mean = interval_of(
            float(np.mean([gap.value for _, gap in found])),
            np.mean([one[:n] for one in samples], axis=0),
        )
        return judge(found, sign, mean, lengths)

    paper, recommended = (
        {text: find(roles, rate) for rate, text in LOW_FPR.items()}
        for roles in (PAPER, RECOMMENDED)
    )
    if paper["0.1 %"].verdict == "not tested":
        paper = {"": paper["0.1 %"]}
    if recommended["0.1 %"].verdict == "not tested":
        recommended = {"": recommended["0.1 %"]}
    figure = "size-{}-to-{}".format(*results.cases[0])
    return Claim(claim, section, f"{quantity}, points", figure, paper, recommended, is_ours)


def _name(results: Results, first: Measured, second: Measured) -> str:
    train, test, method, n_bits = first
    size = f"{n_bits} bits" if n_bits else results.methods[method].title
    if second[0] != train:
        against = f"training on {second[0]}"
    elif second[2] != method:
        against = results.methods[second[2]].title
    else:
        against = f"{second[3]} bits"
    return f"{train} \N{RIGHTWARDS ARROW} {test}, {size} against {against}"


def _points(bounds: Sequence[float], is_reliable: bool = True) -> Interval:
    """Return a difference of shares and its bounds in percentage points."""
    value, low, high = (100 * number for number in bounds)
    return Interval(value, low, high, is_reliable)


def _same_length(results: Results, a: str, b: str, longest: int) -> list[tuple[Measured, Measured]]:
    lengths = [n for n in results.plan.lengths if n <= longest]
    return [((*case, a, n), (*case, b, n)) for case in results.cases for n in lengths]


def _nature_for_architecture(results: Results, roles: Roles) -> list[tuple[Measured, Measured]]:
    kinds, cases = results.kinds, results.cases
    return [
        ((nature, test, roles.kdif, n), (building, test, roles.kdif, n))
        for (nature, test), (building, same_test) in product(cases, cases)
        if test == same_test != building
        and kinds.get(test) == kinds.get(building) == "architecture"
        and kinds.get(nature) == "natural"
        for n in results.plan.lengths
    ]


def _boosting_is_slower(results: Results) -> Claim:
    def find(roles: Roles) -> dict[str, Finding]:
        found = []
        for scene in dict.fromkeys(train for train, _ in results.cases):
            boosted = results.trained.get((scene, roles.boosted))
            linear = results.trained.get((scene, roles.dif))
            if boosted and linear:
                # DIF's longest code, all of boosting's: a bit of boosting takes equally long.
                per_bit = [one.seconds / max(one.lengths) for one in boosted]
                ratios = [a * max(b.lengths) / b.seconds for a, b in zip(per_bit, linear)]
                bounds = Interval(float(np.median(ratios)) - 1, min(ratios) - 1, max(ratios) - 1)
                found.append((scene, bounds))
        if not found:
            return {"": Finding("not tested", "boosted SSH and DIF were not both trained")}
        verdict: Verdict = "holds" if all(gap.low > 0 for _, gap in found) else "undecided"
        words = []
        for scene, gap in found:
            spread = f" ({1 + gap.low:.0f} to {1 + gap.high:.0f})" if gap.low < gap.high else ""
            words.append(f"{1 + gap.value:.0f}{spread} times on {scene}")
        return {"": Finding(verdict, f"{describe(words)}, at equal length")}

    return Claim(
        "Boosting has a high computational cost",
        "Background, SSH",
        "training time of boosted SSH relative to DIF, median and range over training seeds",
        "",
        find(PAPER),
        find(RECOMMENDED),
    )


def _alpha_25_is_best(results: Results) -> Claim:
    sweep = results.extras.get("alpha")
    train, test = results.cases[0]
    condition = ""
    if sweep:
        condition = (
            f", {train} \N{RIGHTWARDS ARROW} {test}, {sweep['n_bits']} bits, one training seed"
        )

    def find(setting: str) -> dict[str, Finding]:
        if not sweep:
            return {"": Finding("not tested", "kDIF was not trained")}
        measured = sweep["settings"][setting]
        found = [
            (f"alpha = {alpha}", _points(bounds, measured.get("is_reliable", True)))
            for alpha, bounds in measured["minus_25"].items()
        ]
        finding = judge(found, -1)
        where, lowest = min(found, key=lambda one: one[1].value)
        words = f"lowest with {where}: {in_words(lowest)}; {finding.summary}"
        return {"": replace(finding, summary=words)}

    return Claim(
        "alpha = 25 gives the best results",
        "Results",
        f"FNR of kDIF at 0.1 % FPR with another alpha minus alpha = 25{condition}, points",
        "alpha",
        find("paper"),
        find("recommended"),
    )


def _first_matches(results: Results) -> Claim:
    matches = results.extras.get("matches")

    def find(column: str) -> dict[str, Finding]:
        cases = [case for case in matches["cases"] if column in case] if matches else []
        if not cases:
            return {"": Finding("not tested", "kDIF was not trained")}
        found = [
            (
                f"{case['train']} \N{RIGHTWARDS ARROW} {case['test']}",
                _points(case[column]),
            )
            for case in cases
        ]
        finding = judge(found, -1)
        each = describe([in_words(gap) for _, gap in found])
        return {"": replace(finding, summary=f"{each} points")}

    return Claim(
        "First matches by kDIF are better than by the descriptor itself",
        "Results, Figure 5",
        "precision of the first five matches at the longest length minus the float descriptor",
        "matches",
        find("paper"),
        find("recommended"),
    )


def _cheaper(results: Results) -> Claim:
    times = results.extras.get("times")
    if not times:
        column = {"": Finding("not tested", "times were not measured")}
    else:
        found = [
            (f"{n} bits", Interval(*(number - 1 for number in ratio)))
            for n, ratio in times["ratios"].items()
        ]
        words = [
            f"{1 + gap.value:.1f} ({1 + gap.low:.1f} to {1 + gap.high:.1f}) at {where}"
            for where, gap in found
        ]
        verdict: Verdict = "holds" if all(gap.low > 0 for _, gap in found) else "undecided"
        summary = f"Euclidean over Hamming: {describe(words)}"
        column = {"": Finding(verdict, summary)}
    return Claim(
        "Hamming distances are cheaper to compute than Euclidean ones",
        "Results",
        "time of a Euclidean comparison relative to a comparison of codes, median and range of "
        "eight repetitions",
        "",
        column,
        column,
    )


def _other_descriptors(results: Results) -> Claim:
    measured: list[dict[str, Any]] = results.extras.get("descriptors") or []
    column = {"": Finding("not tested", "needs patches or another descriptor in both scenes")}
    if measured:
        found = [
            (one["descriptor"], _points(one["difference"], one.get("is_reliable", True)))
            for one in measured
        ]
        column = {"": judge(found, 1)}
    return Claim(
        "The method works for other descriptors: kDIF beats the descriptor's Euclidean distance",
        "Our rule for a remark in Conclusions",
        "FNR of kDIF at 0.1 % FPR, 256 bits, minus the float descriptor, points",
        "",
        {"": Finding("not tested", "measured for the recommended method alone")},
        column,
        is_ours=True,
    )
