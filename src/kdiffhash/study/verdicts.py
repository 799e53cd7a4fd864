"""Verdicts: comparisons are corrected for their number and decide a claim.

A claim is a set of comparisons. Each is a difference with a 95 % confidence interval over objects
and training seeds. Its p-value extends the half of the interval towards zero by a normal tail, so
it is below 0.05 exactly if the interval excludes zero. The p-values of one claim at one false
positive rate are corrected by Holm's method, so that a claim with many comparisons is not decided
by one lucky one.

A claim *holds* if it holds in every judged comparison, *does not hold* if the opposite is
significant in one of them, and is *undecided* otherwise. Comparisons without enough objects
(`enough_objects`) are shown and *not judged*, and so is a claim that has no others. A claim that
the methods and scenes at hand cannot test is *not tested*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..evaluate.bootstrap import Interval

Verdict = Literal["holds", "does not hold", "undecided", "not judged", "not tested"]

_SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Comparison:
    """One difference, in percentage points unless the claim says otherwise.

    `verdict` is whether the claim holds here, after correction: "not judged" where there are too
    few objects, and then there is no `p_value`.
    """

    where: str
    value: float
    low: float
    high: float
    p_value: float | None
    verdict: Verdict


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


def judge(
    found: Sequence[tuple[str, Interval]],
    sign: int,
    mean: Interval | None = None,
    lengths: Sequence[int] = (),
) -> Finding:
    """Correct the comparisons of a claim for their number and decide.

    `sign` is 1 if the claim is that differences are negative, -1 if positive. With the code length
    of each comparison, the summary counts those in which the claim holds by length.
    """
    judged = [i for i, (_, gap) in enumerate(found) if gap.is_reliable]
    corrected = dict(zip(judged, holm([tail_probability(found[i][1]) for i in judged])))
    comparisons = []
    for i, (where, gap) in enumerate(found):
        verdict: Verdict = "not judged"
        if i in corrected:
            significant = corrected[i] < _SIGNIFICANT
            holds = sign * gap.value < 0
            verdict = "undecided" if not significant else "holds" if holds else "does not hold"
        one = Comparison(where, gap.value, gap.low, gap.high, corrected.get(i), verdict)
        comparisons.append(one)
    whole = mean or (found[0][1] if len(found) == 1 else None)
    words = [_count([one.verdict for one in comparisons], lengths)]
    if whole is not None:
        words.insert(0, f"{'mean ' if len(found) > 1 else ''}{in_words(whole)}")
    bounds = (whole.value, whole.low, whole.high) if whole else None
    overall = _overall([one.verdict for one in comparisons])
    return Finding(overall, "; ".join(filter(None, words)), tuple(comparisons), bounds)


def _overall(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a claim from those on its comparisons."""
    judged = [verdict for verdict in verdicts if verdict != "not judged"]
    if not judged:
        return "not judged"
    if "does not hold" in judged:
        return "does not hold"
    return "holds" if all(verdict == "holds" for verdict in judged) else "undecided"


def _count(verdicts: Sequence[Verdict], lengths: Sequence[int]) -> str:
    """Say in how many comparisons a claim holds, and how many have too few objects."""
    n_left_out = verdicts.count("not judged")
    if n_left_out == len(verdicts):
        return "too few objects behind the false positives"
    if len(verdicts) == 1:
        return ""
    text = f"holds in {verdicts.count('holds')} of {len(verdicts) - n_left_out} comparisons"
    by_length: dict[int, list[Verdict]] = {}
    for n_bits, verdict in zip(lengths, verdicts):
        if verdict != "not judged":
            by_length.setdefault(n_bits, []).append(verdict)
    if 1 < len(by_length) < len(verdicts) - n_left_out:
        each = [f"{v.count('holds')} of {len(v)} at {n}" for n, v in sorted(by_length.items())]
        text += f" ({', '.join(each)} bits)"
    if "does not hold" in verdicts:
        text += f", the opposite in {verdicts.count('does not hold')}"
    return text + (f"; {n_left_out} not judged (too few objects)" if n_left_out else "")


def in_words(gap: Interval) -> str:
    """Return a difference and its confidence interval, with minus signs."""
    text = f"{gap.value:+.1f} ({gap.low:+.1f} to {gap.high:+.1f})"
    return text.replace("-", "\N{MINUS SIGN}")


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


def count_verdicts(
    claims: Sequence[Claim], column: Literal["paper", "recommended"] = "paper"
) -> dict[Verdict, int]:
    """Count the verdicts on the paper's claims about one of the methods, where they were tested."""
    verdicts = [main_finding(getattr(one, column)).verdict for one in claims if not one.is_ours]
    known: tuple[Verdict, ...] = ("holds", "does not hold", "undecided", "not judged")
    return {verdict: verdicts.count(verdict) for verdict in known}


def main_finding(column: dict[str, Finding]) -> Finding:
    """Return the finding that counts: the one at 0.1 % FPR, where there are several."""
    return column.get("0.1 %") or next(iter(column.values()))
