"""Groups of near duplicates compared with plain Python on all pairs."""

from __future__ import annotations

import tracemalloc

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiffhash import HammingIndex
from kdiffhash.search import groups as module
from kdiffhash.search import lookup_tables


def ordered(ids, priority):
    """Return positions of ids in order of priority."""
    place = {value: i for i, value in enumerate(priority)}
    return sorted(range(len(ids)), key=lambda i: (place.get(ids[i], len(ids)), ids[i]))


def connected(codes, ids, radius, priority):
    """Return the representative of each id: breadth-first search from the first in the order."""
    near = oracle.distances_of(codes, codes) <= radius
    result = {}
    for start in ordered(ids, priority):
        queue = [start]
        while queue:
            i = queue.pop()
            if ids[i] not in result:
                result[ids[i]] = ids[start]
                queue += np.flatnonzero(near[i]).tolist()
    return result


def greedy(codes, ids, radius, priority):
    near = oracle.distances_of(codes, codes) <= radius
    kept, result = [], {}
    for i in ordered(ids, priority):
        covering = [k for k in kept if near[i, k]]
        result[ids[i]] = ids[covering[0]] if covering else ids[i]
        if not covering:
            kept.append(i)
    return result


@given(
    st.sampled_from([3, 8, 20, 64, 130]),
    st.integers(0, 120),
    st.integers(0, 20),
    st.sampled_from(["connected", "greedy"]),
    st.booleans(),
    st.integers(0, 2**32),
)
@settings(max_examples=300, deadline=None)
def test_groups_equal_those_of_plain_python(n_bits, n, radius, method, with_tables, seed):
    rng = np.random.default_rng(seed)
    codes = oracle.random_codes(rng, n, n_bits, alphabet=max(1, n // 3))
    noise = rng.random((n, 8 * codes.shape[1])) < 2 / n_bits
    noise[:, n_bits:] = False
    codes ^= np.packbits(noise, axis=1)
    ids = rng.permutation(3 * n)[:n] - n
    priority = rng.permutation(ids)[: rng.integers(0, n + 1)]
    removed = rng.random(n) < 0.1
    priority = priority[~np.isin(priority, ids[removed])]
    index = HammingIndex(codes[: n // 2], ids[: n // 2], n_bits=n_bits)
    index.add(codes[n // 2 :], ids[n // 2 :])
    index.remove(ids[removed])
    codes, ids = codes[~removed], ids[~removed].tolist()
    n_substrings = max(1, -(-n_bits // 20), radius // 3) if with_tables else 0
    if n_substrings * 6 > n_bits:
        n_substrings = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup_tables, "choose_substrings", lambda *args: n_substrings)
        patch.setattr(lookup_tables, "_HITS", 7)
        patch.setattr(module, "_BATCH", 5)
        patch.setattr(module, "_WINDOW", 9)
        patch.setattr(module, "_EDGES", 3)
        groups = index.groups(radius, method, priority=priority)
    expected = {"connected": connected, "greedy": greedy}[method](
        codes, ids, radius, priority.tolist()
    )
    assert dict(zip(groups.ids.tolist(), groups.representatives.tolist())) == expected
    order = ordered(ids, priority.tolist())
    assert groups.ids.tolist() == [ids[i] for i in order]
    place = {value: i for i, value in enumerate(ids)}
    between = oracle.distances_of(codes, codes)
    assert groups.distances.tolist() == [
        between[place[a], place[b]] for a, b in zip(groups.ids, groups.representatives)
    ]
    lists = {}
    for i in groups.ids.tolist():
        lists.setdefault(expected[i], []).append(i)
    assert [group.tolist() for group in groups] == [g for g in lists.values() if len(g) > 1]
    assert len(groups) == sum(len(group) > 1 for group in lists.values())
    assert groups.keep.tolist() == [i for i in groups.ids.tolist() if expected[i] == i]
    assert sorted([*groups.keep.tolist(), *groups.drop.tolist()]) == sorted(ids)


@pytest.mark.parametrize("method", ["connected", "greedy"])
def test_large_batches_and_threads_do_not_change_the_result(method):
    rng = np.random.default_rng(0)
    codes = oracle.random_codes(rng, 30_000, 64, alphabet=9000)
    codes ^= np.packbits(rng.random((30_000, 64)) < 0.01, axis=1)
    index = HammingIndex(codes)
    groups = index.groups(4, method, n_jobs=2)
    pairs, _ = index.duplicates(4)
    if method == "connected":  # chains of pairs: label propagation until nothing changes
        expected = np.arange(len(codes))
        while True:
            low = np.minimum(expected[pairs[:, 0]], expected[pairs[:, 1]])
            before = expected.copy()
            for side in (0, 1):
                np.minimum.at(expected, pairs[:, side], low)
            if np.array_equal(before, expected):
                break
    else:
        expected = np.arange(len(codes))
        for a, b in pairs.tolist():  # sorted by the first id
            if expected[a] == a and expected[b] == b:
                expected[b] = a
    np.testing.assert_array_equal(groups.representatives, expected)
    np.testing.assert_array_equal(index.groups(4, method, n_jobs=1).representatives, expected)


@pytest.mark.parametrize("method", ["connected", "greedy"])
def test_a_huge_group_of_equal_codes_takes_bounded_memory(method):
    n = 10**6
    codes = np.zeros((n, 8), np.uint8)
    codes[::1000, 0] = 1 + np.arange(n // 1000) % 5
    index = HammingIndex(codes)
    tracemalloc.start()
    groups = index.groups(8, method)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert groups.keep.tolist() == [0]
    assert peak < 150 * n  # a few arrays of one number per code; the pairs would be 10**12 / 2


def test_priority_and_method_are_checked():
    index = HammingIndex(np.zeros((3, 1), np.uint8))
    with pytest.raises(ValueError, match="method must be 'connected' or 'greedy', got 'chain'"):
        index.groups(1, "chain")
    with pytest.raises(ValueError, match="priority contains an id twice"):
        index.groups(1, priority=[2, 1, 2])
    with pytest.raises(KeyError, match="for example 7"):
        index.groups(1, priority=[2, 7])
    with pytest.raises(KeyError, match="for example 7"):
        HammingIndex(n_bits=8).groups(1, priority=[7])
    with pytest.raises(ValueError, match="radius must be an integer of at least 0"):
        index.groups(-1)
    assert list(HammingIndex(n_bits=8).groups(1)) == []
