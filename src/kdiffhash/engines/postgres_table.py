"""A table of codes in PostgreSQL: its connection, its statements, its comment, and COPY into it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .._util.errors import KdiffhashError
from .._util.extras import need
from ..codes import Codes, n_bytes
from ..search.segment import Ids

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # head of a binary COPY: no flags, nothing more
END = b"\xff\xff"

Data = Sequence[Mapping[str, Any] | None]
T = TypeVar("T")


class StoreError(KdiffhashError, ValueError):
    """A table is not what was expected: not there, of another length, or not of kdiffhash."""


class Meta(NamedTuple):
    """What the comment of a table says."""

    n_bits: int
    model: str | None


class Table:
    """A table by its name, which may be anything, and the connection to its server."""

    def __init__(self, dsn: str, name: str, patience: float) -> None:
        self._psycopg = need("psycopg", "postgres")
        self._sql = need("psycopg.sql", "postgres")
        if not name or "\0" in name or len(name.encode()) > 63:
            raise ValueError("a table needs a name of 1 to 63 bytes without a zero byte")
        self.dsn, self.name, self.patience = dsn, name, patience
        self._connection = self._connect()

    # -- connection -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _connect(self) -> Any:
        try:
            return self._psycopg.connect(self.dsn, connect_timeout=10)
        except self._psycopg.Error as error:
            raise ConnectionError(f"no connection to PostgreSQL: {_line(error)}") from None

    @contextmanager
    def transaction(self) -> Iterator[Any]:
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

    def patiently(self, work: Callable[[], T]) -> T:
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

    # -- statements -----------------------------------------------------------------------------

    def run(self, cursor: Any, text: str, *values: Any, **numbers: int | str) -> Any:
        """Run a statement in which {table} is the table and other names are literals; its cursor.

        Values are bound. A percent sign in a name would be taken for a place to bind one.
        """
        table = self._sql.Identifier(self.name.replace("%", "%%"))
        literals = {name: self._sql.Literal(value) for name, value in numbers.items()}
        return cursor.execute(self._sql.SQL(text).format(table=table, **literals), values)

    def quoted(self, cursor: Any) -> str:
        """The name as PostgreSQL casts it to a regclass."""
        return str(self._sql.Identifier(self.name).as_string(cursor))

    def find(self, cursor: Any) -> Meta | None:
        """What the comment of the table says; None if there is no such table."""
        cursor.execute("SELECT to_regclass(%s)", [self.quoted(cursor)])
        if cursor.fetchone()[0] is None:
            return None
        query = "SELECT obj_description(%s::regclass, 'pg_class')"
        cursor.execute(query, [self.quoted(cursor)])
        try:
            meta = json.loads(cursor.fetchone()[0])["kdiffhash"]
            return Meta(int(meta["n_bits"]), meta["model"])
        except (TypeError, ValueError, KeyError):
            raise StoreError(f"the table {self.name!r} is not one of kdiffhash's") from None

    @contextmanager
    def opened(self) -> Iterator[tuple[Any, Meta]]:
        """A cursor in a transaction, and what the comment of the table says; it must be there."""
        with self.transaction() as cursor:
            meta = self.find(cursor)
            if meta is None:
                raise StoreError(f"there is no table {self.name!r}; make it with create(n_bits)")
            yield cursor, meta

    # -- rows in --------------------------------------------------------------------------------

    def copy_new(self, cursor: Any, codes: Codes, ids: Ids, data: Data | None, n_bits: int) -> bool:
        """Copy rows into the table; False, and nothing is done, if some of the ids are there."""
        try:
            with self._connection.transaction():
                self._copy(cursor, self.name, codes, ids, data, n_bits)
            return True
        except self._psycopg.errors.UniqueViolation:
            return False

    def stage(self, cursor: Any, codes: Codes, ids: Ids, data: Data | None, n_bits: int) -> None:
        """Put rows into a table that lives as long as the transaction."""
        cursor.execute("DROP TABLE IF EXISTS pg_temp.kdiffhash_staged")
        self.run(cursor, "CREATE TEMP TABLE kdiffhash_staged (LIKE {table}) ON COMMIT DROP")
        self._copy(cursor, "kdiffhash_staged", codes, ids, data, n_bits)

    def _copy(
        self, cursor: Any, table: str, codes: Codes, ids: Ids, data: Data | None, n_bits: int
    ) -> None:
        columns = "id, code" if data is None else "id, code, data"
        statement = self._sql.SQL(f"COPY {{table}} ({columns}) FROM STDIN (FORMAT binary)")
        with cursor.copy(statement.format(table=self._sql.Identifier(table))) as copy:
            copy.write(SIGNATURE)
            copy.write(copy_rows(codes, ids, data, n_bits))
            copy.write(END)


def copy_rows(codes: Codes, ids: Ids, data: Data | None, n_bits: int) -> bytes:
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


def _line(error: BaseException) -> str:
    return str(error).strip().replace("\n", "; ") or type(error).__name__
