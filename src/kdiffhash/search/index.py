"""The index: codes with ids, in memory or in a file, with exact search by Hamming distance."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import Codes, as_words
from . import checks, lookup_tables, scan
from .groups import Groups, Method, find_groups
from .index_file import IndexFile, write_file
from .index_format import MAX_BITS, REMOVED, VERSION, Head, damage
from .rerank import Distances, check_factor, check_projections, rerank_by
from .rerank import rerank as rerank_by_projections
from .segment import (
    Ids,
    Removals,
    Segment,
    all_ids,
    make_segment,
    merge,
    only_ids,
    to_codes,
    with_rows,
    without_ids,
    words_by_id,
)

if TYPE_CHECKING:
    from .checks import Model

_MAX_MAPS = 64  # memory maps that a writer accumulates before it maps the whole file again


class HammingIndex:
    """Exact search by Hamming distance.

    At equal distance the lower id comes first. Implements `CodeStore`.

    Parameters
    ----------
    codes : uint8 array of shape (n, n_bytes) or None, default=None
        Initial codes.
    ids : int array of shape (n,) or None, default=None
        Their ids; None assigns 0, 1, ...
    n_bits : int or None, default=None
        Length of the codes, from 1 to 4096. None takes the length of the model's codes, or 8 bits
        per byte of `codes`.
    model : BaseHasher or str or None, default=None
        The fitted hasher that produces the codes, or its fingerprint. The index stores the
        fingerprint and refuses codes of another model.

    Attributes
    ----------
    n_bits : int
        Length of the codes in bits.
    model : str or None
        Fingerprint of the model that produced the codes; None if unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import HammingIndex
    >>> codes = np.array([[0b11110000], [0b11111111], [0b00000000]], np.uint8)
    >>> index = HammingIndex(codes)
    >>> index.search(codes[:1], k=2)
    (array([[0, 4]], dtype=int32), array([[0, 1]]))
    >>> index.search(codes[0], k=2)
    (array([0, 4], dtype=int32), array([0, 1]))
    """

    def __init__(
        self,
        codes: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        *,
        n_bits: int | None = None,
        model: Model | None = None,
    ) -> None:
        if codes is None and ids is not None:
            raise ValueError("ids were given without codes; pass both, or neither")
        if n_bits is None and not isinstance(model, str | None):
            n_bits = model.n_bits_
        if n_bits is None:
            if codes is None:
                raise ValueError(
                    "an empty index needs n_bits, the length of the codes that will be added"
                )
            n_bits = 8 * checks.check_rows(codes).shape[1]
        self.n_bits = checks.check_n_bits(n_bits, MAX_BITS)
        self.model = checks.fingerprint_of(model, self.n_bits)
        self._file: IndexFile | None = None
        # Replaced, never changed in place: searches on other threads keep a consistent list.
        self._segments: list[Segment] = []
        self._n_loaded = 0  # batches of the file that are in the segments
        self._changing = threading.RLock()
        self._next_id = 0
        if codes is not None:
            self.add(codes, ids)

    # -- files ----------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: Literal["r", "a"] = "r",
        *,
        n_bits: int | None = None,
        model: Model | None = None,
    ) -> Self:
        """Open an index file; the codes are memory-mapped.

        Parameters
        ----------
        path : path
            The index file.
        mode : {"r", "a"}, default="r"
            "r" reads the current state of the file (see `refresh`). "a" also allows `add`,
            `remove` and `compact`, which are durable when they return; only one writer can have
            the file open at a time.
        n_bits : int or None, default=None
            With "a": create a file for codes of this length if there is none.
        model : BaseHasher or str or None, default=None
            The model that produces the codes and the queries, or its fingerprint. A new file
            stores the fingerprint; a file with a different one is refused. A file without a
            fingerprint is not checked.

        Returns
        -------
        index : HammingIndex
            A context manager that closes the file on exit.

        Raises
        ------
        IndexFileError
            If the file is not an index or is damaged.
        BlockingIOError
            If another writer has the file open.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> from kdiffhash import HammingIndex
        >>> path = tempfile.mkdtemp() + "/codes.index"
        >>> with HammingIndex.open(path, "a", n_bits=64) as index:
        ...     ids = index.add(np.zeros((3, 8), np.uint8))
        >>> with HammingIndex.open(path) as index:
        ...     len(index)
        3
        """
        if mode not in ("r", "a"):
            raise ValueError(f"mode must be 'r' or 'a', got {mode!r}")
        path = Path(path).absolute()
        if mode == "a" and n_bits is None and not path.exists():
            n_bits = getattr(model, "n_bits_", None)
        if mode == "a" and n_bits is not None and not path.exists():
            n_bits = checks.check_n_bits(n_bits, MAX_BITS)
            file = IndexFile.create(path, n_bits, checks.fingerprint_of(model, n_bits))
        else:
            file = IndexFile(path, writable=mode == "a")
        try:
            if n_bits is not None and n_bits != file.head.n_bits:
                raise ValueError(f"{path} holds codes of {file.head.n_bits} bits, not {n_bits}")
            checks.check_model(file.head.model, model, path)
            index = cls(n_bits=file.head.n_bits)
            index._load(file)
            if mode == "a":
                file.clean_up()
        except BaseException:
            file.close()
            raise
        index._file = file
        return index

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a file, atomically replacing an existing one.

        Parameters
        ----------
        path : path
            File to write.
        """
        head = Head(VERSION, self.n_bits, self.model)
        write_file(Path(path), head, merge(self._segments), self._next_id)

    def close(self) -> None:
        """Close the file, if there is one, after changes that are running on other threads."""
        with self._changing:
            if self._file is not None:
                self._file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle an index file as its path; unpickling opens it for reading."""
        if self._file is not None:
            return type(self).open, (str(self._file.path.resolve()),)
        segments = [replace(segment, tables={}, collision_rates={}) for segment in self._segments]
        state = (self.n_bits, self.model, segments, self._next_id)
        return _in_memory, (type(self), *state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def refresh(self) -> None:
        """Load what a writer has added or removed since the file was opened."""
        with self._changing:
            if self._file is not None:
                self._n_loaded = 0 if self._file.refresh() else self._n_loaded
                self._load(self._file)

    def compact(self) -> None:
        """Reclaim the space of removed codes and merge small batches.

        The file is rewritten and replaced atomically. Readers that have it open keep the old
        version until they call `refresh`.
        """
        with self._changing:
            if self._file is None:
                self._segments = list(merge(self._segments))
                return
            self._file.replace(merge(self._segments))
            self._n_loaded = 0
            self._load(self._file)

    @staticmethod
    def verify(path: str | os.PathLike[str]) -> list[str]:
        """Check every byte of an index file.

        Parameters
        ----------
        path : path
            The index file.

        Returns
        -------
        problems : list of str
            One sentence for each problem found; empty if the file is intact.
        """
        return list(damage(Path(path)))

    def _load(self, file: IndexFile) -> None:
        """Load the batches of the file that are not in the segments yet."""
        if file.n_maps > _MAX_MAPS:
            file.forget_maps()
            self._n_loaded = 0
        segments = self._segments if self._n_loaded else []
        new = list(enumerate(file.batches[self._n_loaded :], self._n_loaded))
        removals = [(i, file.read_removed(batch)) for i, batch in new if batch.kind == REMOVED]
        removed = Removals.of(removals)
        if removals:
            segments = without_ids(segments, removed.ids)
        for i, batch in new:
            if batch.kind != REMOVED:
                segment = removed.apply(file.read_rows(batch), i)
                segments = with_rows(segments, segment) if segment.n_kept else segments
        self._segments, self._n_loaded = segments, len(file.batches)
        self._next_id, self.model = file.slot.next_id, file.head.model

    def _chunk(self, number: int, of: int) -> HammingIndex:
        """Return an index in memory with chunk `number` of `of` chunks of similar size."""
        segments = list(merge(self._segments, number, of))
        return _in_memory(type(self), self.n_bits, self.model, segments, self._next_id)

    @property
    def _state(self) -> Any:
        """Value that differs between any two states of the file; None in memory."""
        return None if self._file is None else self._file.state

    # -- content --------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of codes."""
        return sum(segment.n_kept for segment in self._segments)

    def __repr__(self) -> str:
        where = "" if self._file is None else f", {str(self._file.path)!r}"
        return f"<HammingIndex of {len(self)} codes of {self.n_bits} bits{where}>"

    def info(self) -> dict[str, Any]:
        """Return the number and length of the codes, their model, and the state of the file.

        Returns
        -------
        info : dict
            ``codes``, ``bits`` and ``model``; for a file also ``removed``, ``batches``, ``bytes``
            and ``format``.
        """
        result = {"codes": len(self), "bits": self.n_bits, "model": self.model}
        if self._file is not None:
            slot, batches = self._file.slot, self._file.batches
            rows = sum(batch.n for batch in batches if batch.kind != REMOVED)
            result |= {"removed": rows - len(self), "batches": slot.n_batches}
            result |= {"bytes": slot.end, "format": self._file.head.version}
        return result

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, and of ids that are not consecutive."""
        return sum(segment.nbytes for segment in self._segments)

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, ascending."""
        return all_ids(self._segments)

    def add(
        self, codes: ArrayLike, ids: ArrayLike | None = None, *, model: Model | None = None
    ) -> NDArray[np.int64]:
        """Add codes: all of them, or none if an error is raised.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
            Packed codes.
        ids : int array of shape (n,) or None, default=None
            Each must be new. None assigns consecutive ids above the highest one
            that the index has ever had.
        model : BaseHasher or str or None, default=None
            The model that produced the codes, or its fingerprint; refused if it is not the model
            of the index.

        Returns
        -------
        ids : int64 array of shape (n,)
            The ids of the new codes.
        """
        array = checks.check_rows(codes, self.n_bits)
        checks.check_model(self.model, model, "the index")
        with self._changing:
            chosen = checks.check_new_ids(ids, len(array), self._next_id)
            if ids is not None:
                checks.refuse_stored(chosen[self._stored(chosen)])
            if not len(array):
                return chosen
            segment = make_segment(as_words(array), chosen)
            next_id = max(self._next_id, segment.last_id + 1)
            if self._file is not None:
                self._file.add_rows(segment, next_id)
                self._load(self._file)
            else:
                self._segments, self._next_id = with_rows(self._segments, segment), next_id
            return chosen

    def remove(self, ids: ArrayLike) -> None:
        """Remove codes by id.

        Parameters
        ----------
        ids : int array of shape (n,), or one int
            All of them must be stored.
        """
        chosen = checks.check_ids(ids)
        with self._changing:
            checks.refuse_missing(chosen[~self._stored(chosen)])
            if not len(chosen):
                return
            if self._file is not None:
                self._file.add_removal(np.unique(chosen))
                self._load(self._file)
            else:
                self._segments = without_ids(self._segments, chosen)

    def get(self, ids: ArrayLike) -> Codes:
        """Return codes by id.

        Parameters
        ----------
        ids : int array of shape (n,), or one int
            All of them must be stored.

        Returns
        -------
        codes : uint8 array of shape (n, n_bytes), or (n_bytes,) for one id
            Packed codes, in the order of `ids`.
        """
        chosen = checks.check_ids(ids)
        words, found = words_by_id(self._segments, self.n_bits, chosen)
        checks.refuse_missing(chosen[~found])
        codes = to_codes(words, self.n_bits)
        return codes if np.ndim(ids) else codes[0]

    def __contains__(self, id: object) -> bool:
        """Return whether a code with this id is stored."""
        if not isinstance(id, int | np.integer) or not -(2**63) <= id < 2**63:
            return False
        return bool(self._stored(np.array([id], np.int64))[0])

    def _stored(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which ids are stored, without reading any codes."""
        found = [segment.rows_of(ids) >= 0 for segment in self._segments]
        return np.any(found, axis=0) if found else np.zeros(len(ids), bool)

    # -- searching ------------------------------------------------------------------------------

    def search(
        self,
        queries: ArrayLike | None = None,
        k: int = 10,
        *,
        queries_float: ArrayLike | None = None,
        allowed: ArrayLike | None = None,
        rerank_projections: ArrayLike | None = None,
        rerank: Distances | None = None,
        rerank_factor: int = 10,
        n_jobs: int | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the k nearest codes of each query.

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes) or (n_bytes,), or None, default=None
            Several codes, or a single one. Give either `queries` or `queries_float`.
        k : int, default=10
            Number of neighbours.
        queries_float : float array of shape (n, n_bits) or (n_bits,), or None, default=None
            Float queries: projections from `BaseHasher.project`. All codes are compared with the
            signs of the projections, and each differing bit is weighted by the absolute value of
            the query's projection.
        allowed : int or bool array or None, default=None
            Ids to which the search is restricted, or a boolean mask over `ids`.
        rerank_projections : float array of shape (n, n_bits) or None, default=None
            Projections of the queries, from `BaseHasher.project`. The ``rerank_factor * k``
            nearest codes by Hamming distance are re-ranked by the distance of `queries_float`.
        rerank : callable or None, default=None
            Function of a query's index and of candidate ids, an int64 array, that returns one
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
        ids : int64 array of the same shape
            Ids of these codes; at equal distance the lower id comes first.

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
        if rerank_projections is not None:
            own_shape = (len(query_set), self.n_bits)
            projections, _ = check_projections(rerank_projections, own_shape, "rerank_projections")
        segments = self._segments if allowed is None else self._restricted(allowed)
        n_codes = sum(segment.n_kept for segment in segments)
        m = min(k, n_codes)
        if rerank is not None:
            _, ids = scan.nearest(segments, query_set, min(k * factor, n_codes), n_jobs)
            found = rerank_by(rerank, ids, m)
        elif rerank_projections is not None:
            _, ids = scan.nearest(segments, query_set, min(k * factor, n_codes), n_jobs)
            found = rerank_by_projections(segments, projections, ids, m, n_jobs)
        else:
            found = scan.nearest(segments, query_set, m, n_jobs)
            if queries_float is not None:
                found = found[0].view(np.float32), found[1]
        return (found[0][0], found[1][0]) if single else found

    def search_radius(
        self, queries: ArrayLike, radius: int, *, n_jobs: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
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
        ids : int64 array of shape (lims[-1],)
            Ids of these codes.

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
        found = lookup_tables.search_radius(
            self._segments, as_words(codes), radius, self.n_bits, n_jobs
        )
        query_index, ids, distances = lookup_tables.concatenate(found)
        return checks.sort_by_query(query_index, distances, ids, len(codes))

    def duplicates(
        self, radius: int, *, n_jobs: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return all pairs of codes within a radius of each other.

        Parameters
        ----------
        radius : int
            Pairs up to and including this distance are returned; 0 for equal codes.
        n_jobs : int or None, default=None
            Number of threads; None uses all cores available to this process.

        Returns
        -------
        pairs : int64 array of shape (p, 2)
            Ids, the lower one first, sorted.
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
        found = lookup_tables.duplicates(self._segments, radius, self.n_bits, n_jobs)
        first, second, distances = lookup_tables.concatenate(found)
        pairs = np.stack([np.minimum(first, second), np.maximum(first, second)], axis=1)
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))
        return pairs[order], distances[order]

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
        priority : int array of shape (m,) or None, default=None
            Ids in order of priority. All other ids follow, ascending.
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
        return find_groups(self._segments, radius, self.n_bits, method, priority, n_jobs)

    def _restricted(self, allowed: ArrayLike) -> list[Segment]:
        """Return the segments restricted to allowed ids."""
        array, segments = np.asarray(allowed), self._segments
        if array.dtype != np.bool_:
            return only_ids(segments, np.unique(checks.check_ids(array)))
        ids = all_ids(segments)
        if array.shape != ids.shape:
            raise ValueError(
                f"allowed has shape {array.shape}; pass one boolean for each of the {len(ids)} "
                "ids in index.ids, or a list of ids"
            )
        return only_ids(segments, ids[array])


def _in_memory(
    kind: type[HammingIndex], n_bits: int, model: str | None, segments: list[Segment], next_id: int
) -> HammingIndex:
    index = kind(n_bits=n_bits, model=model)
    index._segments, index._next_id = segments, next_id
    return index
