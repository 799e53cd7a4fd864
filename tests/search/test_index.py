"""The index compared with brute force in plain NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import oracle
import pytest
from contract import ChangingContract
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiffhash import HammingIndex
from kdiffhash.search import scan
from kdiffhash.search.index_search import Snapshot

WIDTHS = [1, 7, 8, 9, 64, 100, 128, 192, 256, 509, 512, 520, 1024]


@st.composite
def searches(draw):
    """Draw an index built in one of several ways, its codes and ids, and queries."""
    n_bits = draw(st.sampled_from(WIDTHS))
    n = draw(st.one_of(st.integers(0, 40), st.integers(41, 2500)))
    n_queries = draw(st.one_of(st.integers(0, 3), st.sampled_from([15, 16, 70, 130])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    alphabet = draw(st.sampled_from([None, None, 1, 3, 40]))
    codes = oracle.random_codes(rng, n, n_bits, alphabet)
    queries = oracle.random_codes(rng, n_queries, n_bits)
    if n and n_queries and draw(st.booleans()):
        queries[0] = codes[-1]
    how = draw(st.sampled_from(["consecutive", "with gaps", "shuffled"]))
    ids = {
        "consecutive": np.arange(n),
        "with gaps": np.sort(rng.choice(10 * n + 10, n, replace=False)) - 5,
        "shuffled": rng.permutation(10 * n + 10)[:n] - 5,
    }[how]
    index = HammingIndex(n_bits=n_bits)
    edges = [0, *sorted(rng.integers(0, n + 1, draw(st.integers(0, 3)))), n]
    for a, b in pairwise(edges):
        index.add(codes[a:b], ids[a:b])
    if n and draw(st.booleans()):
        removed = rng.random(n) < draw(st.sampled_from([0.05, 0.5, 0.95]))
        index.remove(ids[removed])
        codes, ids = codes[~removed], ids[~removed]
    return index, codes, ids, queries, rng


@given(searches(), st.integers(1, 80), st.sampled_from([1, 2, 3]))
@settings(max_examples=1500, deadline=None)
@pytest.mark.slow
def test_nearest_neighbours_equal_those_of_brute_force(search, k, threads):
    index, codes, ids, queries, _ = search
    distances, found = index.search(queries, k, n_jobs=threads)
    expected = oracle.nearest(queries, codes, ids, k)
    assert len(index) == len(ids)
    assert distances.shape == found.shape == (len(queries), min(k, len(ids)))
    np.testing.assert_array_equal(distances, expected[0])
    np.testing.assert_array_equal(found, expected[1])


@given(searches(), st.floats(0, 0.6), st.sampled_from([1, 2]))
@settings(max_examples=500, deadline=None)
def test_range_search_equals_brute_force(search, share, threads):
    index, codes, ids, queries, _ = search
    radius = int(share * index.n_bits)
    lims, distances, found = index.search_radius(queries, radius, n_jobs=threads)
    lists = [list(zip(distances[a:b].tolist(), found[a:b].tolist())) for a, b in pairwise(lims)]
    assert lists == oracle.range_search(queries, codes, ids, radius)
    assert lims[-1] == len(found) == len(distances)


@given(searches(), st.floats(0, 0.3))
@settings(max_examples=200, deadline=None)
def test_duplicates_equal_those_of_brute_force(search, share):
    index, codes, ids, _, _ = search
    keep = slice(0, 300)
    index = HammingIndex(codes[keep], ids[keep], n_bits=index.n_bits)
    radius = int(share * index.n_bits)
    pairs, distances = index.duplicates(radius)
    found = [(int(a), int(b), int(d)) for (a, b), d in zip(pairs, distances)]
    assert found == oracle.duplicates(codes[keep], ids[keep], radius)


@given(searches(), st.floats(0, 1), st.booleans())
@settings(max_examples=200, deadline=None)
def test_allowed_ids_or_a_mask_restrict_the_search(search, share, as_mask):
    index, codes, ids, queries, rng = search
    chosen = rng.random(len(ids)) < share
    allowed = ids[chosen]
    if as_mask:
        order = np.argsort(ids)
        np.testing.assert_array_equal(index.ids, ids[order])
        mask = chosen[order]
        distances, found = index.search(queries, 5, allowed=mask)
    else:
        distances, found = index.search(queries, 5, allowed=np.r_[allowed, 10**9].astype(int))
    expected = oracle.nearest(queries, codes[chosen], allowed, 5)
    np.testing.assert_array_equal(distances, expected[0])
    np.testing.assert_array_equal(found, expected[1])


@pytest.mark.parametrize("n_bits", [64, 128, 256, 512, 2048, 4096])
def test_search_is_exact_for_long_codes(n_bits):
    rng = np.random.default_rng(n_bits)
    codes = oracle.random_codes(rng, 9000, n_bits)
    queries = oracle.random_codes(rng, 33, n_bits)
    index = HammingIndex(codes)
    expected = oracle.nearest(queries, codes, np.arange(len(codes)), 12)
    for some in (slice(0, 1), slice(0, 33)):
        distances, ids = index.search(queries[some], 12)
        np.testing.assert_array_equal(distances, expected[0][some])
        np.testing.assert_array_equal(ids, expected[1][some])


def test_distances_are_those_of_faiss():
    faiss = pytest.importorskip("faiss")
    rng = np.random.default_rng(1)
    for n_bits in (64, 128, 256, 512):
        codes, queries = (oracle.random_codes(rng, n, n_bits) for n in (5000, 50))
        flat = faiss.IndexBinaryFlat(n_bits)
        flat.add(codes)
        np.testing.assert_array_equal(
            HammingIndex(codes).search(queries, 7)[0], flat.search(queries, 7)[0]
        )


@pytest.mark.parametrize("kernel", ["lanes", "slices"])
@pytest.mark.parametrize("n_queries", [1, 20])
def test_both_kernels_find_the_same(kernel, n_queries, monkeypatch):
    monkeypatch.setattr(scan, "use_slices", lambda *args: kernel == "slices")
    rng = np.random.default_rng(2)
    codes = oracle.random_codes(rng, 3000, 256, alphabet=900)
    queries = oracle.random_codes(rng, n_queries, 256)
    index = HammingIndex(codes)
    expected = oracle.nearest(queries, codes, np.arange(3000), 9)
    np.testing.assert_array_equal(index.search(queries, 9)[1], expected[1])
    lims, distances, ids = index.search_radius(queries, 110)
    lists = oracle.range_search(queries, codes, np.arange(3000), 110)
    assert list(zip(distances.tolist(), ids.tolist())) == [pair for line in lists for pair in line]
    assert np.diff(lims).tolist() == [len(line) for line in lists]


def test_range_search_with_more_results_than_the_buffer_holds(monkeypatch):
    monkeypatch.setattr(scan, "_RESULT_BUFFER", 100)
    monkeypatch.setattr(scan, "_RANGE_QUERIES", 64)
    monkeypatch.setattr(scan, "_THREAD_NS", 1)  # use threads even for little work
    codes = np.zeros((20_003, 8), np.uint8)
    codes[:9000] = 255  # one thread has more results than the others
    index = HammingIndex(codes)
    near = np.arange(9000, 20_003)
    for n_queries in (2, 40):
        for threads in (2, 3):
            queries = np.zeros((n_queries, 8), np.uint8)
            lims, distances, ids = index.search_radius(queries, 0, n_jobs=threads)
            assert np.diff(lims).tolist() == [len(near)] * n_queries
            np.testing.assert_array_equal(ids, np.tile(near, n_queries))
            assert not distances.any()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_find_the_same_in_several_segments(threads, monkeypatch):
    monkeypatch.setattr(scan, "_THREAD_NS", 1)
    rng = np.random.default_rng(5)
    codes = oracle.random_codes(rng, 7003, 128, alphabet=2000)
    ids = rng.permutation(9000)[:7003]
    index = HammingIndex(n_bits=128)
    for a, b in pairwise([0, 4000, 6005, 7003]):  # segments of decreasing size are not merged
        more = HammingIndex(codes[a:b], ids[a:b])._segments
        index._snapshot = Snapshot([*index._segments, *more])
    assert len(index._segments) == 3
    for n_queries in (1, 5, 40):
        queries = oracle.random_codes(rng, n_queries, 128)
        expected = oracle.nearest(queries, codes, ids, 11)
        for found, correct in zip(index.search(queries, 11, n_jobs=threads), expected):
            np.testing.assert_array_equal(found, correct)
        _, distances, near = index.search_radius(queries, 50, n_jobs=threads)
        lists = oracle.range_search(queries, codes, ids, 50)
        found = list(zip(distances.tolist(), near.tolist()))
        assert found == [pair for line in lists for pair in line]
    small = HammingIndex(n_bits=128)
    for a, b in pairwise([0, 400, 605, 703]):
        more = HammingIndex(codes[a:b], ids[a:b])._segments
        small._snapshot = Snapshot([*small._segments, *more])
    pairs, distances = small.duplicates(40, n_jobs=threads)
    found = [(int(a), int(b), int(d)) for (a, b), d in zip(pairs, distances)]
    assert found == oracle.duplicates(codes[:703], ids[:703], 40)


def test_small_numpy_integers_do_not_overflow():
    codes = oracle.random_codes(np.random.default_rng(6), 300, 64)
    index = HammingIndex(codes)
    for k in (np.uint8(200), np.int8(100), np.uint16(32_760)):
        np.testing.assert_array_equal(
            index.search(codes[:2], k)[1], index.search(codes[:2], int(k))[1]
        )


_BASELINE = """
import numpy as np
from kdiffhash import HammingIndex, _core, hamming
assert _core.level == "base"
rng = np.random.default_rng(0)
for n_bits in (64, 256, 1024):
    codes = np.packbits(rng.integers(0, 2, (700, n_bits), dtype=np.uint8), axis=1)
    for n_queries in (2, 40):
        full = hamming(codes[:n_queries, None], codes[None])
        distances, ids = HammingIndex(codes, n_bits=n_bits).search(codes[:n_queries], 20)
        order = np.argsort(full, axis=1, kind="stable")[:, :20]
        assert (ids == order).all(), n_bits
        assert (distances == np.take_along_axis(full, order, 1)).all(), n_bits
print("done")
"""


@pytest.mark.slow
def test_the_baseline_instruction_set_finds_the_same():
    env = {**os.environ, "KDIFFHASH_CPU": "base"}
    done = subprocess.run(
        [sys.executable, "-c", _BASELINE], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "done\n", done.stderr


class TestInMemory(ChangingContract):
    @pytest.fixture
    def make(self):
        return lambda codes, ids, n_bits: HammingIndex(codes, ids, n_bits=n_bits)


# -- content ------------------------------------------------------------------------------------


def test_assigned_ids_are_never_reused():
    index = HammingIndex(np.arange(3, dtype=np.uint8)[:, None])
    assert index.add(np.array([[7]], np.uint8)).tolist() == [3]
    index.remove([3])
    assert index.add(np.array([[8]], np.uint8)).tolist() == [4]
    assert index.add(np.array([[9], [10]], np.uint8), ids=[100, -5]).tolist() == [100, -5]
    assert index.add(np.array([[11]], np.uint8)).tolist() == [101]
    assert index.ids.tolist() == [-5, 0, 1, 2, 4, 100, 101]
    assert index.get([100, -5, 2]).tolist() == [[9], [10], [2]]
    assert 4 in index
    assert 3 not in index
    assert "x" not in index
    assert len(index) == 7
    index.add(np.array([[3]], np.uint8), ids=[3])  # a removed id can be added explicitly
    assert index.get([3]).tolist() == [[3]]


def test_empty_indexes_and_empty_queries_return_empty_results():
    index = HammingIndex(n_bits=64)
    none, query = np.empty((0, 8), np.uint8), np.zeros((2, 8), np.uint8)
    assert len(index) == 0
    assert index.search(query, 3)[1].shape == (2, 0)
    assert index.search_radius(query, 3)[0].tolist() == [0, 0, 0]
    assert index.duplicates(3)[0].shape == (0, 2)
    assert index.add(none).shape == (0,)
    index.add(query)
    assert index.search(none, 3)[0].shape == (0, 2)
    assert index.search_radius(none, 3)[0].tolist() == [0]
    index.remove([0, 1])
    assert index.search(query, 3)[1].shape == (2, 0)
    index.remove([])


QUERY = np.zeros((1, 8), np.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.add(np.zeros((1, 4), np.uint8)), "64 bits"),
        (lambda x: x.add(np.zeros((1, 8))), "packed uint8"),
        (lambda x: x.add(np.zeros(8, np.uint8)), "shape"),
        (lambda x: x.add(np.zeros((2, 8), np.uint8), [5]), "one id per code"),
        (lambda x: x.add(np.zeros((2, 8), np.uint8), [5, 5]), "duplicates"),
        (lambda x: x.add(np.zeros((1, 8), np.uint8), [0]), "already"),
        (lambda x: x.add(np.zeros((1, 8), np.uint8), [0.5]), "integers"),
        (lambda x: x.add(np.zeros((1, 8), np.uint8), np.array([2**63], np.uint64)), "64-bit"),
        (lambda x: x.add(np.zeros((1, 8), np.uint8), [2**63 - 1]), "below"),
        (lambda x: x.search(np.zeros((1, 9), np.uint8), 1), "64 bits"),
        (lambda x: x.search(np.zeros((1, 8), np.uint8), 0), "at least 1"),
        (lambda x: x.search(np.zeros((1, 8), np.uint8), 1.5), "integer"),
        (lambda x: x.search(np.zeros((1, 8), np.uint8), 1, allowed=[True]), "one boolean"),
        (lambda x: x.search(np.zeros((1, 8), np.uint8), 1, n_jobs=0), "n_jobs"),
        (lambda x: x.search_radius(np.zeros((1, 8), np.uint8), -1), "at least 0"),
        (lambda x: x.duplicates(0.5), "integer"),
        (lambda x: x.search(QUERY, 1, rerank_projections=np.zeros((1, 3))), "shape"),
        (lambda x: x.search(QUERY, 1, rerank_projections=np.full((1, 64), np.nan)), "finite"),
        (
            lambda x: x.search(QUERY, rerank_projections=np.zeros((1, 64)), rerank_factor=0),
            "rerank_factor",
        ),
        (lambda _: HammingIndex(), "n_bits"),
        (lambda _: HammingIndex(n_bits=0), "1 to 4096"),
        (lambda _: HammingIndex(n_bits=4097), "1 to 4096"),
        (lambda _: HammingIndex(np.full((1, 1), 255, np.uint8), n_bits=5), "beyond"),
    ],
)
def test_invalid_input_is_refused(call, message):
    index = HammingIndex(np.zeros((3, 8), np.uint8))
    with pytest.raises(ValueError, match=message):
        call(index)
    assert index.ids.tolist() == [0, 1, 2]


def test_missing_ids_raise_and_change_nothing():
    index = HammingIndex(np.zeros((3, 8), np.uint8))
    for call in (index.remove, index.get):
        with pytest.raises(KeyError, match="for example 7"):
            call([1, 7])
    assert len(index) == 3


def test_many_small_batches_are_merged():
    rng = np.random.default_rng(3)
    codes = oracle.random_codes(rng, 1000, 64)
    index = HammingIndex(n_bits=64)
    for code in codes:
        index.add(code[None])
    assert len(index._segments) < 12
    np.testing.assert_array_equal(index.get(np.arange(1000)), codes)


# -- re-ranking ---------------------------------------------------------------------------------


def test_reranking_orders_by_the_projections_of_differing_bits():
    rng = np.random.default_rng(4)
    for n_bits in (10, 64, 130):
        codes = oracle.random_codes(rng, 300, n_bits)
        projections = rng.standard_normal((5, n_bits)).astype(np.float32)
        queries = np.packbits(projections > 0, axis=1)
        index = HammingIndex(codes, n_bits=n_bits)
        distances, ids = index.search(queries, 4, rerank_projections=projections)
        single = index.search(queries[0], 4, rerank_projections=projections[0], rerank_factor=10)
        np.testing.assert_array_equal(single, (distances[0], ids[0]))
        near = index.search(queries, 40)[1]
        bits = np.unpackbits(codes, axis=1, count=n_bits).astype(bool)
        for q in range(5):
            weights = [
                (np.abs(projections[q])[bits[i] != (projections[q] > 0)].sum(), i) for i in near[q]
            ]
            expected = sorted(weights)[:4]
            np.testing.assert_allclose(distances[q], [w for w, _ in expected], rtol=1e-5)
            assert ids[q].tolist() == [i for _, i in expected]
