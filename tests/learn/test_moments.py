"""Pair moments, compared with a plain implementation of their definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiffhash import PairMoments
from kdiffhash.learn.moments import FIXED_UNIT, to_fixed_point


def plain(features, pairs):
    """Compute the moments by definition, pair by pair."""
    x, z = features[pairs[:, 0]].astype(float), features[pairs[:, 1]].astype(float)
    outer = lambda a, b: sum(np.outer(u, v) for u, v in zip(a, b)) / len(pairs)  # noqa: E731
    return {
        "difference": outer(x - z, x - z),
        "cross": (outer(x, z) + outer(z, x)) / 2,
        "second": (outer(x, x) + outer(z, z)) / 2,
        "mean": (x + z).mean(axis=0) / 2,
    }


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    return rng.random((300, 37), np.float32), rng.integers(300, size=(2500, 2))


@pytest.mark.parametrize("kind", ["float", "fixed point"])
def test_moments_agree_with_their_definition(case, kind):
    features, pairs = case
    if kind == "fixed point":
        features = to_fixed_point(features)
        expected = plain(features * FIXED_UNIT, pairs)
    else:
        expected = plain(features, pairs)
    moments = PairMoments.of(features, pairs)
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(moments, name), value, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        moments.difference, 2 * moments.second - 2 * moments.cross, atol=1e-12
    )
    center = np.linspace(-1, 1, 37)
    scale = FIXED_UNIT if kind == "fixed point" else 1
    np.testing.assert_allclose(
        moments.cross_about(center), plain(features * scale - center, pairs)["cross"], atol=1e-12
    )


def test_fixed_point_numbers_are_in_range_and_off_by_at_most_one_unit():
    values = np.linspace(0, 1, 10_001).astype(np.float32)
    fixed = to_fixed_point(values)
    assert fixed.min() == 0
    assert fixed.max() == 4095
    assert np.abs(fixed * FIXED_UNIT - values).max() <= FIXED_UNIT


def test_sums_of_extreme_values_do_not_overflow():
    features = np.array([[0] * 16, [4095] * 16], np.int16)
    pairs = np.tile([[0, 1]], (5000, 1))
    moments = PairMoments.of(features, pairs)
    assert (moments.difference_gram == 5000 * (4095 * FIXED_UNIT) ** 2).all()
    both = PairMoments.of(features, np.tile([[1, 1]], (5000, 1)))
    assert (both.total_gram == 5000 * (2 * 4095 * FIXED_UNIT) ** 2).all()


@given(st.lists(st.integers(0, 2500), max_size=4), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_moments_of_batches_add_up_to_those_of_all_pairs(ends, seed):
    rng = np.random.default_rng(seed)
    features = rng.random((300, 20), np.float32)
    pairs = rng.integers(300, size=(2500, 2))
    batches = [batch for batch in np.split(rng.permutation(pairs), sorted(ends)) if len(batch)]
    for values, exact in ((features, False), (to_fixed_point(features), True)):
        whole = PairMoments.of(values, pairs, n_jobs=1)
        merged = PairMoments.zeros(20)
        for batch in batches:
            merged = merged + PairMoments.of(values, batch, n_jobs=2)
        assert merged.n_pairs == whole.n_pairs
        for name in ("difference", "cross", "second", "mean"):
            a, b = getattr(merged, name), getattr(whole, name)
            np.testing.assert_allclose(a, b, rtol=0 if exact else 1e-12, atol=0 if exact else 1e-13)


@pytest.mark.parametrize("convert", [lambda f: f, to_fixed_point])
def test_moments_do_not_depend_on_the_number_of_threads(case, convert):
    features, pairs = case
    one, three = (PairMoments.of(convert(features), pairs, n_jobs=n) for n in (1, 3))
    np.testing.assert_array_equal(one.difference_gram, three.difference_gram)
    np.testing.assert_array_equal(one.total_gram, three.total_gram)


def test_invalid_use_raises_value_error(case):
    features, pairs = case
    moments = PairMoments.of(features, pairs, cross=False)
    with pytest.raises(ValueError, match="cross=False"):
        _ = moments.cross
    with pytest.raises(ValueError, match="no pairs"):
        _ = PairMoments.zeros(3).mean
    with pytest.raises(ValueError, match="37 and 3 features"):
        _ = moments + PairMoments.zeros(3)
    with pytest.raises(ValueError, match="row numbers from 0 to 299"):
        PairMoments.of(features, np.array([[0, 300]]))
    with pytest.raises(ValueError, match=r"0\.\.4095"):
        PairMoments.of(np.full((2, 3), 5000, np.int16), pairs[:0])
