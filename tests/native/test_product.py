"""The matrix products of the core: accuracy, and independence of the batch."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiffhash import _core
from kdiffhash.learn.product import empty_result, multiply, pack_panels


def product(rows, columns):
    """Return ``rows @ columns.T``."""
    panels = pack_panels(columns)
    out = empty_result(len(rows), panels)
    multiply(np.ascontiguousarray(rows), panels, len(rows), out)
    return out[:, : len(columns)]


@given(st.integers(1, 40), st.integers(1, 600), st.integers(1, 70), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_multiply_equals_the_product_in_double_precision(n, k, m, seed):
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=(r, k)).astype(np.float32) for r in (n, m))
    expected = a.astype(float) @ b.T.astype(float)
    scale = np.abs(a).astype(float) @ np.abs(b.T).astype(float)
    assert (np.abs(product(a, b) - expected) <= 1e-6 * scale).all()


@given(st.integers(1, 50), st.integers(1, 300), st.integers(1, 40), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_a_row_gives_the_same_bits_in_any_batch(n, k, m, seed):
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=(r, k)).astype(np.float32) for r in (n, m))
    whole, order = product(a, b), rng.permutation(n)
    np.testing.assert_array_equal(product(a[order], b), whole[order])
    np.testing.assert_array_equal(product(a[-1:], b)[0], whole[-1])


@given(st.integers(1, 2500), st.integers(1, 50), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_add_gram_is_exact(n, width, seed):
    rng = np.random.default_rng(seed)
    features = rng.integers(0, 4096, (60, width)).astype(np.int16)
    left, right = rng.integers(60, size=(2, n))
    padded = -(-width // _core.gram_panel) * _core.gram_panel
    out = np.zeros((padded, padded), np.int64)
    _core.add_gram(features, left, right, -1, 0, out)
    rows = features[left].astype(np.int64) - features[right]
    np.testing.assert_array_equal(np.triu(out)[:width, :width], np.triu(rows.T @ rows))
