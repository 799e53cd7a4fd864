"""Drawing pairs from labels, and checking given pairs."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiffhash import draw_pairs
from kdiffhash.learn.pairs import check_pairs, pairs_of_sides

labels = st.lists(st.integers(0, 4), min_size=3, max_size=30).filter(
    lambda y: 1 < len(set(y)) < len(y)
)


@given(labels, st.integers(1, 60), st.integers(1, 60), st.integers(0, 5))
@settings(deadline=None)
def test_drawn_pairs_agree_with_labels_and_requested_numbers(y, n_positives, n_negatives, seed):
    y = np.array(y)
    pairs, similar = draw_pairs(y, n_positives, n_negatives, random_state=seed)
    assert ((y[pairs[:, 0]] == y[pairs[:, 1]]) == similar).all()
    assert (pairs[similar, 0] != pairs[similar, 1]).all()
    assert (~similar).sum() == n_negatives
    possible = sum(a == b for a, b in combinations(y, 2))
    assert similar.sum() == min(n_positives, possible)
    assert len({frozenset(pair) for pair in pairs[similar].tolist()}) == similar.sum()


def test_positives_are_uniform_over_pairs_or_over_objects():
    y = np.array([0] * 10 + [1] * 2)  # 45 pairs and 1 pair
    counts = Counter()
    for seed in range(4000):
        pairs, similar = draw_pairs(y, 1, 1, random_state=seed)
        counts[y[pairs[similar][0, 0]]] += 1
    assert abs(counts[1] / 4000 - 1 / 46) < 4 * np.sqrt(1 / 46 / 4000)
    pairs, similar = draw_pairs(y, 4000, 1, uniform_over="objects", random_state=0)
    assert abs((y[pairs[similar, 0]] == 1).mean() - 0.5) < 4 * np.sqrt(0.25 / 4000)


def test_negatives_are_uniform():
    y = np.array([0, 0, 0, 1, 2])
    pairs, similar = draw_pairs(y, 1, 14_000, random_state=0)
    counts = Counter(map(tuple, pairs[~similar].tolist()))
    possible = [(i, j) for i in range(5) for j in range(5) if y[i] != y[j]]
    assert set(counts) == set(possible)  # 14 ordered pairs
    assert all(abs(counts[pair] - 1000) < 5 * np.sqrt(1000) for pair in possible)


@pytest.mark.parametrize("uniform_over", ["pairs", "objects"])
def test_all_pairs_span_two_groups(uniform_over):
    rng = np.random.default_rng(0)
    y, groups = rng.integers(20, size=200), rng.integers(3, size=200)
    pairs, _ = draw_pairs(y, 300, 500, groups=groups, uniform_over=uniform_over, random_state=0)
    assert (groups[pairs[:, 0]] != groups[pairs[:, 1]]).all()


def test_all_positives_across_groups_are_returned_if_there_are_few():
    y = np.array([0, 0, 0, 1, 1])
    pairs, similar = draw_pairs(y, 100, 1, groups=[0, 0, 1, 0, 0], random_state=0)
    assert sorted(map(tuple, pairs[similar].tolist())) == [(0, 2), (1, 2)]


@given(labels, st.data())
@settings(deadline=None)
def test_positives_across_groups_are_complete_for_any_labels(y, data):
    groups = data.draw(st.lists(st.integers(0, 3), min_size=len(y), max_size=len(y)))
    possible = {
        (i, j) for i, j in combinations(range(len(y)), 2) if y[i] == y[j] and groups[i] != groups[j]
    }
    if not possible or len({*zip(y, groups)}) < 3:
        return
    try:
        pairs, similar = draw_pairs(y, 1000, 1, groups=groups, random_state=0)
    except ValueError as error:
        assert "different objects are in different groups" in str(error)  # noqa: PT017
        return
    assert {tuple(pair) for pair in pairs[similar].tolist()} == possible
    assert similar.sum() == len(possible)


def test_rare_pairs_across_groups_are_drawn_quickly():
    groups = np.zeros(100_000, int)
    groups[:4] = 1
    pairs, similar = draw_pairs(np.arange(100_000) % 2, 1000, 10, groups=groups, random_state=0)
    assert similar.sum() == 1000
    assert ((pairs < 4).sum(axis=1) == 1).all()


def test_negatives_across_groups_are_uniform():
    y, groups = np.array([0, 0, 0, 1, 2, 1]), np.array([0, 1, 0, 0, 0, 1])
    rows = range(6)
    possible = [(i, j) for i in rows for j in rows if y[i] != y[j] and groups[i] != groups[j]]
    pairs, similar = draw_pairs(y, 1, 1000 * len(possible), groups=groups, random_state=0)
    counts = Counter(map(tuple, pairs[~similar].tolist()))
    assert set(counts) == set(possible)
    assert all(abs(counts[pair] - 1000) < 5 * np.sqrt(1000) for pair in possible)


def test_negatives_are_drawn_quickly_if_one_object_has_nearly_all_rows():
    y = np.zeros(200_000, int)
    y[-1] = 1
    pairs, similar = draw_pairs(y, 10, 1000, random_state=0)
    assert (pairs[~similar] == 199_999).any(axis=1).all()


def test_the_same_seed_gives_the_same_pairs():
    y = np.arange(1000) // 3
    first, second = (draw_pairs(y, 500, 500, random_state=3)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, draw_pairs(y, 500, 500, random_state=4)[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": [1, 1, 1]}, "one class"),
        ({"y": []}, "y is empty"),
        ({"y": np.array([1, None, "a"], object)}, "mixes types"),
        ({"y": [1, 2, 3]}, "no positive pairs"),
        ({"y": [[1], [2]]}, "one-dimensional"),
        ({"y": [0.0, np.nan]}, "NaN"),
        ({"y": [1, 1, 2], "groups": [0, 0]}, "2 entries"),
        ({"y": [1, 1, 2], "groups": [0, 0, 0]}, "one group"),
        ({"y": [1, 1, 2], "groups": [0, 0, 1]}, "same object are in different groups"),
        ({"y": [1, 1, 2], "n_positives": 0}, "n_positives must be at least 1"),
        ({"y": [1, 1, 2], "uniform_over": "rows"}, "uniform_over"),
    ],
)
def test_invalid_labels_raise_value_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        draw_pairs(**arguments)


@pytest.mark.parametrize(
    ("pairs", "similar", "message"),
    [
        ([[0, 1, 2]], [True], r"shape \(p, 2\)"),
        ([[0.0, 1.0]], [True], "integers"),
        ([[0, 1]], [True, False], r"shape \(1,\)"),
        ([[0, 1]], [3], "True"),
        (np.empty((0, 2), int), [], "empty"),
        ([[0, 1], [0, 9]], [True, False], "pair 1 is"),
        ([[0, -1]], [True], "pair 0 is"),
    ],
)
def test_invalid_pairs_raise_value_error(pairs, similar, message):
    with pytest.raises(ValueError, match=message):
        check_pairs(pairs, similar, 5)


# -- two sides ---------------------------------------------------------------------------------


def test_aligned_sides_give_one_positive_pair_per_row_and_negatives_within_each_side():
    groups = np.array(["a", "a", "b", "c"])
    found = pairs_of_sides((4, 4), None, None, groups, 1001, np.random.default_rng(0))
    np.testing.assert_array_equal(found.pairs[found.similar], [[0, 4], [1, 5], [2, 6], [3, 7]])
    negatives = found.pairs[~found.similar]
    sides = negatives // 4
    np.testing.assert_array_equal(sides[:, 0], sides[:, 1])
    np.testing.assert_array_equal(np.bincount(sides[:, 0]), [500, 501])
    group = np.tile([0, 0, 1, 2], 2)
    assert (group[negatives[:, 0]] != group[negatives[:, 1]]).all()
    # All pairs that are allowed occur: of 4 rows, 6 pairs without (0, 1), in both orders and sides.
    assert len(np.unique(negatives, axis=0)) == 2 * 2 * 5
    assert len(np.unique(found.labels)) == 3


def test_rows_connected_by_pairs_and_groups_are_not_negatives():
    """Document 1 belongs to queries 0 and 1, document 2 to query 2, which shares 1's group."""
    pairs = [[0, 1], [1, 1], [2, 2], [3, 0]]
    found = pairs_of_sides((4, 3), pairs, None, [0, 1, 1, 2], 600, np.random.default_rng(0))
    objects = np.array([0, 0, 0, 1, 1, 0, 0])  # by hand: queries 0 to 3, documents 0 to 2
    same = objects[:, None] == objects
    np.testing.assert_array_equal(found.labels[:, None] == found.labels, same)
    negatives = found.pairs[~found.similar]
    assert not same[negatives[:, 0], negatives[:, 1]].any()
    assert len(negatives) == 600


def test_given_negatives_are_kept_and_across_draws_one_row_of_each_side():
    rng = np.random.default_rng(0)
    kept = pairs_of_sides((2, 3), [[0, 0], [1, 2]], [True, False], None, 9, rng)
    np.testing.assert_array_equal(kept.pairs, [[0, 2], [1, 4]])
    np.testing.assert_array_equal(kept.similar, [True, False])
    across = pairs_of_sides((3, 3), None, None, None, 900, np.random.default_rng(0), across=True)
    negatives = across.pairs[~across.similar]
    np.testing.assert_array_equal(negatives // 3, np.broadcast_to([0, 1], negatives.shape))
    assert (negatives[:, 1] - 3 != negatives[:, 0]).all()
    assert 500 < len(negatives) < 700  # two thirds of 900


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((3, 2), None, None, None), "X has 3 rows and Y has 2, but without pairs"),
        (((2, 2), None, [True, False], None), "similar was given without pairs"),
        (((2, 2), [[0, 2]], None, None), "Y has rows 0 to 1"),
        (((2, 2), [[0, 0]], [False], None), "no pair is similar"),
        (((2, 2), [[0, 0]], [True], None), "every pair is similar"),
        (((2, 2), None, None, [0]), "X has 2 rows, but groups has 1"),
        (((2, 2), None, None, [0, 0]), "connect all rows of X"),
        (((2, 2), [[0, 0], [0, 1]], None, None), "connect all rows of Y"),
    ],
)
def test_invalid_pairs_of_sides_raise_an_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        pairs_of_sides(*arguments, 10, np.random.default_rng(0))
