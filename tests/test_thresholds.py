import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kdiffhash.thresholds
from kdiffhash._numba import sweep
from kdiffhash.thresholds import ThresholdSearch


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
    search = ThresholdSearch()
    search.add(column[None], pairs, similar)
    found = search.solve(weight)
    reached = loss_of(column, found.thresholds[0], pairs, similar, weight)
    assert reached == pytest.approx(brute_force(column, pairs, similar, weight), abs=1e-12)
    assert reached == pytest.approx(weight * found.fnr[0] + found.fpr[0], abs=1e-12)
    assert found.ones[0] == np.mean(column > found.thresholds[0])


def test_ranks_are_those_of_numpy():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=5000), [0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38]])
    values = np.round(values, 2).astype(np.float32)
    ranks, distinct = sweep.rank(values)
    wanted, inverse = np.unique(values, return_inverse=True)
    np.testing.assert_array_equal(distinct, wanted)
    np.testing.assert_array_equal(ranks, inverse)


def test_a_threshold_lies_in_the_middle_of_the_widest_of_equally_good_gaps():
    search = ThresholdSearch()
    projections = np.array([[0, 1, 2, 10, 11]], np.float32)
    search.add(projections, np.array([[0, 4], [0, 1]]), np.array([False, True]))
    assert search.solve().thresholds[0] == 6  # 1.5, 6 and 10.5 are equally good


def test_neighbouring_floats_are_told_apart():
    low = np.float32(1)
    high = np.nextafter(low, np.float32(2))
    search = ThresholdSearch()
    search.add(np.array([[low, high]]), np.array([[0, 1], [0, 0]]), np.array([False, True]))
    threshold = search.solve().thresholds[0]
    assert not low > threshold
    assert high > threshold


@pytest.mark.parametrize("in_memory", [2**28, 100])
def test_batches_give_the_thresholds_of_the_whole(monkeypatch, in_memory):
    monkeypatch.setattr(kdiffhash.thresholds, "_IN_MEMORY", in_memory)
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(5, 90)).astype(np.float32)
    pairs = rng.integers(30, size=(400, 2)) + 30 * rng.integers(3, size=(400, 1))
    similar = rng.random(400) < 0.4
    whole, parts = ThresholdSearch(), ThresholdSearch()
    whole.add(columns, pairs, similar)
    for b in range(3):
        mine = pairs[:, 0] // 30 == b
        parts.add(columns[:, 30 * b : 30 * b + 30].copy(), pairs[mine] - 30 * b, similar[mine])
    one, other = whole.solve(n_jobs=1), parts.solve(n_jobs=2)
    for name in ("thresholds", "fnr", "fpr", "ones"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_one_kind_of_pairs_is_refused():
    search = ThresholdSearch()
    search.add(np.zeros((1, 2), np.float32), np.array([[0, 1]]), np.array([True]))
    with pytest.raises(ValueError, match="every pair is similar"):
        search.solve()
