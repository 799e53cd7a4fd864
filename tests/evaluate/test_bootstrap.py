"""Confidence intervals: coverage with heavy-tailed objects, seeds, the rule of enough objects."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from kdiffhash import bootstrap
from kdiffhash.evaluate.bootstrap import (
    bootstrap_seeds,
    combine_seeds,
    effective_objects,
    enough_objects,
    interval_of,
    resample_rates,
)

SPREAD = 1.2


def heavy(n, rng):
    """How much closer than others each object is to everything: few objects, by far."""
    return 0.3 * np.exp(0.9 * rng.normal(size=n))


@pytest.fixture(scope="module")
def threshold():
    """The distance with a false positive rate of 0.001 in the population."""
    rng = np.random.default_rng(1)
    n = 4_000_000
    return np.quantile(rng.normal(size=n) - heavy(n, rng) - heavy(n, rng), 1e-3)


def simulate(n_objects, n_negatives, threshold, rng):
    hard, near = rng.normal(size=n_objects), heavy(n_objects, rng)
    same = np.repeat(np.arange(n_objects), 5)
    other = rng.integers(n_objects, size=(n_negatives, 2))
    other = other[other[:, 0] != other[:, 1]]
    positive = threshold - 0.5 + SPREAD * (hard[same] + rng.normal(size=len(same)))
    negative = rng.normal(size=len(other)) - near[other].sum(axis=1)
    objects = np.concatenate([np.stack([same, same], axis=1), other])
    distances = np.round(30 * np.concatenate([positive, negative]))
    return distances, objects[:, 0] == objects[:, 1], objects


def fnr(curve):
    return curve.fnr_at(1e-3)


@pytest.mark.parametrize(("n_objects", "n_negatives"), [(2000, 50_000), (600, 50_000)])
def test_intervals_at_low_fpr_cover_the_truth_with_heavy_tailed_objects(
    n_objects, n_negatives, threshold
):
    truth = 1 - stats.norm.cdf(0.5 / SPREAD / np.sqrt(2))
    covered = 0
    for seed in range(50):
        case = simulate(n_objects, n_negatives, threshold, np.random.default_rng(seed))
        found = bootstrap(fnr, *case, n_resamples=80, random_state=seed)
        covered += found.low <= truth <= found.high
    # Binomial(50, 0.9): 39 or fewer has probability 0.9 %. Resampling the objects that were seen
    # covers 0.5 to 0.8.
    assert covered >= 40


def test_intervals_of_light_tails_stay_informative():
    rng = np.random.default_rng(0)
    same, other = np.repeat(np.arange(3000), 5), rng.integers(3000, size=(100_000, 2))
    objects = np.concatenate([np.stack([same, same], axis=1), other])
    similar = objects[:, 0] == objects[:, 1]
    distances = rng.normal(size=len(objects)) - 3.5 * similar
    found = bootstrap(fnr, distances, similar, objects, n_resamples=100, random_state=0)
    assert found.is_reliable
    assert found.low <= stats.norm.cdf(-0.41) <= found.high  # 3.09 - 3.5
    assert found.high - found.low < 0.2


def test_the_rule_of_enough_objects_marks_intervals():
    rng = np.random.default_rng(0)
    same, other = np.repeat(np.arange(1000), 2), rng.integers(1000, size=(50_000, 2))
    objects = np.concatenate([np.stack([same, same], axis=1), other])
    similar = objects[:, 0] == objects[:, 1]
    distances = rng.normal(size=len(objects)) - 2 * similar
    case = (distances, similar, objects)
    assert enough_objects(lambda r: r.fnr_at(1e-2), *case)
    assert enough_objects(lambda r: r.auc, *case)  # no operating point
    assert enough_objects(lambda r: r.fpr95, *case)
    assert not enough_objects(fnr, *case)  # 1,000 objects, and 2 / 0.001 are needed
    assert not bootstrap(fnr, *case, n_resamples=5, random_state=0).is_reliable
    # One object close to everything is behind half of the false positives' sides.
    alike = distances - 10 * (~similar & (objects == 7).any(axis=1))
    found = effective_objects(fnr, alike, similar, objects)
    n = round(1e-3 * (~similar).sum())
    partners = np.bincount(objects[~similar & (objects == 7).any(axis=1)].ravel(), minlength=1000)
    assert partners[7] > n  # ties at the threshold aside, all false positives are of object 7
    assert 3 < found < 5  # (2n)^2 / (n^2 + n)


def test_five_seeds_widen_the_interval_as_their_spread_demands():
    rng = np.random.default_rng(0)
    by_seed = rng.normal(size=(400, 5))
    samples = np.repeat(by_seed[:, :, None], 600, axis=2)  # objects do not vary
    covered, widths = 0, []
    for seed, (values, drawn) in enumerate(zip(by_seed, samples)):
        found = interval_of(*combine_seeds(values, drawn, random_state=seed))
        covered += found.low <= 0 <= found.high
        widths.append(found.high - found.low)
    assert covered / 400 > 0.85  # five seeds alone, the worst case, and normal instead of t
    assert np.mean(widths) == pytest.approx(2 * 1.96 / np.sqrt(5), rel=0.1)


def test_one_seed_is_the_plain_bootstrap_and_seeds_of_two_methods_are_paired(threshold):
    distances, similar, objects = simulate(400, 20_000, threshold, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    case = {"similar": similar, "objects": objects, "n_resamples": 50, "random_state": 0}

    def rate(curve):
        return curve.fnr_at(1e-2)

    assert bootstrap_seeds(rate, [distances], **case) == bootstrap(rate, distances, **case)
    seeds = [distances + 10 * shift * similar for shift in rng.normal(size=4)]
    worse = [one + 20 * similar for one in seeds]
    alone = bootstrap_seeds(rate, seeds, **case)
    gap = bootstrap_seeds(rate, seeds, other_distances=worse, **case)
    assert gap.high < 0
    assert gap.high - gap.low < alone.high - alone.low
    one_for_all = bootstrap_seeds(rate, seeds, other_distances=[distances], **case)
    mean = np.mean(resample_rates([rate], [*seeds], **case)[0])
    plain = resample_rates([rate], [distances], **case)[0][0, 0]
    assert one_for_all.value == pytest.approx(mean - plain)


def test_seeds_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"shape \(n_seeds, n_resamples"):
        combine_seeds([1.0, 2.0], np.zeros((3, 10)))
    with pytest.raises(ValueError, match="one array or one per seed, 3, got 2"):
        bootstrap_seeds(
            fnr, [[1, 2]] * 3, [True, False], [[0, 0], [0, 1]], other_distances=[[1]] * 2
        )
