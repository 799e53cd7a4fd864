"""Kernel features, compared with scikit-learn and with the formulas of the paper."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import PAIRWISE_KERNEL_FUNCTIONS, pairwise_kernels, rbf_kernel

from kdiffhash.learn.encoder import compute_features
from kdiffhash.learn.kernels import GaussianMap, PairwiseMap, inverse_fourth_root, median_gamma


@pytest.fixture
def rows():
    return np.random.default_rng(0).random((500, 9), np.float32)


@pytest.mark.parametrize("offset", [0, 1000])
@pytest.mark.parametrize("gamma", [0.01, 1, 30])
def test_gaussian_features_agree_with_scikit_learn(rows, gamma, offset):
    features = compute_features(rows + offset, None, GaussianMap(rows[:33] + offset, gamma))
    expected = rbf_kernel((rows + offset).astype(float), (rows[:33] + offset).astype(float), gamma)
    np.testing.assert_allclose(features, expected, atol=1e-6 * (1 + gamma))


def test_features_of_distant_rows_underflow_to_nearly_zero(rows):
    features = compute_features(rows * 1000, None, GaussianMap(rows[:10] * 1000, 1.0))
    assert (features >= 0).all()
    assert (features <= 1).all()
    assert features[20:].max() < 1e-30
    assert np.diag(features[:10]).min() > 0.8  # squares of about a million lose most digits


def test_mahalanobis_kernel_agrees_with_the_formula_of_the_paper(rows):
    covariance = np.cov(rows.T)
    metric = inverse_fourth_root(covariance)
    features = compute_features(rows, None, GaussianMap(rows[:20], 0.5, metric))
    values, vectors = np.linalg.eigh(covariance)
    inverse_root = (vectors * values**-0.5) @ vectors.T  # with the exponent of the paper, -1/2
    gap = rows[:, None].astype(float) - rows[:20]
    expected = np.exp(-0.5 * np.einsum("ijk,kl,ijl->ij", gap, inverse_root, gap))
    np.testing.assert_allclose(features, expected, atol=1e-5)


@pytest.mark.parametrize("kernel", sorted(set(PAIRWISE_KERNEL_FUNCTIONS) - {"rbf"}))
def test_named_kernels_agree_with_scikit_learn(rows, kernel):
    has_gamma = kernel in ("laplacian", "chi2", "poly", "polynomial", "sigmoid")
    params = {"gamma": 0.7} if has_gamma else {}
    features = compute_features(rows, None, PairwiseMap(rows[:17], kernel, params))
    expected = pairwise_kernels(rows, rows[:17], metric=kernel, **params)
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-5)


def test_kernel_function_is_called_with_rows_and_basis(rows):
    tanimoto = lambda a, b: a @ b.T / ((a**2).sum(1)[:, None] + (b**2).sum(1) - a @ b.T)  # noqa: E731
    features = compute_features(rows, None, PairwiseMap(rows[:17], tanimoto, {}))
    np.testing.assert_allclose(features, tanimoto(rows, rows[:17]), rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "message"),
    [(lambda a, b: a, "shape"), (lambda a, b: np.full((len(a), len(b)), np.nan), "NaN")],
)
def test_invalid_result_of_a_kernel_function_raises_error(rows, function, message):
    with pytest.raises(ValueError, match=message):
        compute_features(rows, None, PairwiseMap(rows[:17], function, {}))


def test_median_gamma_makes_the_median_kernel_value_one_over_e(rows):
    gamma = median_gamma("rbf", rows, rows[:50])
    assert np.median(rbf_kernel(rows, rows[:50], gamma)) == pytest.approx(np.exp(-1), rel=1e-3)
    assert median_gamma("rbf", np.ones((5, 2), np.float32), np.ones((3, 2), np.float32)) == 1
