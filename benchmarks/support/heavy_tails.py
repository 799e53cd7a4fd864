"""Simulated distances of pairs whose objects are similar to others with a heavy tail.

A few objects, such as repeated windows, then cause most of the false positives at low rates.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

FPR = 1e-3
_SPREAD, _SHIFT = 1.2, 0.5
FNR = float(1 - stats.norm.cdf(_SHIFT / _SPREAD / np.sqrt(2)))  # of the population, at FPR


def closeness(n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw how much closer each object is to all others, with a heavy tail."""
    return 0.3 * np.exp(0.9 * rng.normal(size=n))


def threshold() -> float:
    """Return the distance at which the false positive rate of the population is FPR."""
    rng = np.random.default_rng(1)
    n = 4_000_000
    return float(np.quantile(rng.normal(size=n) - closeness(n, rng) - closeness(n, rng), FPR))


def simulate(
    n_objects: int, n_negatives: int, threshold: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw distances, flags and objects of five positive pairs per object and of negative pairs."""
    difficulty, close = rng.normal(size=n_objects), closeness(n_objects, rng)
    own = np.repeat(np.arange(n_objects), 5)
    drawn = rng.integers(n_objects, size=(n_negatives, 2))
    drawn = drawn[drawn[:, 0] != drawn[:, 1]]
    positive = threshold - _SHIFT + _SPREAD * (difficulty[own] + rng.normal(size=len(own)))
    negative = rng.normal(size=len(drawn)) - close[drawn].sum(axis=1)
    objects = np.concatenate([np.stack([own, own], axis=1), drawn])
    distances = np.round(30 * np.concatenate([positive, negative]))
    return distances, objects[:, 0] == objects[:, 1], objects
