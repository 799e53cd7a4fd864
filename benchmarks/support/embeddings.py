"""Text embeddings of Debian packages: short descriptions as queries, long ones as documents."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class TextPairs:
    """Queries and documents; row i of both belongs to the same package."""

    queries: np.ndarray  # float32 of shape (n, 384), rows of length 1
    documents: np.ndarray  # float32 of shape (n, 384), rows of length 1
    sources: np.ndarray  # int64 of shape (n,); rows of one source are near duplicates
    numbers: np.ndarray  # int64 of shape (n,), the rows' numbers in the files

    def __len__(self) -> int:
        return len(self.queries)

    @cached_property
    def rows(self) -> np.ndarray:
        """Queries followed by documents, for hashers that learn one map for both."""
        return np.concatenate([self.queries, self.documents])

    @cached_property
    def pairs(self) -> np.ndarray:
        """The positive pairs in `rows`: (query, document) of each package."""
        return np.stack([np.arange(len(self)), len(self) + np.arange(len(self))], axis=1)


def folder() -> Path:
    """Return the folder of the embeddings, `debian` in KDIFFHASH_EMBEDDINGS."""
    root = os.environ.get("KDIFFHASH_EMBEDDINGS")
    if not root or not (Path(root) / "debian" / "short.npy").is_file():
        raise SystemExit(
            f"KDIFFHASH_EMBEDDINGS is {root!r}; set it to the folder that contains debian/short.npy"
        )
    return Path(root) / "debian"


def load_debian(split: str | None = None) -> TextPairs:
    """Return the packages of a split (train, valid or test), or all 44,000."""
    if split is not None and split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)} or None, got {split!r}")
    path = folder()
    names = np.array((path / "split.txt").read_text().split())
    sources = np.loadtxt(path / "names.txt", np.int64, comments=None, delimiter="\t", usecols=1)
    numbers = np.flatnonzero(names == split) if split else np.arange(len(names))
    return TextPairs(
        unit_rows(np.load(path / "short.npy", mmap_mode="r")[numbers]),
        unit_rows(np.load(path / "long.npy", mmap_mode="r")[numbers]),
        sources[numbers],
        numbers,
    )


def texts(numbers: np.ndarray) -> list[str]:
    """Return the short descriptions of packages, for people to read."""
    lines = (folder() / "short.txt").read_text(encoding="utf-8").split("\n")
    return [lines[number] for number in numbers]


def draw_negatives(data: TextPairs, n_negatives: int, seed: int = 0) -> np.ndarray:
    """Draw (query, document) pairs of packages from different sources, as row numbers in `rows`."""
    rng = np.random.default_rng(seed)
    drawn = np.empty((0, 2), np.int64)
    while len(drawn) < n_negatives:
        more = rng.integers(len(data), size=(n_negatives, 2))
        differ = data.sources[more[:, 0]] != data.sources[more[:, 1]]
        drawn = np.concatenate([drawn, more[differ]])
    return drawn[:n_negatives] + np.array([0, len(data)])


def unit_rows(stored: np.ndarray) -> np.ndarray:
    """Return rows of length 1; the stored int8 numbers are multiples of 1 / 317.5."""
    rows = np.asarray(stored, np.float32) / np.float32(317.5)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
