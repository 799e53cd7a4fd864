"""Number of bits in which ONNX graphs and `transform` differ, on the descriptors of castle-p30.

Also measured: how many bits would differ if `transform` did not recompute ambiguous bits in double
precision, and the time that recomputing takes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from support.harness import arguments, interleaved, log, report
from support.markdown import table

from kdiffhash import BaseHasher, KernelLDAHash, LDAHash, load_pretrained
from kdiffhash._core import pack_above
from kdiffhash.codes import n_bytes
from kdiffhash.datasets import load_scene
from kdiffhash.engines.onnx import export
from kdiffhash.learn.encoder import Encoder


class Float32(Encoder):
    """Encoder that does not recompute ambiguous bits in double precision."""

    def encode(self, X: np.ndarray, n_jobs: int | None = None) -> np.ndarray:
        out = np.empty((len(X), n_bytes(len(self.directions))), np.uint8)

        def pack(start: int, projections: np.ndarray) -> None:
            pack_above(projections, self.thresholds, out[start : start + len(projections)])

        Encoder(self.preprocess, self.features, self.directions)._for_tiles(X, pack, n_jobs)
        return out


def compare(name: str, hasher: BaseHasher, rows: np.ndarray, path: Path) -> dict[str, object]:
    """Count the bits in which the exported graph and `transform` differ."""
    import onnxruntime

    export(hasher, path)
    session = onnxruntime.InferenceSession(path)
    chunks = np.array_split(rows.astype(np.float32), 16)
    codes = np.concatenate([session.run(None, {"rows": chunk})[0] for chunk in chunks])
    encoder = hasher._encoder()
    float32 = Float32(encoder.preprocess, encoder.features, encoder.directions, encoder.thresholds)
    n_bits = len(rows) * hasher.n_bits_
    differing = int(np.bitwise_count(codes ^ encoder.encode(rows)).sum())
    float32_differing = int(np.bitwise_count(codes ^ float32.encode(rows)).sum())
    seconds = interleaved(
        {"exact": lambda: encoder.encode(rows), "float32": lambda: float32.encode(rows)}, 7
    )
    return {
        "model": name,
        "n_bits": hasher.n_bits_,
        "bits": n_bits,
        "differing": differing,
        "differing_per_million": 1e6 * differing / n_bits,
        "float32_differing_per_million": 1e6 * float32_differing / n_bits,
        "times_float32": seconds["exact"] / seconds["float32"],
    }


def onnx_table(result: dict[str, Any]) -> str:
    rows = []
    for row in result["rows"]:
        exact, float32 = row["differing_per_million"], row["float32_differing_per_million"]
        # Linear hashers recompute no bits.
        time = f"{row['times_float32']:.2f}x" if float32 != exact else "-"
        rows.append([row["model"], str(row["n_bits"]), f"**{exact:.2g}**", f"{float32:.3g}", time])
    note = (
        "Bits per million in which the graph and `transform` differ on the descriptors of "
        "castle-p30, with and without recomputing ambiguous bits, and the time of `transform` "
        "relative to float32 only. "
        "(`python benchmarks/onnx_agreement.py`)"
    )
    header = ["model", "bits", "differing bits per million", "with float32 only", "relative time"]
    return f"{note}\n\n{table(header, rows)}"


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"onnx": onnx_table(result)}


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
        "pretrained model": load_pretrained("sift"),
    }
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, hasher in models.items():
            results.append(compare(name, hasher, rows, Path(scratch) / "model.onnx"))
            log(results[-1])
    report("onnx_agreement", {"rows": results}, options)


if __name__ == "__main__":
    main()
