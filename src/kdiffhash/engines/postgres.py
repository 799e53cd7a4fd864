"""PostgreSQL with pgvector: codes in a table, as ``bit(n)``, beside what else is known of them.

A table has the columns `id` (bigint, the key), `code` (bit(n)) and `data` (jsonb). Its comment
tells the length of the codes and the model that made them, so that codes of different models never
meet.
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

_BATCH = 50_000  # rows of a transaction
_QUERIES = 256  # queries of a statement
_MAX_BITS = 64_000  # what pgvector indexes


class Imported(NamedTuple):
    """What `PostgresStore.import_codes` did."""

    added: int
    there_before: int


class PostgresStore:
    """Codes in a table of a PostgreSQL server that has the extension pgvector. A `CodeStore`.

    Parameters
    ----------
    dsn : str
        Where the server is: ``postgresql://user@host/database``, or what else psycopg takes.
    table : str
        Name of the table, which may be anything; it is quoted.
    patience : float
        Seconds to wait for a server that has gone away while codes are imported.

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
        """Make the table, or check that the one that is there fits.

        Parameters
        ----------
        n_bits : int
        model : BaseHasher or str, optional
            The model that makes the codes, or its fingerprint. A new table keeps the fingerprint,
            and refuses codes of another model.
        """
        n_bits = checks.check_n_bits(n_bits, _MAX_BITS)
        with self._table.transaction() as cursor:
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
            found = self._table.find(cursor)
            if found is None:
                name = checks.fingerprint_of(model, n_bits)
                columns = "id bigint PRIMARY KEY, code bit({n}) NOT NULL, data jsonb"
                self._table.run(cursor, f"CREATE TABLE {{table}} ({columns})", n=n_bits)
                note = json.dumps({"kdiffhash": {"n_bits": n_bits, "model": name}})
                self._table.run(cursor, "COMMENT ON TABLE {table} IS {note}", note=note)
                return self
        if found.n_bits != n_bits:
            raise StoreError(f"{self._where} holds codes of {found.n_bits} bits, not {n_bits}")
        checks.check_model(found.model, model, self._where)
        return self

    def drop(self) -> None:
        """Remove the table and all that is in it."""
        with self._table.opened() as (cursor, _):
            self._table.run(cursor, "DROP TABLE {table}")

    @property
    def n_bits(self) -> int:
        """Length of the codes."""
        with self._table.opened() as (_, meta):
            return meta.n_bits

    @property
    def model(self) -> str | None:
        """Fingerprint of the model that made the codes; None where it is not known."""
        with self._table.opened() as (_, meta):
            return meta.model

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, rising."""
        with self._table.opened() as (cursor, _):
            found = self._table.run(cursor, "SELECT id FROM {table} ORDER BY id").fetchall()
        return np.array(found, np.int64).reshape(-1)

    def __len__(self) -> int:
        """Number of codes."""
        with self._table.opened() as (cursor, _):
            return int(self._table.run(cursor, "SELECT count(*) FROM {table}").fetchone()[0])

    def info(self) -> dict[str, Any]:
        """What the table holds: number and length of codes, the model, bytes, an HNSW index."""
        with self._table.opened() as (cursor, (n_bits, model)):
            (n,) = self._table.run(cursor, "SELECT count(*) FROM {table}").fetchone()
            name = [self._table.quoted(cursor)]
            (size,) = cursor.execute("SELECT pg_total_relation_size(%s::regclass)", name).fetchone()
            cursor.execute(
                "SELECT count(*) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
                "JOIN pg_am ON pg_am.oid = relam WHERE amname = 'hnsw' AND indrelid = %s::regclass",
                name,
            )
            (graphs,) = cursor.fetchone()
        known = {"table": self._table.name, "codes": n, "bits": n_bits, "model": model}
        return {**known, "bytes": size, "hnsw": bool(graphs)}

    # -- rows in and out ------------------------------------------------------------------------

    def add(
        self,
        codes: ArrayLike,
        ids: ArrayLike | None = None,
        data: Data | None = None,
        *,
        model: Model | None = None,
    ) -> NDArray[np.int64]:
        """Add codes in one transaction, and return their ids; see `CodeStore.add`.

        Parameters
        ----------
        codes, ids
            By default ids follow the highest that is in the table.
        data : sequence of n mappings, optional
            What else to keep, as JSON.
        model : BaseHasher or str, optional
            The model that made the codes, or its fingerprint; another one than that of the table
            is refused.
        """
        with self._table.opened() as (cursor, meta):
            array = self._check_new(codes, data, meta, model)
            self._table.run(cursor, "LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
            query = "SELECT greatest(max(id), -1) + 1 FROM {table}"
            next_id = int(self._table.run(cursor, query).fetchone()[0])
            chosen = checks.check_new_ids(ids, len(array), next_id)
            if not self._table.copy_new(cursor, array, chosen, data, meta.n_bits):
                query = "SELECT id FROM {table} WHERE id = ANY(%s)"
                there = self._table.run(cursor, query, chosen.tolist()).fetchall()
                checks.refuse_stored(chosen[np.isin(chosen, there)])
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
        """Add many codes, batch by batch; started again, it goes on where it was stopped.

        Each batch of 50,000 is one transaction. Codes that are there already, from an earlier run
        of the same import, are left as they are. If the server goes away, it is waited for.

        An id that is there with another code is a `ValueError`; `upsert` overwrites.

        Parameters
        ----------
        codes, ids, data, model
            See `add`. Codes may be memory-mapped.
        advance : callable, optional
            Called with the number of rows that are done.

        Returns
        -------
        added, there_before : int
        """
        with self._table.opened() as (_, meta):
            array = self._check_new(codes, data, meta, model)
        chosen = checks.check_new_ids(ids, len(array))
        added = 0
        for start in range(0, len(chosen), _BATCH):
            some = slice(start, start + _BATCH)
            batch = (array[some], chosen[some], None if data is None else data[some])
            added += self._table.patiently(partial(self._add_batch, *batch, meta.n_bits))
            advance(len(batch[0]))
        return Imported(added, len(chosen) - added)

    def _add_batch(self, codes: Codes, ids: Ids, data: Data | None, n_bits: int) -> int:
        """Add one batch; how many of its rows were not there yet."""
        with self._table.transaction() as cursor:
            if self._table.copy_new(cursor, codes, ids, data, n_bits):
                return len(ids)
            self._table.stage(cursor, codes, ids, data, n_bits)
            query = (
                "SELECT s.id FROM kdiffhash_staged s JOIN {table} t USING (id) "
                "WHERE s.code <> t.code LIMIT 1"
            )
            if other := self._table.run(cursor, query).fetchone():
                raise ValueError(
                    f"id {other[0]} is stored with another code; use upsert to overwrite it"
                )
            query = "INSERT INTO {table} SELECT * FROM kdiffhash_staged ON CONFLICT DO NOTHING"
            return int(self._table.run(cursor, query).rowcount)

    def upsert(
        self,
        codes: ArrayLike,
        ids: ArrayLike,
        data: Data | None = None,
        *,
        model: Model | None = None,
    ) -> None:
        """Add codes, or put them in the place of those with the same ids, in one transaction."""
        with self._table.opened() as (cursor, meta):
            array = self._check_new(codes, data, meta, model)
            chosen = checks.check_new_ids(ids, len(array))
            self._table.stage(cursor, array, chosen, data, meta.n_bits)
            statement = (
                "INSERT INTO {table} SELECT * FROM kdiffhash_staged "
                "ON CONFLICT (id) DO UPDATE SET code = excluded.code, data = excluded.data"
            )
            self._table.run(cursor, statement)

    def remove(self, ids: ArrayLike) -> None:
        """Remove codes by their ids (or one id), all of which must be there."""
        chosen = checks.check_ids(ids)
        with self._table.opened() as (cursor, _):
            statement = "DELETE FROM {table} WHERE id = ANY(%s) RETURNING id"
            gone = self._table.run(cursor, statement, chosen.tolist()).fetchall()
            checks.refuse_missing(chosen[~np.isin(chosen, gone)])

    def get(self, ids: ArrayLike) -> Codes:
        """Return codes by their ids; see `CodeStore.get`."""
        texts, n_bits = self._column("code::text", ids)
        bits = np.array([np.frombuffer(text.encode(), np.uint8) for text in texts], np.uint8)
        codes = np.packbits(bits.reshape(len(texts), n_bits) == ord("1"), axis=1)
        return codes if np.ndim(ids) else codes[0]

    def get_data(self, ids: ArrayLike) -> list[Any]:
        """Return what else is kept of codes, as a list, by their ids, which must all be there."""
        return self._column("data", ids)[0]

    def _column(self, column: str, ids: ArrayLike) -> tuple[list[Any], int]:
        """The values of a column by ids, and the length of the codes."""
        chosen = checks.check_ids(ids)
        with self._table.opened() as (cursor, (n_bits, _)):
            query = f"SELECT id, {column} FROM {{table}} WHERE id = ANY(%s)"
            rows = dict(self._table.run(cursor, query, chosen.tolist()).fetchall())
        checks.refuse_missing(chosen[[i not in rows for i in chosen.tolist()]])
        return [rows[i] for i in chosen.tolist()], n_bits

    def _check_new(
        self, codes: ArrayLike, data: Data | None, meta: Meta, model: Model | None
    ) -> Codes:
        """Return new codes that fit the table."""
        checks.check_model(meta.model, model, self._where)
        array = checks.check_rows(codes, meta.n_bits)
        if data is not None and len(data) != len(array):
            raise ValueError(f"{len(array)} codes came with data for {len(data)}")
        return array

    # -- searching ------------------------------------------------------------------------------

    def search(
        self, queries: ArrayLike, k: int = 10, *, ef_search: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Find the k nearest codes of each query: distances and ids; see `CodeStore.search`.

        Parameters
        ----------
        queries, k
        ef_search : int, optional
            Use the HNSW index that `build_index` made, looking at so many candidates (up to 1000).
            It may miss some; where it finds fewer than k, -1 fills up distances and ids. By default
            the search is exact.
        """
        k = min(checks.check_k(k), 2**62)
        if ef_search is not None and not 1 <= ef_search <= 1000:
            raise ValueError(f"ef_search must lie in 1..1000, got {ef_search}")
        order = "d, id" if ef_search is None else "code <~> asked.code"
        nearest = f"ORDER BY {order} LIMIT {{k}}) AS near"
        with self._table.opened() as (cursor, (n_bits, _)):
            codes, alone = checks.check_queries(queries, n_bits)
            count = "SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT {k}) AS counted"
            m = int(self._table.run(cursor, count, k=k).fetchone()[0])
            if ef_search is not None:
                cursor.execute("SELECT set_config('hnsw.ef_search', %s, true)", [str(ef_search)])
                cursor.execute("SET LOCAL enable_seqscan = off")
            lims, found, found_ids = self._ask(cursor, nearest, codes, n_bits, k=k)
        m = int(np.diff(lims).max(initial=m))  # codes may have come meanwhile
        distances = np.full((len(codes), m), -1, np.int32)
        ids = np.full((len(codes), m), -1, np.int64)
        is_found = np.arange(m) < np.diff(lims)[:, None]
        distances[is_found], ids[is_found] = found, found_ids
        return (distances[0], ids[0]) if alone else (distances, ids)

    def search_radius(
        self, queries: ArrayLike, radius: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """Find all codes within a radius: lims, distances, ids; see `CodeStore.search_radius`."""
        with self._table.opened() as (cursor, (n_bits, _)):
            codes, _ = checks.check_queries(queries, n_bits)
            radius = checks.check_radius(radius, n_bits)
            return self._ask(cursor, ") AS near WHERE d <= {radius}", codes, n_bits, radius=radius)

    def _ask(
        self, cursor: Any, rest: str, queries: Codes, n_bits: int, **numbers: int
    ) -> tuple[Ids, NDArray[np.int32], Ids]:
        """Lims, distances and ids of what a statement, whose rest is given, finds for queries."""
        statement = (
            "SELECT number, d, id FROM unnest(%s::text[]) WITH ORDINALITY AS given(text, number), "
            "LATERAL (SELECT text::bit({n}) AS code) AS asked, "
            f"LATERAL (SELECT id, (code <~> asked.code)::int AS d FROM {{table}} {rest}"
        )
        found = [np.empty((0, 3), np.int64)]
        for start in range(0, len(queries), _QUERIES):
            some = np.unpackbits(queries[start : start + _QUERIES], axis=1, count=n_bits)
            texts = [(line + ord("0")).tobytes().decode() for line in some]
            rows = self._table.run(cursor, statement, texts, n=n_bits, **numbers).fetchall()
            found.append(np.array(rows, np.int64).reshape(-1, 3) + np.array([start - 1, 0, 0]))
        query_index, distances, ids = np.concatenate(found).T
        return checks.sort_by_query(query_index, distances.astype(np.int32), ids, len(queries))

    def build_index(self, *, m: int = 16, ef_construction: int = 64) -> None:
        """Build an HNSW index for approximate search, with pgvector's parameters."""
        if not 2 <= m <= 100 or not max(4, 2 * m) <= ef_construction <= 1000:
            raise ValueError("m must lie in 2..100, ef_construction in 2 * m..1000")
        with self._table.opened() as (cursor, _):
            statement = (
                "CREATE INDEX ON {table} USING hnsw (code bit_hamming_ops) "
                "WITH (m = {m}, ef_construction = {ef_construction})"
            )
            self._table.run(cursor, statement, m=m, ef_construction=ef_construction)

    # -- connection -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection."""
        self._table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
