"""PostgreSQL with pgvector: codes in a table, as ``bit(n)``, beside what else is known of them.

A table has the columns `id` (bigint, the key), `code` (bit(n)) and `data` (jsonb). Its comment
tells the length of the codes and the model that made them, so that codes of different models never
meet.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import Codes, check_codes, n_bytes
from ..errors import KdiffhashError
from ..extras import need
from ..hashers import BaseHasher
from ..hashers.stored import fingerprint
from ..search import Within

_BATCH = 50_000  # rows of a transaction
_QUERIES = 256  # queries of a statement
_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # head of a binary COPY: no flags, nothing more
_END = b"\xff\xff"

T = TypeVar("T")


class StoreError(KdiffhashError, ValueError):
    """A table is not what was expected: not there, of another length, or of another model."""


class Loaded(NamedTuple):
    """What `PostgresStore.load` did."""

    added: int
    there_before: int


class PostgresStore:
    """Codes in a table of a PostgreSQL server that has the extension pgvector.

    Parameters
    ----------
    dsn : str
        Where the server is: ``postgresql://user@host/database``, or what else psycopg takes.
    table : str
        Name of the table, which may be anything; it is quoted.
    patience : float
        Seconds to wait for a server that has gone away while codes are loaded.

    Examples
    --------
    >>> from kdiffhash.engines.postgres import PostgresStore
    >>> with PostgresStore("postgresql://localhost/test") as store:  # doctest: +SKIP
    ...     store.create(n_bits=128)
    ...     store.load(codes, ids)
    ...     distances, ids = store.search(queries, k=10)
    """

    def __init__(self, dsn: str, table: str = "codes", *, patience: float = 60.0) -> None:
        self._psycopg = need("psycopg", "postgres")
        self._sql = need("psycopg.sql", "postgres")
        if not table or "\0" in table or len(table.encode()) > 63:
            raise ValueError("a table needs a name of 1 to 63 bytes without a zero byte")
        self.dsn, self.table, self.patience = dsn, table, patience
        self._connection = self._connect()

    # -- the table ------------------------------------------------------------------------------

    def create(self, n_bits: int, model: BaseHasher | None = None) -> Self:
        """Make the table, or check that the one that is there fits.

        Parameters
        ----------
        n_bits : int
        model : BaseHasher, optional
            The model that makes the codes. A table remembers it, and refuses codes of another.
        """
        if not 1 <= n_bits <= 64_000:
            raise ValueError(f"n_bits must lie in 1..64000, which pgvector indexes; got {n_bits}")
        name = None if model is None else fingerprint(model)
        with self._transaction() as cursor:
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
            found = self._meta(cursor)
            if found is None:
                columns = "id bigint PRIMARY KEY, code bit({n}) NOT NULL, data jsonb"
                self._run(cursor, f"CREATE TABLE {{table}} ({columns})", n=int(n_bits))
                note = json.dumps({"kdiffhash": {"n_bits": int(n_bits), "model": name}})
                self._run(cursor, "COMMENT ON TABLE {table} IS {note}", note=note)
                return self
        self._check_meta(found, n_bits, name)
        return self

    def drop(self) -> None:
        """Remove the table and all that is in it."""
        with self._transaction() as cursor:
            self._known(cursor)
            self._run(cursor, "DROP TABLE {table}")

    def info(self) -> dict[str, Any]:
        """What the table holds."""
        with self._transaction() as cursor:
            meta = self._known(cursor)
            (n,) = self._run(cursor, "SELECT count(*) FROM {table}").fetchone()
            cursor.execute("SELECT pg_total_relation_size(%s::regclass)", [self._quoted(cursor)])
            (size,) = cursor.fetchone()
            cursor.execute(
                "SELECT count(*) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
                "JOIN pg_am ON pg_am.oid = relam WHERE amname = 'hnsw' AND indrelid = %s::regclass",
                [self._quoted(cursor)],
            )
            (graphs,) = cursor.fetchone()
        return {"table": self.table, "codes": n, **meta, "bytes": size, "hnsw": bool(graphs)}

    # -- rows in and out ------------------------------------------------------------------------

    def load(
        self,
        codes: ArrayLike,
        ids: ArrayLike,
        data: Sequence[Mapping[str, Any] | None] | None = None,
        *,
        model: BaseHasher | None = None,
        advance: Callable[[int], None] = lambda n: None,  # noqa: ARG005
    ) -> Loaded:
        """Add codes, batch by batch; goes on where it was stopped.

        Each batch of 50,000 is one transaction. A batch that is there already, from an earlier run
        of the same load, is left as it is. If the server goes away, the load waits for it.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
            May be memory-mapped.
        ids : int array of shape (n,)
        data : sequence of n mappings, optional
            What else to keep, as JSON.
        model : BaseHasher, optional
            The model that made the codes, to be compared with the one that the table remembers.
        advance : callable, optional
            Called with the number of rows that are done.

        Returns
        -------
        added, there_before : int

        Raises
        ------
        ValueError
            If an id is there with another code. Use `upsert` to overwrite.
        """
        numbers = _check_ids(ids)
        with self._transaction() as cursor:
            meta = self._known(cursor)
        if model is not None:
            self._check_meta(meta, meta["n_bits"], fingerprint(model))
        n_bits = meta["n_bits"]
        array = np.asarray(codes)
        if array.ndim != 2 or len(array) != len(numbers):
            raise ValueError(f"codes of shape {array.shape} came with {len(numbers)} ids")
        if data is not None and len(data) != len(numbers):
            raise ValueError(f"{len(numbers)} codes came with data for {len(data)}")
        added = before = 0
        for start in range(0, len(numbers), _BATCH):
            some = slice(start, start + _BATCH)
            block = check_codes(array[some], n_bits)
            more = None if data is None else data[some]
            new = self._patiently(partial(self._add, block, numbers[some], more, n_bits))
            added, before = added + new, before + len(block) - new
            advance(len(block))
        return Loaded(added, before)

    def upsert(
        self,
        codes: ArrayLike,
        ids: ArrayLike,
        data: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Add codes, or put them in the place of those with the same ids, in one transaction."""
        numbers = _check_ids(ids)
        with self._transaction() as cursor:
            n_bits = self._known(cursor)["n_bits"]
            array = check_codes(codes, n_bits)
            if array.ndim != 2 or len(array) != len(numbers):
                raise ValueError(f"codes of shape {array.shape} came with {len(numbers)} ids")
            self._stage(cursor, array, numbers, data, n_bits)
            statement = (
                "INSERT INTO {table} SELECT * FROM kdiffhash_staged "
                "ON CONFLICT (id) DO UPDATE SET code = excluded.code, data = excluded.data"
            )
            self._run(cursor, statement)

    def delete(self, ids: ArrayLike) -> int:
        """Remove codes by their ids; how many there were."""
        with self._transaction() as cursor:
            self._known(cursor)
            statement = "DELETE FROM {table} WHERE id = ANY(%s)"
            return int(self._run(cursor, statement, _check_ids(ids).tolist()).rowcount)

    def get(self, ids: ArrayLike) -> tuple[Codes, list[Any]]:
        """Codes and data by ids, all of which must be there."""
        numbers = _check_ids(ids)
        with self._transaction() as cursor:
            n_bits = self._known(cursor)["n_bits"]
            query = "SELECT id, code::text, data FROM {table} WHERE id = ANY(%s)"
            self._run(cursor, query, numbers.tolist())
            rows = {row[0]: row[1:] for row in cursor.fetchall()}
        missing = [int(i) for i in numbers if int(i) not in rows]
        if missing:
            raise KeyError(f"{len(missing)} ids are not in the table, among them {missing[0]}")
        bits = np.array([np.frombuffer(rows[int(i)][0].encode(), np.uint8) for i in numbers])
        codes = np.packbits(bits.reshape(len(numbers), n_bits) == ord("1"), axis=1)
        return codes, [rows[int(i)][1] for i in numbers]

    # -- searching ------------------------------------------------------------------------------

    def search(
        self, queries: ArrayLike, k: int = 10, *, effort: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Find the k nearest codes of each query; equal distances by the lower id.

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes)
        k : int
        effort : int, optional
            Use the HNSW index that `build_index` made, looking at so many candidates (pgvector's
            ``hnsw.ef_search``, up to 1000). It may miss some. By default the search is exact.

        Returns
        -------
        distances : int32 array of shape (n, m)
            m is k, or the number of codes if that is less. An approximate search that finds fewer
            fills up with -1.
        ids : int64 array of shape (n, m)
        """
        if k < 1:
            raise ValueError(f"k must be above zero, got {k}")
        if effort is not None and not 1 <= effort <= 1000:
            raise ValueError(f"effort must lie in 1..1000, got {effort}")
        order = "d, id" if effort is None else "code <~> asked.code"
        statement = (
            "SELECT number, id, d FROM unnest(%s::text[]) WITH ORDINALITY AS given(text, number), "
            "LATERAL (SELECT text::bit({n}) AS code) AS asked, "
            "LATERAL (SELECT id, (code <~> asked.code)::int AS d FROM {table} "
            f"ORDER BY {order} LIMIT {{k}}) AS near"
        )
        with self._transaction() as cursor:
            n_bits = self._known(cursor)["n_bits"]
            asked = _check_queries(queries, n_bits)
            count = "SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT {k}) AS counted"
            columns = int(self._run(cursor, count, k=int(k)).fetchone()[0])
            if effort is not None:
                cursor.execute("SELECT set_config('hnsw.ef_search', %s, true)", [str(int(effort))])
                cursor.execute("SET LOCAL enable_seqscan = off")
            distances = np.full((len(asked), columns), -1, np.int32)
            ids = np.full((len(asked), columns), -1, np.int64)
            for owner, found in self._ask(cursor, statement, asked, n_bits, k=int(k)):
                found = sorted(found, key=lambda row: (row[1], row[0]))[:columns]
                ids[owner, : len(found)] = [row[0] for row in found]
                distances[owner, : len(found)] = [row[1] for row in found]
        return distances, ids

    def search_radius(self, queries: ArrayLike, radius: int) -> Within:
        """Find all codes within a distance of each query, nearest first."""
        if radius < 0:
            raise ValueError(f"radius must be zero or more, got {radius}")
        statement = (
            "SELECT number, id, d FROM unnest(%s::text[]) WITH ORDINALITY AS given(text, number), "
            "LATERAL (SELECT text::bit({n}) AS code) AS asked, "
            "LATERAL (SELECT id, (code <~> asked.code)::int AS d FROM {table}) AS near "
            "WHERE d <= {radius}"
        )
        with self._transaction() as cursor:
            n_bits = self._known(cursor)["n_bits"]
            asked = _check_queries(queries, n_bits)
            starts = np.zeros(len(asked) + 1, np.int64)
            rows: list[tuple[int, int]] = []
            for owner, found in self._ask(cursor, statement, asked, n_bits, radius=int(radius)):
                starts[owner + 1] = len(found)
                rows.extend(sorted(found, key=lambda row: (row[1], row[0])))
        np.cumsum(starts, out=starts)
        ids = np.array([row[0] for row in rows], np.int64)
        return Within(starts, ids, np.array([row[1] for row in rows], np.int32))

    def build_index(self, *, links: int = 16, effort: int = 64) -> None:
        """Build an HNSW index (pgvector's `m` and `ef_construction`) for approximate search."""
        if not 2 <= links <= 100 or not max(4, 2 * links) <= effort <= 1000:
            raise ValueError("links must lie in 2..100, effort in 2 * links..1000")
        with self._transaction() as cursor:
            self._known(cursor)
            statement = (
                "CREATE INDEX ON {table} USING hnsw (code bit_hamming_ops) "
                "WITH (m = {links}, ef_construction = {effort})"
            )
            self._run(cursor, statement, links=links, effort=effort)

    # -- connection -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _connect(self) -> Any:
        try:
            return self._psycopg.connect(self.dsn, connect_timeout=10)
        except self._psycopg.Error as error:
            raise ConnectionError(f"no connection to PostgreSQL: {_line(error)}") from None

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A cursor in a transaction, which is undone if anything fails."""
        if self._connection.closed:
            self._connection = self._connect()
        try:
            with self._connection.transaction(), self._connection.cursor() as cursor:
                yield cursor
        except self._psycopg.OperationalError as error:
            raise ConnectionError(f"PostgreSQL: {_line(error)}") from error
        except self._psycopg.Error as error:
            raise StoreError(f"PostgreSQL: {_line(error)}") from error

    def _patiently(self, work: Callable[[], T]) -> T:
        """Do a transaction; if the server goes away, wait for it and do it again."""
        end, pause = time.monotonic() + self.patience, 0.2
        while True:
            try:
                return work()
            except ConnectionError:
                if time.monotonic() + pause > end:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    # -- inside ---------------------------------------------------------------------------------

    def _run(self, cursor: Any, text: str, *values: Any, **numbers: int | str) -> Any:
        """Run a statement in which {table} is the table and other names are literals; its cursor.

        Values are bound. A percent sign in a name would be taken for a place to bind one.
        """
        table = self._sql.Identifier(self.table.replace("%", "%%"))
        literals = {name: self._sql.Literal(value) for name, value in numbers.items()}
        return cursor.execute(self._sql.SQL(text).format(table=table, **literals), values)

    def _quoted(self, cursor: Any) -> str:
        return str(self._sql.Identifier(self.table).as_string(cursor))

    def _meta(self, cursor: Any) -> dict[str, Any] | None:
        """What the comment of the table says; None if there is no such table."""
        cursor.execute("SELECT to_regclass(%s)", [self._quoted(cursor)])
        if cursor.fetchone()[0] is None:
            return None
        query = "SELECT obj_description(%s::regclass, 'pg_class')"
        cursor.execute(query, [self._quoted(cursor)])
        try:
            meta = json.loads(cursor.fetchone()[0])["kdiffhash"]
            return {"n_bits": int(meta["n_bits"]), "model": meta["model"]}
        except (TypeError, ValueError, KeyError):
            raise StoreError(f"the table {self.table!r} is not one of kdiffhash's") from None

    def _known(self, cursor: Any) -> dict[str, Any]:
        meta = self._meta(cursor)
        if meta is None:
            raise StoreError(f"there is no table {self.table!r}; make it with create(n_bits)")
        return meta

    def _check_meta(self, found: dict[str, Any], n_bits: int, model: str | None) -> None:
        if found["n_bits"] != n_bits:
            raise StoreError(
                f"the table {self.table!r} holds codes of {found['n_bits']} bits, not {n_bits}"
            )
        if found["model"] != model:
            raise StoreError(
                f"the table {self.table!r} holds codes of another model; use another table, or "
                "encode with the model that made them"
            )

    def _add(
        self,
        codes: Codes,
        ids: NDArray[np.int64],
        data: Sequence[Mapping[str, Any] | None] | None,
        n_bits: int,
    ) -> int:
        """Add one batch; how many of its rows were not there yet."""
        with self._transaction() as cursor:
            try:
                with self._connection.transaction():
                    self._copy(cursor, self.table, codes, ids, data, n_bits)
                return len(ids)
            except self._psycopg.errors.UniqueViolation:
                pass  # some of the batch is there already
            self._stage(cursor, codes, ids, data, n_bits)
            query = (
                "SELECT s.id FROM kdiffhash_staged s JOIN {table} t USING (id) "
                "WHERE s.code <> t.code LIMIT 1"
            )
            if other := self._run(cursor, query).fetchone():
                raise ValueError(
                    f"id {other[0]} is in the table with another code; use upsert to overwrite"
                )
            query = "INSERT INTO {table} SELECT * FROM kdiffhash_staged ON CONFLICT DO NOTHING"
            return int(self._run(cursor, query).rowcount)

    def _stage(
        self,
        cursor: Any,
        codes: Codes,
        ids: NDArray[np.int64],
        data: Sequence[Mapping[str, Any] | None] | None,
        n_bits: int,
    ) -> None:
        """Put rows into a table that lives as long as the transaction."""
        cursor.execute("DROP TABLE IF EXISTS pg_temp.kdiffhash_staged")
        query = "CREATE TEMP TABLE kdiffhash_staged (LIKE {table}) ON COMMIT DROP"
        self._run(cursor, query)
        self._copy(cursor, "kdiffhash_staged", codes, ids, data, n_bits)

    def _copy(
        self,
        cursor: Any,
        table: str,
        codes: Codes,
        ids: NDArray[np.int64],
        data: Sequence[Mapping[str, Any] | None] | None,
        n_bits: int,
    ) -> None:
        columns = "id, code" if data is None else "id, code, data"
        statement = self._sql.SQL(f"COPY {{table}} ({columns}) FROM STDIN (FORMAT binary)")
        with cursor.copy(statement.format(table=self._sql.Identifier(table))) as copy:
            copy.write(_SIGNATURE)
            copy.write(_copy_rows(codes, ids, data, n_bits))
            copy.write(_END)

    def _ask(
        self, cursor: Any, statement: str, asked: Codes, n_bits: int, **numbers: int
    ) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Number of each query and what was found for it, as (id, distance)."""
        for start in range(0, len(asked), _QUERIES):
            some = np.unpackbits(asked[start : start + _QUERIES], axis=1, count=n_bits)
            texts = [(line + ord("0")).tobytes().decode() for line in some]
            found: list[list[tuple[int, int]]] = [[] for _ in texts]
            for number, id_, d in self._run(cursor, statement, texts, n=n_bits, **numbers):
                found[number - 1].append((id_, d))
            for i, rows in enumerate(found):
                yield start + i, rows


def _copy_rows(
    codes: Codes,
    ids: NDArray[np.int64],
    data: Sequence[Mapping[str, Any] | None] | None,
    n_bits: int,
) -> bytes:
    """Rows in PostgreSQL's binary format: number of fields, then length and bytes of each."""
    width = n_bytes(n_bits)
    rows = np.zeros(
        len(codes),
        [("n", ">i2"), ("a", ">i4"), ("id", ">i8"), ("b", ">i4"), ("bits", ">i4"),
         ("code", np.uint8, (width,))],
    )  # fmt: skip
    rows["n"], rows["a"], rows["b"], rows["bits"] = 2 if data is None else 3, 8, 4 + width, n_bits
    rows["id"], rows["code"] = ids, codes
    if data is None:
        return rows.tobytes()
    parts = []
    for row, more in zip(rows, data):
        parts.append(row.tobytes())
        if more is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            content = b"\x01" + json.dumps(more).encode()  # version of jsonb's binary form
            parts.append(len(content).to_bytes(4, "big") + content)
    return b"".join(parts)


def _check_ids(ids: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(ids)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"ids must be whole numbers, shape (n,), got {array.dtype} {array.shape}")
    if len(np.unique(array)) < len(array):
        raise ValueError("some ids came twice; give each code its own")
    return array.astype(np.int64)


def _check_queries(queries: ArrayLike, n_bits: int) -> Codes:
    array = check_codes(queries, n_bits)
    if array.ndim != 2:
        raise ValueError(f"queries must be rows, shape (n, n_bytes), got shape {array.shape}")
    return array


def _line(error: BaseException) -> str:
    return str(error).strip().replace("\n", "; ") or type(error).__name__
