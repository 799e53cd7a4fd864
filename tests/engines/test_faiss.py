"""Conversion to FAISS and back."""

from __future__ import annotations

import numpy as np
import pytest

from kdiffhash import HammingIndex
from kdiffhash.engines.faiss import from_faiss, recommend_index, to_faiss

faiss = pytest.importorskip("faiss")
KINDS = ["flat", "ivf", "hnsw", "multihash"]


@pytest.fixture(scope="module")
def index():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (2000, 16), dtype=np.uint8)
    index = HammingIndex(codes, rng.permutation(10_000)[:2000])
    index.remove(index.ids[:100])
    return index


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_preserves_codes_and_ids(index, kind):
    converted = to_faiss(index, kind)
    assert converted.ntotal == len(index)
    restored = from_faiss(converted)
    np.testing.assert_array_equal(restored.ids, index.ids)
    np.testing.assert_array_equal(restored.get(index.ids), index.get(index.ids))


@pytest.mark.parametrize("kind", KINDS)
def test_faiss_search_returns_the_ids_of_the_index(index, kind):
    converted = to_faiss(index, kind)
    if kind == "ivf":
        converted.nprobe = 1000
    expected = index.ids[::50]
    distances, ids = converted.search(index.get(expected), 1)
    assert not distances.any()
    np.testing.assert_array_equal(ids[:, 0], expected)


def test_from_faiss_without_ids_numbers_codes_from_zero():
    codes = np.random.default_rng(1).integers(0, 256, (50, 8), dtype=np.uint8)
    flat = faiss.IndexBinaryFlat(64)
    flat.add(codes)
    restored = from_faiss(flat)
    np.testing.assert_array_equal(restored.get(np.arange(50)), codes)


def test_options_are_passed_to_faiss(index):
    assert to_faiss(index, "ivf", n_lists=7).nlist == 7
    converted = to_faiss(index, "multihash", n_tables=2, table_bits=8)
    multihash = faiss.downcast_IndexBinary(converted.index)
    assert (multihash.nhash, multihash.b) == (2, 8)
    converted = to_faiss(index, "hnsw", m=8, ef_construction=50, ef_search=33)
    graph = faiss.downcast_IndexBinary(converted.index)
    assert (graph.hnsw.efConstruction, graph.hnsw.efSearch) == (50, 33)


def test_invalid_arguments_are_refused(index):
    with pytest.raises(ValueError, match="kind"):
        to_faiss(index, "tree")
    with pytest.raises(ValueError, match="no option"):
        to_faiss(index, "flat", m=3)
    with pytest.raises(ValueError, match="multiple of 8"):
        to_faiss(HammingIndex(n_bits=9))
    with pytest.raises(ValueError, match="is empty"):
        to_faiss(HammingIndex(n_bits=8), "ivf")
    with pytest.raises(ValueError, match="need 64 bits, but the codes have 8"):
        to_faiss(HammingIndex(n_bits=8), "multihash")
    with pytest.raises(ValueError, match="cannot be read from"):
        from_faiss(faiss.IndexBinaryHash(64, 8))
    with pytest.raises(ValueError, match="at least 0"):
        recommend_index(-1, 64)


def test_recommendation_depends_on_size_and_radius():
    assert recommend_index(20_000, 256).method == "exact"
    assert recommend_index(20_001, 256).method == "cells"
    assert recommend_index(1_000_000, 128, radius=3).method == "tables"
    assert recommend_index(1_000_000, 128, radius=50).method == "exact"
    assert recommend_index(1000, 128, radius=3).method == "exact"


@pytest.mark.parametrize("kind", KINDS)
def test_from_faiss_accepts_an_index_that_is_not_referenced_elsewhere(index, kind):
    assert len(from_faiss(to_faiss(index, kind))) == len(index)


@pytest.mark.parametrize("options", [{"n_lists": 0}, {"n_lists": 100_000}])
def test_options_out_of_range_are_refused(index, options):
    with pytest.raises(ValueError, match=r"at least 1|at most the number of codes"):
        to_faiss(index, "ivf", **options)
    with pytest.raises(ValueError, match="m must be at least 2"):
        to_faiss(index, "hnsw", m=0)
