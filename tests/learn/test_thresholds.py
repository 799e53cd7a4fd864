"""The search for thresholds, compared with trying all of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiffhash.learn.thresholds import find_thresholds, rank


def brute_force(column, pairs, similar, weight):
    """Minimise ``weight * FNR + FPR`` over all thresholds: -inf, and each value."""
    thresholds = [-np.inf, *np.unique(column)]
    return min(loss_of(column, t, pairs, similar, weight) for t in thresholds)


def loss_of(column, threshold, pairs, similar, weight):
    """Compute ``weight * FNR + FPR`` of one bit."""
    bits = column > threshold
    same = bits[pairs[:, 0]] == bits[pairs[:, 1]]
    return weight * np.mean(~same[similar]) + np.mean(same[~similar])


@given(
    st.integers(0, 10_000),
    st.integers(3, 60),
    st.integers(2, 80),
    st.sampled_from([0.5, 1.0, 25.0]),
    st.sampled_from([0, 1, 3]),
)
@settings(max_examples=200, deadline=None)
def test_thresholds_minimise_the_loss(seed, n_rows, n_pairs, weight, decimals):
    rng = np.random.default_rng(seed)
    column = np.round(rng.normal(size=n_rows), decimals).astype(np.float32)
    pairs = rng.integers(n_rows, size=(n_pairs, 2))
    similar = np.arange(n_pairs) < rng.integers(1, n_pairs)
    rates = find_thresholds(column[None], pairs, similar, weight)
    loss = loss_of(column, rates.thresholds[0], pairs, similar, weight)
    assert loss == pytest.approx(brute_force(column, pairs, similar, weight), abs=1e-12)
    assert loss == pytest.approx(weight * rates.fnr[0] + rates.fpr[0], abs=1e-12)
    assert rates.ones[0] == np.mean(column > rates.thresholds[0])


def test_ranks_agree_with_numpy():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=5000), [0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38]])
    values = np.round(values, 2).astype(np.float32)
    ranks, distinct = rank(values)
    expected, inverse = np.unique(values, return_inverse=True)
    np.testing.assert_array_equal(distinct, expected)
    np.testing.assert_array_equal(ranks, inverse)


def test_threshold_is_the_middle_of_the_widest_of_equally_good_gaps():
    projections = np.array([[0, 1, 2, 10, 11]], np.float32)
    rates = find_thresholds(projections, np.array([[0, 4], [0, 1]]), np.array([False, True]))
    assert rates.thresholds[0] == 6  # 1.5, 6 and 10.5 are equally good


def test_threshold_separates_adjacent_floats():
    low = np.float32(1)
    high = np.nextafter(low, np.float32(2))
    pairs, similar = np.array([[0, 1], [0, 0]]), np.array([False, True])
    threshold = find_thresholds(np.array([[low, high]]), pairs, similar).thresholds[0]
    assert not low > threshold
    assert high > threshold


def test_thresholds_do_not_depend_on_the_number_of_threads():
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(5, 90)).astype(np.float32)
    pairs, similar = rng.integers(90, size=(400, 2)), rng.random(400) < 0.4
    one, other = (find_thresholds(columns, pairs, similar, n_jobs=n) for n in (1, 3))
    for name in ("thresholds", "fnr", "fpr", "ones"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_positive_pairs_alone_raise_value_error():
    with pytest.raises(ValueError, match="every pair is similar"):
        find_thresholds(np.zeros((1, 2), np.float32), np.array([[0, 1]]), np.array([True]))
