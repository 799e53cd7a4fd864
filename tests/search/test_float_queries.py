"""Float queries against stored bits, and re-ranking by a function."""

from __future__ import annotations

import numpy as np
import oracle
import pytest

from kdiffhash import HammingIndex, ITQHash
from kdiffhash.search import scan

QUERY = np.zeros(64, np.float32)


def expected_of(projections, codes, ids, k):
    """Return distances and ids of the k nearest codes, ordered by distance, then id."""
    distances = oracle.weighted_distances_of(projections, codes)
    order = np.array([np.lexsort((ids, row))[:k] for row in distances])
    return np.take_along_axis(distances, order, axis=1), ids[order]


def assert_same(found, expected):
    assert found[0].dtype == np.float32
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("n_bits", [10, 64, 130])
def test_segments_removed_codes_and_allowed_ids(n_bits, tmp_path):
    rng = np.random.default_rng(n_bits)
    codes, ids = oracle.random_codes(rng, 900, n_bits, 300), rng.permutation(5000)[:900]
    projections = rng.standard_normal((7, n_bits)).astype(np.float32)
    projections[::2] = np.round(projections[::2])  # ties between different codes
    path = tmp_path / "codes.index"
    in_memory = HammingIndex(n_bits=n_bits)
    with HammingIndex.open(path, "a", n_bits=n_bits) as index:
        for start, stop in ((0, 700), (700, 850), (850, 900)):
            index.add(codes[start:stop], ids[start:stop])
            in_memory.add(codes[start:stop], ids[start:stop])
        index.remove(ids[::5])
        in_memory.remove(ids[::5])
    left = np.arange(900) % 5 > 0
    with HammingIndex.open(path) as index:
        assert len(index._segments) > 1
        for store in (index, in_memory):
            for k in (1, 20):
                found = store.search(queries_float=projections, k=k)
                assert_same(found, expected_of(projections, codes[left], ids[left], k))
            chosen = left & (rng.random(900) < 0.4)
            found = store.search(queries_float=projections, k=9, allowed=ids[chosen])
            assert_same(found, expected_of(projections, codes[chosen], ids[chosen], 9))
            assert store.search(queries_float=projections, k=2000)[1].shape == (7, left.sum())


def test_threads_and_batches_do_not_change_the_results(monkeypatch):
    rng = np.random.default_rng(1)
    codes = oracle.random_codes(rng, 20_000, 96, 4000)
    projections = rng.standard_normal((30, 96)).astype(np.float32)
    index = HammingIndex(codes, n_bits=96)
    expected = expected_of(projections, codes, np.arange(20_000), 15)
    monkeypatch.setattr(scan, "_THREAD_NS", 1)
    for n_jobs in (1, 2, 3, 7):
        assert_same(index.search(queries_float=projections, k=15, n_jobs=n_jobs), expected)
    monkeypatch.setattr(scan, "_FLOAT_QUERIES", 4)
    assert_same(index.search(queries_float=projections, k=15), expected)
    few = HammingIndex(codes[:500], n_bits=96)  # the queries are split instead of the rows
    expected = expected_of(projections, codes[:500], np.arange(500), 3)
    assert_same(few.search(queries_float=projections, k=3, n_jobs=3), expected)


def test_equals_reranking_of_all_codes():
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((600, 20))
    hasher = ITQHash(16, random_state=0).fit(rows)
    index = HammingIndex(hasher.transform(rows), model=hasher)
    projections = hasher.project(rows[:9] + 0.1)
    found = index.search(queries_float=projections, k=10)
    codes = np.packbits(projections > 0, axis=1)
    reranked = index.search(codes, 10, rerank_projections=projections, rerank_factor=60)
    assert_same(found, reranked)


def test_a_single_query_no_queries_and_an_empty_index():
    index = HammingIndex(np.array([[255], [0], [0]], np.uint8))
    distances, ids = index.search(queries_float=np.full(8, 0.5), k=2)
    assert (distances.tolist(), ids.tolist()) == ([0.0, 4.0], [0, 1])
    distances, ids = index.search(queries_float=np.empty((0, 8)), k=2)
    assert distances.shape == ids.shape == (0, 2)
    distances, ids = HammingIndex(n_bits=8).search(queries_float=np.ones((3, 8)))
    assert distances.shape == ids.shape == (3, 0)


def test_rerank_by_a_function():
    rng = np.random.default_rng(3)
    originals = rng.standard_normal((500, 64)).astype(np.float16)
    codes = np.packbits(originals > 0, axis=1)
    queries = originals[:6].astype(float) + 0.3
    ids = np.arange(500) * 3
    index = HammingIndex(codes, ids)
    calls = []

    def distances_of(query, candidates):
        calls.append((query, len(candidates)))
        return np.abs(originals[candidates // 3] - queries[query]).sum(axis=1).round(-1)

    for options in ({"queries": np.packbits(queries > 0, axis=1)}, {"queries_float": queries}):
        calls.clear()
        distances, found = index.search(k=4, rerank=distances_of, rerank_factor=5, **options)
        assert calls == [(q, 20) for q in range(6)]
        near = index.search(k=20, **options)[1]
        for q in range(6):
            exact = np.abs(originals[near[q] // 3] - queries[q]).sum(axis=1).round(-1)
            order = sorted(zip(exact.tolist(), near[q].tolist()))[:4]
            assert list(zip(distances[q].tolist(), found[q].tolist())) == order
    single = index.search(queries_float=queries[0], k=4, rerank=distances_of, rerank_factor=5)
    assert single[1].shape == (4,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either queries"),
        ({"queries": np.zeros(8, np.uint8), "queries_float": QUERY}, "either queries"),
        ({"queries_float": QUERY[:8]}, "shape"),
        ({"queries_float": QUERY[None, None]}, "shape"),
        ({"queries_float": QUERY + np.nan}, "finite"),
        ({"queries_float": np.full(64, 1e300)}, "finite"),
        ({"queries_float": QUERY + 1e37}, "too large"),
        ({"queries_float": ["a"] * 64}, "numbers"),
        ({"queries_float": QUERY, "rerank_projections": QUERY}, "already in this order"),
        ({"queries_float": QUERY, "rerank": lambda q, ids: ids[1:]}, "one distance"),
        ({"queries_float": QUERY, "rerank": lambda q, ids: ids * np.nan}, "not NaN"),
    ],
)
def test_invalid_arguments_are_refused(options, message):
    index = HammingIndex(np.zeros((3, 8), np.uint8))
    with pytest.raises(ValueError, match=message):
        index.search(**options)
