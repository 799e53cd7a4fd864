"""Codes of Gaussian kernels, compared with exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from kdiffhash._core import gaussians
from kdiffhash.learn.encoder import Encoder, compute_features
from kdiffhash.learn.kernels import GaussianMap


@pytest.fixture(scope="module", params=[False, True], ids=["euclidean", "mahalanobis"])
def ill_conditioned(request):
    """An encoder whose projections are far smaller than their summands, and rows."""
    rng = np.random.default_rng(0)
    basis = rng.normal(size=(400, 10)).astype(np.float32)
    rows = rng.normal(size=(10_000, 10)).astype(np.float32)
    metric = rng.normal(size=(10, 10)).astype(np.float32) / 3 if request.param else None
    features = GaussianMap(basis, 0.05, metric)
    values = features_in_double(features, rows)
    # Directions of least variance: projections vary by 1e-4 of the length of a row, or less.
    spread, axes = np.linalg.eigh(np.cov(values.T))
    directions = axes.T[np.flatnonzero(spread > 1e-12)[:40]].astype(np.float32)
    thresholds = np.median(values @ directions.T, axis=0).astype(np.float32)
    return Encoder(None, features, directions, thresholds), rows


def features_in_double(features, rows):
    """Compute Gaussian features in double precision, in chunks to save memory."""
    metric = np.eye(rows.shape[1]) if features.metric is None else features.metric
    basis = features.basis.astype(float) @ metric
    chunks = []
    for chunk in np.array_split(rows, 20):
        gaps = (chunk.astype(float) @ metric)[:, None] - basis
        chunks.append(np.exp(-features.gamma * np.einsum("ijk,ijk->ij", gaps, gaps)))
    return np.concatenate(chunks)


def test_rounding_flips_at_most_one_bit(ill_conditioned):
    encoder, rows = ill_conditioned
    directions = encoder.directions.astype(float)
    exact = features_in_double(encoder.features, rows) @ directions.T > encoder.thresholds
    single = compute_features(rows, None, encoder.features) @ encoder.directions.T
    bits = np.unpackbits(encoder.encode(rows), axis=1, count=len(directions)).astype(bool)
    assert ((single > encoder.thresholds) != exact).sum() > 100  # float32 alone flips many
    assert (bits != exact).sum() <= 1
    np.testing.assert_array_equal(encoder.project(rows) > encoder.thresholds, bits)


def test_a_bit_depends_neither_on_other_bits_nor_on_other_rows(ill_conditioned):
    encoder, rows = ill_conditioned
    codes = encoder.encode(rows[:3000])
    short = Encoder(None, encoder.features, encoder.directions[:16], encoder.thresholds[:16])
    np.testing.assert_array_equal(short.encode(rows[:3000]), codes[:, :2])
    np.testing.assert_array_equal(encoder.encode(rows[1000:1007]), codes[1000:1007])


def test_gaussians_are_accurate_for_any_number_of_basis_rows():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5, 7))
    for n in (1, 2, 3, 4, 5, 30):
        basis, out = rng.normal(size=(n, 7)), np.empty((5, n))
        gaussians(rows, basis, 0.3, out)
        expected = np.exp2(-0.3 * ((rows[:, None] - basis) ** 2).sum(axis=2))
        np.testing.assert_allclose(out, expected, rtol=1e-10)
    gaussians(1e9 * rows, basis, 1.0, out)
    np.testing.assert_allclose(out, 0, atol=1e-290)
