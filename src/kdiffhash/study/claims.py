"""The paper's claims, each with the numbers behind it and a verdict.

Every claim has two columns. *The paper's method* is the method as the paper describes it, on raw
SIFT, compared with raw SIFT or with methods on raw SIFT. *The recommended method* is the same claim
about the defaults of this package, on RootSIFT, compared with RootSIFT or methods on RootSIFT.

A claim is a set of comparisons: one for each train-test case, code length and false positive rate
that it speaks of. Each is a difference with a 95 % confidence interval over objects and training
seeds. Its p-value extends the half of the interval towards zero by a normal tail, so it is below
0.05 exactly if the interval excludes zero. The p-values of one claim at one false positive rate are
corrected by Holm's method, so that a claim with many comparisons is not decided by one lucky one.

A claim *holds* if it holds in every comparison, *does not hold* if the opposite is significant in
one of them, and is *undecided* otherwise. Comparisons without enough objects (`enough_objects`) are
shown and not judged. A claim that the methods and scenes at hand cannot test is *not tested*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import numpy as np

from ..evaluate.bootstrap import Interval, interval_of
from .plan import describe
from .results import Results

Verdict = Literal["holds", "does not hold", "undecided", "not tested"]
Measured = tuple[str, str, str, int | None]  # trained on, tested on, method, bits
Choose = Callable[[Results, "Roles"], Sequence[tuple[Measured, Measured]]]

LOW_FPR = {"fnr_at_1e-3": "0.1 %", "fnr_at_1e-4": "0.01 %"}
_SIGNIFICANT = 0.05


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


@dataclass(frozen=True)
class Comparison:
    """One difference, in percentage points unless the claim says otherwise.

    `verdict` is whether the claim holds here, after correction; None where there are too few
    objects to judge.
    """

    where: str
    value: float
    low: float
    high: float
    p_value: float
    verdict: Verdict | None


@dataclass(frozen=True)
class Finding:
    """One column of a claim at one false positive rate: its comparisons and the verdict."""

    verdict: Verdict
    summary: str
    comparisons: tuple[Comparison, ...] = ()
    mean: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, or a rule of ours, with its findings.

    Attributes
    ----------
    claim : str
        What is claimed, in our words.
    section : str
        Where the paper says it.
    quantity : str
        What is compared.
    figure : str
        Name of the figure that shows it.
    paper, recommended : dict of Finding
        By false positive rate ("0.1 %", "0.01 %") or, for other quantities, under "".
    is_ours : bool
        True for a rule that the paper does not state; it does not count among its claims.
    """

    claim: str
    section: str
    quantity: str
    figure: str
    paper: dict[str, Finding]
    recommended: dict[str, Finding]
    is_ours: bool = False


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
            "FNR of kDIF minus kDIF trained on the test scene itself, less 5 points",
            lambda r, m: [
                ((train, test, m.kdif, n), (test, test, m.kdif, n))
                for train, test in r.cases
                if train != test and (test, test) in r.cases
                for n in r.plan.lengths
            ],
            margin=5.0,
            missing="needs a scene that is both trained and tested on, and another one",
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
        found, samples = [], []
        for first, second in choose(results, roles):
            a, b = results.rate(*first, rate), results.rate(*second, rate)
            if a is None or b is None:
                continue
            reliable = results.is_reliable(*first, rate) and results.is_reliable(*second, rate)
            n = min(len(a[1]), len(b[1]))
            samples.append(100 * (a[1][:n] - b[1][:n]) - margin)
            gap = interval_of(100 * (a[0] - b[0]) - margin, samples[-1], is_reliable=reliable)
            found.append((_name(first, second), gap))
        if not found:
            return Finding("not tested", missing)
        n = min(map(len, samples))
        mean = interval_of(
            float(np.mean([gap.value for _, gap in found])),
            np.mean([one[:n] for one in samples], axis=0),
        )
        return judge(found, sign, mean)

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


def judge(
    found: Sequence[tuple[str, Interval]], sign: int, mean: Interval | None = None, unit: str = ""
) -> Finding:
    """Correct the comparisons of a claim for their number and decide.

    `sign` is 1 if the claim is that differences are negative, -1 if positive.
    """
    judged = [i for i, (_, gap) in enumerate(found) if gap.is_reliable]
    corrected = dict(zip(judged, holm([tail_probability(found[i][1]) for i in judged])))
    comparisons = []
    for i, (where, gap) in enumerate(found):
        verdict: Verdict | None = None
        if i in corrected:
            significant = corrected[i] < _SIGNIFICANT
            holds = sign * gap.value < 0
            verdict = "undecided" if not significant else "holds" if holds else "does not hold"
        one = Comparison(where, gap.value, gap.low, gap.high, corrected.get(i, 1.0), verdict)
        comparisons.append(one)
    verdicts = [one.verdict for one in comparisons if one.verdict]
    n_holds, n_fails = verdicts.count("holds"), verdicts.count("does not hold")
    overall: Verdict = "undecided"
    if n_fails:
        overall = "does not hold"
    elif verdicts and n_holds == len(verdicts):
        overall = "holds"
    if not verdicts:
        summary = "not judged: too few objects behind the false positives"
    elif len(verdicts) == 1 and len(comparisons) == 1:
        summary = ""
    else:
        summary = f"holds in {n_holds} of {len(verdicts)} comparisons"
        summary += f", the opposite in {n_fails}" if n_fails else ""
        if len(verdicts) < len(comparisons):
            summary += f"; {len(comparisons) - len(verdicts)} not judged (too few objects)"
    whole = mean or (found[0][1] if len(found) == 1 else None)
    if whole is not None:
        text = f"{whole.value:+.1f}{unit} ({whole.low:+.1f} to {whole.high:+.1f})"
        text = text.replace("-", "\N{MINUS SIGN}")
        summary = f"{'mean ' if len(found) > 1 else ''}{text}" + (f"; {summary}" if summary else "")
    bounds = (whole.value, whole.low, whole.high) if whole else None
    return Finding(overall, summary, tuple(comparisons), bounds)


def tail_probability(gap: Interval) -> float:
    """Return the two-sided p-value of a difference.

    The half-width of its 95 % confidence interval towards zero counts as 1.96 standard deviations.
    """
    half = gap.value - gap.low if gap.value > 0 else gap.high - gap.value
    if gap.value == 0:
        return 1.0
    return math.erfc(1.959964 * abs(gap.value) / half / math.sqrt(2)) if half > 0 else 0.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method."""
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def count_verdicts(claims: Sequence[Claim]) -> dict[Verdict, int]:
    """Count the verdicts on the paper's own claims about its own method, where they were tested."""
    verdicts = [main_finding(one.paper).verdict for one in claims if not one.is_ours]
    known: tuple[Verdict, ...] = ("holds", "does not hold", "undecided")
    return {verdict: verdicts.count(verdict) for verdict in known}


def main_finding(column: dict[str, Finding]) -> Finding:
    """Return the finding that counts: the one at 0.1 % FPR, where there are several."""
    return column.get("0.1 %") or next(iter(column.values()))


def _name(first: Measured, second: Measured) -> str:
    train, test, method, n_bits = first
    size = f"{n_bits} bits" if n_bits else method
    against = "" if second[0] == train else f", against {second[0]}"
    return f"{train} \N{RIGHTWARDS ARROW} {test}{against}, {size}, {second[2]}"


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
        times = [1 + gap.value for _, gap in found]
        verdict: Verdict = "holds" if all(gap.low > 0 for _, gap in found) else "undecided"
        words = describe([f"{value:.0f} times" for value in times])
        return {"": Finding(verdict, f"{words} the training time of DIF at equal length")}

    return Claim(
        "Boosting has a high computational cost",
        "Background, SSH",
        "training time of boosted SSH relative to DIF",
        "",
        find(PAPER),
        find(RECOMMENDED),
    )


def _alpha_25_is_best(results: Results) -> Claim:
    sweep = results.extras.get("alpha")

    def find(setting: str) -> dict[str, Finding]:
        if not sweep:
            return {"": Finding("not tested", "kDIF was not trained")}
        found = [
            (f"alpha = {alpha}", Interval(*(100 * number for number in bounds)))
            for alpha, bounds in sweep["settings"][setting]["minus_25"].items()
        ]
        return {"": judge(found, -1)}

    return Claim(
        "alpha = 25 gives the best results",
        "Results",
        "FNR of kDIF at 0.1 % FPR with another alpha minus alpha = 25, points",
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
                Interval(*(100 * number for number in case[column])),
            )
            for case in cases
        ]
        finding = judge(found, -1)
        each = describe(
            [f"{gap.value:+.1f} ({gap.low:+.1f} to {gap.high:+.1f})" for _, gap in found]
        ).replace("-", "\N{MINUS SIGN}")
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
        words = [f"{1 + gap.value:.1f} at {where}" for where, gap in found]
        verdict: Verdict = "holds" if all(gap.low > 0 for _, gap in found) else "undecided"
        summary = f"Euclidean over Hamming: {describe(words)}"
        column = {"": Finding(verdict, summary)}
    return Claim(
        "Hamming distances are cheaper to compute than Euclidean ones",
        "Results",
        "time of a Euclidean comparison relative to a comparison of codes, eight repetitions",
        "",
        column,
        column,
    )


def _other_descriptors(results: Results) -> Claim:
    measured: list[dict[str, Any]] = results.extras.get("descriptors") or []
    column = {"": Finding("not tested", "needs patches or another descriptor in both scenes")}
    if measured:
        found = [
            (one["descriptor"], Interval(*(100 * number for number in one["difference"])))
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
