"""`domain_shift`: what it measures, and that it separates rows of the training domain."""

from __future__ import annotations

import numpy as np
import pytest

import kdiffhash
from kdiffhash.hashers.domain import DomainShift, domain_shift

HASHERS = [
    kdiffhash.DiffHash(8, random_state=0),
    kdiffhash.LDAHash(8, random_state=0),
    kdiffhash.KernelLDAHash(16, n_basis=60, random_state=0),
    kdiffhash.BoostedHash(8, random_state=0),
    kdiffhash.ITQHash(8, random_state=0),
]


def draw(seed, n_objects=500, shift=0.0, scale=1.0):
    """Rows and labels of objects, four rows each; every seed gives other objects."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(n_objects), 4)
    centres = rng.normal(size=(n_objects, 16)) * np.linspace(2, 0.5, 16)
    X = scale * (centres[y] + 0.5 * rng.normal(size=(len(y), 16)) + shift)
    return X.astype(np.float32), y


@pytest.fixture(params=HASHERS, ids=lambda hasher: type(hasher).__name__)
def hasher(request):
    X, y = draw(0)
    hasher = request.param
    return hasher.fit(X) if isinstance(hasher, kdiffhash.ITQHash) else hasher.fit(X, y)


def test_only_rows_of_another_distribution_are_far(hasher):
    for n_objects in (60, 2000):
        assert not domain_shift(hasher, draw(1, n_objects)[0]).is_far
    for other in ({"shift": 2.0}, {"scale": 3.0}, {"scale": 0.3}):
        assert domain_shift(hasher, draw(1, **other)[0]).is_far, other


def test_values_equal_those_of_plain_numpy(hasher, tmp_path):
    X, Z = draw(0)[0], draw(1, 300, shift=0.5)[0]
    hasher.save(tmp_path / "model")
    loaded = kdiffhash.load(tmp_path / "model").truncate(5)
    found = domain_shift(loaded, Z)
    trained, rows = (hasher.project(part)[:, :5].astype(float) for part in (X, Z))
    ones = (rows > 0).mean(axis=0)
    difference = np.mean((ones - (trained > 0).mean(axis=0)) ** 2)
    by_chance = np.mean(ones * (1 - ones)) / len(rows)
    assert found.ones == pytest.approx(np.sqrt(difference - by_chance), abs=0.005)
    logs = np.log(rows.std(axis=0) / trained.std(axis=0))
    assert found.spread == pytest.approx(np.sqrt(np.mean(logs**2)), abs=1e-4)


def test_few_rows_and_models_without_records_are_not_judged(hasher):
    X = draw(1)[0]
    assert domain_shift(hasher, X[:99]) is None
    del hasher.bit_spread_
    assert domain_shift(hasher, X).spread is None
    del hasher.bit_ones_
    assert domain_shift(hasher, X) is None


def test_limits():
    assert not DomainShift(0.09, 0.25).is_far
    assert DomainShift(0.091, None).is_far
    assert DomainShift(0.0, 0.251).is_far


def test_constant_bits_are_left_out():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 4))
    X[:, 3] = 0
    hasher = kdiffhash.ITQHash(4, random_state=0).fit(X)
    assert not domain_shift(hasher, X).is_far


def test_the_fingerprint_does_not_depend_on_the_record():
    from kdiffhash.hashers.fingerprint import fingerprint

    X, y = draw(0)
    hasher = kdiffhash.DiffHash(8, random_state=0).fit(X, y)
    before = fingerprint(hasher)
    hasher.bit_spread_ = hasher.bit_spread_ + 1
    assert fingerprint(hasher) == before
