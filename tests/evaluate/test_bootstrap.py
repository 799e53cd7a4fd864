"""Confidence intervals: coverage with heavy-tailed objects, seeds, and reliability."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from support import heavy_tails

from kdiffhash import bootstrap
from kdiffhash.evaluate.bootstrap import (
    bootstrap_seeds,
    combine_seeds,
    effective_objects,
    enough_objects,
    interval_of,
    resample_rates,
)


def fnr(curve):
    return curve.fnr_at(1e-3)


@pytest.mark.parametrize(("n_objects", "n_negatives"), [(2000, 50_000), (600, 50_000)])
def test_intervals_at_low_fpr_cover_the_truth_with_heavy_tailed_objects(n_objects, n_negatives):
    threshold, covered = heavy_tails.threshold(), 0
    for seed in range(50):
        case = heavy_tails.simulate(n_objects, n_negatives, threshold, np.random.default_rng(seed))
        interval = bootstrap(fnr, *case, n_resamples=80, random_state=seed)
        covered += interval.low <= heavy_tails.FNR <= interval.high
    # Binomial(50, 0.9): 39 or fewer have probability 0.9 %. Without unseen objects, the coverage is
    # 0.5 to 0.8.
    assert covered >= 40


def test_intervals_with_light_tailed_objects_are_not_too_wide():
    rng = np.random.default_rng(0)
    own, drawn = np.repeat(np.arange(3000), 5), rng.integers(3000, size=(100_000, 2))
    objects = np.concatenate([np.stack([own, own], axis=1), drawn])
    similar = objects[:, 0] == objects[:, 1]
    distances = rng.normal(size=len(objects)) - 3.5 * similar
    interval = bootstrap(fnr, distances, similar, objects, n_resamples=100, random_state=0)
    assert interval.is_reliable
    assert interval.low <= stats.norm.cdf(-0.41) <= interval.high  # 3.09 - 3.5
    assert interval.high - interval.low < 0.2


def test_intervals_from_too_few_objects_are_marked_unreliable():
    rng = np.random.default_rng(0)
    own, drawn = np.repeat(np.arange(1000), 2), rng.integers(1000, size=(50_000, 2))
    objects = np.concatenate([np.stack([own, own], axis=1), drawn])
    similar = objects[:, 0] == objects[:, 1]
    distances = rng.normal(size=len(objects)) - 2 * similar
    case = (distances, similar, objects)
    assert enough_objects(lambda r: r.fnr_at(1e-2), *case)
    assert enough_objects(lambda r: r.auc, *case)  # no operating point
    assert enough_objects(lambda r: r.fpr95, *case)
    assert not enough_objects(fnr, *case)  # 1,000 objects, but 2 / 0.001 are needed
    assert not bootstrap(fnr, *case, n_resamples=5, random_state=0).is_reliable
    # Object 7 is close to everything, so it is in all false positives.
    has_object = ~similar & (objects == 7).any(axis=1)
    n_effective = effective_objects(fnr, distances - 10 * has_object, similar, objects)
    n = round(1e-3 * (~similar).sum())
    assert has_object.sum() > n  # more pairs with object 7 than false positives
    assert 3 < n_effective < 5  # (2n)^2 / (n^2 + n)


def test_interval_of_five_seeds_reflects_their_spread():
    rng = np.random.default_rng(0)
    by_seed = rng.normal(size=(400, 5))
    samples = np.repeat(by_seed[:, :, None], 600, axis=2)  # objects do not vary
    covered, widths = 0, []
    for seed, (values, drawn) in enumerate(zip(by_seed, samples)):
        interval = interval_of(*combine_seeds(values, drawn, random_state=seed))
        covered += interval.low <= 0 <= interval.high
        widths.append(interval.high - interval.low)
    # Below 0.95, since percentiles are those of a normal distribution instead of Student's t. It
    # is the worst case, in which only the seeds vary.
    assert covered / 400 > 0.85
    assert np.mean(widths) == pytest.approx(2 * 1.96 / np.sqrt(5), rel=0.1)


def test_one_seed_equals_bootstrap_and_seeds_of_two_methods_are_paired():
    distances, similar, objects = heavy_tails.simulate(400, 20_000, -5.0, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    case = {"similar": similar, "objects": objects, "n_resamples": 50, "random_state": 0}

    def rate(curve):
        return curve.fnr_at(1e-2)

    assert bootstrap_seeds(rate, [distances], **case) == bootstrap(rate, distances, **case)
    seeds = [distances + 10 * shift * similar for shift in rng.normal(size=4)]
    worse = [array + 20 * similar for array in seeds]
    alone = bootstrap_seeds(rate, seeds, **case)
    difference = bootstrap_seeds(rate, seeds, other_distances=worse, **case)
    assert difference.high < 0
    assert difference.high - difference.low < alone.high - alone.low
    to_untrained = bootstrap_seeds(rate, seeds, other_distances=[distances], **case)
    mean = np.mean(resample_rates([rate], [*seeds], **case)[0])
    untrained = resample_rates([rate], [distances], **case)[0][0, 0]
    assert to_untrained.value == pytest.approx(mean - untrained)


def test_wrong_number_of_seeds_raises_value_error():
    with pytest.raises(ValueError, match=r"shape \(n_seeds, n_resamples"):
        combine_seeds([1.0, 2.0], np.zeros((3, 10)))
    with pytest.raises(ValueError, match=r"one array, or one per seed \(3\), got 2"):
        bootstrap_seeds(
            fnr, [[1, 2]] * 3, [True, False], [[0, 0], [0, 1]], other_distances=[[1]] * 2
        )
