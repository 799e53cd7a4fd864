"""Text files that users write (ids, pairs, relevant documents), damaged or made to do harm."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from attack_data_files import cases_of
from bounded import limit_memory
from common import Tally, attack, mutate, run_isolated

N = 40  # rows, ids and images that the files name
WORDS = ["", "-1", "0", "1.5", "1e400", "nan", "inf", "-inf", "9" * 30, "9" * 5000, str(2**63)]
WORDS += [
    "'",
    '"',
    '"a\n"',
    "\0",
    "\ufeff",
    "ä",
    "\udcff",
    "#",
    "0x1",
    "1_0",
    "٣",
    " 1 ",
    "1,1",
    ";",
]
WORDS += ["x" * 200_000, "true", "False", "1\r", "\v", "\u2028"]


def make_files(folder: Path) -> None:
    """Write one whole file of each kind."""
    lines = [f"{i},{(7 * i) % N}" for i in range(N)]
    pairs = [f"{i},{i + 1},{i % 4 // 3}" for i in range(N - 1)]
    (folder / "pairs.csv").write_text("\n".join(["a,b,similar", *pairs, ""]))
    (folder / "relevant.csv").write_text("\n".join(["query,document", *lines, ""]))
    (folder / "gains.csv").write_text("\n".join(f"{line},{i}.5" for i, line in enumerate(lines)))
    (folder / "ids.txt").write_text("\n".join(map(str, range(N))))
    (folder / "images.txt").write_text("\n".join(f"{i}.jpg {i + 1}.jpg" for i in range(N - 1)))
    np.save(folder / "ids.npy", np.arange(N))
    np.save(folder / "relevant.npy", np.column_stack([np.arange(N), np.arange(N)]))
    np.savez(
        folder / "pairs.npz",
        pairs=np.arange(N).reshape(-1, 2),
        similar=np.arange(N // 2) % 4 > 2,
    )


def read_ids(path: Path) -> bool:
    from kdiffhash import HammingIndex
    from kdiffhash.cli.id_files import IdFile

    codes = np.random.default_rng(0).integers(0, 256, (N, 2), dtype=np.uint8)
    as_strings = IdFile(path, strings=True).all()
    if path.suffix == ".txt" and any(not one.strip() or "\n" in one for one in as_strings):
        return False
    found = HammingIndex(codes).groups(3, priority=IdFile(path, strings=False).all())
    return sorted(found.ids.tolist()) == list(range(N)) and len(found.keep) + len(found.drop) == N


def read_pairs(path: Path) -> bool:
    from kdiffhash import calibrate
    from kdiffhash.cli.calibrate_command import _read_pairs

    codes = np.random.default_rng(0).integers(0, 256, (N, 2), dtype=np.uint8)
    pairs, similar = _read_pairs(path)
    found = calibrate(codes, similar, pairs=pairs, fpr=0.5)
    rows = np.asarray(pairs)[~np.asarray(similar, bool)]
    rows = np.unique(np.sort(rows, axis=1), axis=0)
    distances = np.bitwise_count(codes[rows[:, 0]] ^ codes[rows[:, 1]]).sum(axis=1)
    return found.fpr == np.mean(distances <= found.distance) <= 0.5


def read_relevant(path: Path) -> bool:
    from kdiffhash.cli.inputs import Data
    from kdiffhash.cli.retrieval_evaluation import _relevance
    from kdiffhash.evaluate import ndcg_at_k, recall_at_k

    rows = Data(np.zeros((N, 2)))
    relevance = _relevance(path, rows, rows)
    ids = np.argsort(np.random.default_rng(0).random((N, N)), axis=1)
    values = [recall_at_k(ids, relevance, N), ndcg_at_k(ids, relevance, 10)]
    used = relevance.counts > 0
    shares = [value[used] for value in values]
    everything_found = bool(np.all(shares[0] == 1))
    return everything_found and all(np.all((v >= 0) & (v <= 1 + 1e-9)) for v in shares)


def read_images(path: Path) -> bool:
    from kdiffhash.vision.image_pairs import image_pairs

    names = [f"{i}.jpg" for i in range(N)]
    pairs = image_pairs(names, path)
    return len({frozenset(pair) for pair in pairs}) == len(pairs) > 0


READERS: dict[str, Callable[[Path], bool]] = {
    "ids": read_ids,
    "pairs": read_pairs,
    "relevant": read_relevant,
    "gains": read_relevant,
    "images": read_images,
}


@functools.cache
def original(path: Path) -> bytes:
    return path.read_bytes()


def check_text(case: tuple[Path, int]) -> bool:
    """A damaged file is refused in one sentence, or read as what it says."""
    limit_memory()
    path, seed = case
    rng = np.random.default_rng(seed)
    content = original(path)
    if path.suffix in (".csv", ".txt") and rng.random() < 0.6:
        content = replace_words(content, rng)
    else:
        content = mutate(content, rng)
    damaged = path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}")
    damaged.write_bytes(content)
    return READERS[path.stem](damaged)


def replace_words(content: bytes, rng: np.random.Generator) -> bytes:
    """Replace, repeat or remove words, cells and lines."""
    separator = "," if b"," in content else " " if b" " in content else "\n"
    lines: list[Any] = [line.split(separator) for line in content.decode().split("\n")]
    for _ in range(int(rng.integers(1, 3))):
        line = int(rng.integers(len(lines))) if rng.random() < 0.8 else 0
        cell = int(rng.integers(len(lines[line])))
        how, word = int(rng.integers(5)), WORDS[int(rng.integers(len(WORDS)))]
        if how == 0:
            lines.insert(line, list(lines[line]))
        elif how == 1:
            lines[line].insert(cell, word)
        else:
            lines[line][cell] = word
    return "\n".join(separator.join(line) for line in lines).encode("utf-8", "surrogateescape")


@attack("lists of ids, pairs and relevant documents: damaged", 10_000, pieces=2)
def texts(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Damaged lists are refused or read in full."""
    make_files(folder)
    run_isolated(check_text, cases_of(rng, tries, sorted(folder.iterdir())), tally)
