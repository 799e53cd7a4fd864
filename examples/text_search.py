"""A search box for 44,000 texts in the terminal: learned codes of 16 bytes in an SQLite file.

The texts are descriptions of Debian packages, embedded by MiniLM (384 numbers each). A hash is
learned from pairs of short and long descriptions, and the codes of the long ones are stored in
SQLite. For each query, the results of three searches are shown side by side: by the floats, by sign
bits, and by the learned codes, whose best 100 are re-ranked by the original numbers; `--rerank 0`
shows what the codes find alone.

    export KDIFFHASH_EMBEDDINGS=EMBEDDINGS         # the folder that contains debian/
    python examples/text_search.py --database packages.db
    python examples/text_search.py --query "edit photographs"

The model of MiniLM embeds what you type (see minilm.py). Without it, the short description of a
package that shares most words with the query takes its place.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from minilm import MiniLM, find_weights
from rich.console import Console
from rich.table import Table

from kdiffhash import BaseHasher, HammingIndex, LDAHash, pack
from kdiffhash.engines.sqlite import SQLiteStore

N_BITS = 128
Hashers = tuple[BaseHasher, BaseHasher]  # of queries and of documents


class Packages:
    """Names and texts of the packages, and the embeddings of both descriptions."""

    def __init__(self, folder: Path) -> None:
        lines = (folder / "names.txt").read_text(encoding="utf-8").splitlines()
        self.names = [line.split("\t")[0] for line in lines]
        self.sources = np.array([int(line.split("\t")[1]) for line in lines])
        self.texts = (folder / "short.txt").read_text(encoding="utf-8").split("\n")[: len(lines)]
        self.short, self.long = (
            np.load(folder / f"{n}.npy", mmap_mode="r") for n in ("short", "long")
        )
        self.training = np.flatnonzero(
            np.array((folder / "split.txt").read_text().split()) == "train"
        )

    def queries(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return embeddings of short descriptions."""
        return to_unit(self.short[rows])

    def documents(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return embeddings of long descriptions; only these rows are read from disk."""
        return to_unit(self.long[rows])


def to_unit(stored: np.ndarray) -> np.ndarray:
    """Return the stored int8 numbers as float32 rows of length 1."""
    rows = stored.astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def learn(packages: Packages) -> Hashers:
    """Learn from the pairs (short description, long description) of the training packages."""
    rows = packages.training
    hasher = LDAHash(N_BITS, ridge=0.3, refine=100, nested=False, random_state=0)
    hasher.fit_pairs(
        packages.queries(rows), Y=packages.documents(rows), groups=packages.sources[rows]
    )
    return hasher, hasher


def open_store(packages: Packages, path: Path) -> tuple[Hashers, SQLiteStore]:
    """Open the database, after learning and encoding if it is new; the model is next to it."""
    model = path.with_suffix(".safetensors")
    if model.exists():
        hashers = (BaseHasher.load(model),) * 2
    else:
        start = time.perf_counter()
        hashers = learn(packages)
        hashers[1].save(model)
        print(f"learned from {len(packages.training)} pairs in {time.perf_counter() - start:.1f} s")
    store = SQLiteStore(path).create(N_BITS, hashers[1])
    if not len(store):
        start = time.perf_counter()
        codes = hashers[1].transform(packages.documents())
        data = [{"name": n, "text": t} for n, t in zip(packages.names, packages.texts)]
        store.import_codes(codes, np.arange(len(codes)), data, model=hashers[1])
        print(f"encoded and stored {len(codes)} texts in {time.perf_counter() - start:.1f} s")
    return hashers, store


def embedder(packages: Packages) -> Callable[[str], np.ndarray]:
    """Return a function that embeds a query, shape (1, 384)."""
    if (folder := find_weights()) is not None:
        model = MiniLM(folder)
        return lambda text: model.encode([text])
    print("without MiniLM, a query is replaced by the description that shares most words with it")
    words = [set(text.lower().split()) for text in packages.texts]

    def most_similar(text: str) -> np.ndarray:
        wanted = set(text.lower().split())
        row = max(range(len(words)), key=lambda i: (len(words[i] & wanted), -len(words[i])))
        print(f"searching for: {packages.texts[row]}")
        return packages.queries(np.array([row]))

    return most_similar


class Searches:
    """The three searches, each with its bytes per text."""

    def __init__(
        self, packages: Packages, hashers: Hashers, store: SQLiteStore, n_candidates: int
    ) -> None:
        self.packages, self.hashers, self.store = packages, hashers, store
        self.n_candidates = n_candidates
        self.floats = packages.documents()
        self.signs = HammingIndex(pack(self.floats > 0))

    def by_floats(self, query: np.ndarray, k: int) -> np.ndarray:
        """Compare the query with all embeddings."""
        return np.argsort(-(self.floats @ query[0]), kind="stable")[:k]

    def by_signs(self, query: np.ndarray, k: int) -> np.ndarray:
        """Compare one bit for each number."""
        return self.signs.search(pack(query > 0), k)[1][0]

    def by_codes(self, query: np.ndarray, k: int) -> np.ndarray:
        """Find candidates by codes and the projections of the query; re-rank by the originals."""
        projections = self.hashers[0].project(query)
        codes = self.hashers[0].transform(query)
        n = max(k, self.n_candidates)
        ids = self.store.search(codes, n, rerank_projections=projections)[1][0]
        if not self.n_candidates:
            return ids
        scores = self.packages.documents(ids) @ query[0]
        return ids[np.argsort(-scores, kind="stable")[:k]]

    def show(self, query: np.ndarray, k: int) -> None:
        """Print the results side by side, with times and bytes."""
        table, columns = Table(show_lines=False), []
        n_bytes = self.floats.shape[1] * 4
        for title, search in (
            (f"floats, {n_bytes} bytes", self.by_floats),
            (f"sign bits, {n_bytes // 32} bytes", self.by_signs),
            (
                f"learned, {N_BITS // 8} bytes{' + re-ranking' * bool(self.n_candidates)}",
                self.by_codes,
            ),
        ):
            search(query, k)  # the first search may have to read codes from disk
            start = time.perf_counter()
            found = search(query, k)
            milliseconds = 1000 * (time.perf_counter() - start)
            table.add_column(f"{title}, {milliseconds:.1f} ms", no_wrap=True)
            data = self.store.get_data(found)
            columns.append([f"{item['name'][:20]:20} {item['text'][:32]}" for item in data])
        for row in zip(*columns):
            table.add_row(*row)
        console = Console(markup=False)
        console.width = max(console.width, 3 * 56 + 10)
        console.print(table)


def typed() -> Iterator[str]:
    """Yield the queries that are typed, until an empty line or the end of the input."""
    try:
        while text := input("\nsearch: ").strip():
            yield text
    except (EOFError, KeyboardInterrupt):
        print()


def number_from(lowest: int) -> Callable[[str], int]:
    """Return a function that reads a whole number of at least `lowest` from the command line."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {lowest}")
        return int(text)

    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--query", action="append", help="search for this and exit; may be repeated"
    )
    parser.add_argument("--database", type=Path, help="SQLite file; by default a temporary one")
    parser.add_argument("-k", type=number_from(1), default=5, help="number of results")
    parser.add_argument(
        "--rerank", type=number_from(0), default=100, help="candidates that are re-ranked"
    )
    options = parser.parse_args()
    if options.database and not options.database.parent.is_dir():
        parser.error(f"--database: there is no folder {options.database.parent}")
    folder = Path(os.environ.get("KDIFFHASH_EMBEDDINGS", ".")) / "debian"
    if not (folder / "short.npy").is_file():
        print("set KDIFFHASH_EMBEDDINGS to the folder that contains debian/short.npy")
        return
    warnings.filterwarnings("ignore", category=UserWarning)
    packages = Packages(folder)
    with tempfile.TemporaryDirectory() as temporary:
        path = options.database or Path(temporary) / "packages.db"
        hashers, store = open_store(packages, path)
        with store:
            searches, embed = Searches(packages, hashers, store, options.rerank), embedder(packages)
            for text in options.query or typed():
                searches.show(embed(text), options.k)


if __name__ == "__main__":
    main()
