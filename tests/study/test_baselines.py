"""Baselines: what their papers promise, what they refuse, and their model files."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sklearn.decomposition import PCA

import kdiffhash
from kdiffhash import LDAHash, hamming, unpack
from kdiffhash.study.baselines import (
    KLSHHash,
    KSHHash,
    MahalanobisMetric,
    PCAHash,
    ProductQuantizer,
    RandomHyperplaneHash,
    SDHHash,
    SKLSHHash,
    SpectralHash,
)


@pytest.fixture(scope="module")
def classes():
    """Ten classes in twenty dimensions, of which eight are noise and larger than the rest."""
    rng = np.random.default_rng(0)
    y = rng.integers(10, size=1500)
    X = np.concatenate([rng.normal(size=(10, 12))[y], 4 * rng.normal(size=(1500, 8))], axis=1)
    return (X + 0.3 * rng.normal(size=X.shape)).astype(np.float32), y


def test_random_hyperplanes_estimate_angles():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8))
    X -= X.mean(axis=0)
    codes = RandomHyperplaneHash(20_000, random_state=0).fit(X).transform(X)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    angles = np.arccos(np.clip(unit @ unit.T, -1, 1)) / np.pi
    np.testing.assert_allclose(hamming(codes[:, None], codes) / 20_000, angles, atol=0.02)


@pytest.mark.parametrize("baseline", [KSHHash, SDHHash])
def test_classes_are_learned(classes, baseline):
    X, y = classes
    hasher = baseline(24, n_basis=200, n_rows=800, random_state=0).fit(X[:1000], y[:1000])
    random = RandomHyperplaneHash(24, random_state=0).fit(X[:1000])
    assert hasher.score(X[1000:], y[1000:]) > 2 * random.score(X[1000:], y[1000:])


def test_inner_products_of_ksh_codes_tend_to_the_labels(classes):
    """What is minimised: the distance of their inner products from +bits and -bits."""
    X, y = classes
    hasher = KSHHash(16, n_basis=100, n_rows=300, random_state=0).fit(X[:300], y[:300])
    bits = np.where(unpack(hasher.transform(X[:300]), 16), 1, -1)
    same = y[:300, None] == y[:300]
    found = np.mean((bits @ bits.T - np.where(same, 16, -16)) ** 2)
    other = np.where(unpack(LDAHash(16).fit(X[:300], y[:300]).transform(X[:300]), 16), 1, -1)
    assert found < np.mean((other @ other.T - np.where(same, 16, -16)) ** 2)


def test_labels_can_be_told_from_sdh_codes_by_a_linear_map(classes):
    X, y = classes
    hasher = SDHHash(32, n_basis=200, n_rows=1000, random_state=0).fit(X[:1000], y[:1000])
    bits = np.where(unpack(hasher.transform(X), 32), 1.0, -1.0)
    wanted = np.eye(10)[y]
    to_labels = np.linalg.lstsq(bits[:1000], wanted[:1000], rcond=None)[0]
    assert ((bits[1000:] @ to_labels).argmax(axis=1) == y[1000:]).mean() > 0.8


def test_pca_hash_takes_the_signs_of_scikit_learns_components(classes):
    X, _ = classes
    bits = unpack(PCAHash(6).fit(X).transform(X), 6).astype(bool)
    wanted = PCA(6, svd_solver="full").fit_transform(X.astype(np.float64)) > 0
    equal = (bits == wanted).mean(axis=0)
    assert np.maximum(equal, 1 - equal).min() > 0.999
    with pytest.raises(ValueError, match="at most one bit per feature"):
        PCAHash(21).fit(X)


def test_spectral_hash_orders_the_harmonics_of_a_box():
    """A box of 4 by 1: frequencies 1/4, 2/4, 3/4, then 4/4 and 1/1; bits cut it in equal parts."""
    rng = np.random.default_rng(0)
    X = rng.random((20_000, 2)) * [4, 1]
    bits = unpack(SpectralHash(3).fit(X).transform(X), 3).astype(bool)
    u = X[:, 0] / 4
    for bit, order in zip(bits.T, (1, 2, 3)):
        equal = (bit == (np.cos(order * np.pi * u) > 0)).mean()
        assert max(equal, 1 - equal) > 0.99


def test_sklsh_distances_depend_on_the_kernel_alone():
    """The expected share of bits that differ is a series in powers of the kernel."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 6))
    hasher = SKLSHHash(40_000, random_state=0).fit(X)
    codes = hasher.transform(X[:40])
    gamma = (hasher.directions_**2).sum(axis=1).mean() / 2 / 6
    squares = ((X[:40, None] - X[:40]) ** 2).sum(axis=2)
    wanted = sum(
        8 / np.pi**2 * (1 - np.exp(-gamma * m * m * squares)) / (4 * m * m - 1)
        for m in range(1, 200)
    )
    np.testing.assert_allclose(hamming(codes[:, None], codes) / 40_000, wanted, atol=0.02)


def test_kernelised_lsh_follows_the_angle_in_the_space_of_the_kernel():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    hasher = KLSHHash(8000, n_basis=200, n_subset=20, random_state=0).fit(X)
    codes = hasher.transform(X)
    gram = np.exp(-hasher.gamma_ * ((X[:, None] - X) ** 2).sum(axis=2))
    centred = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
    norms = np.sqrt(np.diag(centred))
    angles = np.arccos(np.clip(centred / np.outer(norms, norms), -1, 1)) / np.pi
    off = ~np.eye(200, dtype=bool)
    share = hamming(codes[:, None], codes)[off] / 8000
    assert np.corrcoef(share, angles[off])[0, 1] > 0.95


def test_a_learned_metric_beats_the_euclidean_distance_and_matches_the_likelihood_ratio(classes):
    X, y = classes
    metric = MahalanobisMetric(random_state=0, ridge=0.0).fit(X[:1000], y[:1000])
    pairs, similar = kdiffhash.draw_pairs(y[1000:], 3000, 6000, random_state=0)
    rows, mapped = X[1000:], metric.transform(X[1000:])
    plain, learned = (
        kdiffhash.roc(
            np.linalg.norm(np.subtract(*(one[side] for side in pairs.T)), axis=1), similar
        )
        for one in (rows, mapped)
    )
    assert learned.auc > plain.auc + 0.1
    assert metric.n_bits_ == 32 * 20
    # With explicit pairs, against plain NumPy.
    gaps = X[pairs[:, 0]].astype(np.float64) - X[pairs[:, 1]]
    metric.fit_pairs(X, pairs, similar)
    d_p, d_n = (gaps[kind].T @ gaps[kind] / kind.sum() for kind in (similar, ~similar))
    values, vectors = np.linalg.eigh(np.linalg.inv(d_p) - np.linalg.inv(d_n))
    wanted = (vectors * np.maximum(values, 0)) @ vectors.T
    np.testing.assert_allclose(metric.map_ @ metric.map_.T, wanted, atol=1e-3 * abs(wanted).max())


def test_product_quantisation_rounds_to_few_codewords(classes):
    pytest.importorskip("faiss")
    X, _ = classes
    quantizer = ProductQuantizer(32).fit(X)
    rounded = quantizer.transform(X)
    assert quantizer.n_bits_ == 32
    assert rounded.shape == X.shape
    for part in range(4):
        assert len(np.unique(rounded[:, 5 * part : 5 * part + 5], axis=0)) <= 256
    assert ((rounded - X) ** 2).mean() < 0.4 * X.var()
    with pytest.raises(ValueError, match="8 times a divisor of the 20 features"):
        ProductQuantizer(24).fit(X)


@pytest.mark.parametrize(
    ("hasher", "message"),
    [
        (KSHHash(8, n_rows=1), "n_rows must be an integer of at least 2"),
        (KSHHash(8, n_iter=0), "n_iter must be an integer of at least 1"),
        (SDHHash(8, nu=0), "nu must be above 0"),
        (SDHHash(8, ridge=-1), "ridge must be a finite, non-negative"),
    ],
)
def test_bad_settings_are_explained(classes, hasher, message):
    with pytest.raises(ValueError, match=message):
        hasher.fit(*classes)


def test_what_cannot_be_learned_from_is_explained(classes):
    X, _ = classes
    chain = np.stack([np.arange(99), np.arange(99) + 1], axis=1)
    pairs = np.concatenate([chain, [[0, 5]]])
    with pytest.raises(ValueError, match="all rows in pairs have one label"):
        KSHHash(8).fit_pairs(X, pairs, np.arange(100) < 99)
    with pytest.raises(ValueError, match="all training rows are equal"):
        SDHHash(8).fit(np.ones((20, 3)), np.arange(20) // 2)


def test_a_model_file_of_a_baseline_is_read_once_baselines_are_imported(classes, tmp_path):
    hasher = RandomHyperplaneHash(16, random_state=0).fit(classes[0])
    hasher.save(tmp_path / "model")
    code = """
import sys, kdiffhash
try:
    kdiffhash.load(sys.argv[1])
except kdiffhash.ModelFileError as error:
    print("import kdiffhash.study.baselines" in str(error))
import kdiffhash.study.baselines
print(type(kdiffhash.load(sys.argv[1])).__name__)
"""
    run = [sys.executable, "-c", code, str(tmp_path / "model")]
    assert subprocess.check_output(run, text=True).split() == ["True", "RandomHyperplaneHash"]


def test_classes_of_others_are_not_saved(classes, tmp_path):
    class RandomHyperplaneHash(kdiffhash.study.baselines.RandomHyperplaneHash):
        """Of the same name, but not the package's."""

    hasher = RandomHyperplaneHash(16, random_state=0).fit(classes[0])
    with pytest.raises(ValueError, match="can only name classes of kdiffhash"):
        hasher.save(tmp_path / "model")
