"""Which documents are relevant to which query, and how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

NO_RESULT = -1  # in results: the store found fewer than k documents

#: One id per query, a list with the ids of each query, or a tuple (lims, ids).
Relevant: TypeAlias = ArrayLike | Sequence[ArrayLike] | tuple[ArrayLike, ArrayLike] | "Relevance"


@dataclass(frozen=True)
class Relevance:
    """Relevant documents of each query, with their gains.

    Attributes
    ----------
    lims : int64 array of shape (n_queries + 1,)
        The documents of query i are entries ``lims[i]`` to ``lims[i + 1]`` of the arrays below.
    ids : int64 array of shape (lims[-1],)
        Ids of the relevant documents.
    gains : float64 array of shape (lims[-1],)
        How relevant they are, above 0.

    Examples
    --------
    >>> from kdiffhash.evaluate import Relevance
    >>> Relevance.of([[3], [0, 2], []]).counts
    array([1, 2, 0])
    """

    lims: NDArray[np.int64]
    ids: NDArray[np.int64]
    gains: NDArray[np.float64]

    @classmethod
    def of(cls, relevant: Any, gains: Any = None) -> Relevance:
        """Return the relevance that one of the accepted forms describes.

        Parameters
        ----------
        relevant : int array of shape (n,), list of n arrays, or tuple (lims, ids)
            One relevant document per query; or the relevant documents of each query; or the same
            as two arrays, where those of query i are ``ids[lims[i]:lims[i + 1]]``.
        gains : array, list of arrays or None, default=None
            How relevant each document is, at least 0, in the form of `relevant` (for a tuple: an
            array like ids). None means 1 for all. Documents of gain 0 are not relevant.

        Returns
        -------
        relevance : Relevance
        """
        if isinstance(relevant, cls):
            return relevant
        if isinstance(relevant, tuple):
            if len(relevant) != 2:
                raise ValueError(
                    f"relevant as a tuple must be (lims, ids), got {len(relevant)} arrays; give "
                    "the documents of each query as a list"
                )
            lims, ids = _integers(relevant[0], "lims"), _integers(relevant[1], "relevant ids")
            if len(lims) < 1 or lims[0] != 0 or lims[-1] != len(ids) or np.any(np.diff(lims) < 0):
                raise ValueError(
                    f"lims must ascend from 0 to the number of relevant ids ({len(ids)}), got "
                    f"{lims[:1]} to {lims[-1:]}"
                )
            flat = gains
        else:
            is_flat = isinstance(relevant, np.ndarray) and relevant.ndim == 1
            rows = [np.atleast_1d(np.asarray(row)) for row in relevant]
            lims = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
            ids = _integers(np.concatenate([*rows, np.empty(0, np.int64)]), "relevant ids", rows)
            flat = gains
            if gains is not None and not is_flat:
                by_query = [np.atleast_1d(np.asarray(row, np.float64)) for row in gains]
                if [len(row) for row in by_query] != [len(row) for row in rows]:
                    raise ValueError("gains must have one number for each relevant id")
                flat = np.concatenate([*by_query, np.empty(0)])
        amounts = np.ones(len(ids)) if flat is None else np.asarray(flat, np.float64)
        if amounts.shape != ids.shape or not np.all((amounts >= 0) & np.isfinite(amounts)):
            raise ValueError(
                f"gains must be {len(ids)} finite numbers of at least 0, one for each relevant id, "
                f"got an array of shape {amounts.shape}"
            )
        return cls(lims, ids, amounts)._checked()

    def _checked(self) -> Relevance:
        """Return the relevance without gains of 0; raise for ids that are given twice."""
        queries, kept = self.queries, self.gains > 0
        order = np.lexsort((self.ids, queries))
        twice = (np.diff(queries[order]) == 0) & (np.diff(self.ids[order]) == 0)
        if twice.any():
            entry = order[int(np.argmax(twice))]
            raise ValueError(
                f"query {queries[entry]} lists the relevant document {self.ids[entry]} twice; give "
                "each document once"
            )
        if np.any(self.ids == NO_RESULT):
            raise ValueError(
                f"{NO_RESULT} cannot be a relevant id, since it stands for no result; leave it out"
            )
        counts = np.bincount(queries[kept], minlength=len(self))
        lims = np.concatenate([[0], np.cumsum(counts)])
        return Relevance(lims, self.ids[kept], self.gains[kept])

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.lims) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of relevant documents of each query."""
        return np.diff(self.lims)

    @property
    def queries(self) -> NDArray[np.int64]:
        """Query of each entry of `ids`."""
        return np.repeat(np.arange(len(self)), self.counts)

    def gains_of(self, results: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the gain of each result, 0 for those that are not relevant.

        Parameters
        ----------
        results : int64 array of shape (n, k)
            Ids of documents, one row per query.

        Returns
        -------
        gains : float64 array of shape (n, k)
        """
        if not len(self.ids):
            return np.zeros(results.shape)
        known, numbers = np.unique(self.ids, return_inverse=True)
        keys = self.queries * len(known) + numbers
        order = np.argsort(keys)
        keys = keys[order]
        column = np.minimum(np.searchsorted(known, results), len(known) - 1)
        wanted = np.arange(len(results))[:, None] * len(known) + column
        entry = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        found = (known[column] == results) & (keys[entry] == wanted)
        return np.where(found, self.gains[order][entry], 0.0)


def relevance_from_labels(query_labels: ArrayLike, document_labels: ArrayLike) -> Relevance:
    """Return the relevance by which documents with the label of a query are relevant to it.

    Parameters
    ----------
    query_labels : array of shape (n,)
        Label of each query.
    document_labels : array of shape (m,)
        Label of each document; the id of a document is its row number.

    Returns
    -------
    relevance : Relevance
        Queries whose label no document has are without relevant documents.

    Examples
    --------
    >>> from kdiffhash.evaluate import relevance_from_labels
    >>> relevance_from_labels(["b", "a"], ["a", "b", "b"]).ids
    array([1, 2, 0])
    """
    queries, documents = np.asarray(query_labels), np.asarray(document_labels)
    for name, labels in (("query_labels", queries), ("document_labels", documents)):
        if labels.ndim != 1:
            raise ValueError(f"{name} must have one label per row, got the shape {labels.shape}")
    order = np.argsort(documents, kind="stable")
    starts = np.searchsorted(documents, queries, sorter=order)
    counts = np.searchsorted(documents, queries, side="right", sorter=order) - starts
    lims = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    positions = np.arange(lims[-1]) - np.repeat(lims[:-1] - starts, counts)
    return Relevance(lims, order[positions].astype(np.int64), np.ones(lims[-1]))


def _integers(values: Any, name: str, rows: list[NDArray[Any]] | None = None) -> NDArray[np.int64]:
    array = np.asarray(values)
    filled = [row for row in rows or [array] if row.size]
    if array.ndim != 1 or any(row.ndim != 1 or row.dtype.kind not in "iu" for row in filled):
        raise ValueError(f"{name} must be integers, got {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)
