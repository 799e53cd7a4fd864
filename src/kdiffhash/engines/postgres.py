"""Store and search codes in PostgreSQL with the pgvector extension.

A table has the columns `id` (bigint, primary key), `code` (bit(n)) and `data` (jsonb). Its comment
records the length of the codes and the fingerprint of the model that produced them, so that codes
of different models are not mixed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import Codes
from ..search import checks
from ..search.code_store import Upserted
from ..search.segment import Ids
from .float_rerank import check_reranking, rerank_by_projections
from .postgres_search import find_nearest, find_nearest_vectors, find_within
from .postgres_table import Rows, Table
from .store_rows import Data, Imported, Meta, StoreError, check_new

if TYPE_CHECKING:
    from ..search.checks import Model

__all__ = ["Imported", "PostgresStore", "StoreError", "Upserted"]

_BATCH = 50_000  # rows per transaction
_MAX_BITS = 64_000  # longest codes that pgvector can index


class PostgresStore:
    """Codes in a table of a PostgreSQL database that has the pgvector extension.

    Implements `CodeStore`. Each method call is one transaction, except for `import_codes`, which
    commits batch by batch. The constructor only connects; `create` creates the table. Threads may
    share a store; their transactions run one after another.

    Parameters
    ----------
    dsn : str
        Connection string: ``postgresql://user@host/database``, or any other form that psycopg
        accepts.
    table : str, default="codes"
        Name of the table, 1 to 63 bytes. It is quoted, so any characters are allowed.
    reconnect_timeout : float, default=60.0
        Seconds for which a method tries to reconnect when the connection is lost. It then repeats
        the transaction, unless the server has committed it. 0 tries to reconnect once.

    Raises
    ------
    ConnectionError
        If the server cannot be reached; by the methods, if the connection is lost and cannot be
        restored in time.

    Examples
    --------
    >>> from kdiffhash.engines.postgres import PostgresStore
    >>> with PostgresStore("postgresql://localhost/test") as store:  # doctest: +SKIP
    ...     store.create(n_bits=128)
    ...     store.add(codes)
    ...     distances, ids = store.search(queries, k=10)
    """

    def __init__(self, dsn: str, table: str = "codes", *, reconnect_timeout: float = 60.0) -> None:
        self._table = Table(dsn, table, reconnect_timeout)
        self._where = f"the table {table!r}"

    # -- the table ------------------------------------------------------------------------------

    def create(self, n_bits: int, model: Model | None = None) -> Self:
        """Create the table, or check that an existing one has this length and model.

        Parameters
        ----------
        n_bits : int
            Length of the codes, from 1 to 64,000.
        model : BaseHasher or str, default=None
            The model that produces the codes, or its fingerprint. A new table stores the
            fingerprint and refuses codes of another model.

        Returns
        -------
        store : PostgresStore
            The store itself.

        Raises
        ------
        StoreError
            If there is a table of this name for codes of another length, or one that was not
            created by kdiffhash.
        """
        n_bits = checks.check_n_bits(n_bits, _MAX_BITS)
        new = Meta(n_bits, checks.fingerprint_of(model, n_bits))
        meta = self._table.connection.write(lambda cursor: self._table.create(cursor, new))
        if meta.n_bits != n_bits:
            raise StoreError(
                f"{self._where} holds codes of {meta.n_bits} bits, not {n_bits}; use another table"
            )
        checks.check_model(meta.model, model, self._where)
        return self

    def drop(self) -> None:
        """Drop the table with all its codes."""
        self._write("DROP TABLE {table}")

    @property
    def n_bits(self) -> int:
        """Length of the codes in bits."""
        return self._table.read(lambda _, meta: meta.n_bits)

    @property
    def model(self) -> str | None:
        """Fingerprint of the model that produced the codes; None if unknown."""
        return self._table.read(lambda _, meta: meta.model)

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, ascending."""
        rows = self._fetch("SELECT id FROM {table} ORDER BY id")
        return np.array(rows, np.int64).reshape(-1)

    def __len__(self) -> int:
        """Number of codes."""
        return int(self._fetch("SELECT count(*) FROM {table}")[0][0])

    def info(self) -> dict[str, Any]:
        """Return the number and length of the codes, their model, and the size of the table.

        Returns
        -------
        info : dict
            ``table`` (its name), ``codes``, ``bits``, ``model`` (a fingerprint or None), ``bytes``
            (on disk, including indexes) and ``hnsw``, whether there is an HNSW index.
        """
        query = (
            "SELECT (SELECT count(*) FROM {table}), pg_total_relation_size(%s::regclass), "
            "EXISTS (SELECT FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am "
            "ON pg_am.oid = relam WHERE amname = 'hnsw' AND indrelid = %s::regclass)"
        )

        def work(cursor: Any, meta: Meta) -> dict[str, Any]:
            name = self._table.quoted_name(cursor)
            n, size, has_hnsw = self._table.execute(cursor, query, name, name).fetchone()
            result = {"table": self._table.name, "codes": n, "bits": meta.n_bits}
            return {**result, "model": meta.model, "bytes": size, "hnsw": has_hnsw}

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
            None of them may be stored yet. None assigns consecutive ids above the highest one
            that is stored or was removed by `remove`.
        data : sequence of n mappings or None, default=None
            Additional data for each code, stored as JSON. An item may be None.
        model : BaseHasher or str, default=None
            The model that produced the codes, or its fingerprint; refused if it is not the model
            of the table.

        Returns
        -------
        ids : int64 array of shape (n,)
        """

        def work(cursor: Any, meta: Meta) -> NDArray[np.int64]:
            array = check_new(codes, data, meta, model, self._where)
            self._table.execute(cursor, "LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
            chosen = checks.check_new_ids(ids, len(array), self._table.next_id(cursor))
            rows = Rows(array, chosen, data, meta.n_bits)
            if not self._table.try_copy(cursor, rows):
                query = "SELECT id FROM {table} WHERE id = ANY(%s)"
                stored = self._table.execute(cursor, query, chosen.tolist()).fetchall()
                checks.refuse_stored(chosen[np.isin(chosen, stored)])
                self._table.copy(cursor, rows)  # raises, for a constraint that the user has added
            return chosen

        return self._table.write(work)

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
        ConnectionError
            If the server cannot be reached again in time. Batches that were committed stay.
        """
        meta = self._table.read(lambda _, meta: meta)
        array = check_new(codes, data, meta, model, self._where)
        chosen = checks.check_new_ids(ids, len(array))
        added = 0
        for start in range(0, len(chosen), _BATCH):
            part = slice(start, start + _BATCH)
            items = None if data is None else data[part]
            rows = Rows(array[part], chosen[part], items, meta.n_bits)
            added += self._table.write(partial(self._add_batch, rows))
            advance(len(rows.ids))
        return Imported(added, len(chosen) - added)

    def _add_batch(self, rows: Rows, cursor: Any, meta: Meta) -> int:
        """Add one batch and return how many of its rows were not stored yet."""
        if meta.n_bits != rows.n_bits:
            raise StoreError(f"{self._where} was replaced during the import; import again")
        if self._table.try_copy(cursor, rows):
            return len(rows.ids)
        return self._table.insert_missing(cursor, rows)

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

        def work(cursor: Any, meta: Meta) -> Upserted:
            array = check_new(codes, data, meta, model, self._where)
            chosen = checks.check_new_ids(ids, len(array))
            return self._table.upsert(cursor, Rows(array, chosen, data, meta.n_bits))

        return self._table.write(work)

    def remove(self, ids: ArrayLike) -> None:
        """Remove codes by id, in one transaction.

        Parameters
        ----------
        ids : int array of shape (n,), or one int
            All of them must be stored.
        """
        chosen = checks.check_ids(ids)
        statement = "DELETE FROM {table} WHERE id = ANY(%s) RETURNING id"

        def work(cursor: Any, _: Meta) -> None:
            removed = self._table.execute(cursor, statement, chosen.tolist()).fetchall()
            checks.refuse_missing(chosen[~np.isin(chosen, removed)])
            if len(chosen):
                self._table.note_removed(cursor, int(chosen.max()))

        self._table.write(work)

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
        chosen = checks.check_ids(ids)
        codes = self._table.read(lambda cursor, meta: self._codes_of(cursor, meta, chosen))
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
        return self._table.read(lambda cursor, _: self._column(cursor, "data", chosen))

    def _codes_of(self, cursor: Any, meta: Meta, ids: Ids) -> Codes:
        texts = self._column(cursor, "code::text", ids)
        bits = np.array([np.frombuffer(text.encode(), np.uint8) for text in texts], np.uint8)
        return np.packbits(bits.reshape(len(texts), meta.n_bits) == ord("1"), axis=1)

    def _column(self, cursor: Any, column: str, ids: Ids) -> list[Any]:
        """Return the values of a column by id."""
        query = f"SELECT id, {column} FROM {{table}} WHERE id = ANY(%s)"
        rows = dict(self._table.execute(cursor, query, ids.tolist()).fetchall())
        checks.refuse_missing(ids[[i not in rows for i in ids.tolist()]])
        return [rows[i] for i in ids.tolist()]

    def _fetch(self, query: str) -> list[Any]:
        """Return the rows of a query."""
        return self._table.read(lambda cursor, _: self._table.execute(cursor, query).fetchall())

    def _write(self, statement: str, **values: int) -> None:
        """Execute a statement that returns nothing."""
        self._table.write(lambda cursor, _: self._table.execute(cursor, statement, **values))

    # -- searching ------------------------------------------------------------------------------

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        ef_search: int | None = None,
        rerank_projections: ArrayLike | None = None,
        rerank_vectors: ArrayLike | None = None,
        rerank_column: str | None = None,
        rerank_metric: Literal["cosine", "euclidean", "inner_product"] = "cosine",
        rerank_factor: int = 10,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the k nearest codes of each query.

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes), or one code of shape (n_bytes,)
        k : int, default=10
            Number of neighbours.
        ef_search : int, default=None
            Search the HNSW index built by `build_index` with a candidate list of this size, from 1
            to 1000. The results are approximate. None searches exactly.
        rerank_projections : float array of shape (n, n_bits) or None, default=None
            Projections of the queries, from `BaseHasher.project`. The ``rerank_factor * k``
            nearest codes are re-ranked: each differing bit is weighted by the absolute value of
            the query's projection.
        rerank_vectors : float array of shape (n, d) or None, default=None
            Float vectors of the queries. The ``rerank_factor * k`` nearest codes are re-ranked by
            the vectors in the column `rerank_column`, in SQL.
        rerank_column : str or None, default=None
            A column of the table of pgvector's type vector or halfvec. Codes without a vector come
            last, with an infinite distance.
        rerank_metric : {"cosine", "euclidean", "inner_product"}, default="cosine"
            How vectors are compared; the distance of "inner_product" is the negative product.
        rerank_factor : int, default=10
            Number of candidates to re-rank, as a multiple of k.

        Returns
        -------
        distances : array of shape (n, m), or (m,) for one code
            int32 Hamming distances, ascending; after re-ranking, float32 sums of absolute
            projections or distances of vectors. m is the smaller of k and the number of codes.
            Approximate search may find fewer than m codes; the remaining entries are -1.
        ids : int64 array of the same shape
        """
        k = min(checks.check_k(k), 2**62)
        if ef_search is not None and not 1 <= ef_search <= 1000:
            raise ValueError(f"ef_search must be from 1 to 1000, got {ef_search}")

        def work(cursor: Any, meta: Meta) -> tuple[NDArray[Any], NDArray[np.int64]]:
            codes, single = checks.check_queries(queries, meta.n_bits)
            how = check_reranking(
                len(codes), meta.n_bits, rerank_projections, rerank_vectors, rerank_column,
                rerank_metric, rerank_factor,
            )  # fmt: skip
            n_candidates = k if how is None else min(k * how.factor, 2**62)
            found: tuple[NDArray[Any], NDArray[np.int64]]
            common = (self._table, cursor, codes, meta.n_bits)
            if how is not None and how.vectors is not None:
                options = (how.vectors, how.column, how.metric, how.factor)
                found = find_nearest_vectors(*common, k, ef_search, *options)
            else:
                found = find_nearest(*common, n_candidates, ef_search)
            if how is not None and how.projections is not None:
                codes_of = partial(self._codes_of, cursor, meta)
                found = rerank_by_projections(codes_of, how.projections, found, k)
            return (found[0][0], found[1][0]) if single else found

        return self._table.read(work)

    def search_radius(
        self, queries: ArrayLike, radius: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """Return all codes within a radius of each query (range search).

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes), or one code of shape (n_bytes,)
        radius : int
            Codes up to and including this distance are returned.

        Returns
        -------
        lims : int64 array of shape (n + 1,), or (2,) for one code
            The results of query i are entries ``lims[i]`` to ``lims[i + 1]`` of the arrays below,
            nearest first, as in FAISS.
        distances : int32 array
        ids : int64 array
        """

        def work(cursor: Any, meta: Meta) -> tuple[Ids, NDArray[np.int32], Ids]:
            codes, _ = checks.check_queries(queries, meta.n_bits)
            distance = checks.check_radius(radius, meta.n_bits)
            return find_within(self._table, cursor, codes, meta.n_bits, distance)

        return self._table.read(work)

    def build_index(self, *, m: int = 16, ef_construction: int = 64) -> None:
        """Build pgvector's HNSW index, for approximate search with `search(..., ef_search=...)`.

        Parameters
        ----------
        m : int, default=16
            Maximum number of connections per node and layer, from 2 to 100.
        ef_construction : int, default=64
            Size of the candidate list while building, from ``2 * m`` to 1000.
        """
        if not 2 <= m <= 100 or not max(4, 2 * m) <= ef_construction <= 1000:
            raise ValueError(
                f"m must be from 2 to 100 and ef_construction from 2 * m to 1000, got m={m}, "
                f"ef_construction={ef_construction}"
            )
        statement = (
            "CREATE INDEX ON {table} USING hnsw (code bit_hamming_ops) "
            "WITH (m = {m}, ef_construction = {ef_construction})"
        )
        self._write(statement, m=m, ef_construction=ef_construction)

    # -- connection -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection."""
        self._table.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
