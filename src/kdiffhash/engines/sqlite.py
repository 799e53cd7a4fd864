"""Store and search codes in an SQLite file, beside the rows of an application.

A table has the columns `id` (INTEGER PRIMARY KEY), `code` (BLOB) and `data` (JSON as TEXT). The
table `kdiffhash_stores` records the length of the codes and the fingerprint of the model that
produced them, so that codes of different models are not mixed, and the highest id that was removed,
so that it is not assigned again.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import Codes
from ..search import HammingIndex, checks
from ..search.code_store import Upserted
from ..search.index_format import MAX_BITS
from ..search.segment import Ids
from .float_rerank import check_reranking, rerank_by_projections, rerank_by_vectors
from .sqlite_connection import Connection, Version
from .sqlite_search import find_nearest, find_within, vectors_of
from .sqlite_table import Table
from .store_rows import Data, Imported, Meta, StoreError, check_new, refuse_other_code

if TYPE_CHECKING:
    from ..search.checks import Model

__all__ = ["Imported", "SQLiteStore", "StoreError", "Upserted"]

T = TypeVar("T")

_BATCH = 50_000  # rows per transaction of an import


class SQLiteStore:
    """Codes in a table of an SQLite file.

    Implements `CodeStore`. Each method call is one transaction, except for `import_codes`, which
    commits batch by batch. The constructor only connects; `create` creates the file and the table.
    Threads may share a store, and processes may open the same file. A pickled store opens the file
    again.

    Parameters
    ----------
    path : path
        The file, or ``":memory:"``.
    table : str, default="codes"
        Name of the table. It is quoted, so any characters are allowed.
    method : {"scan", "sqlite-vec"}, default="scan"
        "scan" reads all codes into memory at the first search, and again when another connection
        has changed the file; searches are as fast as those of `HammingIndex`. It needs nothing but
        the standard library. "sqlite-vec" compares codes in SQL with the extension of this name
        (extra ``sqlite``), and keeps nothing in memory. The results are the same.
    timeout : float, default=60.0
        Seconds for which a method waits while another connection has locked the file.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash.engines.sqlite import SQLiteStore
    >>> codes = np.array([[0b11110000], [0b11111111], [0b00000000]], np.uint8)
    >>> with SQLiteStore(":memory:") as store:
    ...     ids = store.create(n_bits=8).add(codes, data=[{"name": "a"}, {"name": "b"}, None])
    ...     distances, ids = store.search(codes[0], k=2)
    ...     distances.tolist(), store.get_data(ids)
    ([0, 4], [{'name': 'a'}, {'name': 'b'}])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str = "codes",
        *,
        method: Literal["scan", "sqlite-vec"] = "scan",
        timeout: float = 60.0,
    ) -> None:
        if method not in ("scan", "sqlite-vec"):
            raise ValueError(f"method must be 'scan' or 'sqlite-vec', got {method!r}")
        name = os.fsdecode(path)
        connection = Connection(name, timeout, method == "sqlite-vec")
        self._table = Table(connection, table)
        # Absolute, because the process that unpickles it may run in another folder.
        absolute = name if name == ":memory:" else str(Path(name).absolute())
        self._arguments = (absolute, table, method, timeout)
        self._method = method
        # The codes in memory, and the version of the file from which they were read. The index is
        # replaced, never changed, so searches on other threads keep a consistent one.
        self._cached: tuple[Version, HammingIndex] | None = None

    # -- the table ------------------------------------------------------------------------------

    def create(self, n_bits: int, model: Model | None = None) -> Self:
        """Create the table, or check that an existing one has this length and model.

        Parameters
        ----------
        n_bits : int
            Length of the codes, from 1 to 4096.
        model : BaseHasher or str, default=None
            The model that produces the codes, or its fingerprint. A new table stores the
            fingerprint and refuses codes of another model.

        Returns
        -------
        store : SQLiteStore
            The store itself.

        Raises
        ------
        StoreError
            If there is a table of this name for codes of another length, or one that was not
            created by kdiffhash.
        """
        n_bits = checks.check_n_bits(n_bits, MAX_BITS)
        new = Meta(n_bits, checks.fingerprint_of(model, n_bits))
        meta = self._table.connection.write(lambda: self._table.create(new))
        if meta.n_bits != n_bits:
            raise StoreError(
                f"{self._table.where} holds codes of {meta.n_bits} bits, not {n_bits}; use another "
                "table"
            )
        checks.check_model(meta.model, model, self._table.where)
        return self

    def drop(self) -> None:
        """Drop the table with all its codes; the file stays."""
        self._change(lambda _: self._table.drop(), None)

    @property
    def n_bits(self) -> int:
        """Length of the codes in bits."""
        return self._table.read(lambda meta: meta.n_bits)

    @property
    def model(self) -> str | None:
        """Fingerprint of the model that produced the codes; None if unknown."""
        return self._table.read(lambda meta: meta.model)

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, ascending."""
        rows = self._fetch("SELECT id FROM {table} ORDER BY id")
        return np.array(rows, np.int64).reshape(-1)

    def __len__(self) -> int:
        """Number of codes."""
        return int(self._fetch("SELECT count(*) FROM {table}")[0][0])

    def info(self) -> dict[str, Any]:
        """Return the number and length of the codes, their model, and the size of the file.

        Returns
        -------
        info : dict
            ``table`` (its name), ``codes``, ``bits``, ``model`` (a fingerprint or None) and
            ``bytes``, the size of the file with all its tables.
        """

        def work(meta: Meta) -> dict[str, Any]:
            (n,) = self._table.execute("SELECT count(*) FROM {table}").fetchone()
            pages, size = (
                self._table.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "page_size")
            )
            result = {"table": self._table.name, "codes": n, "bits": meta.n_bits}
            return {**result, "model": meta.model, "bytes": pages * size}

        return self._table.read(work)

    # -- adding, reading and removing codes -----------------------------------------------------

    def add(
        self,
        codes: ArrayLike,
        ids: ArrayLike | None = None,
        data: Data | None = None,
        *,
        model: Model | None = None,
    ) -> NDArray[np.int64]:
        """Add codes in one transaction: all of them, or none if an error is raised.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
        ids : int array of shape (n,), default=None
            None of them may be stored yet. None assigns consecutive ids above the highest one that
            is stored or was removed by `remove`.
        data : sequence of n mappings or None, default=None
            Additional data for each code, stored as JSON. An item may be None.
        model : BaseHasher or str, default=None
            The model that produced the codes, or its fingerprint; refused if it is not the model
            of the table.

        Returns
        -------
        ids : int64 array of shape (n,)
        """

        def work(meta: Meta) -> tuple[Codes, Ids]:
            array = check_new(codes, data, meta, model, self._table.where)
            chosen = checks.check_new_ids(ids, len(array), self._table.next_id())
            if ids is not None:
                checks.refuse_stored(chosen[np.isin(chosen, self._table.stored_ids(chosen))])
            self._table.insert(array, chosen, data)
            return array, chosen

        _, new = self._change(work, lambda index, added: index.add(*added))
        return new

    def import_codes(
        self,
        codes: ArrayLike,
        ids: ArrayLike,
        data: Data | None = None,
        *,
        model: Model | None = None,
        advance: Callable[[int], None] = lambda n: None,  # noqa: ARG005
    ) -> Imported:
        """Add many codes in batches; an interrupted import can be resumed.

        Each batch of 50,000 rows is one transaction. To resume, call the method again with the same
        arguments: codes that are already stored under the same ids are left unchanged, and so is
        their data.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
            May be memory-mapped.
        ids : int array of shape (n,)
        data : sequence of n mappings or None, default=None
            Additional data for each code, stored as JSON. An item may be None.
        model : BaseHasher or str, default=None
            The model that produced the codes, or its fingerprint; refused if it is not the model
            of the table.
        advance : callable, optional
            Progress callback, called with the number of rows of each batch once it is committed.

        Returns
        -------
        added : int
            Number of codes that were added.
        already_stored : int
            Number of codes that were already stored.

        Raises
        ------
        ValueError
            If an id is stored with a different code; `upsert` overwrites it.
        """
        meta = self._table.read(lambda meta: meta)
        array = check_new(codes, data, meta, model, self._table.where)
        chosen = checks.check_new_ids(ids, len(array))
        added = 0
        for start in range(0, len(chosen), _BATCH):
            part = slice(start, start + _BATCH)
            items = None if data is None else data[part]
            work = partial(self._add_batch, meta, array[part], chosen[part], items)
            _, new = self._change(work, lambda index, added: index.add(*added))
            added += len(new)
            advance(len(chosen[part]))
        return Imported(added, len(chosen) - added)

    def _add_batch(
        self, first: Meta, codes: Codes, ids: Ids, data: Data | None, meta: Meta
    ) -> tuple[Codes, Ids]:
        """Add one batch and return codes and ids of the rows that were not stored yet."""
        if meta != first:
            raise StoreError(f"{self._table.where} was replaced during the import; import again")
        stored = self._table.values("code", ids)
        is_new = np.array([i not in stored for i in ids.tolist()], bool)
        for i, code in zip(ids[~is_new].tolist(), codes[~is_new]):
            if stored[i] != code.tobytes():
                refuse_other_code(i)
        rows = np.flatnonzero(is_new)
        items = None if data is None else [data[row] for row in rows.tolist()]
        self._table.insert(codes[rows], ids[rows], items)
        return codes[rows], ids[rows]

    def upsert(
        self,
        codes: ArrayLike,
        ids: ArrayLike,
        data: Data | None = None,
        *,
        model: Model | None = None,
    ) -> Upserted:
        """Add codes, overwriting those with the same ids, in one transaction.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
        ids : int array of shape (n,)
        data : sequence of n mappings or None, default=None
            Additional data for each code, stored as JSON. None keeps the data of the codes that
            are overwritten; an item that is None clears it.
        model : BaseHasher or str, default=None
            The model that produced the codes, or its fingerprint; refused if it is not the model
            of the table.

        Returns
        -------
        added : int
            Number of codes whose ids were not stored.
        replaced : int
            Number of codes whose ids were stored.
        """

        def work(meta: Meta) -> tuple[Codes, Ids, Ids]:
            array = check_new(codes, data, meta, model, self._table.where)
            chosen = checks.check_new_ids(ids, len(array))
            stored = self._table.stored_ids(chosen)
            self._table.insert(array, chosen, data, replace=True)
            return array, chosen, stored

        def apply(index: HammingIndex, change: tuple[Codes, Ids, Ids]) -> None:
            index.remove(change[2])
            index.add(*change[:2])

        _, chosen, stored = self._change(work, apply)
        return Upserted(len(chosen) - len(stored), len(stored))

    def remove(self, ids: ArrayLike) -> None:
        """Remove codes by id, in one transaction; their ids are not assigned again.

        Parameters
        ----------
        ids : int array of shape (n,), or one int
            All of them must be stored.
        """
        chosen = checks.check_ids(ids)

        def work(_: Meta) -> Ids:
            checks.refuse_missing(chosen[~np.isin(chosen, self._table.stored_ids(chosen))])
            self._table.delete(chosen)
            return chosen

        self._change(work, lambda index, removed: index.remove(removed))

    def get(self, ids: ArrayLike) -> Codes:
        """Return codes by id.

        Parameters
        ----------
        ids : int array of shape (n,), or one int
            All of them must be stored.

        Returns
        -------
        codes : uint8 array of shape (n, n_bytes), or (n_bytes,) for one id
        """
        codes = self._table.read(partial(self._codes_of, checks.check_ids(ids)))
        return codes if np.ndim(ids) else codes[0]

    def get_data(self, ids: ArrayLike) -> list[Any]:
        """Return the additional data of codes by id.

        Parameters
        ----------
        ids : int array of shape (n,), or one int
            All of them must be stored.

        Returns
        -------
        data : list of length n
            The decoded JSON of each code, or None if it has no data.
        """
        chosen = checks.check_ids(ids)
        texts = self._table.read(lambda _: self._column("CAST(data AS BLOB)", chosen))
        try:
            return [None if text is None else json.loads(text) for text in texts]
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{self._table.where} holds data that is not JSON: {error}") from None

    def _codes_of(self, ids: Ids, meta: Meta) -> Codes:
        return self._table.to_codes(self._column("code", ids), meta.n_bits)

    def _column(self, column: str, ids: Ids) -> list[Any]:
        """Return the values of a column by id."""
        rows = self._table.values(column, ids)
        checks.refuse_missing(ids[[i not in rows for i in ids.tolist()]])
        return [rows[i] for i in ids.tolist()]

    def _fetch(self, query: str) -> list[Any]:
        """Return the rows of a query."""
        return self._table.read(lambda _: list(self._table.execute(query).fetchall()))

    # -- codes in memory ------------------------------------------------------------------------

    def _change(
        self, work: Callable[[Meta], T], apply: Callable[[HammingIndex, T], Any] | None
    ) -> T:
        """Run a transaction that writes, and apply its result to the codes in memory."""
        cached: list[tuple[Version, HammingIndex]] = []

        def work_and_copy(meta: Meta) -> T:
            result = work(meta)
            known, version = self._cached, self._table.connection.data_version()
            is_current = known is not None and known[0] == version
            if apply and known and is_current and not self._table.has_triggers():
                index = copy.copy(known[1])
                apply(index, result)
                cached.append((version, index))
            self._cached = None  # for the case that the commit fails
            return result

        with self._table.connection.lock:
            result = self._table.write(work_and_copy)
            self._cached = cached[0] if cached else None
        return result

    def _index(self, meta: Meta) -> HammingIndex:
        """Return all codes in memory, read again if another connection has changed the file."""
        version, known = self._table.connection.data_version(), self._cached
        if known is None or known[0] != version:
            codes, ids = self._table.all_rows(meta.n_bits)
            known = version, HammingIndex(codes, ids, n_bits=meta.n_bits, model=meta.model)
            self._cached = known
        return known[1]

    # -- searching ------------------------------------------------------------------------------

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        allowed: ArrayLike | None = None,
        rerank_projections: ArrayLike | None = None,
        rerank_vectors: ArrayLike | None = None,
        rerank_column: str | None = None,
        rerank_metric: Literal["cosine", "euclidean", "inner_product"] = "cosine",
        rerank_factor: int = 10,
        n_jobs: int | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the k nearest codes of each query.

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes), or one code of shape (n_bytes,)
        k : int, default=10
            Number of neighbours.
        allowed : int array or None, default=None
            Ids to which the search is restricted, such as those that an SQL query has selected.
        rerank_projections : float array of shape (n, n_bits) or None, default=None
            Projections of the queries, from `BaseHasher.project`. The ``rerank_factor * k``
            nearest codes are re-ranked: each differing bit is weighted by the absolute value of
            the query's projection.
        rerank_vectors : float array of shape (n, d) or None, default=None
            Float vectors of the queries. The ``rerank_factor * k`` nearest codes are re-ranked by
            the vectors in the column `rerank_column`.
        rerank_column : str or None, default=None
            A column of the table with float32 vectors as blobs of 4 * d bytes. Codes without a
            vector come last, with an infinite distance.
        rerank_metric : {"cosine", "euclidean", "inner_product"}, default="cosine"
            How vectors are compared; the distance of "inner_product" is the negative product.
        rerank_factor : int, default=10
            Number of candidates to re-rank, as a multiple of k.
        n_jobs : int or None, default=None
            Number of threads; None uses all cores available to this process.

        Returns
        -------
        distances : array of shape (n, m), or (m,) for one code
            int32 Hamming distances, ascending; after re-ranking, float32 sums of absolute
            projections or distances of vectors. m is the smaller of k and the number of codes
            searched.
        ids : int64 array of the same shape
            At equal distance the lower id comes first.
        """
        k = min(checks.check_k(k), 2**62)
        chosen = None if allowed is None else np.unique(checks.check_ids(allowed))

        def work(meta: Meta) -> Callable[[], tuple[NDArray[Any], NDArray[np.int64]]]:
            codes, single = checks.check_queries(queries, meta.n_bits)
            how = check_reranking(
                len(codes), meta.n_bits, rerank_projections, rerank_vectors, rerank_column,
                rerank_metric, rerank_factor,
            )  # fmt: skip
            n_candidates = k if how is None else min(k * how.factor, 2**62)
            if self._method == "scan":
                index = self._index(meta)
                options: dict[str, Any] = {"allowed": chosen, "n_jobs": n_jobs}
                if how is None or how.vectors is None:  # the transaction can end before the search
                    options["rerank_projections"] = rerank_projections
                    options["rerank_factor"] = rerank_factor
                    return lambda: index.search(queries, k, **options)
                found = index.search(codes, n_candidates, **options)
            else:
                found = find_nearest(self._table, codes, n_candidates, chosen)
            if how is not None and how.projections is not None:
                codes_of = partial(self._codes_of, meta=meta)
                found = rerank_by_projections(codes_of, how.projections, found, k)
            elif how is not None and how.vectors is not None:
                read = partial(vectors_of, self._table, how.column, how.vectors.shape[1])
                found = rerank_by_vectors(read, how.vectors, how.metric, found, k)
            return lambda: (found[0][0], found[1][0]) if single else found

        return self._table.read(work)()

    def search_radius(
        self, queries: ArrayLike, radius: int, *, n_jobs: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """Return all codes within a radius of each query (range search).

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes), or one code of shape (n_bytes,)
        radius : int
            Codes up to and including this distance are returned.
        n_jobs : int or None, default=None
            Number of threads; None uses all cores available to this process.

        Returns
        -------
        lims : int64 array of shape (n + 1,), or (2,) for one code
            The results of query i are entries ``lims[i]`` to ``lims[i + 1]`` of the arrays below,
            nearest first, as in FAISS.
        distances : int32 array
        ids : int64 array
        """

        def work(meta: Meta) -> Callable[[], tuple[Ids, NDArray[np.int32], Ids]]:
            codes, _ = checks.check_queries(queries, meta.n_bits)
            distance = checks.check_radius(radius, meta.n_bits)
            if self._method == "scan":
                index = self._index(meta)
                return lambda: index.search_radius(queries, radius, n_jobs=n_jobs)
            found = find_within(self._table, codes, distance)
            return lambda: found

        return self._table.read(work)()

    # -- connection -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection, and release the codes in memory."""
        self._table.connection.close()
        self._cached = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the store as its path; unpickling opens the file again."""
        return _open, (type(self), *self._arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _open(
    kind: type[SQLiteStore],
    path: str,
    table: str,
    method: Literal["scan", "sqlite-vec"],
    timeout: float,
) -> SQLiteStore:
    return kind(path, table, method=method, timeout=timeout)
