"""Codes of Gaussian kernels are those of exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from kdiffhash._core import gaussians
from kdiffhash.learn.encoder import Encoder, compute_features
from kdiffhash.learn.kernels import GaussianMap


@pytest.fixture(scope="module", params=[False, True], ids=["euclidean", "mahalanobis"])
def ill_conditioned(request):
    """An encoder whose projections are far smaller than what they are sums of, and rows."""
    rng = np.random.default_rng(0)
    basis = rng.normal(size=(400, 10)).astype(np.float32)
    rows = rng.normal(size=(10_000, 10)).astype(np.float32)
    metric = rng.normal(size=(10, 10)).astype(np.float32) / 3 if request.param else None
    features = GaussianMap(basis, 0.05, metric)
    values = in_parts(features, rows)
    # The directions in which features vary least: 1e-4 of their lengths, or less.
    spread, axes = np.linalg.eigh(np.cov(values.T))
    directions = axes.T[np.flatnonzero(spread > 1e-12)[:40]].astype(np.float32)
    thresholds = np.median(values @ directions.T, axis=0).astype(np.float32)
    return Encoder(None, features, directions, thresholds), rows


def in_double(features, rows):
    metric = np.eye(rows.shape[1]) if features.metric is None else features.metric
    gaps = (rows.astype(float) @ metric)[:, None] - features.basis.astype(float) @ metric
    return np.exp(-features.gamma * np.einsum("ijk,ijk->ij", gaps, gaps))


def in_parts(features, rows):
    return np.concatenate([in_double(features, part) for part in np.array_split(rows, 20)])


def test_rounding_turns_no_bit(ill_conditioned):
    encoder, rows = ill_conditioned
    directions = encoder.directions.astype(float)
    exact = in_parts(encoder.features, rows) @ directions.T > encoder.thresholds
    plain = compute_features(rows, None, encoder.features) @ encoder.directions.T
    found = np.unpackbits(encoder.encode(rows), axis=1, count=len(directions)).astype(bool)
    assert ((plain > encoder.thresholds) != exact).sum() > 100  # float32 alone would not do
    assert (found != exact).sum() <= 1
    above = encoder.project(rows) > encoder.thresholds
    np.testing.assert_array_equal(above, found)


def test_a_bit_depends_neither_on_other_bits_nor_on_other_rows(ill_conditioned):
    encoder, rows = ill_conditioned
    codes = encoder.encode(rows[:3000])
    short = Encoder(None, encoder.features, encoder.directions[:16], encoder.thresholds[:16])
    np.testing.assert_array_equal(short.encode(rows[:3000]), codes[:, :2])
    np.testing.assert_array_equal(encoder.encode(rows[1000:1007]), codes[1000:1007])


def test_gaussians_of_few_and_many_basis_rows():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5, 7))
    for n in (1, 2, 3, 4, 5, 30):
        basis, out = rng.normal(size=(n, 7)), np.empty((5, n))
        gaussians(rows, basis, 0.3, out)
        wanted = np.exp2(-0.3 * ((rows[:, None] - basis) ** 2).sum(axis=2))
        np.testing.assert_allclose(out, wanted, rtol=1e-10)
    gaussians(1e9 * rows, basis, 1.0, out)
    np.testing.assert_allclose(out, 0, atol=1e-290)
