"""Multi-index hashing compared with brute force."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiffhash import HammingIndex
from kdiffhash.codes import as_words
from kdiffhash.search import lookup_tables
from kdiffhash.search.index_search import Snapshot
from kdiffhash.search.segment import make_segment


@given(
    st.sampled_from([8, 13, 64, 100, 128, 256]),
    st.integers(1, 400),
    st.integers(0, 12),
    st.integers(1, 40),
    st.integers(0, 2**32),
)
@settings(max_examples=300, deadline=None)
def test_tables_find_the_same_as_brute_force(n_bits, n, radius, n_substrings, seed):
    n_substrings = min(n_substrings, n_bits // 6)
    n_substrings = max(n_substrings, -(-n_bits // 20), 1)
    if radius // n_substrings > 3:
        radius = 3 * n_substrings
    rng = np.random.default_rng(seed)
    codes = oracle.random_codes(rng, n, n_bits, alphabet=max(1, n // 2))
    noise = np.packbits(rng.random((n, n_bits)) < 3 / n_bits, axis=1)
    codes ^= noise  # near duplicates
    ids = np.sort(rng.choice(10 * n, n, replace=False))
    removed = rng.random(n) < 0.1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup_tables, "choose_substrings", lambda *args: n_substrings)
        patch.setattr(lookup_tables, "_HITS", 7)
        index = HammingIndex(codes, ids, n_bits=n_bits)
        index.remove(ids[removed])
        codes, ids = codes[~removed], ids[~removed]
        queries = codes[:20]
        lims, distances, found = index.search_radius(queries, radius)
        pairs, between = index.duplicates(radius)
    lists = oracle.range_search(queries, codes, ids, radius)
    assert list(zip(distances.tolist(), found.tolist())) == [p for line in lists for p in line]
    assert np.diff(lims).tolist() == [len(line) for line in lists]
    assert [(a, b, d) for (a, b), d in zip(pairs.tolist(), between.tolist())] == oracle.duplicates(
        codes, ids, radius
    )


def test_tables_are_chosen_for_small_radii_only():
    rng = np.random.default_rng(0)
    codes = oracle.random_codes(rng, 2**17, 128)
    segment = make_segment(as_words(codes), np.arange(len(codes)))
    assert lookup_tables.choose_substrings(segment, 2, 128, 100_000) > 0
    assert lookup_tables.choose_substrings(segment, 40, 128, 100_000) == 0
    assert lookup_tables.choose_substrings(segment, 2, 128, 1) == 0  # building them costs more


def test_tables_are_not_chosen_if_most_codes_share_their_substrings():
    codes = np.zeros((2**17, 16), np.uint8)
    codes[:, 0] = np.arange(2**17) % 256
    segment = make_segment(as_words(codes), np.arange(len(codes)))
    assert lookup_tables.choose_substrings(segment, 2, 128, 100_000) == 0


def test_the_choice_of_method_does_not_change_the_results():
    rng = np.random.default_rng(1)
    codes = oracle.random_codes(rng, 20_000, 128)
    copies = codes[:2000] ^ np.packbits(rng.random((2000, 128)) < 0.01, axis=1)
    index = HammingIndex(np.concatenate([codes, copies]))
    by_tables = index.duplicates(4)
    assert index._segments[0].tables, "tables should be faster here"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup_tables, "choose_substrings", lambda *args: 0)
        by_scan = index.duplicates(4)
    np.testing.assert_array_equal(by_tables[0], by_scan[0])
    np.testing.assert_array_equal(by_tables[1], by_scan[1])
    assert len(by_scan[0]) > 1900


def test_the_tables_of_an_index_share_one_memory_budget(monkeypatch):
    monkeypatch.setattr(lookup_tables, "_MIN_ROWS", 1)
    rng = np.random.default_rng(2)
    codes = oracle.random_codes(rng, 30_000, 64)
    index = HammingIndex(n_bits=64)
    for start in range(0, 30_000, 10_000):
        chunk = HammingIndex(codes[start : start + 10_000], np.arange(start, start + 10_000))
        index._snapshot = Snapshot([*index._segments, *chunk._segments])
    per_segment = 4 * 4 * (10_000 + 2**16)
    monkeypatch.setattr(lookup_tables, "_MEMORY", 2 * per_segment)
    queries = codes[rng.integers(0, 30_000, 20_000)]
    lims = index.search_radius(queries, 1)[0]
    assert (np.diff(lims) >= 1).all()
    built = [t for segment in index._segments for t in segment.tables.values()]
    assert built
    assert sum(t.starts.nbytes + t.rows.nbytes for t in built) <= 2 * per_segment
