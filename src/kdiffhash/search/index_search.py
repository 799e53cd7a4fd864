"""The searches of an index: nearest neighbours, range search, duplicates and groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import as_words
from . import checks, lookup_tables, probe, scan
from .groups import Groups, Method, find_groups
from .rerank import Distances, check_factor, check_projections, rerank_by
from .rerank import rerank as rerank_by_projections
from .segment import Ids, Segment, all_ids, only_ids
from .string_ids import StringIds


class Snapshot(NamedTuple):
    """What an index holds at one time; replaced, never changed in place.

    With string ids, the ids of segments are the numbers of these strings.
    """

    segments: list[Segment]
    strings: StringIds | None = None

    @property
    def n_codes(self) -> int:
        """Number of codes."""
        return sum(segment.n_kept for segment in self.segments)

    def stored(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which ids are stored, without reading any codes."""
        found = [segment.rows_of(ids) >= 0 for segment in self.segments]
        return np.any(found, axis=0) if found else np.zeros(len(ids), bool)

    def public(self, ids: Ids) -> NDArray[Any]:
        """Return ids as users know them."""
        return ids if self.strings is None else self.strings.strings(ids)

    def numbers(self, ids: ArrayLike) -> tuple[Ids, NDArray[Any]]:
        """Return ids of users as those of segments, and in an array of their own kind.

        A string that is not stored becomes -1.
        """
        if self.strings is None:
            if not checks.are_strings(ids):
                chosen = checks.check_ids(ids)
                return chosen, chosen
            if self.n_codes:  # an empty index may get ids of either kind
                raise ValueError("the ids of this index are integers, but strings were given")
        elif not checks.are_strings(ids) and not checks.is_empty(ids):
            raise ValueError("the ids of this index are strings, but others were given")
        texts = checks.check_strings(ids)
        chosen = np.full(len(texts), -1)
        if self.strings is not None:
            rows, numbers = self.strings.find(texts)
            kept = self.stored(numbers)
            chosen[rows[kept]] = numbers[kept]
        return chosen, np.array(texts, object)

    def only(self, allowed: ArrayLike) -> list[Segment]:
        """Return the segments restricted to allowed ids."""
        array = np.empty(0) if checks.are_strings(allowed) else np.asarray(allowed)
        if array.dtype != np.bool_:
            return only_ids(self.segments, np.unique(self.numbers(allowed)[0]))
        ids = all_ids(self.segments)
        if array.shape != ids.shape:
            raise ValueError(
                f"allowed has shape {array.shape}; pass one boolean for each of the {len(ids)} "
                "ids in index.ids, or a list of ids"
            )
        return only_ids(self.segments, ids[array])


class IndexSearch:
    """The searches of `HammingIndex`, which it inherits.

    Attributes
    ----------
    n_bits : int
        Length of the codes in bits.
    """

    n_bits: int
    _snapshot: Snapshot

    def explain(
        self, k: int = 10, *, recall: float | None = None, n_probe: int | None = None
    ) -> dict[str, Any]:
        """Say what a search with these arguments compares a query with.

        Parameters
        ----------
        k : int, default=10
            Number of neighbours.
        recall, n_probe : float or int, default=None
            See `search`.

        Returns
        -------
        plan : dict
            ``method`` ("exact" or "cells"), ``reason`` for an exact search, and ``compared``, the
            number of codes that a query is compared with. With cells also ``n_probe``, ``cells``,
            ``outside_cells`` (codes added since the cells were built), ``recall`` as it was
            measured with ``n_queries`` stored codes, and its 95 % confidence interval
            ``interval``. The recall is None where it was not measured (k above 100).
        """
        k = checks.check_k(k)
        probe.check(recall, n_probe)
        return probe.explain(self._snapshot.segments, k, recall, n_probe)

    def search(
        self,
        queries: ArrayLike | None = None,
        k: int = 10,
        *,
        recall: float | None = None,
        n_probe: int | None = None,
        queries_float: ArrayLike | None = None,
        allowed: ArrayLike | None = None,
        rerank_projections: ArrayLike | None = None,
        rerank: Distances | None = None,
        rerank_factor: int = 10,
        n_jobs: int | None = None,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the k nearest codes of each query.

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes) or (n_bytes,), or None, default=None
            Several codes, or a single one. Give either `queries` or `queries_float`.
        k : int, default=10
            Number of neighbours.
        recall : float or None, default=None
            Search approximately: search as many cells as it takes to find this share of the k
            nearest codes on average (codes at equal distance count alike), according to the
            measurements made by `build_cells`. The search is exact if it is no slower, if k is
            above 100, with `allowed`, and if the index has no cells. None searches exactly.
        n_probe : int or None, default=None
            Search approximately: search the codes of this number of cells, the nearest ones.
        queries_float : float array of shape (n, n_bits) or (n_bits,), or None, default=None
            Float queries: projections from `BaseHasher.project`. All codes are compared with the
            signs of the projections, and each differing bit is weighted by the absolute value of
            the query's projection.
        allowed : array of ids, bool array or None, default=None
            Ids to which the search is restricted, or a boolean mask over `ids`.
        rerank_projections : float array of shape (n, n_bits) or None, default=None
            Projections of the queries, from `BaseHasher.project`. The ``rerank_factor * k``
            nearest codes by Hamming distance are re-ranked by the distance of `queries_float`.
        rerank : callable or None, default=None
            Function of a query's index and of an array of candidate ids that returns one
            distance for each id. The ``rerank_factor * k`` nearest codes are re-ranked by it.
        rerank_factor : int, default=10
            Number of candidates to re-rank, as a multiple of k.
        n_jobs : int or None, default=None
            Number of threads; None uses all cores available to this process. `rerank` is called
            on the calling thread.

        Returns
        -------
        distances : array of shape (n, m), or (m,) for one query
            int32 Hamming distances, ascending; for float queries and after re-ranking by
            projections, float32 sums of absolute projections; with `rerank`, its float64
            distances. m is the smaller of k and the number of codes searched.
        ids : array of the same shape
            Ids of these codes. At equal distance the lower id comes first; of string ids, the one
            that was added first.

        Notes
        -----
        The distance of a float query is summed in float64, from the first bit to the last, and
        rounded to float32. It does not depend on the number of threads, the batch size or the
        instruction set.

        Examples
        --------
        >>> import numpy as np
        >>> from kdiffhash import HammingIndex
        >>> index = HammingIndex(np.array([[0b11110000], [0b11111111], [0b01110000]], np.uint8))
        >>> projections = [-0.5, 2, 1, 3, -1, -0.25, -0.25, -2]
        >>> index.search(queries_float=projections, k=3)
        (array([0. , 0.5, 4. ], dtype=float32), array([2, 0, 1]))
        >>> originals = np.array([[0.0], [1.0], [2.0]])
        >>> code = index.get(0)
        >>> index.search(code, k=2, rerank=lambda query, ids: np.abs(originals[ids, 0] - 1.75))
        (array([0.25, 0.75]), array([2, 1]))
        """
        found: tuple[NDArray[Any], NDArray[np.int64]]
        query_set: scan.QuerySet
        if (queries is None) == (queries_float is None):
            raise ValueError("pass either queries (codes) or queries_float (projections)")
        if rerank_projections is not None and (queries_float is not None or rerank is not None):
            raise ValueError(
                "rerank_projections cannot be used with queries_float, whose results are already "
                "in this order, or with rerank"
            )
        if queries_float is not None:
            shape = (None, self.n_bits)
            projections, single = check_projections(queries_float, shape, "queries_float")
            query_set = scan.FloatQueries(projections)
        elif queries is not None:
            codes, single = checks.check_queries(queries, self.n_bits)
            query_set = scan.CodeQueries(as_words(codes))
        k, factor = checks.check_k(k), check_factor(rerank_factor)
        probe.check(recall, n_probe)
        if queries_float is not None and not (recall is None and n_probe is None):
            raise ValueError(
                "float queries are compared with all codes; pass queries (codes) and "
                "rerank_projections to search approximately, or leave out recall and n_probe"
            )
        if rerank_projections is not None:
            own_shape = (len(query_set), self.n_bits)
            projections, _ = check_projections(rerank_projections, own_shape, "rerank_projections")
        snapshot = self._snapshot
        segments = snapshot.segments if allowed is None else snapshot.only(allowed)
        n_codes = sum(segment.n_kept for segment in segments)
        m = min(k, n_codes)
        if allowed is not None:
            recall = None  # it was measured among all codes
        reranked = rerank is not None or rerank_projections is not None
        n_found = min(k * factor, n_codes) if reranked else m
        found = probe.search(segments, query_set, n_found, recall, n_probe, n_jobs)
        if rerank is not None:
            distances_of = rerank
            found = rerank_by(lambda q, own: distances_of(q, snapshot.public(own)), found[1], m)
        elif rerank_projections is not None:
            found = rerank_by_projections(segments, projections, found[1], m, n_jobs)
        elif queries_float is not None:
            found = found[0].view(np.float32), found[1]
        distances, chosen = found[0], snapshot.public(found[1])
        return (distances[0], chosen[0]) if single else (distances, chosen)

    def search_radius(
        self, queries: ArrayLike, radius: int, *, n_jobs: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[Any]]:
        """Return all codes within a radius of each query (range search).

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes) or (n_bytes,)
            Several codes, or a single one.
        radius : int
            Codes up to and including this distance are returned.
        n_jobs : int or None, default=None
            Number of threads; None uses all cores available to this process.

        Returns
        -------
        lims : int64 array of shape (n + 1,), or (2,) for one code
            The results of query i are entries ``lims[i]`` to ``lims[i + 1]`` of the arrays below,
            nearest first, as in FAISS.
        distances : int32 array of shape (lims[-1],)
            Hamming distances.
        ids : array of shape (lims[-1],)
            Ids of these codes; at equal distance in the order of `search`.

        Notes
        -----
        Sorting needs as much memory again as the result.

        Examples
        --------
        >>> import numpy as np
        >>> from kdiffhash import HammingIndex
        >>> codes = np.array([[0b11110000], [0b11111111], [0b00000000]], np.uint8)
        >>> lims, distances, ids = HammingIndex(codes).search_radius(codes[:2], radius=4)
        >>> lims.tolist(), ids.tolist()
        ([0, 3, 5], [0, 1, 2, 1, 0])
        """
        codes, _ = checks.check_queries(queries, self.n_bits)
        radius = checks.check_radius(radius, self.n_bits)
        snapshot = self._snapshot
        found = lookup_tables.search_radius(
            snapshot.segments, as_words(codes), radius, self.n_bits, n_jobs
        )
        query_index, ids, distances = lookup_tables.concatenate(found)
        lims, distances, ids = checks.sort_by_query(query_index, distances, ids, len(codes))
        return lims, distances, snapshot.public(ids)

    def duplicates(
        self, radius: int, *, n_jobs: int | None = None
    ) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Return all pairs of codes within a radius of each other.

        Parameters
        ----------
        radius : int
            Pairs up to and including this distance are returned; 0 for equal codes.
        n_jobs : int or None, default=None
            Number of threads; None uses all cores available to this process.

        Returns
        -------
        pairs : array of shape (p, 2)
            Ids, the lower one first, sorted; string ids in the order in which they were added.
        distances : int32 array of shape (p,)
            Hamming distance of each pair.

        Examples
        --------
        >>> import numpy as np
        >>> from kdiffhash import HammingIndex
        >>> codes = np.array([[0b11110000], [0b11111111], [0b11110001]], np.uint8)
        >>> pairs, distances = HammingIndex(codes).duplicates(radius=2)
        >>> pairs.tolist(), distances.tolist()
        ([[0, 2]], [1])
        """
        radius = checks.check_radius(radius, self.n_bits)
        snapshot = self._snapshot
        found = lookup_tables.duplicates(snapshot.segments, radius, self.n_bits, n_jobs)
        first, second, distances = lookup_tables.concatenate(found)
        pairs = np.stack([np.minimum(first, second), np.maximum(first, second)], axis=1)
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))
        return snapshot.public(pairs[order]), distances[order]

    def groups(
        self,
        radius: int,
        method: Method = "connected",
        *,
        priority: ArrayLike | None = None,
        n_jobs: int | None = None,
    ) -> Groups:
        """Return groups of near duplicates, each with a representative.

        Equal codes are collapsed first, and pairs are streamed: memory does not depend on the
        size of the groups.

        Parameters
        ----------
        radius : int
            Codes up to and including this distance are near duplicates; 0 for equal codes.
        method : {"connected", "greedy"}, default="connected"
            "connected": two codes are in the same group if a chain of near duplicates leads from
            one to the other; the representative is the first in the order of priority. "greedy":
            codes are taken in the order of priority, and each is kept unless it is a near duplicate
            of a code that was kept before, the first of which then represents it. No two
            representatives are near duplicates, and each code is one of its representative.
        priority : array of shape (m,) or None, default=None
            Ids in order of priority. All other ids follow, ascending; string ids in the order in
            which they were added.
        n_jobs : int or None, default=None
            Number of threads; None uses all cores available to this process.

        Returns
        -------
        groups : Groups
            The result does not depend on `n_jobs`, nor on the order in which codes were added.

        Examples
        --------
        >>> import numpy as np
        >>> from kdiffhash import HammingIndex
        >>> codes = np.array([[0b0000], [0b0001], [0b0011], [0b0111]], np.uint8)  # a chain
        >>> index = HammingIndex(codes)
        >>> [group.tolist() for group in index.groups(radius=1)]
        [[0, 1, 2, 3]]
        >>> groups = index.groups(radius=1, method="greedy", priority=[1])
        >>> groups.ids.tolist(), groups.representatives.tolist()
        ([1, 0, 2, 3], [1, 1, 1, 3])
        """
        radius = checks.check_radius(radius, self.n_bits)
        snapshot = self._snapshot
        if priority is not None:
            priority, given = snapshot.numbers(priority)
            checks.refuse_missing(given[~snapshot.stored(priority)])
        groups = find_groups(snapshot.segments, radius, self.n_bits, method, priority, n_jobs)
        return replace(groups, _strings=snapshot.strings)
