"""Approximate search by cells: exact where it must be, and recall as promised; also in a file."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from kdiffhash import HammingIndex, IndexFileError
from kdiffhash.codes import as_words
from kdiffhash.search import probe
from kdiffhash.search.index_repair import repair

N, N_BITS = 21_000, 64


def clustered(rng, n, n_bits=N_BITS, n_clusters=300, flipped=0.06):
    """Return codes around random centres."""
    centres = np.random.default_rng(7).integers(0, 256, (n_clusters, n_bits // 8), dtype=np.uint8)
    noise = np.packbits(rng.random((n, n_bits)) < flipped, axis=1)
    return centres[rng.integers(0, n_clusters, n)] ^ noise


@pytest.fixture(scope="module")
def codes():
    rng = np.random.default_rng(0)
    codes = clustered(rng, N)
    codes[2000:3500] = codes[0]  # many equal codes
    return codes


@pytest.fixture(scope="module")
def queries(codes):
    rng = np.random.default_rng(1)
    return np.concatenate([clustered(rng, 150), codes[:20]])


@pytest.fixture(scope="module")
def ids():
    """Ids in random order, with gaps."""
    return np.random.default_rng(2).permutation(10 * N)[:N]


@pytest.fixture(scope="module")
def exact(codes, ids):
    return HammingIndex(codes, ids)


@pytest.fixture(scope="module")
def built(codes, ids):
    index = HammingIndex(codes, ids)
    assert index.build_cells()
    return index


def same_results(a, b):
    np.testing.assert_array_equal(a[0], b[0])
    np.testing.assert_array_equal(a[1], b[1])


def brute_force(codes, ids, queries, k):
    """Return distances and ids of the k nearest codes, ordered by distance, then id."""
    distances = np.bitwise_count(queries[:, None] ^ codes[None]).sum(axis=2, dtype=np.int32)
    order = np.lexsort((np.broadcast_to(ids, distances.shape), distances))[:, :k]
    return np.take_along_axis(distances, order, axis=1), ids[order]


@pytest.mark.parametrize("k", [1, 7, 100, 3000])
def test_exact_searches_are_the_same_with_cells(built, codes, ids, queries, k):
    expected = brute_force(codes, ids, queries[::5], k)
    same_results(built.search(queries[::5], k), expected)
    same_results(built.search(queries[::5][3], k), (expected[0][3], expected[1][3]))


@pytest.mark.parametrize("k", [1, 7, 100])
def test_all_cells_give_the_exact_result(built, exact, queries, k):
    expected = exact.search(queries, k)
    same_results(built.search(queries, k, n_probe=10**6), expected)
    found = probe.nearest(built._segments, as_words(queries), k, 10**6, None)  # really by cells
    same_results(found, expected)
    assert found[2].tolist() == [N] * len(queries)


def test_results_do_not_depend_on_threads_and_batches(built, queries):
    expected = built.search(queries, 10, n_probe=3, n_jobs=1)
    same_results(built.search(queries, 10, n_probe=3, n_jobs=3), expected)
    single = [built.search(query, 10, n_probe=3) for query in queries]
    same_results([np.stack(arrays) for arrays in zip(*single)], expected)


def test_cells_do_not_depend_on_threads(codes, ids, queries, built):
    index = HammingIndex(codes, ids)
    index.build_cells(n_jobs=1)
    same_results(index.search(queries, 10, n_probe=2), built.search(queries, 10, n_probe=2))


@pytest.mark.parametrize("recall", [0.9, 0.95, 0.99])
def test_recall_is_at_least_what_was_asked_for(built, exact, recall):
    queries = clustered(np.random.default_rng(11), 1000)
    for k in (1, 10):
        limits = exact.search(queries, k)[0][:, -1:]
        found = built.search(queries, k, recall=recall)[0]
        assert np.mean(found <= limits) >= recall
        plan = built.explain(k, recall=recall)
        if plan["method"] == "cells":
            assert plan["compared"] < N / 3
            assert plan["interval"][0] <= plan["recall"] <= plan["interval"][1]


def test_explain_counts_the_codes_that_are_compared(built, queries):
    plan = built.explain(10, n_probe=4)
    compared = probe.nearest(
        built._segments, as_words(clustered(np.random.default_rng(3), 1000)), 10, 4, 1
    )[2]
    assert plan["method"] == "cells"
    assert plan["cells"] == built.info()["cells"]
    assert 0.6 < plan["compared"] / compared.mean() < 1.6
    assert built.explain() == {
        "method": "exact",
        "reason": "neither recall nor n_probe was given",
        "compared": N,
    }
    assert built.explain(k=200, recall=0.9)["method"] == "exact"
    assert "all cells" in built.explain(n_probe=10**6)["reason"]


def test_codes_added_later_are_found_and_removed_ones_are_not(codes, ids, queries):
    index = HammingIndex(codes, ids)
    index.build_cells()
    new = clustered(np.random.default_rng(5), 500)
    new_ids = index.add(new)
    index.remove(ids[:700])
    everything = np.concatenate([codes[700:], new]), np.concatenate([ids[700:], new_ids])
    expected = brute_force(*everything, queries, 10)
    same_results(index.search(queries, 10), expected)
    same_results(probe.nearest(index._segments, as_words(queries), 10, 10**6, None), expected)
    found, _ = index.search(new[:50], 1, n_probe=1)
    assert not found.any()
    assert index.info()["outside_cells"] == 500
    assert index.explain(n_probe=1)["outside_cells"] == 500
    np.testing.assert_array_equal(index.get(ids[700:720]), codes[700:720])
    with pytest.raises(KeyError):
        index.get(ids[0])
    index.compact()
    assert index.info()["outside_cells"] == 0
    assert len(index) == N - 200
    same_results(index.search(queries, 10), expected)


def test_a_query_gets_k_codes_even_if_its_cells_have_fewer(built, exact, queries):
    distances, found = built.search(queries, 2500, n_probe=1)
    assert found.shape == (len(queries), 2500)
    assert all(len(set(row)) == 2500 for row in found.tolist())
    few = built.search(queries, 2500, n_probe=1)[0][:, 0]
    np.testing.assert_array_equal(few, distances[:, 0])


def test_other_searches_work_with_cells(built, exact, codes, ids, queries):
    for a, b in zip(built.search_radius(queries, 6), exact.search_radius(queries, 6)):
        np.testing.assert_array_equal(a, b)
    projections = np.random.default_rng(4).normal(size=(30, N_BITS)).round(1).astype(np.float32)
    same_results(built.search(queries_float=projections), exact.search(queries_float=projections))
    options = {"rerank_projections": projections, "k": 5}
    same_results(built.search(queries[:30], **options), exact.search(queries[:30], **options))
    found = built.search(queries[:30], n_probe=3, **options)[1]
    assert np.mean(found == exact.search(queries[:30], **options)[1]) > 0.3
    for allowed in (ids[:300], ids[: N - 300]):
        expected = exact.search(queries, 10, allowed=allowed)
        same_results(built.search(queries, 10, allowed=allowed), expected)
        same_results(built.search(queries, 10, allowed=allowed, recall=0.9), expected)
        if len(allowed) > 300:
            found = built.search(queries, 10, allowed=allowed, n_probe=4)
            assert np.isin(found[1], allowed).all()
    pairs, distances = built.duplicates(1)
    expected_pairs, expected_distances = exact.duplicates(1)
    np.testing.assert_array_equal(pairs, expected_pairs)
    np.testing.assert_array_equal(distances, expected_distances)


@pytest.mark.parametrize("n_bits", [8, 24, 200, 2112])
def test_any_length_of_codes(n_bits):
    rng = np.random.default_rng(n_bits)
    codes, queries = clustered(rng, 20_000, n_bits, 60), clustered(rng, 40, n_bits, 60)
    index = HammingIndex(codes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not index.build_cells(100):
            return
    expected = HammingIndex(codes).search(queries, 10)
    same_results(index.search(queries, 10), expected)
    same_results(probe.nearest(index._segments, as_words(queries), 10, 10**6, None), expected)


def test_where_cells_do_not_help_a_warning_says_so(codes):
    few = HammingIndex(codes[:500])
    with pytest.warns(UserWarning, match="from about 20,000 codes on, and the index has 500"):
        assert not few.build_cells()
    random = HammingIndex(np.random.default_rng(0).integers(0, 256, (20_000, 32), dtype=np.uint8))
    with pytest.warns(UserWarning, match="cells do not help with these codes"):
        assert not random.build_cells()
    for index in (few, random):
        query = np.zeros(index.n_bits // 8, np.uint8)
        same_results(index.search(query, 3, recall=0.9), index.search(query, 3))
        assert index.explain(recall=0.9)["reason"] == "the index has no cells"


def test_more_cells_than_the_codes_that_are_left_can_have(tmp_path, codes, queries):
    path = tmp_path / "codes.index"
    index = HammingIndex(codes)
    assert index.build_cells(N // 8)
    index.remove(np.arange(500))
    expected = HammingIndex(codes[500:], np.arange(500, N))
    index.save(path)
    index.compact()
    with HammingIndex.open(path) as file:
        for own in (index, file):
            assert 0 < own.info()["cells"] <= (N - 500) // 8
            same_results(own.search(queries, 10), expected.search(queries, 10))


@pytest.mark.parametrize("method", ["build_cells", "compact"])
def test_cells_that_no_longer_help_are_removed(tmp_path, codes, queries, method):
    path = tmp_path / "codes.index"
    in_memory, expected = HammingIndex(codes), HammingIndex(codes[5000:], np.arange(5000, N))
    assert in_memory.build_cells()
    in_memory.save(path)
    with HammingIndex.open(path, "a") as file:
        for own in (in_memory, file):
            own.remove(np.arange(5000))
            with pytest.warns(UserWarning, match="the index has 16,000; all searches are exact"):
                assert not getattr(own, method)()
            assert "cells" not in own.info()
            same_results(own.search(queries, 10, recall=0.9), expected.search(queries, 10))
    with HammingIndex.open(path) as reader:
        assert "cells" not in reader.info()
        assert reader.info()["removed"] == 0
        same_results(reader.search(queries, 10), expected.search(queries, 10))


def test_arguments_are_checked(built, queries):
    with pytest.raises(ValueError, match="either recall or n_probe, not both"):
        built.search(queries, recall=0.9, n_probe=3)
    for recall in (0, 1, 1.5, -1, "high", True, float("nan")):
        with pytest.raises(ValueError, match="recall must be a number between 0 and 1"):
            built.search(queries, recall=recall)
    for n_probe in (0, -1, 2.5, "all", True):
        with pytest.raises(ValueError, match="n_probe must be an integer of at least 1"):
            built.search(queries, n_probe=n_probe)
        with pytest.raises(ValueError, match="n_cells must be an integer of at least 1"):
            built.build_cells(n_probe)
    with pytest.raises(ValueError, match="n_cells must be from 2 to 2625"):
        built.build_cells(N)
    with pytest.raises(ValueError, match="no cells"):
        HammingIndex(queries).search(queries, n_probe=3)
    with pytest.raises(ValueError, match="float queries are compared with all codes"):
        built.search(queries_float=np.zeros(N_BITS), recall=0.9)


# -- files --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file_bytes(tmp_path_factory, codes, ids):
    """The bytes of a file with cells, with codes added and removed since."""
    path = tmp_path_factory.mktemp("cells") / "codes.index"
    with HammingIndex.open(path, "a", n_bits=N_BITS, model="some model") as index:
        for start in range(0, N, 6000):
            index.add(codes[start : start + 6000], ids[start : start + 6000])
        assert index.build_cells()
        index.add(codes[:5], np.arange(-5, 0))
        index.remove(ids[:3])
    return path.read_bytes()


@pytest.fixture
def path(tmp_path, file_bytes):
    path = tmp_path / "codes.index"
    path.write_bytes(file_bytes)
    return path


@pytest.fixture(scope="module")
def changed(codes, ids):
    """An index without cells that has the same codes as the file."""
    index = HammingIndex(codes, ids)
    index.add(codes[:5], np.arange(-5, 0))
    index.remove(ids[:3])
    return index


def test_a_file_keeps_the_cells(path, changed, built, queries):
    assert HammingIndex.verify(path) == []
    with HammingIndex.open(path) as index:
        assert index.info() | {"bytes": 0} == {
            "codes": N + 2,
            "bits": N_BITS,
            "model": "some model",
            "ids": "integers",
            "removed": 3,
            "batches": 3,
            "bytes": 0,
            "format": 4,
            "cells": built.info()["cells"],
            "outside_cells": 5,
        }
        same_results(index.search(queries, 10), changed.search(queries, 10))
        found = index.search(queries[:150], 10, n_probe=3)
        same_results(found, probe.nearest(index._segments, as_words(queries[:150]), 10, 3, 1)[:2])
        np.testing.assert_array_equal(index.ids, changed.ids)
        np.testing.assert_array_equal(index.get(index.ids), changed.get(index.ids))
        plan = index.explain(recall=0.9)
        assert plan["n_probe"] == built.explain(recall=0.9)["n_probe"]
        with pytest.raises(ValueError, match="reading only"):
            index.build_cells()


def test_readers_see_cells_after_refresh_and_compact_puts_all_codes_into_cells(
    tmp_path, codes, ids, queries, changed
):
    path = tmp_path / "codes.index"
    with HammingIndex.open(path, "a", n_bits=N_BITS) as writer:
        writer.add(codes, ids)
        with HammingIndex.open(path) as reader:
            writer.build_cells()
            assert "cells" not in reader.info()
            same_results(reader.search(queries, 5), writer.search(queries, 5))
            reader.refresh()
            assert reader.info()["outside_cells"] == 0
            writer.add(codes[:5], np.arange(-5, 0))
            writer.remove(ids[:3])
            reader.refresh()
            assert reader.info()["outside_cells"] == 5
            same_results(reader.search(queries, 10), changed.search(queries, 10))
            writer.compact()
            reader.refresh()
            assert reader.info()["outside_cells"] == reader.info()["removed"] == 0
            assert reader.info()["batches"] == 1
            same_results(reader.search(queries, 10), changed.search(queries, 10))
            copy = tmp_path / "copy.index"
            reader.save(copy)
        assert copy.stat().st_size == path.stat().st_size
    with HammingIndex.open(copy) as index:
        assert index.explain(recall=0.9)["method"] == "cells"
        same_results(index.search(queries, 10), changed.search(queries, 10))


def test_cells_in_memory_are_saved(tmp_path, built, queries):
    built.save(tmp_path / "codes.index")
    with HammingIndex.open(tmp_path / "codes.index") as index:
        same_results(index.search(queries, 10, n_probe=2), built.search(queries, 10, n_probe=2))
        assert index.explain(recall=0.95) == built.explain(recall=0.95)


def test_cells_work_with_string_ids(tmp_path, codes, queries):
    names = np.array([f"file {i:05}.jpg" for i in range(N)], object)
    path = tmp_path / "codes.index"
    expected = HammingIndex(codes, names)
    with HammingIndex.open(path, "a", n_bits=N_BITS) as index:
        index.add(codes, names)
        index.remove(names[:10])
        expected.remove(names[:10])
        assert index.build_cells()
        same_results(index.search(queries, 10), expected.search(queries, 10))
        index.upsert(codes[10:20], names[5:15])
        expected.upsert(codes[10:20], names[5:15])
        index.compact()
        same_results(index.search(queries, 10), expected.search(queries, 10))
        assert index.search(codes[20], 1, n_probe=1)[1].tolist() == [names[20]]
        assert index.ids.tolist() == expected.ids.tolist()


def test_no_byte_of_a_file_with_cells_can_be_changed_unnoticed(path, file_bytes, queries):
    """Opening and searching a damaged file raises an error, or verify finds the damage."""
    rng = np.random.default_rng(0)
    spots = np.concatenate(
        [rng.integers(1024, len(file_bytes), 60), rng.integers(4096, 40_000, 60)]
    )
    for at in spots.tolist():
        content = bytearray(file_bytes)
        content[at] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(content)
        assert HammingIndex.verify(path) != []
        try:
            with HammingIndex.open(path) as index:
                index.search(queries, 10, n_probe=3)
                index.search(queries[:3], 10)
                index.get(index.ids[:100])
        except (IndexFileError, ValueError):
            pass


def test_repair_copies_codes_out_of_cells(path, tmp_path, changed, queries):
    result = repair(path, tmp_path / "new.index")
    assert result == {"codes": N + 2, "batches": 3, "lost_bytes": 0}
    with HammingIndex.open(tmp_path / "new.index") as index:
        same_results(index.search(queries, 10), changed.search(queries, 10))
        np.testing.assert_array_equal(index.get(index.ids), changed.get(index.ids))
