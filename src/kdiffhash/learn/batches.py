"""Batches of positive pairs for refinement."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .losses import Float32Array, Int64Array, multiply
from .pairs import Pairs

_POOL = 20_000  # documents among which hard negatives are looked for
_NEIGHBORS = 100  # nearest documents of a query from which its hard negatives are drawn
_NEGATIVES = 7  # hard negatives of a query


def members_of(pairs: Pairs) -> Int64Array:
    """Return the first members of all pairs, followed by the second ones.

    In an array of n members, the partner of member i is therefore member (i + n / 2) mod n.
    """
    return pairs.T.ravel()


class HardBatches:
    """Batches in which queries meet documents that are hard to tell from their own.

    An eighth of a batch is drawn at random. Each of these pairs brings seven others, drawn from
    those whose documents are nearest to its query.

    Parameters
    ----------
    project : callable
        Returns the centred projections of rows, given their numbers, shape (len(numbers), n_bits).
        Neighbours are found by the cosine similarity of projections.
    pairs : int64 array of shape (p, 2)
        Positive pairs of rows: queries and documents.
    rng : numpy.random.Generator
        Draws the pool of documents, if there are more than 20,000, and the batches.
    n_jobs : int or None
        Number of threads; None uses all cores. The result does not depend on it.
    """

    def __init__(
        self,
        project: Callable[[Int64Array], Float32Array],
        pairs: Pairs,
        rng: np.random.Generator,
        n_jobs: int | None,
    ) -> None:
        self.pairs, self.rng, self.n_jobs = pairs, rng, n_jobs
        self.project = project
        self.pool = np.sort(rng.choice(len(pairs), min(_POOL, len(pairs)), replace=False))
        documents = project(pairs[self.pool, 1])
        lengths = np.sqrt(np.square(documents).sum(axis=1, keepdims=True))
        self.documents = np.ascontiguousarray((documents / np.maximum(lengths, 1e-30)).T)

    def draw(self, size: int) -> Int64Array:
        """Return the numbers of at most `size` distinct pairs."""
        n = len(self.pairs)
        drawn = self.rng.choice(n, min(size, n), replace=False)
        n_first = -(-len(drawn) // (1 + _NEGATIVES))
        near = self.neighbors(drawn[:n_first])
        columns = self.rng.integers(near.shape[1], size=(n_first, _NEGATIVES))
        chosen = np.take_along_axis(near, columns, axis=1)
        hard = np.unique(np.concatenate([drawn[:n_first], chosen.ravel()]))
        return np.concatenate([hard, np.setdiff1d(drawn, hard)])[: len(drawn)]

    def neighbors(self, numbers: Int64Array) -> NDArray[np.int64]:
        """Return, for each of these pairs, the pairs with the documents nearest to its query."""
        queries = self.project(self.pairs[numbers, 0])
        n = min(_NEIGHBORS, len(self.pool))
        similarity = multiply(queries, self.documents, self.n_jobs)
        nearest = np.argpartition(similarity, len(self.pool) - n, axis=1)[:, -n:]
        return np.asarray(self.pool[nearest])
