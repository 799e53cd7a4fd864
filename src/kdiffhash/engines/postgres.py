"""Store and search codes in PostgreSQL with the pgvector extension.

A table has the columns `id` (bigint, primary key), `code` (bit(n)) and `data` (jsonb). Its comment
records the length of the codes and the fingerprint of the model that produced them, so that codes
of different models are not mixed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import Codes
from ..search import checks
from ..search.segment import Ids
from .postgres_table import Data, Meta, StoreError, Table

if TYPE_CHECKING:
    from ..search.checks import Model

__all__ = ["Imported", "PostgresStore", "StoreError"]

_BATCH = 50_000  # rows per transaction
_QUERIES = 256  # queries per statement
_MAX_BITS = 64_000  # longest codes that pgvector can index


class Imported(NamedTuple):
    """The result of `PostgresStore.import_codes`.

    Attributes
    ----------
    added : int
        Number of codes that were added.
    already_stored : int
        Number of codes that were already stored under the same ids.

    Examples
    --------
    >>> from kdiffhash.engines.postgres import Imported
    >>> added, already_stored = Imported(added=50_000, already_stored=0)
    >>> added
    50000
    """

    added: int
    already_stored: int


class PostgresStore:
    """Codes in a table of a PostgreSQL database that has the pgvector extension.

    Implements `CodeStore`. Each method call is one transaction, except for `import_codes`, which
    commits batch by batch. The constructor only connects; `create` creates the table.

    Parameters
    ----------
    dsn : str
        Connection string: ``postgresql://user@host/database``, or any other form that psycopg
        accepts.
    table : str, default="codes"
        Name of the table, 1 to 63 bytes. It is quoted, so any characters are allowed.
    patience : float, default=60.0
        Seconds for which `import_codes` tries to reconnect after the connection is lost.

    Raises
    ------
    ConnectionError
        If the server cannot be reached.

    Examples
    --------
    >>> from kdiffhash.engines.postgres import PostgresStore
    >>> with PostgresStore("postgresql://localhost/test") as store:  # doctest: +SKIP
    ...     store.create(n_bits=128)
    ...     store.add(codes)
    ...     distances, ids = store.search(queries, k=10)
    """

    def __init__(self, dsn: str, table: str = "codes", *, patience: float = 60.0) -> None:
        self._table = Table(dsn, table, patience)
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
        with self._table.transaction() as cursor:
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
            meta = self._table.read_meta(cursor)
            if meta is None:
                fingerprint = checks.fingerprint_of(model, n_bits)
                columns = "id bigint PRIMARY KEY, code bit({n}) NOT NULL, data jsonb"
                self._table.execute(cursor, f"CREATE TABLE {{table}} ({columns})", n=n_bits)
                comment = json.dumps({"kdiffhash": {"n_bits": n_bits, "model": fingerprint}})
                statement = "COMMENT ON TABLE {table} IS {comment}"
                self._table.execute(cursor, statement, comment=comment)
                return self
        if meta.n_bits != n_bits:
            raise StoreError(
                f"{self._where} holds codes of {meta.n_bits} bits, not {n_bits}; use another table"
            )
        checks.check_model(meta.model, model, self._where)
        return self

    def drop(self) -> None:
        """Drop the table with all its codes."""
        with self._table.open() as (cursor, _):
            self._table.execute(cursor, "DROP TABLE {table}")

    @property
    def n_bits(self) -> int:
        """Length of the codes in bits."""
        with self._table.open() as (_, meta):
            return meta.n_bits

    @property
    def model(self) -> str | None:
        """Fingerprint of the model that produced the codes; None if unknown."""
        with self._table.open() as (_, meta):
            return meta.model

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, ascending."""
        with self._table.open() as (cursor, _):
            rows = self._table.execute(cursor, "SELECT id FROM {table} ORDER BY id").fetchall()
        return np.array(rows, np.int64).reshape(-1)

    def __len__(self) -> int:
        """Number of codes."""
        with self._table.open() as (cursor, _):
            return int(self._table.execute(cursor, "SELECT count(*) FROM {table}").fetchone()[0])

    def info(self) -> dict[str, Any]:
        """Return the number and length of the codes, their model, and the size of the table.

        Returns
        -------
        info : dict
            ``table`` (its name), ``codes``, ``bits``, ``model`` (a fingerprint or None), ``bytes``
            (on disk, including indexes) and ``hnsw``, whether there is an HNSW index.
        """
        with self._table.open() as (cursor, (n_bits, model)):
            (n,) = self._table.execute(cursor, "SELECT count(*) FROM {table}").fetchone()
            name = [self._table.quoted_name(cursor)]
            (size,) = cursor.execute("SELECT pg_total_relation_size(%s::regclass)", name).fetchone()
            cursor.execute(
                "SELECT count(*) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
                "JOIN pg_am ON pg_am.oid = relam WHERE amname = 'hnsw' AND indrelid = %s::regclass",
                name,
            )
            (n_hnsw,) = cursor.fetchone()
        result = {"table": self._table.name, "codes": n, "bits": n_bits, "model": model}
        return {**result, "bytes": size, "hnsw": bool(n_hnsw)}

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
            None of them may be stored yet. None assigns consecutive ids above the highest one in
            the table.
        data : sequence of n mappings or None, default=None
            Additional data for each code, stored as JSON. An item may be None.
        model : BaseHasher or str, default=None
            The model that produced the codes, or its fingerprint; refused if it is not the model
            of the table.

        Returns
        -------
        ids : int64 array of shape (n,)
        """
        with self._table.open() as (cursor, meta):
            array = self._check_new(codes, data, meta, model)
            self._table.execute(cursor, "LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
            query = "SELECT greatest(max(id), -1) + 1 FROM {table}"
            next_id = int(self._table.execute(cursor, query).fetchone()[0])
            chosen = checks.check_new_ids(ids, len(array), next_id)
            if not self._table.try_copy(cursor, array, chosen, data, meta.n_bits):
                query = "SELECT id FROM {table} WHERE id = ANY(%s)"
                stored = self._table.execute(cursor, query, chosen.tolist()).fetchall()
                checks.refuse_stored(chosen[np.isin(chosen, stored)])
        return chosen

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
        arguments: codes that are already stored under the same ids are left unchanged. If the
        connection to the server is lost, the batch is retried for `patience` seconds.

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
        with self._table.open() as (_, meta):
            array = self._check_new(codes, data, meta, model)
        chosen = checks.check_new_ids(ids, len(array))
        added = 0
        for start in range(0, len(chosen), _BATCH):
            rows = slice(start, start + _BATCH)
            batch = (array[rows], chosen[rows], None if data is None else data[rows])
            added += self._table.retry(partial(self._add_batch, *batch, meta.n_bits))
            advance(len(batch[0]))
        return Imported(added, len(chosen) - added)

    def _add_batch(self, codes: Codes, ids: Ids, data: Data | None, n_bits: int) -> int:
        """Add one batch and return how many of its rows were not stored yet."""
        with self._table.transaction() as cursor:
            if self._table.try_copy(cursor, codes, ids, data, n_bits):
                return len(ids)
            self._table.stage(cursor, codes, ids, data, n_bits)
            query = (
                "SELECT s.id FROM kdiffhash_staged s JOIN {table} t USING (id) "
                "WHERE s.code <> t.code LIMIT 1"
            )
            if conflict := self._table.execute(cursor, query).fetchone():
                raise ValueError(
                    f"id {conflict[0]} is stored with a different code; use upsert to overwrite it"
                )
            query = "INSERT INTO {table} SELECT * FROM kdiffhash_staged ON CONFLICT DO NOTHING"
            return int(self._table.execute(cursor, query).rowcount)

    def upsert(
        self,
        codes: ArrayLike,
        ids: ArrayLike,
        data: Data | None = None,
        *,
        model: Model | None = None,
    ) -> None:
        """Add codes, overwriting those with the same ids, in one transaction.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
        ids : int array of shape (n,)
        data : sequence of n mappings or None, default=None
            Additional data for each code, stored as JSON. None also clears the data of the codes
            that are overwritten.
        model : BaseHasher or str, default=None
            The model that produced the codes, or its fingerprint; refused if it is not the model
            of the table.
        """
        with self._table.open() as (cursor, meta):
            array = self._check_new(codes, data, meta, model)
            chosen = checks.check_new_ids(ids, len(array))
            self._table.stage(cursor, array, chosen, data, meta.n_bits)
            statement = (
                "INSERT INTO {table} SELECT * FROM kdiffhash_staged "
                "ON CONFLICT (id) DO UPDATE SET code = excluded.code, data = excluded.data"
            )
            self._table.execute(cursor, statement)

    def remove(self, ids: ArrayLike) -> None:
        """Remove codes by id, in one transaction.

        Parameters
        ----------
        ids : int array of shape (n,), or one int
            All of them must be stored.
        """
        chosen = checks.check_ids(ids)
        with self._table.open() as (cursor, _):
            statement = "DELETE FROM {table} WHERE id = ANY(%s) RETURNING id"
            removed = self._table.execute(cursor, statement, chosen.tolist()).fetchall()
            checks.refuse_missing(chosen[~np.isin(chosen, removed)])

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
        texts, n_bits = self._column("code::text", ids)
        bits = np.array([np.frombuffer(text.encode(), np.uint8) for text in texts], np.uint8)
        codes = np.packbits(bits.reshape(len(texts), n_bits) == ord("1"), axis=1)
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
        return self._column("data", ids)[0]

    def _column(self, column: str, ids: ArrayLike) -> tuple[list[Any], int]:
        """Return the values of a column by id, and the length of the codes."""
        chosen = checks.check_ids(ids)
        with self._table.open() as (cursor, (n_bits, _)):
            query = f"SELECT id, {column} FROM {{table}} WHERE id = ANY(%s)"
            rows = dict(self._table.execute(cursor, query, chosen.tolist()).fetchall())
        checks.refuse_missing(chosen[[i not in rows for i in chosen.tolist()]])
        return [rows[i] for i in chosen.tolist()], n_bits

    def _check_new(
        self, codes: ArrayLike, data: Data | None, meta: Meta, model: Model | None
    ) -> Codes:
        """Return new codes as an array, after checking their length, data and model."""
        checks.check_model(meta.model, model, self._where)
        array = checks.check_rows(codes, meta.n_bits)
        if data is not None and len(data) != len(array):
            raise ValueError(
                f"got {len(array)} codes but data for {len(data)}; pass one item per code, or None"
            )
        return array

    # -- searching ------------------------------------------------------------------------------

    def search(
        self, queries: ArrayLike, k: int = 10, *, ef_search: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the k nearest codes of each query.

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes), or one code of shape (n_bytes,)
        k : int, default=10
            Number of neighbours.
        ef_search : int, default=None
            Search the HNSW index built by `build_index` with a candidate list of this size, from 1
            to 1000. The results are approximate. None searches exactly.

        Returns
        -------
        distances : int32 array of shape (n, m), or (m,) for one code
            Ascending; m is the smaller of k and the number of codes. Approximate search may find
            fewer than m codes; the remaining entries are -1.
        ids : int64 array of the same shape
        """
        k = min(checks.check_k(k), 2**62)
        if ef_search is not None and not 1 <= ef_search <= 1000:
            raise ValueError(f"ef_search must be from 1 to 1000, got {ef_search}")
        order = "d, id" if ef_search is None else "code <~> query_code"
        nearest = f"ORDER BY {order} LIMIT {{k}}) AS nearest"
        with self._table.open() as (cursor, (n_bits, _)):
            codes, single = checks.check_queries(queries, n_bits)
            count = "SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT {k}) AS counted"
            m = int(self._table.execute(cursor, count, k=k).fetchone()[0])
            if ef_search is not None:
                cursor.execute("SELECT set_config('hnsw.ef_search', %s, true)", [str(ef_search)])
                cursor.execute("SET LOCAL enable_seqscan = off")
            lims, found, found_ids = self._run_queries(cursor, nearest, codes, n_bits, k=k)
        m = int(np.diff(lims).max(initial=m))  # codes may have been added since they were counted
        distances = np.full((len(codes), m), -1, np.int32)
        ids = np.full((len(codes), m), -1, np.int64)
        is_found = np.arange(m) < np.diff(lims)[:, None]
        distances[is_found], ids[is_found] = found, found_ids
        return (distances[0], ids[0]) if single else (distances, ids)

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
        with self._table.open() as (cursor, (n_bits, _)):
            codes, _ = checks.check_queries(queries, n_bits)
            radius = checks.check_radius(radius, n_bits)
            tail = ") AS codes WHERE d <= {radius}"
            return self._run_queries(cursor, tail, codes, n_bits, radius=radius)

    def _run_queries(
        self, cursor: Any, tail: str, queries: Codes, n_bits: int, **literals: int
    ) -> tuple[Ids, NDArray[np.int32], Ids]:
        """Return lims, distances and ids for queries; `tail` completes the SQL statement."""
        statement = (
            "SELECT number, d, id FROM unnest(%s::text[]) WITH ORDINALITY AS batch(text, number), "
            "LATERAL (SELECT text::bit({n}) AS query_code) AS query, "
            f"LATERAL (SELECT id, (code <~> query_code)::int AS d FROM {{table}} {tail}"
        )
        results = [np.empty((0, 3), np.int64)]
        for start in range(0, len(queries), _QUERIES):
            bits = np.unpackbits(queries[start : start + _QUERIES], axis=1, count=n_bits)
            texts = [(row + ord("0")).tobytes().decode() for row in bits]
            rows = self._table.execute(cursor, statement, texts, n=n_bits, **literals).fetchall()
            # PostgreSQL numbers the queries of a statement from 1.
            results.append(np.array(rows, np.int64).reshape(-1, 3) + np.array([start - 1, 0, 0]))
        query_index, distances, ids = np.concatenate(results).T
        return checks.sort_by_query(query_index, distances.astype(np.int32), ids, len(queries))

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
        with self._table.open() as (cursor, _):
            statement = (
                "CREATE INDEX ON {table} USING hnsw (code bit_hamming_ops) "
                "WITH (m = {m}, ef_construction = {ef_construction})"
            )
            self._table.execute(cursor, statement, m=m, ef_construction=ef_construction)

    # -- connection -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection."""
        self._table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
