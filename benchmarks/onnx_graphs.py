"""Bits of ONNX graphs beside those of `transform`, on the descriptors of castle-p30."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
from common import arguments, report, say

from kdiffhash import BaseHasher, KernelLDAHash, LDAHash, load_pretrained
from kdiffhash.datasets import load_scene
from kdiffhash.engines.onnx import export


def compare(name: str, hasher: BaseHasher, rows: np.ndarray, path: Path) -> dict[str, object]:
    export(hasher, path)
    session = onnxruntime.InferenceSession(path)
    start = time.perf_counter()
    parts = np.array_split(rows.astype(np.float32), 16)
    found = np.concatenate([session.run(None, {"rows": part})[0] for part in parts])
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    wanted = hasher.transform(rows)
    own = time.perf_counter() - start
    unlike = int(np.bitwise_count(found ^ wanted).sum())
    return {
        "model": name,
        "n_bits": hasher.n_bits_,
        "bits": len(rows) * hasher.n_bits_,
        "unlike": unlike,
        "unlike_in_a_million": 1e6 * unlike / (len(rows) * hasher.n_bits_),
        "seconds": seconds,
        "transform_seconds": own,
    }


def main() -> None:
    options = arguments(__doc__)
    scene = load_scene("castle-p30")
    rows = np.asarray(scene.descriptors)
    settings = {"preprocess": "hellinger", "random_state": 0}
    models = {
        "LDA-hash": LDAHash(128, **settings).fit(rows, scene.points),
        "LDA-hash, refined": LDAHash(128, refine=100, **settings).fit(rows, scene.points),
        "kernel LDA-hash": KernelLDAHash(512, **settings).fit(rows, scene.points),
        "kernel LDA-hash, ridge 0.1": KernelLDAHash(512, ridge=0.1, **settings).fit(
            rows, scene.points
        ),
        "model of the package": load_pretrained("sift"),
    }
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, hasher in models.items():
            found.append(compare(name, hasher, rows, Path(scratch) / "model.onnx"))
            say(found[-1])
    report("onnx_graphs", {"rows": found}, options)


if __name__ == "__main__":
    main()
