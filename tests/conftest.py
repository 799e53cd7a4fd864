"""Data that several tests use, and where real scenes are found."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def scenes() -> Path:
    root = os.environ.get("KDIFFHASH_SCENES")
    if not root or not Path(root).is_dir():
        pytest.skip("KDIFFHASH_SCENES is not set to a folder of scenes")
    return Path(root)


@pytest.fixture(scope="session")
def things() -> tuple[np.ndarray, np.ndarray]:
    """150 things seen four times each, 12 features, with noise that is not isotropic."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(150, 12)) * np.linspace(2, 0.5, 12)
    y = np.repeat(np.arange(150), 4)
    X = centres[y] + rng.normal(size=(600, 12)) * np.linspace(0.2, 0.8, 12)
    return X.astype(np.float32), y
