"""Small scenes, and a plan for a study of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kdiffhash.datasets import load_scene
from kdiffhash.datasets.scene import write_scene


def make_scene(folder, n_points, seed, noise=45, n_views=4):
    """Points with a descriptor each, seen with noise; patches that have something in them."""
    rng = np.random.default_rng(seed)
    centres = rng.gamma(0.8, 40, (n_points, 128))
    points = np.repeat(np.arange(n_points), n_views)
    rows = centres[points] + noise * rng.normal(size=(len(points), 128))
    coarse = rng.integers(0, 256, (n_points, 8, 8))[points]
    coarse = np.clip(coarse + rng.normal(size=coarse.shape) * 40, 0, 255).astype(np.uint8)
    write_scene(
        folder,
        np.kron(coarse, np.ones((1, 8, 8), np.uint8)),
        points,
        np.tile(np.arange(n_views), n_points),
        descriptors=np.clip(rows, 0, 255).astype(np.uint8),
        frames=np.ones((len(points), 4)),
        meta={},
    )
    return load_scene(folder)


def small(plan):
    """Return an even smaller plan than that of a quick study."""
    return replace(
        plan,
        n_positives=1500,
        n_negatives=3000,
        n_test_negatives=20_000,
        n_resamples=30,
        n_basis=100,
        longest_slow=64,
        refine_steps=5,
        grid_positives=500,
        grid_negatives=1000,
        grid_basis=50,
        n_queries=40,
        n_shown=5,
        hog_points=80,
    )
