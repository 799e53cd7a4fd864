"""A table of codes in PostgreSQL: connection, transactions, SQL statements and binary COPY."""

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

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # header of binary COPY: no flags, no extension
END = b"\xff\xff"  # trailer of binary COPY

Data = Sequence[Mapping[str, Any] | None]
T = TypeVar("T")


class StoreError(KdiffhashError, ValueError):
    """A statement failed, or the table is missing, has another length, or is not kdiffhash's.

    Examples
    --------
    >>> from kdiffhash import KdiffhashError
    >>> from kdiffhash.engines.postgres import StoreError
    >>> issubclass(StoreError, KdiffhashError), issubclass(StoreError, ValueError)
    (True, True)
    """


class Meta(NamedTuple):
    """What the comment of a table records: length of the codes, and fingerprint of the model."""

    n_bits: int
    model: str | None


class Table:
    """A table, by its name, and the connection to its server."""

    def __init__(self, dsn: str, name: str, patience: float) -> None:
        self._psycopg = need("psycopg", "postgres")
        self._sql = need("psycopg.sql", "postgres")
        if not name or "\0" in name or len(name.encode()) > 63:
            raise ValueError(
                f"the name of a table must have 1 to 63 bytes and no zero byte, got {name!r}"
            )
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
            raise ConnectionError(f"cannot connect to PostgreSQL: {_one_line(error)}") from None

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Yield a cursor in a transaction, which is rolled back if an exception is raised."""
        if self._connection.closed:
            self._connection = self._connect()
        try:
            with self._connection.transaction(), self._connection.cursor() as cursor:
                yield cursor
        except self._psycopg.OperationalError as error:
            raise ConnectionError(f"PostgreSQL: {_one_line(error)}") from error
        except self._psycopg.Error as error:
            raise StoreError(f"PostgreSQL: {_one_line(error)}") from error

    def retry(self, transact: Callable[[], T]) -> T:
        """Run a transaction; if the connection is lost, retry it with increasing delays."""
        deadline, delay = time.monotonic() + self.patience, 0.2
        while True:
            try:
                return transact()
            except ConnectionError:
                if time.monotonic() + delay > deadline:
                    raise
            time.sleep(delay)
            delay = min(2 * delay, 5.0)

    # -- statements -----------------------------------------------------------------------------

    def execute(self, cursor: Any, text: str, *values: Any, **literals: int | str) -> Any:
        """Execute a statement and return the cursor.

        ``{table}`` in `text` stands for the quoted name of the table, other names in braces for
        `literals`, and each ``%s`` for one of `values`, which are bound.
        """
        # psycopg would take a percent sign in the name for a placeholder.
        table = self._sql.Identifier(self.name.replace("%", "%%"))
        quoted = {name: self._sql.Literal(value) for name, value in literals.items()}
        return cursor.execute(self._sql.SQL(text).format(table=table, **quoted), values)

    def quoted_name(self, cursor: Any) -> str:
        """Return the name of the table in the form that PostgreSQL casts to regclass."""
        return str(self._sql.Identifier(self.name).as_string(cursor))

    def read_meta(self, cursor: Any) -> Meta | None:
        """Return what the comment of the table records; None if there is no such table."""
        cursor.execute("SELECT to_regclass(%s)", [self.quoted_name(cursor)])
        if cursor.fetchone()[0] is None:
            return None
        query = "SELECT obj_description(%s::regclass, 'pg_class')"
        cursor.execute(query, [self.quoted_name(cursor)])
        try:
            meta = json.loads(cursor.fetchone()[0])["kdiffhash"]
            return Meta(int(meta["n_bits"]), meta["model"])
        except (TypeError, ValueError, KeyError):
            raise StoreError(
                f"the table {self.name!r} was not created by kdiffhash; use another name"
            ) from None

    @contextmanager
    def open(self) -> Iterator[tuple[Any, Meta]]:
        """Yield a cursor in a transaction, and what the comment of the table records.

        Raises `StoreError` if there is no such table.
        """
        with self.transaction() as cursor:
            meta = self.read_meta(cursor)
            if meta is None:
                raise StoreError(f"there is no table {self.name!r}; create it with create(n_bits)")
            yield cursor, meta

    # -- adding rows ----------------------------------------------------------------------------

    def try_copy(self, cursor: Any, codes: Codes, ids: Ids, data: Data | None, n_bits: int) -> bool:
        """Copy rows into the table; if an id is stored already, return False and copy none."""
        try:
            with self._connection.transaction():
                self._copy(cursor, self.name, codes, ids, data, n_bits)
            return True
        except self._psycopg.errors.UniqueViolation:
            return False

    def stage(self, cursor: Any, codes: Codes, ids: Ids, data: Data | None, n_bits: int) -> None:
        """Copy rows into a temporary table that is dropped at the end of the transaction."""
        cursor.execute("DROP TABLE IF EXISTS pg_temp.kdiffhash_staged")
        self.execute(cursor, "CREATE TEMP TABLE kdiffhash_staged (LIKE {table}) ON COMMIT DROP")
        self._copy(cursor, "kdiffhash_staged", codes, ids, data, n_bits)

    def _copy(
        self, cursor: Any, table: str, codes: Codes, ids: Ids, data: Data | None, n_bits: int
    ) -> None:
        """Copy rows into a table with COPY in binary format."""
        columns = "id, code" if data is None else "id, code, data"
        statement = self._sql.SQL(f"COPY {{table}} ({columns}) FROM STDIN (FORMAT binary)")
        with cursor.copy(statement.format(table=self._sql.Identifier(table))) as copy:
            copy.write(SIGNATURE)
            copy.write(copy_rows(codes, ids, data, n_bits))
            copy.write(END)


def copy_rows(codes: Codes, ids: Ids, data: Data | None, n_bits: int) -> bytes:
    """Return rows in the format of binary COPY: number of fields, then length and bytes of each."""
    width = n_bytes(n_bits)
    rows = np.zeros(
        len(codes),
        [("n_fields", ">i2"), ("id_size", ">i4"), ("id", ">i8"),
         ("code_size", ">i4"), ("n_bits", ">i4"), ("code", np.uint8, (width,))],
    )  # fmt: skip
    rows["n_fields"] = 2 if data is None else 3
    rows["id_size"], rows["id"] = 8, ids
    rows["code_size"], rows["n_bits"], rows["code"] = 4 + width, n_bits, codes
    if data is None:
        return rows.tobytes()
    pieces = []
    for row, item in zip(rows, data):
        pieces.append(row.tobytes())
        if item is None:
            pieces.append(b"\xff\xff\xff\xff")  # a size of -1 is NULL
        else:
            content = b"\x01" + json.dumps(item).encode()  # jsonb starts with its version, 1
            pieces.append(len(content).to_bytes(4, "big") + content)
    return b"".join(pieces)


def _one_line(error: BaseException) -> str:
    return str(error).strip().replace("\n", "; ") or type(error).__name__
