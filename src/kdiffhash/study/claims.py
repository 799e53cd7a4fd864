"""The paper's claims, each with a verdict from paired resampling.

A claim about rates is a mean difference, over train-test pairs and code lengths, of rates that were
resampled on the same points. Scenes are resampled apart from each other, so the resampled means
make the interval of the mean. The claim holds if the whole interval is on its side of zero, it does
not if the whole interval is on the other side, and otherwise this data does not decide it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..metrics import Interval, interval_of
from .plan import describe, name_of

if TYPE_CHECKING:
    from .run import Results

Verdict = Literal["holds", "does not hold", "not decided by this data"]
_RATE = "fnr_at_1e-3"


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

    def as_dict(self) -> dict[str, Any]:
        """For `results.json`."""
        return asdict(self)


def decide(results: Results) -> list[Claim]:
    """All claims in the order of the paper."""
    longest = max(results.plan.lengths)
    short = [length for length in results.plan.lengths if length <= 128]
    return [
        _lower(
            results,
            "kDIF is better than DIF at the same length (both on RootSIFT, best settings)",
            [(("kdif", n), ("dif", n)) for n in short],
        ),
        _lower(
            results,
            "the same in the paper's setting (raw SIFT, cross moments, alpha = 25)",
            [(("kdif-paper", n), ("dif-paper", n)) for n in short],
        ),
        _lower(
            results,
            "codes longer than 128 bits are better (kDIF)",
            [(("kdif", longest), ("kdif", 128))] if longest > 128 else [],
        ),
        _lower(
            results,
            "kDIF beats raw SIFT while 2 to 4 times more compact",
            [(("kdif", n), ("sift", None)) for n in results.plan.lengths if 256 <= n <= 512],
        ),
        _lower(
            results,
            "what was learned on one scene beats raw SIFT on another",
            [(("kdif", longest), ("sift", None))],
            [case for case in results.cases if case[0] != case[1]],
        ),
        _loss_across(results, longest),
        _natural_to_architecture(results, longest),
        _boosting_is_slower(results),
        _boosting_needs_longer(results),
        _dif_is_best_linear(results, short),
        _first_matches(results),
        _cheaper(results),
        _another_descriptor(results),
    ]


def _verdict(interval: Interval, wanted: Literal["below", "above"], zero: float = 0) -> Verdict:
    sign = 1 if wanted == "below" else -1
    low, high = sorted([sign * (interval.low - zero), sign * (interval.high - zero)])
    if high < 0:
        return "holds"
    return "does not hold" if low > 0 else "not decided by this data"


def _undecided(claim: str, why: str) -> Claim:
    return Claim(claim, "not decided by this data", why)


def _mean_difference(
    results: Results,
    comparisons: Iterable[
        tuple[tuple[str, str, str, int | None], tuple[str, str, str, int | None]]
    ],
) -> Interval | None:
    """Mean of the first rate minus the second, in percent points, with its interval."""
    values, samples = [], []
    for a, b in comparisons:
        first, second = results.rate(*a, _RATE), results.rate(*b, _RATE)
        if first is not None and second is not None:
            values.append(100 * (first[0] - second[0]))
            samples.append(100 * (first[1] - second[1]))
    if not values:
        return None
    n = min(map(len, samples))
    return interval_of(float(np.mean(values)), np.mean([one[:n] for one in samples], axis=0))


def _points(interval: Interval) -> str:
    text = f"{interval.value:+.1f} points ({interval.low:+.1f} to {interval.high:+.1f})"
    return text.replace("-", "\N{MINUS SIGN}")


def _rates_claim(
    claim: str, interval: Interval | None, wanted: Literal["below", "above"], what: str, why: str
) -> Claim:
    if interval is None:
        return _undecided(claim, why)
    bounds = (interval.value, interval.low, interval.high)
    return Claim(claim, _verdict(interval, wanted), f"{what}: {_points(interval)}", bounds)


def _lower(
    results: Results,
    claim: str,
    methods: list[tuple[tuple[str, int | None], tuple[str, int | None]]],
    cases: list[tuple[str, str]] | None = None,
) -> Claim:
    """A claim that the first methods have lower FNR at 0.1 % FPR than the second."""
    where = results.cases if cases is None else cases
    interval = _mean_difference(
        results, [((*case, *a), (*case, *b)) for case in where for a, b in methods]
    )
    return _rates_claim(
        claim,
        interval,
        "below",
        "difference in FNR at 0.1 % FPR",
        "they were not measured at these lengths",
    )


def _diagonal(results: Results) -> list[str]:
    return [train for train, test in results.cases if train == test]


def _loss_across(results: Results, longest: int) -> Claim:
    claim = "it generalises: training on another scene costs at most 5 points"
    own = _diagonal(results)
    interval = _mean_difference(
        results,
        [
            ((train, test, "kdif", longest), (test, test, "kdif", longest))
            for train, test in results.cases
            if train != test and test in own
        ],
    )
    if interval is None:
        return _undecided(claim, "needs a scene that is both trained and tested on, and another")
    bounds = (interval.value, interval.low, interval.high)
    found = f"FNR against training on the scene itself: {_points(interval)}"
    return Claim(claim, _verdict(interval, "below", 5.0), found, bounds)


def _natural_to_architecture(results: Results, longest: int) -> Claim:
    claim = "for architecture, training on nature is worse than on other architecture"
    kinds = results.kinds
    comparisons = [
        ((nature, test, "kdif", longest), (building, test, "kdif", longest))
        for nature, test in results.cases
        for building, same_test in results.cases
        if test == same_test != building
        and kinds.get(test) == kinds.get(building) == "architecture"
        and kinds.get(nature) == "natural"
    ]
    return _rates_claim(
        claim,
        _mean_difference(results, comparisons),
        "above",
        "FNR against training on other architecture",
        "needs natural and architectural scenes to train on, and another architectural to test on",
    )


def _boosting_is_slower(results: Results) -> Claim:
    claim = "boosting is slower to train"
    ratios, lengths = [], ""
    for scene in results.plan.train:
        both = [results.trained.get((name_of(scene), m)) for m in ("boosted", "kdif")]
        if both[0] and both[1]:
            boosted, kernel = both[0], both[1]
            ratios.append(boosted.seconds / kernel.seconds)
            lengths = f"{max(boosted.hashers)} bits against {max(kernel.hashers)}"
    if not ratios:
        return _undecided(claim, "boosted SSH and kDIF were not both trained")
    ratio = float(np.mean(ratios))
    verdict: Verdict = (
        "holds" if ratio > 1.5 else "does not hold" if ratio < 1 else ("not decided by this data")
    )
    return Claim(claim, verdict, f"{ratio:.1f} times as long as kDIF, {lengths}")


def _boosting_needs_longer(results: Results) -> Claim:
    claim = "boosting needs longer hashes: at the same length it is worse than kDIF"
    interval = _mean_difference(
        results,
        [
            ((*case, "boosted", n), (*case, "kdif", n))
            for case in results.cases
            for n in results.plan.lengths
        ],
    )
    return _rates_claim(
        claim, interval, "above", "FNR of boosted SSH minus kDIF's", "boosted SSH is missing"
    )


def _dif_is_best_linear(results: Results, short: list[int]) -> Claim:
    claim = "DIF is the best of the linear family"
    peers: dict[str, Interval] = {}
    for other in ("lda", "random", "itq"):
        interval = _mean_difference(
            results,
            [((*case, "dif", n), (*case, other, n)) for case in results.cases for n in short],
        )
        if interval is not None:
            peers[results.methods[other].title] = interval
    if not peers:
        return _undecided(claim, "DIF and its peers were not measured")
    title, interval = max(peers.items(), key=lambda item: item[1].value)
    verdicts = [_verdict(one, "below") for one in peers.values()]
    verdict: Verdict = "not decided by this data"
    if "does not hold" in verdicts:
        verdict = "does not hold"
    elif verdicts == ["holds"] * 3:
        verdict = "holds"
    bounds = (interval.value, interval.low, interval.high)
    found = f"FNR against {title}, its best peer: {_points(interval)}"
    return Claim(claim, verdict, found, bounds)


def _first_matches(results: Results) -> Claim:
    claim = "first matches are better than SIFT's (precision of the first five)"
    matches = results.extras.get("matches")
    if not matches:
        return _undecided(claim, "kDIF was not trained")
    value, low, high = (100 * number for number in matches["difference"])
    interval = Interval(value, low, high)
    found = (
        f"{matches['judged']}: precision minus SIFT's, {matches['n_queries']} queries: "
        f"{_points(interval)}"
    )
    return Claim(claim, _verdict(interval, "above"), found, (value, low, high))


def _cheaper(results: Results) -> Claim:
    claim = "comparing codes is far cheaper than comparing SIFT"
    times = results.extras.get("times")
    if not times:
        return _undecided(claim, "times were not taken")
    ratios = {n: times["euclidean"] / times[str(n)] for n in results.plan.lengths}
    least = min(ratios.values())
    verdict: Verdict = (
        "holds" if least >= 1.5 else "does not hold" if least < 1 else ("not decided by this data")
    )
    parts = [f"{ratio:.1f} times (at {n} bits)" for n, ratio in ratios.items()]
    return Claim(claim, verdict, f"a Euclidean comparison takes {describe(parts)} as long")


def _another_descriptor(results: Results) -> Claim:
    claim = "it works for another descriptor: kDIF beats the Euclidean distance of HOG"
    found = results.extras.get("hog")
    if not found:
        return _undecided(claim, "needs patches, and one of these scenes has descriptors only")
    interval = Interval(*(100 * number for number in found["difference"]))
    return _rates_claim(
        claim,
        interval,
        "below",
        f"{found['n_bits']} bits against {found['float_bits']}, difference in FNR",
        "",
    )
