"""Train the pretrained model of the package, and test its settings on held-out scenes.

Every scene is tested with models that were not trained on it: one trained on the openly licensed
scenes, one on all other scenes. Positives are those of the longest test list, negatives a million
pairs of the same scene. `--write 1` trains and writes the pretrained model itself.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from support.harness import arguments, log, report
from support.held_out import test_set
from support.markdown import table, with_interval

import kdiffhash
from kdiffhash import KernelLDAHash, draw_pairs, hamming
from kdiffhash.cli.inputs import read_all
from kdiffhash.codes import truncate
from kdiffhash.evaluate.bootstrap import bootstrap
from kdiffhash.learn.encoder import compute_features
from kdiffhash.learn.preprocess import preprocess_rows

OPEN = ("caliterra", "boruszyn", "brighton-beach")
OTHERS = ("herz-jesus-p25", "castle-p30")
BITS = (64, 128, 256, 512)
SEED = 0
SETTINGS: dict[str, Any] = {
    "n_bits": 512,
    "n_basis": 1000,
    "basis": "kmeans",
    "refine": 1000,
    "preprocess": "hellinger",
    "random_state": SEED,
}
_SAMPLE = 20_000  # rows for the mean of the features
TARGET = Path(kdiffhash.__file__).parent / "hashers" / "models" / "sift.safetensors"


@cache
def train(scenes: tuple[str, ...]) -> KernelLDAHash:
    """Train on these scenes, and round the directions to float16."""
    data = read_all([Path(name) for name in scenes], None, "sift")
    pairs, similar = draw_pairs(data.labels, random_state=SEED)
    hasher = KernelLDAHash(**SETTINGS).fit_pairs(data.rows, pairs, similar, data.labels)
    rows = data.rows[:: -(-len(data.rows) // _SAMPLE)]
    mean = compute_features(rows, "hellinger", hasher._feature_map()).mean(axis=0, dtype=float)
    scale = np.abs(hasher.directions_).max(axis=1, keepdims=True)
    scaled = hasher.directions_.astype(np.float64) / scale
    hasher.directions_ = scaled.astype(np.float16).astype(np.float32)
    shift = (hasher.directions_ - scaled) @ mean  # of the mean projection, due to rounding
    hasher.thresholds_ = (hasher.thresholds_ / scale[:, 0] + shift).astype(np.float32)
    return hasher


def measure(scene: str, test: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the error rates of SIFT, RootSIFT and both models on a scene."""
    rows = []

    def add(method: str, trained_on: list[str], n_bits: int, distances: Any) -> None:
        rate = bootstrap(
            lambda curve: curve.fnr_at(1e-3),
            distances,
            test["similar"],
            test["objects"],
            n_resamples=200,
            random_state=SEED,
        )
        rows.append(
            {
                "method": method,
                "test": scene,
                "trained_on": trained_on,
                "n_bits": n_bits,
                "fnr_at_1e-3": rate.value,
                "interval": [rate.low, rate.high],
            }
        )
        log(rows[-1])

    left, right = test["pairs"].T
    for method, preprocess in (("SIFT, Euclidean", None), ("RootSIFT, Euclidean", "hellinger")):
        floats = preprocess_rows(test["rows"], preprocess)
        distances = [
            np.linalg.norm(floats[batch[:, 0]] - floats[batch[:, 1]], axis=1)
            for batch in np.array_split(test["pairs"], 20)
        ]
        add(method, [], 1024, np.concatenate(distances))
    for method, scenes in (("open scenes", OPEN), ("all scenes", OPEN + OTHERS)):
        used = tuple(name for name in scenes if name != scene)
        codes = train(used).transform(test["rows"])
        for n_bits in BITS:
            short = truncate(codes, n_bits)
            add(method, list(used), n_bits, hamming(short[left], short[right]))
    return rows


def pretrained_table(result: dict[str, Any]) -> str:
    rows: dict[tuple[str, int], dict[str, dict]] = {}
    for row in result["rows"]:
        rows.setdefault((row["method"], row["n_bits"]), {})[row["test"]] = row
    scenes = list(next(iter(rows.values())))
    names = {
        "open scenes": "codes, trained on open scenes",
        "all scenes": "codes, trained on all other scenes",
    }
    cell_rows = []
    for (method, n_bits), cells in rows.items():
        scene_rows = [cells[scene] for scene in scenes]
        mean = 100 * np.mean([row["fnr_at_1e-3"] for row in scene_rows])
        rates = [with_interval(row["fnr_at_1e-3"], *row["interval"]) for row in scene_rows]
        cell_rows.append([names.get(method, method), str(n_bits), *rates, f"**{mean:.1f}**"])
    note = (
        "FNR in percent at 0.1 % FPR with 95 % confidence intervals; a million negatives per "
        "scene. No model is tested on a scene that it was trained on: an open scene is tested with "
        "a model of the other two open scenes. (`python benchmarks/pretrained_model.py`)"
    )
    return note + "\n\n" + table(["descriptor", "bits", *scenes, "mean"], cell_rows)


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"pretrained": pretrained_table(result)}


def main() -> None:
    options = arguments(__doc__, write=0)
    if options.write:
        TARGET.parent.mkdir(exist_ok=True)
        train(OPEN).save(TARGET, half=["directions_"])
        log(f"{TARGET}: {TARGET.stat().st_size:,} bytes")
        return
    rows = [row for scene in OTHERS + OPEN for row in measure(scene, test_set(scene))]
    report("pretrained_model", {"settings": SETTINGS, "open": OPEN, "rows": rows}, options)


if __name__ == "__main__":
    main()
