"""Boosted hashing: weights and bits worked out by hand, and error rates."""

import numpy as np
import pytest

from kdiffhash import BoostedHash
from kdiffhash.hashers.boosted import initial_weights, update_weights


def test_weights_of_three_pairs_worked_out_by_hand():
    """Two positives and a negative; the bit misclassifies the second positive."""
    similar = np.array([True, True, False])
    weights = initial_weights(similar)
    np.testing.assert_allclose(weights, [0.25, 0.25, 0.5])
    alpha, weights = update_weights(weights, np.array([True, False, True]))
    assert alpha == pytest.approx(np.log(3) / 2)  # error 1/4: half the log of 3/4 over 1/4
    # Factors: exp(-alpha) = 1 / sqrt(3) if correct, sqrt(3) if not; then normalised to sum 1.
    np.testing.assert_allclose(weights, [1 / 6, 1 / 2, 1 / 3])
    alpha, weights = update_weights(weights, np.array([True, True, False]))  # error 1/3
    assert alpha == pytest.approx(np.log(2) / 2)
    np.testing.assert_allclose(weights, [1 / 8, 3 / 8, 1 / 2])


def test_perfect_and_useless_bits_do_not_change_the_weights():
    weights = np.array([0.25, 0.25, 0.5])
    for correct, expected in ((np.ones(3, bool), np.inf), (np.array([True, True, False]), 0.0)):
        alpha, new = update_weights(weights, correct)
        assert alpha == expected
        np.testing.assert_array_equal(new, weights)


def test_two_axis_bits_worked_out_by_hand():
    """Four rows on a line; the comment below lists what each threshold separates."""
    X = np.array([[0.0, 0], [1, 0], [4, 0], [6, 0]])
    pairs = np.array([[0, 1], [2, 3], [0, 3], [1, 2]])
    similar = np.array([True, True, False, False])
    hasher = BoostedHash(1, weak="axis", random_state=0).fit_pairs(X, pairs, similar)
    # A threshold between 0 and 1 separates P1 and N1, one between 4 and 6 separates P2 and N1.
    # One between 1 and 4 separates both negative pairs and no positive one, so it is the best.
    np.testing.assert_array_equal(hasher.directions_, [[1, 0]])
    assert hasher.thresholds_[0] + hasher.offset_[0] == 2.5
    assert hasher.bit_weights_[0] == np.inf
    assert (hasher.bit_fnr_[0], hasher.bit_fpr_[0]) == (0, 0)


def test_later_bits_separate_the_pairs_that_earlier_bits_misclassified():
    """Each corner of a square is an object; it takes both axes to separate all negatives."""
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=800)
    X = np.stack([y % 2, y // 2], axis=1) * [3.0, 2.0] + rng.normal(0, 0.2, (800, 2))
    hasher = BoostedHash(2, weak="axis", random_state=0).fit(X, y)
    assert sorted(np.abs(hasher.directions_).argmax(axis=1)) == [0, 1]
    assert hasher.score(X, y) > 0.99


def test_projection_finds_the_informative_direction():
    rng = np.random.default_rng(0)
    y = rng.integers(50, size=2000)
    signal = rng.normal(size=50)[y] + rng.normal(0, 0.1, 2000)
    direction = np.array([0.6, 0.8])
    X = signal[:, None] * direction + rng.normal(0, 1, (2000, 1)) * [-0.8, 0.6]
    hasher = BoostedHash(1, random_state=0).fit(X, y)
    assert abs(hasher.directions_[0] @ direction) > 0.99


def test_invalid_parameters_raise_an_error(objects):
    with pytest.raises(ValueError, match="weak must be"):
        BoostedHash(weak="tree").fit(*objects)
    with pytest.raises(ValueError, match="all training rows are equal"):
        BoostedHash(2).fit(np.ones((4, 2)), [0, 0, 1, 1])
