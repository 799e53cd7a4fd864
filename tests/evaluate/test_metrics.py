"""ROC curves and their rates, and intervals of these rates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from kdiffhash import bootstrap, bootstrap_difference, fnr_at_fpr, roc


def test_rates_agree_with_scikit_learn_without_ties():
    rng = np.random.default_rng(0)
    similar = rng.random(3000) < 0.4
    distances = rng.normal(size=3000) + np.where(similar, 0, 1.2)
    fpr, tpr, _ = roc_curve(similar, -distances, drop_intermediate=False)
    curve = roc(distances, similar)
    np.testing.assert_allclose(curve.fpr, fpr)
    np.testing.assert_allclose(curve.tpr, tpr)
    assert curve.auc == pytest.approx(roc_auc_score(similar, -distances))
    for rate in (0.001, 0.01, 0.1):
        assert 1 - curve.fnr_at(rate) == pytest.approx(tpr[fpr <= rate].max(), abs=1e-3)
    assert curve.fpr95 == pytest.approx(fpr[tpr >= 0.95].min(), abs=1e-3)


def test_rates_with_ties_agree_with_values_worked_out_by_hand():
    # distance 0: 2 positives; 1: 1 positive, 2 negatives; 2: 1 positive, 2 negatives.
    distances = [0, 0, 1, 2, 1, 1, 2, 2]
    similar = [True] * 4 + [False] * 4
    curve = roc(distances, similar)
    assert curve.fpr.tolist() == [0, 0, 0.5, 1]
    assert curve.tpr.tolist() == [0, 0.5, 0.75, 1]
    assert curve.fnr_at(0.25) == 1 - 0.625  # half-way through the tie at distance 1
    assert curve.fnr_at(0.5) == 0.25
    assert curve.fnr_at(1) == 0
    assert curve.fpr_at(0.5) == 0
    assert curve.fpr95 == pytest.approx(0.9)  # 0.75 to 1 in the tie at distance 2: 0.8 of the way
    assert curve.auc == 0.5 * 0.625 + 0.5 * 0.875
    # fpr = 0.5 s meets fnr = 0.5 - 0.25 s in the tie at distance 1, at s = 2/3.
    assert curve.eer == pytest.approx(1 / 3)
    assert fnr_at_fpr(distances, similar, 0.5) == 0.25


@given(st.integers(0, 1000), st.integers(2, 6))
def test_curve_does_not_depend_on_the_order_of_pairs(seed, n_levels):
    rng = np.random.default_rng(seed)
    distances, similar = rng.integers(n_levels, size=40), np.arange(40) < 15
    order = rng.permutation(40)
    one, other = roc(distances, similar), roc(distances[order], similar[order])
    np.testing.assert_array_equal(one.tpr, other.tpr)
    assert 0 <= one.eer <= 1
    assert one.fnr_at(0.1) >= one.fnr_at(0.2)


def make_pairs(n_objects, rng):
    """Draw two positive pairs per object, and negatives; objects differ in difficulty."""
    difficulty = rng.normal(size=n_objects)
    own = np.repeat(np.arange(n_objects), 2)
    drawn = np.stack([rng.permutation(n_objects) for _ in range(2)], axis=1)
    drawn = drawn[drawn[:, 0] != drawn[:, 1]]
    objects = np.concatenate([np.stack([own, own], 1), drawn])
    similar = objects[:, 0] == objects[:, 1]
    noise = 0.1 * rng.normal(size=len(objects))
    distances = np.where(similar, difficulty[objects[:, 0]], 1.5) + noise
    return distances, similar, objects


def test_intervals_from_resampled_objects_cover_the_truth():
    values = []
    for seed in range(60):
        distances, similar, _ = make_pairs(400, np.random.default_rng(1000 + seed))
        values.append(roc(distances, similar).auc)
    truth, covered = np.mean(values), 0
    for seed in range(60):
        case = make_pairs(400, np.random.default_rng(seed))
        interval = bootstrap(lambda r: r.auc, *case, n_resamples=100, random_state=0)
        assert interval.low <= interval.value <= interval.high
        covered += interval.low <= truth <= interval.high
    # Binomial(60, 0.95): 50 or fewer have probability 2e-4. If the two positive pairs of an object
    # were resampled separately, intervals would be too narrow by a factor of sqrt(2).
    assert covered > 50


def test_paired_intervals_are_narrower_than_those_of_one_method():
    rng = np.random.default_rng(0)
    distances, similar, objects = make_pairs(300, rng)
    worse = distances + np.where(similar, 0.1, 0)
    difference = bootstrap_difference(
        lambda r: r.fnr_at(0.05),
        distances,
        worse,
        similar,
        objects,
        n_resamples=200,
        random_state=0,
    )
    alone = bootstrap(
        lambda r: r.fnr_at(0.05), distances, similar, objects, n_resamples=200, random_state=0
    )
    assert difference.high < 0
    assert difference.high - difference.low < alone.high - alone.low
    same = bootstrap_difference(
        lambda r: r.auc, distances, distances, similar, objects, n_resamples=20, random_state=0
    )
    assert (same.value, same.low, same.high) == (0, 0, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: roc([1, 2], [True, True]), "got 2 positive and 0 negative"),
        (lambda: roc([1, np.nan], [True, False]), "NaN"),
        (lambda: roc([1, 2], [True]), "of equal length"),
        (lambda: roc([1, 2], [True, False]).fnr_at(0), "fpr must lie"),
        (lambda: roc([1, 2], [True, False]).fpr_at(1.5), "tpr must lie"),
        (
            lambda: bootstrap(lambda r: r.auc, [1, 2], [True, False], [[0, 0]]),
            r"shape \(2, 2\)",
        ),
        (
            lambda: bootstrap(lambda r: r.auc, [1, 2], [True, False], [[0, 1], [0, 1]]),
            "same object twice",
        ),
    ],
)
def test_invalid_input_raises_value_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
