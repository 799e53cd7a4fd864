"""The loops of encoding, learning and refinement, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from reference import BITS, ROWS

from kdiffhash import _core


def floats(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


# -- encoding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", ROWS)
def test_multiply_writes_only_the_first_rows(n):
    rng = np.random.default_rng(n)
    for depth, n_panels in ((0, 2), (1, 1), (255, 3), (256, 4), (257, 5)):
        a, panels = floats(rng, n + 2, depth + 3), floats(rng, n_panels, depth, _core.panel)
        out = np.full((n + 2, n_panels * _core.panel), -7, np.float32)
        _core.multiply(a, panels, n, out)
        columns = panels.transpose(1, 0, 2).reshape(depth, n_panels * _core.panel).astype(float)
        rows = a[:n, :depth].astype(float)
        scale = np.abs(rows) @ np.abs(columns)
        assert (np.abs(out[:n] - rows @ columns) <= 1e-6 * scale).all()
        assert (out[n:] == -7).all()


@pytest.mark.parametrize("n", ROWS)
def test_squared_norms(n):
    rng = np.random.default_rng(n)
    for width in (0, 1, 3, 4, 7, 128):
        rows, out = floats(rng, n + 1, width + 2), np.full(n + 1, -7, np.float32)
        _core.squared_norms(rows, width, n, out)
        expected = (rows[:n, :width].astype(float) ** 2).sum(axis=1)
        np.testing.assert_allclose(out[:n], expected, rtol=1e-5)
        assert out[n] == -7


@pytest.mark.parametrize("n", ROWS)
def test_exp2_of_expanded_square(n):
    rng = np.random.default_rng(n)
    for width in (0, 1, 7, 8, 9, 15, 16, 17, 33):
        products = 30 * floats(rng, n + 1, width + 2)
        rows, columns = np.abs(30 * floats(rng, n + 1)), np.abs(30 * floats(rng, width))
        before = products.copy()
        _core.exp2_of_expanded_square(products, rows, columns, n)
        expected = reference.exp2_nonpositive(before[:n, :width] - (rows[:n, None] + columns))
        np.testing.assert_allclose(products[:n, :width], expected, rtol=1e-6)
        np.testing.assert_array_equal(products[:n, width:], before[:n, width:])
        np.testing.assert_array_equal(products[n], before[n])


def test_exp2_at_the_ends_of_its_range():
    values = np.array([[0, 3, -1, -126, -127, -1e30, -np.inf, np.inf, -0.5]], np.float32)
    _core.exp2_of_expanded_square(values, np.zeros(1, np.float32), np.zeros(9, np.float32), 1)
    expected = [1, 1, 0.5, 2.0**-126, 2.0**-126, 2.0**-126, 2.0**-126, 1, 2**-0.5]
    np.testing.assert_allclose(values[0], expected, rtol=3e-7)


@pytest.mark.parametrize("n_bits", BITS)
@pytest.mark.parametrize("n", [0, 1, 7, 257])
def test_pack_above_equals_packbits(n, n_bits):
    rng = np.random.default_rng(n_bits)
    values, thresholds = floats(rng, n + 1, n_bits + 5), floats(rng, n_bits)
    values[:, 0] = thresholds[0]  # equal is not above
    codes = np.full((n, -(-n_bits // 8)), 7, np.uint8)
    _core.pack_above(values[:, :n_bits], thresholds, codes)  # with gaps between rows
    np.testing.assert_array_equal(codes, np.packbits(values[:n, :n_bits] > thresholds, axis=1))


@pytest.mark.parametrize("n", ROWS)
def test_recompute_sums_near_thresholds_and_flag_ambiguous_rows(n):
    rng = np.random.default_rng(n)
    for n_bits, n_features in ((1, 1), (65, 7), (130, 100)):
        features, directions = floats(rng, n, n_features + 2), floats(rng, n_bits, n_features)
        exact = features[:, :n_features].astype(float) @ directions.T.astype(float)
        thresholds = floats(rng, n_bits)
        sum_bound = np.full(n_bits, 0.3, np.float32)
        feature_bound = np.full(n_bits, 0.1, np.float32)
        store = np.full((n, n_bits + 3), -7, np.float32)
        projections = store[:, :n_bits]
        projections[:] = exact + rng.normal(scale=0.01, size=exact.shape)
        before, ambiguous = projections.copy(), np.ones(n, bool)
        count = _core.recompute_sums(
            projections, features, directions, thresholds, sum_bound, feature_bound, ambiguous
        )
        chosen = np.abs(before - thresholds) <= sum_bound
        np.testing.assert_array_equal(projections[~chosen], before[~chosen])
        np.testing.assert_allclose(projections[chosen], exact[chosen], rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(
            (projections > thresholds)[chosen], (exact > thresholds)[chosen]
        )
        still_ambiguous = chosen & (np.abs(projections - thresholds) <= feature_bound)
        np.testing.assert_array_equal(ambiguous, still_ambiguous.any(axis=1))
        assert count == ambiguous.sum()
        assert (store[:, n_bits:] == -7).all()


@pytest.mark.parametrize("n", ROWS)
def test_recompute_rows_near_thresholds(n):
    rng = np.random.default_rng(n)
    n_bits, n_features = 70, 13
    directions, thresholds = floats(rng, n_bits, n_features), floats(rng, n_bits)
    feature_bound = np.full(n_bits, 0.2, np.float32)
    store = floats(rng, 2 * n + 1, n_bits + 2)
    before = store.copy()
    places = rng.permutation(2 * n + 1)[:n]
    features = rng.normal(size=(n, n_features))
    _core.recompute_rows(store[:, :n_bits], places, features, directions, thresholds, feature_bound)
    exact = features @ directions.T.astype(float)
    chosen = np.zeros(store.shape, bool)
    chosen[places, :n_bits] = (np.abs(before[:, :n_bits] - thresholds) <= feature_bound)[places]
    np.testing.assert_array_equal(store[~chosen], before[~chosen])
    expected = before.astype(float)
    expected[places, :n_bits] = exact
    np.testing.assert_allclose(store[chosen], expected[chosen], rtol=1e-6, atol=1e-6)
    padded = np.broadcast_to(np.append(thresholds, [0, 0]), store.shape)
    np.testing.assert_array_equal(store[chosen] > padded[chosen], expected[chosen] > padded[chosen])


def test_rounding_does_not_move_a_sum_across_its_threshold():
    threshold = np.array([0.1], np.float32)
    direction, bound = np.ones((1, 1), np.float32), np.ones(1, np.float32)
    for offset, above in ((1e-12, True), (0, False), (-1e-12, False)):
        projections = np.zeros((1, 1), np.float32)
        features = np.array([[float(threshold[0]) + offset]])
        _core.recompute_rows(
            projections, np.zeros(1, np.int64), features, direction, threshold, bound
        )
        assert (projections[0, 0] > threshold[0]) == above


@pytest.mark.parametrize("n", ROWS)
def test_gaussians(n):
    rng = np.random.default_rng(n)
    for width in (0, 1, 4, 7):
        rows, basis = rng.normal(size=(n, width)), rng.normal(size=(11, width))
        for factor in (0.0, 0.7, 50.0, 1e6):
            out = np.full((n, 11), -7.0)
            _core.gaussians(rows, basis, factor, out)
            squares = ((rows[:, None] - basis) ** 2).sum(axis=2)
            expected = np.exp2(np.maximum(-factor * squares, -1000))
            np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-290)


# -- learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [*ROWS, 1023, 1024, 1025])
def test_add_gram_is_exact_and_adds_to_the_result(n):
    rng = np.random.default_rng(n)
    for width in (1, 16, 17, 40):
        features = rng.integers(0, 4097, (30, width)).astype(np.int16)
        features[:3] = 4096
        features[3:6] = 0
        left, right = rng.integers(30, size=(2, n))
        padded = -(-width // _core.gram_panel) * _core.gram_panel
        for sign, shift in ((-1, 0), (1, 4096)):
            out = np.full((padded, padded), 5, np.int64)
            _core.add_gram(features, left, right, sign, shift, out)
            rows = features[left].astype(np.int64) + sign * features[right].astype(np.int64) - shift
            upper = np.triu(np.ones((width, width), bool))
            np.testing.assert_array_equal(out[:width, :width][upper], (rows.T @ rows + 5)[upper])


@pytest.mark.parametrize("n", ROWS)
def test_rank_equals_unique(n):
    rng = np.random.default_rng(n)
    edge = np.array([0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 3e38, -3e38], np.float32)
    for values in (floats(rng, n), rng.integers(-3, 4, n).astype(np.float32), np.resize(edge, n)):
        values = values.astype(np.float32)
        ranks, distinct = np.full(n, -7, np.int32), np.full(n, -7, np.float32)
        count = _core.rank(values, ranks, distinct)
        expected, inverse = np.unique(values, return_inverse=True)
        assert count == len(expected)
        np.testing.assert_array_equal(distinct[:count], expected)
        np.testing.assert_array_equal(ranks, inverse)


def separated(ranks, pairs, rank):
    """Return which pairs have one member at or below a rank and the other above."""
    return (ranks[pairs[0]] <= rank) != (ranks[pairs[1]] <= rank)


@pytest.mark.parametrize("n", ROWS[1:])
def test_best_threshold_equals_exhaustive_search(n):
    rng = np.random.default_rng(n)
    distinct, ranks = np.unique(rng.integers(0, 60, n).astype(np.float32), return_inverse=True)
    ranks = ranks.astype(np.int32)
    for n_pairs in (0, 1, 300):
        positives, negatives = rng.integers(0, n, (2, 2, n_pairs)).astype(np.int32)
        weights = (1 / 7, 1 / 9)
        found = _core.best_threshold(ranks, distinct, positives, negatives, *weights)
        best, best_loss, best_gap = (len(distinct) - 1, 0, 0), 0.0, 0.0
        for rank in range(len(distinct) - 1):
            counts = [int(separated(ranks, p, rank).sum()) for p in (positives, negatives)]
            loss = weights[0] * counts[0] - weights[1] * counts[1]
            gap = float(distinct[rank + 1] - distinct[rank])
            if loss < best_loss or (loss == best_loss and gap > best_gap):
                best, best_loss, best_gap = (rank, *counts), loss, gap
        assert found == best


@pytest.mark.parametrize("n", ROWS[1:])
def test_best_weighted_threshold_equals_exhaustive_search(n):
    rng = np.random.default_rng(n)
    distinct, ranks = np.unique(rng.integers(0, 60, n), return_inverse=True)
    ranks = ranks.astype(np.int32)
    for n_pairs in (0, 1, 300):
        pairs = rng.integers(0, n, (2, n_pairs)).astype(np.int32)
        weights = rng.integers(-9, 10, n_pairs) / 8  # sums are exact
        candidates = range(len(distinct) - 1)
        losses = [weights[separated(ranks, pairs, rank)].sum() for rank in candidates]
        expected = (int(np.argmin(losses)), min(losses)) if losses else (0, np.inf)
        assert _core.best_weighted_threshold(ranks, len(distinct), pairs, weights) == expected


# -- refinement -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_bits", [0, *BITS])
def test_soft_bits_are_tanh(n_bits):
    rng = np.random.default_rng(n_bits)
    for n in (0, 1, 9):
        projections, thresholds = floats(rng, n, n_bits), floats(rng, n_bits)
        for factor in (0.0, 1.5, 40.0):
            out = np.full((n, n_bits), -7, np.float32)
            _core.soft_bits(projections, thresholds, factor, out)
            gaps = projections.astype(float) - thresholds
            expected = np.tanh(factor * np.log(2) / 2 * gaps)
            np.testing.assert_allclose(out, expected, atol=1e-6)


@pytest.mark.parametrize("n", ROWS)
def test_mask_same_label(n):
    rng = np.random.default_rng(n)
    labels = rng.integers(0, 5, n)
    for first, n_rows in ((0, n), (n // 3, n // 2), (n, 0)):
        similarity = floats(rng, n_rows, n)
        expected = similarity.copy()
        expected[labels[first : first + n_rows, None] == labels] = -1e30
        _core.mask_same_label(similarity, first, labels)
        np.testing.assert_array_equal(similarity, expected)


@pytest.mark.parametrize("width", ROWS[1:])
def test_find_largest(width):
    rng = np.random.default_rng(width)
    for n in (0, 1, 9):
        similarity = rng.integers(-5, 6, (n, width)).astype(np.float32)
        if n > 4:
            similarity[1] = -1e30
            similarity[2] = -np.inf  # less than the value of masked items
            similarity[3, -1] = np.inf
        where, value = np.full(n, -7, np.int32), np.full(n, -7, np.float32)
        _core.find_largest(similarity, where, value)
        np.testing.assert_array_equal(where, similarity.argmax(axis=1))
        np.testing.assert_array_equal(value, similarity.max(axis=1))


@pytest.mark.parametrize("n", ROWS)
def test_add_partner_similarity(n):
    rng = np.random.default_rng(n)
    for n_bits, low, high in ((1, 0, 1), (64, 0, 64), (64, 5, 47), (64, 9, 9)):
        soft = floats(rng, n, n_bits)
        partner = soft[(np.arange(n) + n // 2) % n] if n else soft
        products = (soft.astype(float) * partner)[:, low:high].sum(axis=1)
        for first, n_rows in ((0, n), (n // 3, n // 2), (n, 0)):
            out = np.full(n_rows, 2, np.float32)
            _core.add_partner_similarity(soft, low, high, first, out)
            np.testing.assert_allclose(
                out, 2 + products[first : first + n_rows], rtol=1e-5, atol=1e-4
            )


@pytest.mark.parametrize("n", ROWS)
def test_add_gradient(n):
    rng = np.random.default_rng(n)
    for n_bits, prefixes, low, high in (
        (1, [1], 0, 1),
        (40, [16, 40], 0, 40),
        (40, [0, 16, 40], 9, 33),
    ):
        soft, slopes = floats(rng, n, n_bits), floats(rng, len(prefixes), n)
        nearest = rng.integers(0, max(n, 1), (len(prefixes), n)).astype(np.int32)
        out = floats(rng, n, n_bits)
        expected = out.astype(float)
        for k, prefix in enumerate(prefixes):
            columns = slice(low, min(high, prefix))
            for i in range(n if prefix > low else 0):
                j, o = (i + n // 2) % n, nearest[k, i]
                change = slopes[k, i] * soft[i, columns].astype(float)
                expected[i, columns] += slopes[k, i] * (
                    soft[o, columns].astype(float) - soft[j, columns]
                )
                expected[j, columns] -= change
                expected[o, columns] += change
        _core.add_gradient(soft, nearest, slopes, np.array(prefixes), low, high, out)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", ROWS)
def test_adam_step(n):
    rng = np.random.default_rng(n)
    values, gradient, mean, square = (floats(rng, n) for _ in range(4))
    square = np.abs(square)
    new_mean = 0.9 * mean.astype(float) + 0.1 * gradient
    new_square = 0.999 * square.astype(float) + 0.001 * gradient.astype(float) ** 2
    expected = values - 0.01 * new_mean / np.sqrt(1.7 * new_square)
    _core.adam_step(values, gradient, mean, square, 0.01, 1.7)
    np.testing.assert_allclose(mean, new_mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(square, new_square, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
