"""FNR against the change of viewpoint: the angle between the two cameras of a positive pair.

castle-p30 has published cameras for some of its photographs (KDIFFHASH_PHOTOS). Methods are trained
on herz-jesus-p25; the threshold of each is set to 0.1 % FPR on a million negative pairs of all
photographs, and the FNR is that of the positive pairs whose cameras differ by a given angle between
their viewing directions.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from support.harness import arguments, log, report
from support.markdown import table

from kdiffhash import PAPER_SETTING, DiffHash, KernelDiffHash, KernelLDAHash, LDAHash, roc
from kdiffhash.codes import truncate
from kdiffhash.datasets import load_scene
from kdiffhash.evaluate.pair_distances import code_distances, euclidean

TRAIN, TEST = "herz-jesus-p25", "castle-p30"
EDGES = (0, 10, 20, 30, 40, 60, 180)
ROOT: dict[str, Any] = {"preprocess": "hellinger", "random_state": 0}
METHODS = {
    "DIF, paper's setting, 128 bits": DiffHash(128, moment="cross", alpha=25.0),
    "kDIF, paper's setting, 512 bits": KernelDiffHash(512, **PAPER_SETTING, random_state=0),
    "LDA-hash, 128 bits": LDAHash(128, **ROOT),
    "kDIF, 512 bits": KernelDiffHash(512, **ROOT),
    "kernel LDA-hash, 128 bits": (KernelLDAHash(512, **ROOT), 128),
    "kernel LDA-hash, 512 bits": KernelLDAHash(512, **ROOT),
}


def viewing_directions(folder: Path) -> dict[int, np.ndarray]:
    """Return the unit viewing direction of each photograph with a published camera, by number."""
    directions = {}
    for path in sorted(folder.glob("*.camera")):
        rows = [[float(word) for word in line.split()] for line in path.read_text().splitlines()]
        rotation = np.array(rows[4:7])  # camera to world; the camera looks along its third axis
        directions[int(path.stem)] = rotation[:, 2]
    return directions


def positive_pairs(points: np.ndarray, photos: np.ndarray, known: list[int]) -> np.ndarray:
    """Return all pairs of patches of one point in two photographs with known cameras."""
    rows = np.flatnonzero(np.isin(photos, known))
    rows = rows[np.argsort(points[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(points[rows], prepend=-1))
    groups = np.split(rows, starts[1:])
    return np.array([(a, b) for group in groups for i, a in enumerate(group) for b in group[:i]])


def viewpoint_table(result: dict[str, Any]) -> str:
    header = [f"{low}–{high}°" for low, high in pairwise(EDGES)]  # noqa: RUF001
    rows = [
        [row["method"], *(f"{100 * rate:.1f}" for rate in row["fnr_at_1e-3"])]
        for row in result["rows"]
    ]
    counts = ["positive pairs", *(f"{n:,}" for n in result["n_pairs"])]
    note = (
        f"Trained on {TRAIN}, tested on the photographs of {TEST} with published cameras. FNR in "
        "percent of positive pairs by the angle between the viewing directions of their cameras, "
        "at the threshold of 0.1 % FPR. (`python benchmarks/viewpoint.py`)"
    )
    return f"{note}\n\n{table(['angle between cameras', *header], [*rows, counts])}"


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"viewpoint": viewpoint_table(result)}


def main() -> None:
    options = arguments(__doc__)
    directions = viewing_directions(Path(os.environ["KDIFFHASH_PHOTOS"]) / TEST)
    train, test = load_scene(TRAIN), load_scene(TEST)
    positive = positive_pairs(test.points, test.photos, list(directions))
    cosines = [directions[test.photos[a]] @ directions[test.photos[b]] for a, b in positive]
    angles = np.degrees(np.arccos(np.clip(cosines, -1, 1)))
    drawn, similar = test.draw_pairs(1, 1_000_000, random_state=1)
    pairs = np.concatenate([positive, drawn[~similar]])
    flags = np.arange(len(pairs)) < len(positive)
    training, is_positive = train.draw_pairs(random_state=0)
    distances = {
        "SIFT": euclidean(test.descriptors, pairs, None),
        "RootSIFT": euclidean(test.descriptors, pairs, "hellinger"),
    }
    for name, method in METHODS.items():
        hasher, n_bits = method if isinstance(method, tuple) else (method, None)
        hasher.fit_pairs(train.descriptors, training, is_positive)
        codes = hasher.transform(test.descriptors)
        distances[name] = code_distances(truncate(codes, n_bits or hasher.n_bits_), pairs)
    which = np.digitize(angles, EDGES[1:-1])
    rows = []
    for name, values in distances.items():
        rates = []
        for i in range(len(EDGES) - 1):
            chosen = np.concatenate([which == i, np.ones(len(pairs) - len(positive), bool)])
            rates.append(roc(values[chosen], flags[chosen]).fnr_at(1e-3))
        rows.append({"method": name, "fnr_at_1e-3": rates})
        log(rows[-1])
    counts = np.bincount(which, minlength=len(EDGES) - 1).tolist()
    report("viewpoint", {"rows": rows, "edges": EDGES, "n_pairs": counts}, options)


if __name__ == "__main__":
    main()
