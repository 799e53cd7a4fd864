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
    st.sampled_from([None, 0, 3, 100]),
    st.sampled_from([None, 5]),
    st.integers(0, 2**32),
)
@settings(max_examples=300, deadline=None)
def test_matches_equal_those_of_a_plain_loop(n, m, bits, ratio, mutual, most, alphabet, seed):
    rng = np.random.default_rng(seed)
    a, b = (oracle.random_codes(rng, size, bits, alphabet) for size in (n, m))
    if n and m and seed % 2:
        b[: min(n, m)] = a[: min(n, m)]
    pairs, distances = match_codes(a, b, ratio=ratio, mutual=mutual, max_distance=most)
    expected = []
    table = oracle.distances_of(a, b)
    for i in range(n if m else 0):
        j = int(np.argmin(table[i]))  # ties go to the lower row
        others = np.delete(table[i], j)
        if most is not None and table[i, j] > most:
            continue
        if ratio is not None and len(others) and not table[i, j] < ratio * others.min():
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
