"""Iterative quantisation."""

import numpy as np
import pytest

from kdiffhash import ITQHash, unpack


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
