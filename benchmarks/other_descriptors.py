"""Codes of descriptors other than SIFT: TFeat, a learned descriptor, and HOG.

Trained on herz-jesus-p25, tested on boruszyn: the positives of its test list and a million
negatives. HOG is computed from the patches; it has 288 numbers, TFeat 128.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone
from support.harness import arguments, log, report
from support.markdown import rates, table

from kdiffhash import KernelDiffHash, KernelLDAHash, LDAHash, roc
from kdiffhash.codes import truncate
from kdiffhash.datasets import describe_patches, load_scene
from kdiffhash.evaluate.pair_distances import code_distances, euclidean

TRAIN, TEST = "herz-jesus-p25", "boruszyn"
BITS = (64, 128, 256, 512)
HASHERS = {
    "LDA-hash": LDAHash(128, random_state=0),
    "kDIF": KernelDiffHash(512, random_state=0),
    "kernel LDA-hash": KernelLDAHash(512, random_state=0),
    "kernel LDA-hash, refined": KernelLDAHash(512, refine=1000, random_state=0),
}


def descriptors_of(name: str, kind: str) -> np.ndarray:
    """Return TFeat or SIFT as stored, or HOG of all patches."""
    scene = load_scene(name)
    if kind == "HOG":
        return describe_patches(scene.patches, "hog")
    return np.asarray(load_scene(name, kind.lower()).descriptors)


def descriptor_table(result: dict[str, Any]) -> str:
    cells: dict[tuple[str, str], dict[int, str]] = {}
    for row in result["rows"]:
        cells.setdefault((row["descriptor"], row["method"]), {})[row["n_bits"]] = rates(row)
    lines = []
    for (descriptor, method), by_bits in cells.items():
        floats = by_bits[max(by_bits)] if method == "Euclidean" else ""
        codes = [by_bits.get(n, "") if method != "Euclidean" else "" for n in BITS]
        lines.append([descriptor, method, floats, *codes])
    note = (
        f"Trained on {TRAIN}, tested on {TEST}, one seed, no preprocessing: FNR in percent at "
        "0.1 % FPR, FPR95 in brackets. (`python benchmarks/other_descriptors.py`)"
    )
    header = ["descriptor", "method", "floats", *(f"{n} bits" for n in BITS)]
    return f"{note}\n\n{table(header, lines)}"


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"other-descriptors": descriptor_table(result)}


def main() -> None:
    options = arguments(__doc__)
    train, test = load_scene(TRAIN), load_scene(TEST)
    training, is_positive = train.draw_pairs(random_state=0)
    pairs, similar = test.test_pairs(1_000_000, random_state=1)
    rows = []
    for kind in ("TFeat", "HOG"):
        learn, check = descriptors_of(TRAIN, kind), descriptors_of(TEST, kind)
        bits = 8 * check.dtype.itemsize * check.shape[1]
        found = {("Euclidean", bits): euclidean(check, pairs, None)}
        for name, unfitted in HASHERS.items():
            hasher = clone(unfitted)
            hasher.fit_pairs(learn, training, is_positive, train.points)
            codes = hasher.transform(check)
            for n in BITS:
                if n <= hasher.n_bits_:
                    found[name, n] = code_distances(truncate(codes, n), pairs)
        for (method, n), distances in found.items():
            curve = roc(distances, similar)
            rows.append(
                {
                    "descriptor": kind,
                    "method": method,
                    "n_bits": n,
                    "fnr_at_1e-3": curve.fnr_at(1e-3),
                    "fpr95": curve.fpr95,
                }
            )
            log(rows[-1])
    report("other_descriptors", {"rows": rows}, options)


if __name__ == "__main__":
    main()
