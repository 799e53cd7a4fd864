"""Scenes, one of them held out: training data from the others, test pairs from that one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kdiffhash import draw_pairs, hamming, roc
from kdiffhash.cli.inputs import read_all
from kdiffhash.codes import truncate
from kdiffhash.datasets import load_scene

SCENES = ("herz-jesus-p25", "castle-p30", "caliterra", "boruszyn")


def without(scene: str) -> Any:
    return read_all([Path(name) for name in SCENES if name != scene], None, "sift")


def test_set(name: str) -> dict[str, Any]:
    scene = load_scene(name)
    listed, similar = scene.test_pairs()
    drawn, flags = draw_pairs(scene.points, 1, 1_000_000, random_state=1)
    pairs = np.concatenate([listed[similar], drawn[~flags]])
    is_positive = np.arange(len(pairs)) < similar.sum()
    return {
        "rows": np.asarray(scene.descriptors),
        "pairs": pairs,
        "similar": is_positive,
        "objects": np.asarray(scene.points)[pairs],
    }


def code_rates(codes: np.ndarray, n_bits: int, test: dict[str, Any]) -> tuple[float, float]:
    short = truncate(codes, n_bits)
    curve = roc(hamming(*(short[side] for side in test["pairs"].T)), test["similar"])
    return curve.fnr_at(1e-3), curve.fpr95
