"""Matching of two sets compared with a plain loop."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiffhash import match_codes


@given(
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from([8, 64, 256]),
    st.sampled_from([None, 0.7, 1.0]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 0, 3, 100]),
    st.sampled_from([None, 5]),
    st.integers(0, 2**32),
)
@settings(max_examples=300, deadline=None)
def test_matches_equal_those_of_a_plain_loop(
    n, m, bits, ratio, mutual, two_way, most, alphabet, seed
):
    rng = np.random.default_rng(seed)
    a, b = (oracle.random_codes(rng, size, bits, alphabet) for size in (n, m))
    if n and m and seed % 2:
        b[: min(n, m)] = a[: min(n, m)]
    options = {"ratio": ratio, "mutual": mutual, "two_way": two_way, "max_distance": most}
    pairs, distances = match_codes(a, b, **options)
    expected = []
    table = oracle.distances_of(a, b)
    for i in range(n if m else 0):
        j = int(np.argmin(table[i]))  # ties go to the lower row
        d = table[i, j]
        if most is not None and d > most:
            continue
        if ratio is not None:
            second = min(np.delete(table[i], j).tolist(), default=np.inf)
            if mutual and two_way:
                back = min(np.delete(table[:, j], i).tolist(), default=np.inf)
                if not (d < second and d < back and d < ratio * (second + back) / 2):
                    continue
            elif not d < ratio * second:
                continue
        if mutual and int(np.argmin(table[:, j])) != i:
            continue
        expected.append((i, j, int(table[i, j])))
    assert [(*pair, d) for pair, d in zip(pairs.tolist(), distances.tolist())] == expected


def test_ties_never_pass_the_ratio_test():
    a = np.array([[1], [255]], np.uint8)
    b = np.array([[1], [1], [255]], np.uint8)
    assert match_codes(a, b, ratio=1.0).pairs.tolist() == [[1, 2]]
    assert match_codes(a, b).pairs.tolist() == [[0, 0], [1, 2]]
    assert match_codes(b, a, ratio=1.0).pairs.tolist() == [[2, 1]]
    assert match_codes(b, a, ratio=1.0, two_way=False).pairs.tolist() == [[0, 0], [2, 1]]


def test_the_two_way_test_compares_with_the_mean_of_both_second_distances():
    def code(*bits):
        return np.packbits(np.isin(np.arange(64), bits))

    a = np.stack([code(), code(*range(20, 30))])  # 10 from the first
    b = np.stack([code(0, 1, 2), code(*range(40, 44))])  # 3 and 4 from the first row of a
    # The second nearest codes of the match (0, 0) are at distances 4 in b and 13 in a, mean 8.5.
    for ratio, matched in ((3 / 8.5 + 1e-9, True), (3 / 8.5 - 1e-9, False)):
        found = match_codes(a, b, ratio=ratio).pairs.tolist()
        assert ([0, 0] in found) == matched
    assert [0, 0] not in match_codes(a, b, ratio=0.74, two_way=False).pairs.tolist()
    assert [0, 0] in match_codes(a, b, ratio=0.76, two_way=False).pairs.tolist()


def test_many_codes_match_as_in_a_plain_loop():
    rng = np.random.default_rng(0)
    a = oracle.random_codes(rng, 3000, 128)
    b = a[rng.permutation(3000)[:2500]] ^ np.packbits(rng.random((2500, 128)) < 0.28, axis=1)
    table = oracle.distances_of(a, b)
    first, back = table.argmin(axis=1), table.argmin(axis=0)
    seconds = np.partition(table, 1, axis=1)[:, 1], np.partition(table, 1, axis=0)[1]
    for ratio in (0.6, 0.8, 0.95):
        i = np.flatnonzero(back[first] == np.arange(3000))
        d, s, t = table[i, first[i]], seconds[0][i], seconds[1][first[i]]
        i = i[(d < np.minimum(s, t)) & (d < ratio * (s + t) / 2)]
        for n_jobs in (1, 3):
            pairs, distances = match_codes(a, b, ratio=ratio, n_jobs=n_jobs)
            np.testing.assert_array_equal(pairs, np.stack([i, first[i]], axis=1))
            np.testing.assert_array_equal(distances, table[i, first[i]])
        assert 20 < len(i) < 2500


def test_invalid_input_is_refused():
    codes = np.zeros((2, 8), np.uint8)
    with pytest.raises(ValueError, match="same width"):
        match_codes(codes, codes[:, :4])
    with pytest.raises(ValueError, match="ratio"):
        match_codes(codes, codes, ratio=1.5)
    for wrong in (-1, 12.5):
        with pytest.raises(ValueError, match="max_distance"):
            match_codes(codes, codes, max_distance=wrong)
    long = np.zeros((1, 513), np.uint8)
    with pytest.raises(ValueError, match="at most 4096 bits"):
        match_codes(long, long)
