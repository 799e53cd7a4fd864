import numpy as np
import pytest

from kdiffhash import ITQHash, RandomHyperplaneHash, hamming, unpack


def test_random_hyperplanes_estimate_angles():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8))
    X -= X.mean(axis=0)
    codes = RandomHyperplaneHash(20_000, random_state=0).fit(X).transform(X)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    angles = np.arccos(np.clip(unit @ unit.T, -1, 1)) / np.pi
    np.testing.assert_allclose(hamming(codes[:, None], codes) / 20_000, angles, atol=0.02)


def test_itq_recovers_the_corners_of_a_rotated_cube():
    rng = np.random.default_rng(0)
    corners = rng.choice([-1.0, 1.0], size=(2000, 4))
    rotation = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    X = (corners + rng.normal(0, 0.1, corners.shape)) @ rotation
    bits = unpack(ITQHash(4, random_state=0).fit(X).transform(X), 4)
    agreement = np.abs(np.where(bits, 1, -1).T @ corners) / 2000
    np.testing.assert_allclose(np.sort(agreement, axis=1), [[0, 0, 0, 1]] * 4, atol=0.1)


def test_itq_has_at_most_one_bit_per_feature():
    with pytest.raises(ValueError, match="at most one bit per feature"):
        ITQHash(9).fit(np.random.default_rng(0).normal(size=(20, 8)))
