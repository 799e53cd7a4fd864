"""Distance thresholds for a target false positive rate."""

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from kdiffhash.evaluate.calibration import calibrate


def test_distance_is_the_largest_one_with_at_most_the_target_rate():
    negatives = np.repeat(np.arange(100), 10)  # ten pairs at each distance 0..99
    positives = np.arange(50)
    distances = np.concatenate([negatives, positives])
    similar = np.arange(len(distances)) >= len(negatives)
    calibration = calibrate(distances, similar, fpr=0.05)
    assert calibration.distance == 4  # 50 of 1000 negative pairs have distances 0..4
    assert calibration.fpr == 0.05
    assert calibration.tpr == 0.1
    exact = binomtest(50, 1000).proportion_ci(0.95, method="exact")
    assert calibration.fpr_interval == pytest.approx((exact.low, exact.high))
    assert calibration.distance_interval[0] < 4 < calibration.distance_interval[1]


def test_rate_does_not_exceed_the_target_with_ties():
    distances = np.array([3] * 500 + [9] * 500 + [1])
    similar = np.arange(1001) == 1000
    assert calibrate(distances, similar, fpr=0.4).distance == 2
    assert calibrate(distances, similar, fpr=0.5).distance == 8
    assert calibrate(np.where(similar, 1, 0), similar, fpr=0.4).distance == -1


def test_intervals_cover_the_true_rate():
    covered = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        negatives = rng.binomial(64, 0.5, 2000)
        distances = np.append(negatives, 5)
        calibration = calibrate(distances, np.arange(2001) == 2000, fpr=0.02)
        low, high = calibration.fpr_interval
        covered += low <= binom.cdf(calibration.distance, 64, 0.5) <= high
    assert covered >= 180  # 95 % of 200, less three standard deviations


@pytest.mark.parametrize(
    ("fpr", "message"),
    [(0.001, "give at least 3000"), (0, "between 0 and 1"), (1, "between 0 and 1")],
)
def test_rates_that_cannot_be_resolved_raise_value_error(fpr, message):
    distances, similar = np.arange(110), np.arange(110) < 10
    with pytest.raises(ValueError, match=message):
        calibrate(distances, similar, fpr=fpr)
    with pytest.raises(ValueError, match="no pair is similar"):
        calibrate(distances, np.zeros(110, bool), fpr=0.1)


def test_expected_false_pairs_scale_with_the_number_of_pairs():
    distances = np.append(np.repeat(np.arange(100), 10), 5)
    calibration = calibrate(distances, np.arange(1001) == 1000, fpr=0.05)
    expected = calibration.expected_false_pairs(1000)  # 499,500 pairs, 5 % of them
    assert expected.value == pytest.approx(24_975)
    exact = binomtest(50, 1000).proportion_ci(0.95, method="exact")
    assert (expected.low, expected.high) == pytest.approx(
        (499_500 * exact.low, 499_500 * exact.high)
    )
    with pytest.raises(ValueError, match="n must be at least 2"):
        calibration.expected_false_pairs(1)
