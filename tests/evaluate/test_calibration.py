"""Distance thresholds for a target false positive rate."""

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from kdiffhash import calibrate, pack


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
    [(0.001, "Give at least 3000"), (0, "between 0 and 1"), (1, "between 0 and 1")],
)
def test_rates_that_cannot_be_resolved_raise_value_error(fpr, message):
    distances, similar = np.arange(110), np.arange(110) < 10
    with pytest.raises(ValueError, match=message):
        calibrate(distances, similar, fpr=fpr)
    with pytest.raises(ValueError, match="no pair is similar"):
        calibrate(distances, np.zeros(110, bool), fpr=0.1)


def test_no_rate_above_1_is_suggested():
    with pytest.raises(ValueError, match=r"could be 1\. Give at least 30 negative pairs$"):
        calibrate([5, 9, 1], [False, False, True], fpr=0.1)


def test_expected_false_pairs_scale_with_the_number_of_pairs():
    distances = np.append(np.repeat(np.arange(100), 10), 5)
    calibration = calibrate(distances, np.arange(1001) == 1000, fpr=0.05)
    expected = calibration.expected_false_pairs(1000)  # 499,500 pairs, 5 % of them
    assert expected.value == pytest.approx(24_975)
    exact = binomtest(50, 1000).proportion_ci(0.95, method="exact")
    assert (expected.low, expected.high) == pytest.approx(
        (499_500 * exact.low, 499_500 * exact.high)
    )
    with pytest.raises(ValueError, match="n must be from 2"):
        calibration.expected_false_pairs(1)


def test_codes_of_pairs_by_hand():
    """Ten-bit codes that kdiffhash did not make; row r has its first r bits set."""
    codes = pack(np.tri(11, 10, -1))
    pairs = [(0, 9), (1, 9), (2, 9), (3, 9), (4, 9), (5, 9)]  # distances 9, 8, 7, 6, 5, 4
    pairs += [(0, 1), (0, 2), (3, 8)]  # 1, 2, 5
    similar = [False] * 6 + [True] * 3
    calibration = calibrate(codes, similar, pairs=pairs, fpr=0.5)
    assert calibration.distance == 6  # 4, 5 and 6 are three of six; 7 would be a fourth
    assert (calibration.fpr, calibration.tpr) == (0.5, 1.0)
    # Clopper-Pearson for k = n has the closed form (tail ** (1 / n), 1).
    assert calibration.tpr_interval == pytest.approx((0.025 ** (1 / 3), 1))
    distances = [9, 8, 7, 6, 5, 4, 1, 2, 5]
    assert calibrate(distances, similar, fpr=0.5) == calibration


def test_repeated_pairs_count_once():
    codes = np.array([[0], [1], [3], [7], [15], [31]], np.uint8)
    pairs = [(0, 1), (1, 2), (0, 3), (0, 4), (5, 0), (1, 5)]
    similar = np.array([1, 1, 0, 0, 0, 0])
    once = calibrate(codes, similar, pairs=pairs, fpr=0.75)
    again = np.concatenate([pairs, np.fliplr(pairs), pairs])
    assert calibrate(codes, np.tile(similar, 3), pairs=again, fpr=0.75) == once
    with pytest.raises(ValueError, match=r"4 negative pairs cannot show .* at least 6 negative"):
        calibrate(codes, np.tile(similar, 3), pairs=again, fpr=0.5)
    with pytest.raises(ValueError, match="rows 0 and 1 are both"):
        calibrate(codes, [*similar, 0], pairs=[*pairs, (1, 0)], fpr=0.75)
    with pytest.raises(ValueError, match="pair 6 pairs row 2 with itself"):
        calibrate(codes, [*similar, 0], pairs=[*pairs, (2, 2)], fpr=0.75)


@pytest.mark.parametrize(
    ("data", "similar", "message"),
    [
        (np.zeros((5, 8), np.uint8), [True] * 5, "codes of shape .5, 8. without pairs"),
        ([0.5, 1.0], [True, False], "array of integers"),
        ([[1], [2]], [True, False], "one-dimensional"),
        ([-1, 4], [True, False], "must not be negative, got -1"),
        ([1, 2, 3], [True, False], "similar must have shape .3,., got .2,."),
        ([1, 2], [True, 7], "similar must be True"),
    ],
)
def test_invalid_distances_raise_value_error(data, similar, message):
    with pytest.raises(ValueError, match=message):
        calibrate(data, similar, fpr=0.5)


def test_codes_must_be_packed_rows():
    with pytest.raises(ValueError, match="packed uint8 rows"):
        calibrate(np.zeros((5, 8)), [True], pairs=[(0, 1)], fpr=0.5)
    with pytest.raises(ValueError, match=r"shape .n, n_bytes."):
        calibrate(np.zeros(8, np.uint8), [True], pairs=[(0, 1)], fpr=0.5)
