"""A table of codes in PostgreSQL: its comment, its statements, and adding rows by binary COPY."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .._util.extras import need
from ..codes import Codes, n_bytes
from ..search.code_store import Upserted
from ..search.segment import Ids
from .postgres_connection import Connection
from .store_rows import Data, Meta, StoreError, encode_data, is_name, refuse_other_code

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # header of binary COPY: no flags, no extension
END = b"\xff\xff"  # trailer of binary COPY
_ROWS = 50_000  # rows sent at a time

T = TypeVar("T")


class Rows(NamedTuple):
    """Rows to be added: codes, their ids, their data (or None), and the length of the codes."""

    codes: Codes
    ids: Ids
    data: Data | None
    n_bits: int

    @property
    def columns(self) -> str:
        """The columns of the table that are written; users may have added others."""
        return "id, code" if self.data is None else "id, code, data"


class Table:
    """A table, by its name, and the connection to its server."""

    def __init__(self, dsn: str, name: str, reconnect_timeout: float) -> None:
        self._psycopg = need("psycopg", "postgres")
        self._sql = need("psycopg.sql", "postgres")
        if not is_name(name) or len(name.encode()) > 63:
            raise ValueError(
                "the name of a table must be a text of 1 to 63 bytes and no zero byte, got "
                f"{name!r}"
            )
        self.name = name
        self.connection = Connection(dsn, reconnect_timeout)

    # -- transactions and statements ------------------------------------------------------------

    def read(self, work: Callable[[Any, Meta], T]) -> T:
        """Call `work` with a cursor and the `Meta` of the table, in a transaction that reads."""
        return self.connection.read(lambda cursor: work(cursor, self._meta(cursor)))

    def write(self, work: Callable[[Any, Meta], T]) -> T:
        """Call `work` with a cursor and the `Meta` of the table, in a transaction that writes."""
        return self.connection.write(lambda cursor: work(cursor, self._meta(cursor)))

    def execute(self, cursor: Any, text: str, *values: Any, **parts: Any) -> Any:
        """Execute a statement and return the cursor.

        ``{table}`` in `text` stands for the quoted name of the table, other names in braces for
        `parts` (identifiers, or values that become literals), and each ``%s`` for one of `values`,
        which are bound.
        """
        # psycopg would take a percent sign in the name for a placeholder.
        table = self._sql.Identifier(self.name.replace("%", "%%"))
        is_sql = self._sql.Composable
        quoted = {
            name: part if isinstance(part, is_sql) else self._sql.Literal(part)
            for name, part in parts.items()
        }
        return cursor.execute(self._sql.SQL(text).format(table=table, **quoted), values)

    def identifier(self, name: str) -> Any:
        """Return the quoted name of a column, as a part of a statement."""
        return self._sql.Identifier(name.replace("%", "%%"))

    def quoted_name(self, cursor: Any) -> str:
        """Return the name of the table in the form that PostgreSQL casts to regclass."""
        return str(self._sql.Identifier(self.name).as_string(cursor))

    # -- the table ------------------------------------------------------------------------------

    def read_meta(self, cursor: Any) -> Meta | None:
        """Return what the comment of the table records; None if there is no such table."""
        query = "SELECT obj_description(oid, 'pg_class') FROM pg_class WHERE oid = to_regclass(%s)"
        row = cursor.execute(query, [self.quoted_name(cursor)]).fetchone()
        if row is None:
            return None
        try:
            meta = json.loads(row[0])["kdiffhash"]
            return Meta(int(meta["n_bits"]), meta["model"])
        except (TypeError, ValueError, KeyError):
            raise StoreError(
                f"the table {self.name!r} was not created by kdiffhash; use another name"
            ) from None

    def _meta(self, cursor: Any) -> Meta:
        meta = self.read_meta(cursor)
        if meta is None:
            raise StoreError(f"there is no table {self.name!r}; create it with create(n_bits)")
        return meta

    def create(self, cursor: Any, meta: Meta) -> Meta:
        """Create the table unless it exists, and return what its comment records."""
        # IF NOT EXISTS does not wait for others who create the same: both would create it.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('kdiffhash create', 0))")
        cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
        stored = self.read_meta(cursor)
        if stored is None:
            columns = "id bigint PRIMARY KEY, code bit({n}) NOT NULL, data jsonb"
            self.execute(cursor, f"CREATE TABLE {{table}} ({columns})", n=meta.n_bits)
            comment = json.dumps({"kdiffhash": meta._asdict()})
            self.execute(cursor, "COMMENT ON TABLE {table} IS {comment}", comment=comment)
            # Its last value is the highest id that was removed; it is dropped with the table.
            sequence = self._sql.Identifier(f"kdiffhash_{uuid.uuid4().hex}")
            statement = "CREATE SEQUENCE {sequence} MINVALUE 0 OWNED BY {table}.id"
            self.execute(cursor, statement, sequence=sequence)
        return stored or meta

    # -- new ids --------------------------------------------------------------------------------

    def next_id(self, cursor: Any) -> int:
        """Return the id above all that are stored or were removed by `PostgresStore.remove`."""
        query = (
            "SELECT greatest((SELECT max(id) FROM {table}), CASE WHEN "
            "has_sequence_privilege(name, 'SELECT') THEN pg_sequence_last_value(name::regclass) "
            "END, -1) + 1 FROM pg_get_serial_sequence(%s, 'id') AS name"
        )
        return int(self.execute(cursor, query, self.quoted_name(cursor)).fetchone()[0])

    def note_removed(self, cursor: Any, highest: int) -> None:
        """Record the highest id of removed rows, so that it is not assigned again."""
        query = (
            "SELECT setval(name::regclass, greatest(%s, pg_sequence_last_value(name::regclass))) "
            "FROM pg_get_serial_sequence(%s, 'id') AS name "
            "WHERE %s >= 0 AND has_sequence_privilege(name, 'SELECT, UPDATE')"
        )
        cursor.execute(query, [highest, self.quoted_name(cursor), highest])

    # -- adding rows ----------------------------------------------------------------------------

    def try_copy(self, cursor: Any, rows: Rows) -> bool:
        """Copy rows into the table; if they violate a unique constraint, return False."""
        try:
            with self.connection.savepoint():
                self.copy(cursor, rows)
            return True
        except self._psycopg.errors.UniqueViolation:
            return False

    def insert_missing(self, cursor: Any, rows: Rows) -> int:
        """Insert the rows whose ids are not stored, and return their number.

        Raises `ValueError` if an id is stored with a different code.
        """
        staged = self._stage(cursor, rows)
        insert = (
            f"INSERT INTO {{table}} ({rows.columns}) SELECT {rows.columns} FROM {{staged}} "
            "ORDER BY id ON CONFLICT (id) DO NOTHING"
        )
        added = int(self.execute(cursor, insert, staged=staged).rowcount)
        # Compared after the insertion, because other sessions may have added rows until then.
        query = (
            "SELECT count(*), min(s.id) FILTER (WHERE s.code <> t.code) "
            "FROM {staged} AS s JOIN {table} AS t ON s.id = t.id"
        )
        n_stored, conflict = self.execute(cursor, query, staged=staged).fetchone()
        if conflict is not None:
            refuse_other_code(conflict)
        if n_stored < len(rows.ids):  # retried, like other conflicts between sessions
            raise self._psycopg.errors.SerializationFailure(
                f"{len(rows.ids) - n_stored} rows were removed while they were imported, by "
                "another session or by a trigger of the table"
            )
        return added

    def upsert(self, cursor: Any, rows: Rows) -> Upserted:
        """Insert or overwrite rows; return the numbers of rows added and replaced."""
        staged = self._stage(cursor, rows)
        data = "" if rows.data is None else ", data = excluded.data"
        statement = (
            f"WITH done AS (INSERT INTO {{table}} AS t ({rows.columns}) "
            f"SELECT {rows.columns} FROM {{staged}} ORDER BY id "
            f"ON CONFLICT (id) DO UPDATE SET code = excluded.code{data} "
            # A row that is overwritten was locked before, and has the lock's number in xmax.
            "RETURNING t.xmax = 0 AS is_new) "
            "SELECT count(*) FILTER (WHERE is_new), count(*) FILTER (WHERE NOT is_new) FROM done"
        )
        added, replaced = self.execute(cursor, statement, staged=staged).fetchone()
        self._refuse_dropped(added + replaced, len(rows.ids))
        return Upserted(added, replaced)

    def _stage(self, cursor: Any, rows: Rows) -> Any:
        """Copy rows into a new temporary table, dropped at commit, and return its name."""
        staged = self._sql.Identifier("pg_temp", f"kdiffhash_{uuid.uuid4().hex}")
        columns = "id bigint, code bit({n}), data jsonb"
        statement = f"CREATE TABLE {{staged}} ({columns}) ON COMMIT DROP"
        self.execute(cursor, statement, staged=staged, n=rows.n_bits)
        self.copy(cursor, rows, staged)
        return staged

    def copy(self, cursor: Any, rows: Rows, target: Any = None) -> None:
        """Copy rows into the table, or into `target`, with COPY in binary format."""
        codes, ids, data, n_bits = rows
        statement = self._sql.SQL(f"COPY {{target}} ({rows.columns}) FROM STDIN (FORMAT binary)")
        target = target or self._sql.Identifier(self.name)
        with cursor.copy(statement.format(target=target)) as copy:
            copy.write(SIGNATURE)
            for start in range(0, len(ids), _ROWS):
                part = slice(start, start + _ROWS)
                items = None if data is None else data[part]
                copy.write(copy_rows(codes[part], ids[part], items, n_bits))
            copy.write(END)
        self._refuse_dropped(cursor.rowcount, len(ids))

    def _refuse_dropped(self, n_stored: int, n: int) -> None:
        if n_stored != n:
            raise StoreError(
                f"the table {self.name!r} accepted {n_stored} of {n} rows; remove the trigger or "
                "rule that drops rows"
            )


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
    for row, item in zip(rows, data, strict=True):
        pieces.append(row.tobytes())
        if item is None:
            pieces.append(b"\xff\xff\xff\xff")  # a size of -1 is NULL
        else:
            text = encode_data(item, int(row["id"]))
            content = b"\x01" + text.encode()  # jsonb starts with its version, 1
            pieces.append(len(content).to_bytes(4, "big") + content)
    return b"".join(pieces)
