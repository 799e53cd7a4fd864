"""The paper's claims, each with a verdict from paired resampling.

A claim about rates is a mean difference, over train-test pairs and code lengths, of rates that were
resampled on the same points. Scenes are resampled apart from each other, so the resampled means
make the interval of the mean. The claim holds if the whole interval is on its side of zero, it does
not if the whole interval is on the other side, and otherwise this data does not decide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..evaluate.bootstrap import Interval, interval_of
from .plan import describe, name_of

if TYPE_CHECKING:
    from .run import Results

Verdict = Literal["holds", "does not hold", "not decided by this data"]
Measured = tuple[str, str, str, int | None]  # learned on, tested on, method, bits
Comparisons = Sequence[tuple[Measured, Measured]]


@dataclass(frozen=True)
class Claim:
    """A claim, what was found, and the verdict.

    `interval` has the measured difference with its bounds, in percent points; None where there is
    none.
    """

    claim: str
    verdict: Verdict
    found: str
    interval: tuple[float, float, float] | None = None


def decide(results: Results) -> list[Claim]:
    """All claims in the order of the paper."""
    lengths, cases = results.plan.lengths, results.cases
    longest, short = max(lengths), [n for n in lengths if n <= 128]
    kinds, extras = results.kinds, results.extras
    sift = [((*case, "kdif", n), (*case, "sift", None)) for case in cases for n in lengths]
    return [
        _about_rates(
            results,
            "kDIF is better than DIF at the same length (both on RootSIFT, best settings)",
            _same_length(results, "kdif", "dif", short),
        ),
        _about_rates(
            results,
            "the same in the paper's setting (raw SIFT, cross moments, alpha = 25)",
            _same_length(results, "kdif-paper", "dif-paper", short),
        ),
        _about_rates(
            results,
            "codes longer than 128 bits are better (kDIF)",
            [((*case, "kdif", longest), (*case, "kdif", 128)) for case in cases if longest > 128],
        ),
        _about_rates(
            results,
            "kDIF beats raw SIFT while 2 to 4 times more compact",
            [(a, b) for a, b in sift if 256 <= (a[3] or 0) <= 512],
        ),
        _about_rates(
            results,
            "what was learned on one scene beats raw SIFT on another",
            [(a, b) for a, b in sift if a[3] == longest and a[0] != a[1]],
        ),
        _about_rates(
            results,
            "it generalises: training on another scene costs at most 5 points",
            [
                ((train, test, "kdif", longest), (test, test, "kdif", longest))
                for train, test in cases
                if train != test and (test, test) in cases
            ],
            limit=5.0,
            what="FNR against training on the scene itself",
            why="needs a scene that is both trained and tested on, and another",
        ),
        _about_rates(
            results,
            "for architecture, training on nature is worse than on other architecture",
            [
                ((nature, test, "kdif", longest), (building, test, "kdif", longest))
                for (nature, test), (building, same_test) in product(cases, cases)
                if test == same_test != building
                and kinds.get(test) == kinds.get(building) == "architecture"
                and kinds.get(nature) == "natural"
            ],
            wanted="above",
            what="FNR against training on other architecture",
            why="needs natural and architectural scenes to train on, and another architectural to "
            "test on",
        ),
        _boosting_is_slower(results),
        _about_rates(
            results,
            "boosting needs longer hashes: at the same length it is worse than kDIF",
            _same_length(results, "boosted", "kdif", lengths),
            wanted="above",
            what="FNR of boosted SSH minus kDIF's",
            why="boosted SSH is missing",
        ),
        _dif_is_best_linear(results, short),
        _first_matches(extras.get("matches")),
        _cheaper(extras.get("times"), lengths),
        _another_descriptor(extras.get("hog")),
    ]


def _verdict(interval: Interval, wanted: Literal["below", "above"], limit: float = 0) -> Verdict:
    sign = 1 if wanted == "below" else -1
    low, high = sorted([sign * (interval.low - limit), sign * (interval.high - limit)])
    if high < 0:
        return "holds"
    return "does not hold" if low > 0 else "not decided by this data"


def _of_ratio(ratio: float) -> Verdict:
    """Whether something takes longer: half as long again, or not even as long."""
    if ratio >= 1.5:
        return "holds"
    return "does not hold" if ratio < 1 else "not decided by this data"


def _undecided(claim: str, why: str) -> Claim:
    return Claim(claim, "not decided by this data", why)


def _same_length(results: Results, a: str, b: str, lengths: Sequence[int]) -> Comparisons:
    return [((*case, a, n), (*case, b, n)) for case in results.cases for n in lengths]


def _mean_difference(results: Results, comparisons: Comparisons) -> Interval | None:
    """Mean of the first FNR minus the second, in percent points, with its interval."""
    values, samples = [], []
    for a, b in comparisons:
        first, second = results.rate(*a, "fnr_at_1e-3"), results.rate(*b, "fnr_at_1e-3")
        if first is not None and second is not None:
            values.append(100 * (first[0] - second[0]))
            samples.append(100 * (first[1] - second[1]))
    if not values:
        return None
    n = min(map(len, samples))
    return interval_of(float(np.mean(values)), np.mean([one[:n] for one in samples], axis=0))


def _decided(claim: str, verdict: Verdict, what: str, interval: Interval) -> Claim:
    text = f"{interval.value:+.1f} points ({interval.low:+.1f} to {interval.high:+.1f})"
    text = text.replace("-", "\N{MINUS SIGN}")
    bounds = (interval.value, interval.low, interval.high)
    return Claim(claim, verdict, f"{what}: {text}", bounds)


def _about_rates(
    results: Results,
    claim: str,
    comparisons: Comparisons,
    *,
    wanted: Literal["below", "above"] = "below",
    limit: float = 0,
    what: str = "difference in FNR at 0.1 % FPR",
    why: str = "they were not measured at these lengths",
) -> Claim:
    """A claim that the mean difference of FNRs at 0.1 % FPR lies below or above a limit."""
    interval = _mean_difference(results, comparisons)
    if interval is None:
        return _undecided(claim, why)
    return _decided(claim, _verdict(interval, wanted, limit), what, interval)


def _boosting_is_slower(results: Results) -> Claim:
    claim = "boosting is slower to train"
    ratios, lengths = [], ""
    for scene in map(name_of, results.plan.train):
        boosted, kernel = (results.trained.get((scene, name)) for name in ("boosted", "kdif"))
        if boosted and kernel:
            ratios.append(boosted.seconds / kernel.seconds)
            lengths = f"{max(boosted.hashers)} bits against {max(kernel.hashers)}"
    if not ratios:
        return _undecided(claim, "boosted SSH and kDIF were not both trained")
    ratio = float(np.mean(ratios))
    return Claim(claim, _of_ratio(ratio), f"{ratio:.1f} times as long as kDIF, {lengths}")


def _dif_is_best_linear(results: Results, short: list[int]) -> Claim:
    claim = "DIF is the best of the linear family"
    peers: dict[str, Interval] = {}
    for other in ("lda", "random", "itq"):
        interval = _mean_difference(results, _same_length(results, "dif", other, short))
        if interval is not None:
            peers[results.methods[other].title] = interval
    if not peers:
        return _undecided(claim, "DIF and its peers were not measured")
    title, interval = max(peers.items(), key=lambda item: item[1].value)
    verdict = _verdict(interval, "below")
    verdicts = [_verdict(one, "below") for one in peers.values()]
    if "does not hold" in verdicts:
        verdict = "does not hold"
    elif verdicts != ["holds"] * 3:
        verdict = "not decided by this data"
    return _decided(claim, verdict, f"FNR against {title}, its best peer", interval)


def _first_matches(matches: dict[str, Any] | None) -> Claim:
    claim = "first matches are better than SIFT's (precision of the first five)"
    if not matches:
        return _undecided(claim, "kDIF was not trained")
    interval = Interval(*(100 * number for number in matches["difference"]))
    what = f"{matches['judged']}: precision minus SIFT's, {matches['n_queries']} queries"
    return _decided(claim, _verdict(interval, "above"), what, interval)


def _cheaper(times: dict[str, float] | None, lengths: tuple[int, ...]) -> Claim:
    claim = "comparing codes is far cheaper than comparing SIFT"
    if not times:
        return _undecided(claim, "times were not taken")
    ratios = {n: times["euclidean"] / times[str(n)] for n in lengths}
    parts = [f"{ratio:.1f} times (at {n} bits)" for n, ratio in ratios.items()]
    found = f"a Euclidean comparison takes {describe(parts)} as long"
    return Claim(claim, _of_ratio(min(ratios.values())), found)


def _another_descriptor(hog: dict[str, Any] | None) -> Claim:
    claim = "it works for another descriptor: kDIF beats the Euclidean distance of HOG"
    if not hog:
        return _undecided(claim, "needs patches, and one of these scenes has descriptors only")
    interval = Interval(*(100 * number for number in hog["difference"]))
    what = f"{hog['n_bits']} bits against {hog['float_bits']}, difference in FNR"
    return _decided(claim, _verdict(interval, "below"), what, interval)
