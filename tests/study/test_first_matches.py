from __future__ import annotations

import numpy as np

from kdiffhash import hamming
from kdiffhash.study.first_matches import (
    draw_queries,
    first_by_codes,
    first_by_rows,
    precision,
    time_comparisons,
)


def test_first_by_codes_are_the_closest_others():
    rng = np.random.default_rng(0)
    for n_bytes in (1, 8, 11):
        codes = rng.integers(0, 256, (200, n_bytes)).astype(np.uint8)
        queries = np.array([3, 199, 50])
        found, distances = first_by_codes(codes, queries)
        for query, rows, values in zip(queries, found, distances):
            all_distances = hamming(codes[query], codes)
            others = [row for row in range(200) if row != query]
            others.sort(key=lambda row: (all_distances[row], row))
            assert rows.tolist() == others[:5]
            assert values.tolist() == all_distances[others[:5]].tolist()


def test_first_by_rows_are_the_closest_others():
    rows = np.random.default_rng(1).integers(0, 256, (100, 16)).astype(np.uint8)
    found, distances = first_by_rows(rows, np.array([7]))
    gap = np.linalg.norm(rows.astype(float) - rows[7], axis=1)
    gap[7] = np.inf
    np.testing.assert_array_equal(found[0], np.argsort(gap)[:5])
    np.testing.assert_allclose(distances[0], np.sort(gap)[:5], rtol=1e-3)


def test_precision_counts_what_a_point_can_give():
    points = np.array([0, 0, 0, 1, 1, 2])
    found = np.array([[1, 2, 3, 4, 5], [0, 1, 2, 5, 4]])
    # Point 0 has two others, both found; point 1 has one, found.
    np.testing.assert_allclose(precision(points, np.array([0, 3]), found), [1, 1])
    np.testing.assert_allclose(precision(points, np.array([0]), np.array([[1, 3, 4, 5, 5]])), 0.5)


def test_queries_are_of_different_points_that_have_others():
    points = np.random.default_rng(2).permutation(np.repeat(np.arange(50), 3))
    points = np.append(points, [77])  # seen once
    queries = draw_queries(points, 20, 0)
    assert len(np.unique(points[queries])) == 20
    assert 77 not in points[queries]
    np.testing.assert_array_equal(queries, draw_queries(points, 20, 0))


def test_comparison_times_have_a_ratio_for_each_length():
    rows = np.random.default_rng(3).integers(0, 256, (100, 128)).astype(np.uint8)
    times = time_comparisons(rows, [32, 100])
    assert set(times["ns"]) == {"euclidean", "32", "100"}
    assert min(times["ns"].values()) > 0
    for median, low, high in times["ratios"].values():
        assert 0 < low <= median <= high
