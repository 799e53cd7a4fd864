"""Votes of keypoints for the photographs of their nearest codes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_VOTE_RADIUS = 0.25  # share of the bits; codes at a larger distance get no vote


def count_votes(
    distances: NDArray[np.int32], photos: NDArray[np.int64], n_bits: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the photographs that get votes, and how many.

    Each keypoint, a row of `distances` and `photos` in ascending order of distance, votes once for
    every photograph among its nearest codes. The weight of a vote decreases linearly with the
    distance. Entries of -1 stand for no photograph.
    """
    weights = np.maximum(0, 1 - distances / (_VOTE_RADIUS * n_bits))
    keypoints = np.broadcast_to(np.arange(len(photos))[:, None], photos.shape)
    ballots = np.stack([photos.ravel(), keypoints.ravel()], axis=1)
    unique, first = np.unique(ballots, axis=0, return_index=True)  # the first is the nearest
    voted: NDArray[np.int64]
    voted, which = np.unique(unique[:, 0], return_inverse=True)
    votes: NDArray[np.float64] = np.zeros(len(voted))
    np.add.at(votes, which, weights.ravel()[first])
    valid = (voted >= 0) & (votes > 0)
    return voted[valid], votes[valid]
