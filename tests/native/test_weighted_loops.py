"""The loops of float queries, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from reference import BITS, ROWS

from kdiffhash import _core


def run_nearest(words, projections, k, *, kept=None, start=0, stop=None, bounds=None):
    """Return a list of (distance, row) per query."""
    n = len(projections)
    stop = len(words) if stop is None else stop
    bounds = np.full(n, np.inf, np.float32) if bounds is None else bounds
    distances, rows = np.full((n, k), -7, np.float32), np.full((n, k), -7, np.int64)
    sizes = np.full(n, -7, np.int64)
    mask = None if kept is None else reference.to_mask(kept)
    codes = (reference.to_blocks(words), len(words), mask, start, stop)
    _core.nearest_weighted(*codes, None, None, None, projections, bounds, distances, rows, sizes)
    return [
        list(zip(d[:size].tolist(), r[:size].tolist()))
        for d, r, size in zip(distances, rows, sizes)
    ]


def random_words(rng, n, n_bits, n_distinct=None):
    """Return codes in the order of numpy.packbits, as zero-padded words."""
    bits = rng.integers(0, 2, (n_distinct or n, n_bits), dtype=np.uint8)
    bits = bits[rng.integers(0, n_distinct, n)] if n_distinct else bits
    packed = np.zeros((n, -(-n_bits // 64) * 8), np.uint8)
    packed[:, : -(-n_bits // 8)] = np.packbits(bits, axis=1)
    return packed.view(np.uint64)


@pytest.mark.parametrize("n", ROWS)
def test_nearest_for_any_number_of_rows(n):
    rng = np.random.default_rng(n)
    for n_bits, n_queries in ((64, 0), (64, 1), (100, 35), (256, 3)):
        words = random_words(rng, n, n_bits)
        projections = rng.normal(size=(n_queries, n_bits)).astype(np.float32)
        distances = reference.weighted_distances_of(projections, words)
        for k in (1, 5, 600):  # 600 exceeds the number of rows
            bounds = np.full(n_queries, np.inf)
            expected = reference.nearest(distances, np.ones(n, bool), bounds, k)
            assert run_nearest(words, projections, k) == expected


@pytest.mark.parametrize("n_bits", BITS)
def test_nearest_for_any_length_with_ties_removed_rows_row_ranges_and_bounds(n_bits):
    rng = np.random.default_rng(n_bits)
    for n, n_distinct in ((513, 9), (530, None), (300, 1)):
        words = random_words(rng, n, n_bits, n_distinct)
        projections = rng.normal(size=(12, n_bits)).astype(np.float32)
        projections[::3] = np.round(projections[::3])  # ties between different codes, and zeros
        distances = reference.weighted_distances_of(projections, words)
        kept = rng.random(n) < 0.7
        start, stop = 8 * int(rng.integers(0, 20)), int(rng.integers(250, n + 1))
        inside = (np.arange(n) >= start) & (np.arange(n) < stop)
        options = {"start": start, "stop": stop}
        for bounds in (
            np.full(12, np.inf, np.float32),
            distances[np.arange(12), rng.integers(0, n, 12)],
            np.zeros(12, np.float32),
        ):
            expected = reference.nearest(distances, kept & inside, bounds, 11)
            found = run_nearest(words, projections, 11, kept=kept, bounds=bounds, **options)
            assert found == expected
        expected = reference.nearest(distances, inside, np.full(12, np.inf), 100)
        assert run_nearest(words, projections, 100, **options) == expected


@pytest.mark.parametrize("factor", [0, 1e-45, 1e-42, 1e-30, 1e30, 1e35])
def test_nearest_for_projections_of_any_magnitude(factor):
    rng = np.random.default_rng(0)
    words = random_words(rng, 600, 128)
    projections = (rng.normal(size=(9, 128)) * factor).astype(np.float32)
    projections[:3, rng.integers(0, 128, 40)] *= 1e-4
    projections[3, 1:] = 0
    projections[4, ::3] *= 1e-12  # sums of such weights are not exact in double precision
    distances = reference.weighted_distances_of(projections, words)
    expected = reference.nearest(distances, np.ones(600, bool), np.full(9, np.inf), 20)
    assert run_nearest(words, projections, 20) == expected


def test_nearest_of_codes_in_descending_distance():
    """Every row is nearer than all before it, so the results are superseded again and again."""
    bits = np.tril(np.ones((256, 256), np.uint8))[::-1]
    words = np.packbits(bits, axis=1).view(np.uint64)
    projections = np.full((3, 256), -0.5, np.float32)
    expected = [[((d + 1) / 2, 255 - d) for d in range(9)]] * 3
    assert run_nearest(words, projections, 9) == expected


def test_bits_beyond_the_projections_are_ignored():
    rng = np.random.default_rng(1)
    words = random_words(rng, 300, 128)
    projections = rng.normal(size=(5, 70)).astype(np.float32)
    distances = reference.weighted_distances_of(projections, words)
    expected = reference.nearest(distances, np.ones(300, bool), np.full(5, np.inf), 7)
    assert run_nearest(words, projections, 7) == expected


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_projections_that_are_not_finite_are_refused(value):
    projections = np.zeros((2, 64), np.float32)
    projections[1, 63] = value
    with pytest.raises(ValueError, match="finite"):
        run_nearest(np.zeros((9, 1), np.uint64), projections, 1)
    for bound in (-1, np.nan):
        bounds = np.full(2, bound, np.float32)
        with pytest.raises(ValueError, match="at least 0"):
            run_nearest(np.zeros((9, 1), np.uint64), np.zeros_like(projections), 1, bounds=bounds)


@pytest.mark.parametrize("n_bits", BITS)
def test_weighted_distances_sum_the_projections_of_differing_bits(n_bits):
    rng = np.random.default_rng(n_bits)
    for n, m in ((0, 3), (3, 0), (1, 1), (7, 9)):
        words = random_words(rng, n * m, n_bits)
        projections = rng.normal(size=(n, n_bits)).astype(np.float32)
        projections[::2, ::3] *= 1e-12  # sums of such weights are not exact in double precision
        out = np.full((n, m), -7, np.float32)
        _core.weighted_distances(words.reshape(n, m, words.shape[1]), projections, out)
        if n * m:
            all_distances = reference.weighted_distances_of(projections, words).reshape(n, n, m)
            np.testing.assert_array_equal(out, all_distances[np.arange(n), np.arange(n)])
