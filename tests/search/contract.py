"""The contract of every `CodeStore`; the tests of each store inherit it.

A subclass defines the fixture `make`, a function of codes, ids and a number of bits that returns a
store with them. Expected values come from plain NumPy.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import oracle
import pytest

from kdiffhash.search import CodeStore

N_BITS = 20  # short codes, few distinct ones: many ties, and spare bits
N_BYTES = 3


def some_codes(n, seed=0):
    return oracle.random_codes(np.random.default_rng(seed), n, N_BITS, alphabet=60)


class StoreContract:
    """Tests of a `CodeStore`."""

    @pytest.fixture
    def codes(self):
        return some_codes(200)

    @pytest.fixture
    def ids(self):
        return np.arange(200)

    @pytest.fixture
    def store(self, make, codes, ids):
        with make(codes, ids, N_BITS) as made:
            yield made

    @pytest.fixture
    def queries(self):
        return np.concatenate([some_codes(15, seed=1), some_codes(5)])

    def test_a_store_implements_the_protocol_and_describes_its_content(self, store, codes, ids):
        assert isinstance(store, CodeStore)
        assert len(store) == 200
        assert store.n_bits == N_BITS
        assert store.model is None
        assert store.ids.dtype == np.int64
        np.testing.assert_array_equal(store.ids, np.sort(ids))
        info = store.info()
        assert (info["codes"], info["bits"], info["model"]) == (200, N_BITS, None)

    @pytest.mark.parametrize("k", [1, 7, np.uint8(200), 1000])
    def test_nearest_neighbours_equal_those_of_brute_force(self, store, codes, ids, queries, k):
        distances, found = store.search(queries, k)
        expected = oracle.nearest(queries, codes, ids, int(k))
        np.testing.assert_array_equal(distances, expected[0])
        np.testing.assert_array_equal(found, expected[1])
        assert (distances.dtype, found.dtype) == (np.int32, np.int64)
        assert store.search(queries[:0], k)[1].shape == (0, min(int(k), 200))

    @pytest.mark.parametrize("radius", [0, 4, N_BITS, 10**6])
    def test_range_search_equals_brute_force(self, store, codes, ids, queries, radius):
        lims, distances, found = store.search_radius(queries, radius)
        lists = [list(zip(distances[a:b].tolist(), found[a:b].tolist())) for a, b in pairwise(lims)]
        assert lists == oracle.range_search(queries, codes, ids, radius)
        assert (lims.dtype, distances.dtype, found.dtype) == (np.int64, np.int32, np.int64)
        lims, distances, found = store.search_radius(queries[:0], radius)
        assert (lims.tolist(), len(distances), len(found)) == ([0], 0, 0)

    def test_a_single_query_returns_one_dimensional_results(self, store, codes, ids, queries):
        distances, found = store.search(queries[3], 6)
        expected = oracle.nearest(queries[3:4], codes, ids, 6)
        np.testing.assert_array_equal(distances, expected[0][0])
        np.testing.assert_array_equal(found, expected[1][0])
        lims, distances, found = store.search_radius(queries[3], 5)
        (expected,) = oracle.range_search(queries[3:4], codes, ids, 5)
        assert lims.tolist() == [0, len(expected)]
        assert list(zip(distances.tolist(), found.tolist())) == expected

    def test_get_returns_codes_in_the_order_of_the_ids(self, store, codes, ids):
        rows = [7, 199, 0, 7]
        np.testing.assert_array_equal(store.get(ids[rows]), codes[rows])
        np.testing.assert_array_equal(store.get(int(ids[5])), codes[5])
        assert store.get(int(ids[5])).shape == (N_BYTES,)
        assert store.get([]).shape == (0, N_BYTES)
        with pytest.raises(KeyError, match="1 of the ids are not stored, for example 5000"):
            store.get([int(ids[0]), 5000])

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda x: x.search(np.zeros((1, 4), np.uint8)), "20 bits take 3 bytes per code"),
            (lambda x: x.search(np.zeros((1, 3))), "codes must be packed uint8 rows"),
            (lambda x: x.search(np.zeros((1, 1, 3), np.uint8)), "codes must have shape"),
            (lambda x: x.search(np.full((1, 3), 255, np.uint8)), "beyond n_bits=20"),
            (lambda x: x.search(np.zeros(3, np.uint8), 0), "k must be an integer of at least 1"),
            (lambda x: x.search(np.zeros(3, np.uint8), 1.5), "k must be an integer"),
            (
                lambda x: x.search_radius(np.zeros(3, np.uint8), -1),
                "radius must be an integer of at least 0",
            ),
            (lambda x: x.search_radius(np.zeros(3, np.uint8), 0.5), "radius must be an integer"),
            (lambda x: x.search_radius(np.zeros((1, 2), np.uint8), 1), "20 bits take"),
            (lambda x: x.get([0.5]), "ids must be integers"),
            (lambda x: x.get([[0]]), "ids must be integers"),
            (lambda x: x.get(["a name"]), "integers"),
            (lambda x: x.get(np.array([2**63], np.uint64)), "signed 64-bit"),
        ],
    )
    def test_invalid_input_raises_the_same_error_in_every_store(self, store, call, message):
        with pytest.raises(ValueError, match=message):
            call(store)


class ChangingContract(StoreContract):
    """The contract of a store that supports `add` and `remove`."""

    @pytest.fixture
    def ids(self):
        return np.random.default_rng(2).permutation(1000)[:200] - 50

    def test_assigned_ids_follow_the_highest_id(self, store, make, codes, ids):
        new = store.add(codes[:3])
        assert new.dtype == np.int64
        assert new.tolist() == [ids.max() + 1, ids.max() + 2, ids.max() + 3]
        np.testing.assert_array_equal(store.get(new), codes[:3])
        assert len(store) == 203
        with make(codes[:0], [], N_BITS) as empty:
            assert empty.search(codes[:2], 3)[0].shape == (2, 0)
            assert empty.add(codes[:1], [-7]).tolist() == [-7]
            assert empty.add(codes[:2]).tolist() == [0, 1]

    def test_upsert_overwrites_and_adds(self, store, codes, ids, queries):
        new = np.array([ids[5], 5000, ids[7]])
        assert store.upsert(codes[:3], new) == (1, 2)  # added, replaced
        content = {**dict(zip(ids.tolist(), codes)), **dict(zip(new.tolist(), codes[:3]))}
        np.testing.assert_array_equal(store.ids, sorted(content))
        rows = np.array([content[i] for i in sorted(content)])
        expected = oracle.nearest(queries, rows, np.array(sorted(content)), 9)
        np.testing.assert_array_equal(store.search(queries, 9)[1], expected[1])
        with pytest.raises(ValueError, match="duplicates"):
            store.upsert(codes[:2], [3, 3])
        assert store.upsert(codes[:0], []) == (0, 0)
        assert len(store) == 201

    def test_removed_ids_are_not_found_and_can_be_added_again(self, store, codes, ids, queries):
        store.remove(ids[::3])
        store.remove(int(ids[1]))
        left = np.ones(200, bool)
        left[::3] = left[1] = False
        np.testing.assert_array_equal(store.ids, np.sort(ids[left]))
        expected = oracle.nearest(queries, codes[left], ids[left], 9)
        np.testing.assert_array_equal(store.search(queries, 9)[1], expected[1])
        with pytest.raises(KeyError, match="1 of the ids are not stored, for example"):
            store.remove([int(ids[2]), int(ids[0])])
        np.testing.assert_array_equal(store.get(ids[2]), codes[2])  # the store is unchanged
        store.add(codes[:1], ids[:1])
        np.testing.assert_array_equal(store.get(ids[0]), codes[0])
        store.remove([])
        assert store.add(codes[:0]).shape == (0,)
        assert len(store) == left.sum() + 1

    def test_removed_ids_are_never_assigned_again(self, store, make, codes, ids):
        highest = int(ids.max())
        store.remove([highest])
        assert store.add(codes[:1]).tolist() == [highest + 1]
        store.add(codes[:1], [5000])
        store.remove([highest + 1, 5000])
        store.remove(store.ids[:3])
        assert store.add(codes[:2]).tolist() == [5001, 5002]
        with pytest.raises(KeyError):
            store.remove([5002, 9000])  # nothing is removed, so no id is used up
        assert store.add(codes[:1]).tolist() == [5003]
        store.remove(store.ids)
        assert store.add(codes[:1]).tolist() == [5004]
        with make(codes[:2], [-9, -8], N_BITS) as negative:
            negative.remove([-8])
            assert negative.add(codes[:1]).tolist() == [0]

    @pytest.mark.parametrize(
        ("new", "message"),
        [
            ([5000], "got 2 codes but 1 ids"),
            ([5000, 5000], "ids contain duplicates"),
            ([5000, 5000.5], "ids must be integers"),
            (np.array([1, 2**63], np.uint64), "signed 64-bit"),
            ([5000, 2**63 - 1], "ids must be below"),
        ],
    )
    def test_invalid_ids_are_refused(self, store, codes, new, message):
        with pytest.raises(ValueError, match=message):
            store.add(codes[:2], new)
        assert len(store) == 200

    def test_invalid_codes_and_stored_ids_are_refused(self, store, codes, ids):
        with pytest.raises(
            ValueError, match=f"1 of the ids are already stored, for example {ids[4]}"
        ):
            store.add(codes[:2], [5000, int(ids[4])])
        with pytest.raises(ValueError, match="codes must have shape"):
            store.add(codes[0])
        with pytest.raises(ValueError, match="20 bits take 3 bytes"):
            store.add(np.zeros((1, 2), np.uint8))
        assert len(store) == 200
        np.testing.assert_array_equal(store.get(ids[4]), codes[4])
