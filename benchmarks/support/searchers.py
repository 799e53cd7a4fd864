"""What is searched in `embeddings.py`: floats, codes and FAISS indexes, with one interface.

- `n_bytes`: all that is stored for a document, factors included
- `queries`: the kinds of queries, "bits" or "float"
- `encode(documents)`: what is stored
- `search(kind, queries, stored, k)`: row numbers of the best documents, shape (n, k)
- `distances(kind, queries, stored, pairs)`: distances of (query, document) pairs, sorted by query
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from kdiffhash import HammingIndex, pack
from kdiffhash.codes import hamming, unpack
from kdiffhash.evaluate import nearest_by_cosine


@dataclass(frozen=True)
class Floats:
    """The vectors themselves, compared by cosine similarity."""

    n_bytes: int
    queries: ClassVar[tuple[str, ...]] = ("float",)

    def encode(self, documents: np.ndarray) -> np.ndarray:
        return documents

    def search(self, _kind: str, queries: np.ndarray, stored: np.ndarray, k: int) -> np.ndarray:
        return nearest_by_cosine(queries, stored, k)

    def distances(self, _kind: str, queries: Any, stored: Any, pairs: np.ndarray) -> np.ndarray:
        def cosine(chunk: np.ndarray) -> np.ndarray:
            return np.einsum("ij,ij->i", queries[chunk[:, 0]], stored[chunk[:, 1]])

        return 1 - in_chunks(pairs, cosine)


@dataclass(frozen=True)
class Codes:
    """Codes of two hashers with `project` and `transform`, one for each side."""

    of_queries: Any
    of_documents: Any
    n_bits: int
    fit_s: float | None = None  # where the code is a prefix of one that was learned before
    queries: ClassVar[tuple[str, ...]] = ("bits", "float")

    @property
    def n_bytes(self) -> int:
        return self.n_bits // 8

    def encode(self, documents: np.ndarray) -> np.ndarray:
        return self.of_documents.transform(documents)

    def search(self, kind: str, queries: np.ndarray, stored: np.ndarray, k: int) -> np.ndarray:
        index = HammingIndex(stored)
        if kind == "bits":
            return index.search(self.of_queries.transform(queries), k)[1]
        return index.search(queries_float=self.of_queries.project(queries), k=k)[1]

    def distances(self, kind: str, queries: Any, stored: Any, pairs: np.ndarray) -> np.ndarray:
        if kind == "bits":
            codes = self.of_queries.transform(queries)
            return hamming(codes[pairs[:, 0]], stored[pairs[:, 1]])
        projections = self.of_queries.project(queries)

        def weighted(chunk: np.ndarray) -> np.ndarray:
            weights = projections[chunk[:, 0]]
            bits = unpack(stored[chunk[:, 1]], self.n_bits).astype(bool)
            return np.where(bits != (weights > 0), np.abs(weights), 0).sum(axis=1)

        return in_chunks(pairs, weighted)


@dataclass(frozen=True)
class Faiss:
    """A trained, empty FAISS index."""

    index: Any
    n_bytes: int
    queries: ClassVar[tuple[str, ...]] = ("float",)

    def encode(self, documents: np.ndarray) -> Any:
        self.index.reset()
        self.index.add(documents)
        return self.index

    def search(self, _kind: str, queries: np.ndarray, stored: Any, k: int) -> np.ndarray:
        return stored.search(queries, k)[1]

    def distances(self, _kind: str, queries: Any, stored: Any, pairs: np.ndarray) -> np.ndarray:
        import faiss

        inner = stored
        if hasattr(stored, "chain"):
            for number in range(stored.chain.size()):
                queries = faiss.downcast_VectorTransform(stored.chain.at(number)).apply(queries)
            inner = faiss.downcast_index(stored.index)
        computer, out = inner.get_FlatCodesDistanceComputer(), np.empty(len(pairs))
        last = -1
        for i, (query, document) in enumerate(pairs.tolist()):
            if query != last:
                row = np.ascontiguousarray(queries[query])
                computer.set_query(faiss.swig_ptr(row))
                last = query
            out[i] = computer(document)
        return out


@dataclass(frozen=True)
class Projections:
    """A hasher that is given: bits are signs of projections of rows."""

    directions: np.ndarray | None  # (n_bits, d); None: the numbers themselves

    def project(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.directions is None else rows @ self.directions.T

    def transform(self, rows: np.ndarray) -> np.ndarray:
        return pack(self.project(rows) > 0)


@dataclass(frozen=True)
class Centring:
    """Subtracts the mean of its side from each row, and scales rows to length 1 if asked to."""

    mean_query: np.ndarray
    mean_document: np.ndarray
    scaled: bool

    def of_queries(self, rows: np.ndarray) -> np.ndarray:
        return self._centre(rows, self.mean_query)

    def of_documents(self, rows: np.ndarray) -> np.ndarray:
        return self._centre(rows, self.mean_document)

    def _centre(self, rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
        rows = rows - mean
        return rows / np.linalg.norm(rows, axis=1, keepdims=True) if self.scaled else rows


@dataclass(frozen=True)
class Centred:
    """A method on rows that are centred per side."""

    method: Any
    centring: Centring

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def encode(self, documents: np.ndarray) -> Any:
        return self.method.encode(self.centring.of_documents(documents))

    def search(self, kind: str, queries: np.ndarray, stored: Any, k: int) -> np.ndarray:
        return self.method.search(kind, self.centring.of_queries(queries), stored, k)

    def distances(self, kind: str, queries: Any, stored: Any, pairs: np.ndarray) -> np.ndarray:
        return self.method.distances(kind, self.centring.of_queries(queries), stored, pairs)


def in_chunks(pairs: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Apply a function to 20,000 pairs at a time."""
    return np.concatenate([function(pairs[i : i + 20_000]) for i in range(0, len(pairs), 20_000)])
