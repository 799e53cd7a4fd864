"""Counts that add up find the same thresholds as the search that sees everything."""

import functools
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiffhash.step_counts import N_BINS, Grid, StepCounts, Steps, solve
from kdiffhash.thresholds import ThresholdSearch


def in_parts(columns, pairs, similar, weight, n_parts, grid_rows):
    """Thresholds found by parts that each see only their own pairs and the rows of these."""
    grid = Grid.over(columns[:, grid_rows])
    seen = np.zeros(columns.shape[1], bool)
    parts = []
    for chosen in np.array_split(np.arange(len(pairs)), n_parts):
        if not len(chosen):
            continue
        rows, members = np.unique(pairs[chosen], return_inverse=True)
        new = ~seen[rows]
        seen[rows] = True
        parts.append((columns[:, rows], members.reshape(-1, 2), similar[chosen], new))
    counts = functools.reduce(operator.add, [StepCounts.of(grid, *part) for part in parts])
    chosen = counts.candidates(weight)
    steps = functools.reduce(operator.add, [Steps.of(grid, chosen, *part) for part in parts])
    return solve(grid, counts, steps, weight), chosen, steps


def at_once(columns, pairs, similar, weight):
    rows, members = np.unique(pairs, return_inverse=True)
    search = ThresholdSearch()
    search.add(columns[:, rows], members.reshape(-1, 2), similar)
    return search.solve(weight)


def assert_equal(found, wanted):
    np.testing.assert_array_equal(found.thresholds, wanted.thresholds)
    np.testing.assert_array_equal(found.fnr, wanted.fnr)
    np.testing.assert_array_equal(found.fpr, wanted.fpr)
    np.testing.assert_array_equal(found.ones, wanted.ones)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_rows=st.integers(2, 60),
    n_pairs=st.integers(2, 80),
    levels=st.sampled_from([1, 2, 5, 1000]),
    weight=st.sampled_from([1.0, 0.3, 7.0]),
    n_parts=st.integers(1, 5),
)
def test_parts_agree_with_the_whole(seed, n_rows, n_pairs, levels, weight, n_parts):
    rng = np.random.default_rng(seed)
    columns = (rng.integers(0, levels, (3, n_rows)) / 7 - 2).astype(np.float32)
    pairs = rng.integers(0, n_rows, (n_pairs, 2))
    similar = np.arange(n_pairs) % 2 == 0
    grid_rows = rng.integers(0, n_rows, 2)  # most rows lie outside
    found, _, _ = in_parts(columns, pairs, similar, weight, n_parts, grid_rows)
    assert_equal(found, at_once(columns, pairs, similar, weight))


def test_few_values_are_looked_at_twice():
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(8, 5_000))
    things = rng.integers(0, 5_000, 30_000)
    columns = (centres[:, things] + 0.5 * rng.normal(size=(8, 30_000))).astype(np.float32)
    order = np.argsort(things, kind="stable")
    same = things[order[1:]] == things[order[:-1]]
    positives = np.stack([order[:-1][same], order[1:][same]], axis=1)
    negatives = rng.integers(0, 30_000, (40_000, 2))
    negatives = negatives[things[negatives[:, 0]] != things[negatives[:, 1]]]
    pairs = np.concatenate([positives, negatives])
    similar = np.arange(len(pairs)) < len(positives)
    found, chosen, steps = in_parts(columns, pairs, similar, 1.0, 4, np.arange(1000))
    assert_equal(found, at_once(columns, pairs, similar, 1.0))
    assert chosen.mean() < 0.1
    assert len(steps.values) < 0.1 * columns.size


def test_one_kind_of_pairs_is_refused():
    columns = np.zeros((1, 2), np.float32)
    grid = Grid.over(columns)
    counts = StepCounts.of(grid, columns, np.array([[0, 1]]), np.array([True]), np.ones(2, bool))
    assert counts.counts.shape == (5, 1, N_BINS)
    with pytest.raises(ValueError, match="every pair is similar"):
        counts.candidates(1.0)
