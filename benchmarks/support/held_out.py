"""Leave one scene out: training rows from the other scenes, test pairs from the held-out one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kdiffhash import draw_pairs, hamming, roc
from kdiffhash.cli.inputs import read_all
from kdiffhash.codes import truncate
from kdiffhash.datasets import load_scene

SCENES = ("herz-jesus-p25", "castle-p30", "caliterra", "boruszyn")


def training_data(held_out: str) -> Any:
    """Return rows and labels of all scenes except the held-out one."""
    return read_all([Path(name) for name in SCENES if name != held_out], None, "sift")


def test_set(name: str) -> dict[str, Any]:
    """Return a scene's rows, the positives of its longest test list and a million negatives."""
    scene = load_scene(name)
    listed, similar = scene.test_pairs()
    drawn, drawn_similar = draw_pairs(scene.points, 1, 1_000_000, random_state=1)
    pairs = np.concatenate([listed[similar], drawn[~drawn_similar]])
    return {
        "rows": np.asarray(scene.descriptors),
        "pairs": pairs,
        "similar": np.arange(len(pairs)) < similar.sum(),
        "objects": np.asarray(scene.points)[pairs],
    }


def code_rates(codes: np.ndarray, n_bits: int, test: dict[str, Any]) -> tuple[float, float]:
    """Return FNR at 0.1 % FPR and FPR95 of the codes' first `n_bits` bits."""
    short = truncate(codes, n_bits)
    curve = roc(hamming(*(short[side] for side in test["pairs"].T)), test["similar"])
    return curve.fnr_at(1e-3), curve.fpr95
