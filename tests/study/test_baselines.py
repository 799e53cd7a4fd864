"""Baselines: what their papers promise, what they refuse, and their model files."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import kdiffhash
from kdiffhash import LDAHash, hamming, unpack
from kdiffhash.study.baselines import KSHHash, RandomHyperplaneHash, SDHHash


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


@pytest.mark.parametrize(
    ("hasher", "message"),
    [
        (KSHHash(8, n_rows=1), "n_rows must be a whole number from 2"),
        (KSHHash(8, n_iter=0), "n_iter must be a whole number from 1"),
        (SDHHash(8, nu=0), "nu must be above 0"),
        (SDHHash(8, ridge=-1), "ridge must be a finite number from 0"),
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
    with pytest.raises(ValueError, match="all rows are equal"):
        SDHHash(8).fit(np.ones((20, 3)), np.arange(20) // 2)


def test_a_model_file_of_a_baseline_is_read_without_the_study(classes, tmp_path):
    hasher = RandomHyperplaneHash(16, random_state=0).fit(classes[0])
    hasher.save(tmp_path / "model")
    code = """
import sys, kdiffhash
print(type(kdiffhash.load(sys.argv[1])).__name__)
print(sorted({"matplotlib", "cv2", "jinja2", "skimage"} & set(sys.modules)))
"""
    run = [sys.executable, "-c", code, str(tmp_path / "model")]
    name, heavy = subprocess.check_output(run, text=True).splitlines()
    assert name == "RandomHyperplaneHash"
    assert heavy == "[]"


def test_classes_of_others_are_not_saved(classes, tmp_path):
    class RandomHyperplaneHash(kdiffhash.study.baselines.RandomHyperplaneHash):
        """Of the same name, but not the package's."""

    hasher = RandomHyperplaneHash(16, random_state=0).fit(classes[0])
    with pytest.raises(ValueError, match="not one of kdiffhash's own classes"):
        hasher.save(tmp_path / "model")
