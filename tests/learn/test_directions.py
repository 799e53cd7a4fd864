"""Directions, compared with cases that can be solved by hand."""

import numpy as np
import pytest

from kdiffhash import DiffHash, LDAHash, PairMoments
from kdiffhash.learn.directions import diff_directions, lda_directions, smallest_eigenvectors


@pytest.fixture(scope="module")
def two_gaussians():
    """Rows x = c + e, where c ~ N(0, A) is shared by a positive pair and e ~ N(0, B) is not.

    A and B are diagonal in the same basis. Then D_P = 2B, D_N = 2(A + B), C_P = A and C_N = 0, and
    the eigenvectors of all are the vectors of that basis.
    """
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    shared, own = np.array([9.0, 4.0, 1.0]), np.array([7.0, 0.5, 0.6])
    n = 200_000
    centre = rng.normal(size=(n, 3)) * np.sqrt(shared)
    X = np.concatenate([centre, centre]) + rng.normal(size=(2 * n, 3)) * np.sqrt(own)
    positives = np.stack([np.arange(n), np.arange(n) + n], axis=1)
    negatives = np.stack([np.arange(n), np.roll(np.arange(n), 1) + n], axis=1)
    return (X @ basis.T).astype(np.float32), positives, negatives, basis


def moments(case):
    X, positives, negatives, _ = case
    return PairMoments.of(X, positives), PairMoments.of(X, negatives)


def assert_order(directions, basis, order):
    """Check that direction i is column order[i] of the basis, up to sign."""
    along = np.abs(directions @ basis) / np.linalg.norm(directions, axis=1, keepdims=True)
    np.testing.assert_allclose(along, np.eye(3)[order], atol=0.1)


@pytest.mark.parametrize(
    ("moment", "alpha", "order"),
    [
        # 2 alpha B - 2 (A + B) at alpha 2: 2 (7 - 9), 2 (0.5 - 4), 2 (0.6 - 1)
        ("difference", 2, [1, 0, 2]),
        # alpha 1: -2 A
        ("difference", 1, [0, 1, 2]),
        # alpha 25: 2 (24 * 7 - 9), 2 (24 * 0.5 - 4), 2 (24 * 0.6 - 1)
        ("difference", 25, [1, 2, 0]),
        # only B
        ("difference", np.inf, [1, 2, 0]),
        # -alpha A, for any alpha
        ("cross", 1, [0, 1, 2]),
        ("cross", 25, [0, 1, 2]),
        ("cross", np.inf, [0, 1, 2]),
    ],
)
def test_diff_hash_finds_the_eigenvectors_of_known_covariances(two_gaussians, moment, alpha, order):
    directions = diff_directions(*moments(two_gaussians), 3, moment=moment, alpha=alpha)
    assert_order(directions, two_gaussians[3], order)


def test_lda_hash_finds_the_eigenvectors_of_known_covariances(two_gaussians):
    # B / (A + B): 7/16 = 0.44, 0.5/4.5 = 0.11, 0.6/1.6 = 0.375
    directions = lda_directions(*moments(two_gaussians), 3, ridge=1e-6)
    assert_order(directions, two_gaussians[3], [1, 2, 0])


def test_decaying_ridge_gives_prefixes_equal_to_shorter_codes(two_gaussians):
    """Also, stages are uncorrelated over negative pairs, and the first one has ridge 0.5."""
    rng = np.random.default_rng(1)
    X = two_gaussians[0][:4000] @ rng.normal(size=(3, 150)) + rng.normal(size=(4000, 150))
    X = X.astype(np.float32)
    pairs = np.arange(4000).reshape(-1, 2)
    positive, negative = (
        PairMoments.of(X + 0.1 * rng.normal(size=X.shape).astype(np.float32), chosen)
        for chosen in (pairs, rng.integers(4000, size=(3000, 2)))
    )
    gram = np.diag(rng.uniform(0.5, 2, 150))
    long = lda_directions(positive, negative, 140, ridge="decay", gram=gram)
    assert long.shape == (140, 150)
    for length in (20, 32, 64, 128):
        short = lda_directions(positive, negative, length, ridge="decay", gram=gram)
        np.testing.assert_allclose(short, long[:length], atol=1e-9)
    first = lda_directions(positive, negative, 32, ridge=0.5, gram=gram)
    np.testing.assert_allclose(first, long[:32], atol=1e-9)
    covariances = long[:32] @ negative.difference @ long[32:].T
    variances = np.einsum("ij,jk,ik->i", long, negative.difference, long)
    assert np.abs(covariances).max() < 1e-9 * variances.max()


@pytest.mark.parametrize(
    ("hasher", "order"), [(DiffHash(3, alpha=1), [0, 1, 2]), (LDAHash(3), [1, 2, 0])]
)
def test_hashers_find_known_directions_and_thresholds_at_zero(two_gaussians, hasher, order):
    X, positives, negatives, basis = two_gaussians
    pairs = np.concatenate([positives, negatives])
    hasher.fit_pairs(X, pairs, np.arange(len(pairs)) < len(positives))
    assert_order(hasher.directions_, basis, order)
    spread = (X @ hasher.directions_.T).std(axis=0)
    assert (np.abs(hasher.thresholds_) < 0.1 * spread).all()  # zero is optimal by symmetry
    assert (np.abs(hasher.bit_ones_ - 0.5) < 0.05).all()
    # Signs of two normal variables with correlation r differ with probability arccos(r) / pi.
    correlation = np.array([9 / 16, 4 / 4.5, 1 / 1.6])[order]
    np.testing.assert_allclose(hasher.bit_fnr_, np.arccos(correlation) / np.pi, atol=0.01)
    np.testing.assert_allclose(hasher.bit_fpr_, 0.5, atol=0.01)


def test_cross_and_difference_moments_agree_at_alpha_one(two_gaussians):
    """If every row is in as many positive as negative pairs, C_N - C_P = (D_P - D_N) / 2."""
    positive, negative = moments(two_gaussians)
    cross, difference = (
        diff_directions(positive, negative, 3, moment=moment, alpha=1)
        for moment in ("cross", "difference")
    )
    np.testing.assert_allclose(cross, difference, atol=1e-5)


@pytest.mark.parametrize("size", [5, 1600])
def test_generalised_eigenvectors_satisfy_the_eigenvalue_equation(size):
    rng = np.random.default_rng(0)
    a = rng.normal(size=(size, size))
    a = a + a.T
    b = rng.normal(size=(size, size))
    b = b @ b.T / size + np.eye(size)
    vectors = smallest_eigenvectors(a, 3, b)
    values = np.einsum("ij,jk,ik->i", vectors, a, vectors)
    assert (np.diff(values) > 0).all()
    np.testing.assert_allclose(vectors @ b @ vectors.T, np.eye(3), atol=1e-8)
    np.testing.assert_allclose(vectors @ a, values[:, None] * (vectors @ b), atol=1e-7 * size)
    assert (vectors[np.arange(3), np.abs(vectors).argmax(axis=1)] > 0).all()


def test_singular_right_hand_side_raises_error_that_suggests_ridge():
    with pytest.raises(ValueError, match="raise ridge"):
        smallest_eigenvectors(np.eye(2), 1, np.zeros((2, 2)))
