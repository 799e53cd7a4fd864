import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiffhash.learn.thresholds import find_thresholds, rank


def brute_force(column, pairs, similar, weight):
    """Least ``weight * FNR + FPR`` over all thresholds: below all values, and at each value."""
    losses = []
    for t in [-np.inf, *np.unique(column)]:
        bits = column > t
        same = bits[pairs[:, 0]] == bits[pairs[:, 1]]
        losses.append(weight * np.mean(~same[similar]) + np.mean(same[~similar]))
    return min(losses)


def loss_of(column, threshold, pairs, similar, weight):
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
def test_no_threshold_is_better(seed, n_rows, n_pairs, weight, decimals):
    rng = np.random.default_rng(seed)
    column = np.round(rng.normal(size=n_rows), decimals).astype(np.float32)
    pairs = rng.integers(n_rows, size=(n_pairs, 2))
    similar = np.arange(n_pairs) < rng.integers(1, n_pairs)
    found = find_thresholds(column[None], pairs, similar, weight)
    reached = loss_of(column, found.thresholds[0], pairs, similar, weight)
    assert reached == pytest.approx(brute_force(column, pairs, similar, weight), abs=1e-12)
    assert reached == pytest.approx(weight * found.fnr[0] + found.fpr[0], abs=1e-12)
    assert found.ones[0] == np.mean(column > found.thresholds[0])


def test_ranks_are_those_of_numpy():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=5000), [0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38]])
    values = np.round(values, 2).astype(np.float32)
    ranks, distinct = rank(values)
    wanted, inverse = np.unique(values, return_inverse=True)
    np.testing.assert_array_equal(distinct, wanted)
    np.testing.assert_array_equal(ranks, inverse)


def test_a_threshold_lies_in_the_middle_of_the_widest_of_equally_good_gaps():
    projections = np.array([[0, 1, 2, 10, 11]], np.float32)
    found = find_thresholds(projections, np.array([[0, 4], [0, 1]]), np.array([False, True]))
    assert found.thresholds[0] == 6  # 1.5, 6 and 10.5 are equally good


def test_neighbouring_floats_are_told_apart():
    low = np.float32(1)
    high = np.nextafter(low, np.float32(2))
    pairs, similar = np.array([[0, 1], [0, 0]]), np.array([False, True])
    threshold = find_thresholds(np.array([[low, high]]), pairs, similar).thresholds[0]
    assert not low > threshold
    assert high > threshold


def test_threads_find_the_same_thresholds():
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(5, 90)).astype(np.float32)
    pairs, similar = rng.integers(90, size=(400, 2)), rng.random(400) < 0.4
    one, other = (find_thresholds(columns, pairs, similar, n_jobs=n) for n in (1, 3))
    for name in ("thresholds", "fnr", "fpr", "ones"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_one_kind_of_pairs_is_refused():
    with pytest.raises(ValueError, match="every pair is similar"):
        find_thresholds(np.zeros((1, 2), np.float32), np.array([[0, 1]]), np.array([True]))
