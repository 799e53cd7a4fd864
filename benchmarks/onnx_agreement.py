"""Bits of ONNX graphs beside those of `transform`, on the descriptors of castle-p30.

Beside it: bits that would differ if `transform` did without double precision, and what that costs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from support.harness import arguments, interleaved, report, say
from support.markdown import table

from kdiffhash import BaseHasher, KernelLDAHash, LDAHash, load_pretrained
from kdiffhash._core import pack_above
from kdiffhash.codes import n_bytes
from kdiffhash.datasets import load_scene
from kdiffhash.engines.onnx import export
from kdiffhash.learn.encoder import Encoder


class Float32(Encoder):
    """Leaves ambiguous bits to chance: projections are as float32 gives them."""

    def encode(self, X: np.ndarray, n_jobs: int | None = None) -> np.ndarray:
        out = np.empty((len(X), n_bytes(len(self.directions))), np.uint8)

        def pack(start: int, projections: np.ndarray) -> None:
            pack_above(projections, self.thresholds, out[start : start + len(projections)])

        Encoder(self.preprocess, self.features, self.directions)._for_tiles(X, pack, n_jobs)
        return out


def compare(name: str, hasher: BaseHasher, rows: np.ndarray, path: Path) -> dict[str, object]:
    import onnxruntime

    export(hasher, path)
    session = onnxruntime.InferenceSession(path)
    parts = np.array_split(rows.astype(np.float32), 16)
    found = np.concatenate([session.run(None, {"rows": part})[0] for part in parts])
    encoder = hasher._encoder()
    plain = Float32(encoder.preprocess, encoder.features, encoder.directions, encoder.thresholds)
    n_bits = len(rows) * hasher.n_bits_
    unlike = int(np.bitwise_count(found ^ encoder.encode(rows)).sum())
    by_chance = int(np.bitwise_count(found ^ plain.encode(rows)).sum())
    seconds = interleaved(
        {"settled": lambda: encoder.encode(rows), "plain": lambda: plain.encode(rows)}, 7
    )
    return {
        "model": name,
        "n_bits": hasher.n_bits_,
        "bits": n_bits,
        "unlike": unlike,
        "unlike_in_a_million": 1e6 * unlike / n_bits,
        "float32_unlike_in_a_million": 1e6 * by_chance / n_bits,
        "times_float32": seconds["settled"] / seconds["plain"],
    }


def onnx_table(found: dict[str, Any]) -> str:
    lines = []
    for row in found["rows"]:
        unlike, plain = row["unlike_in_a_million"], row["float32_unlike_in_a_million"]
        time = f"{row['times_float32']:.2f} x" if plain != unlike else "-"  # linear: all the same
        lines.append([row["model"], str(row["n_bits"]), f"**{unlike:.2g}**", f"{plain:.3g}", time])
    note = (
        "On the descriptors of castle-p30: bits in a million in which graph and `transform` "
        "differ, how many it would be by float32 alone, and the time of `transform` beside that. "
        "(`python benchmarks/onnx_agreement.py`)"
    )
    header = ["model", "bits", "differ, in a million", "by float32 alone", "time"]
    return f"{note}\n\n{table(header, lines)}"


def tables(found: dict[str, Any]) -> dict[str, str]:
    return {"onnx": onnx_table(found)}


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
    report("onnx_agreement", {"rows": found}, options)


if __name__ == "__main__":
    main()
