"""A table of codes in an SQLite file, and its statements."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from ..codes import Codes, check_codes, n_bytes
from ..search.index_format import MAX_BITS
from ..search.segment import Ids
from .sqlite_connection import Connection
from .store_rows import Data, Meta, StoreError, encode_data, is_name

T = TypeVar("T")

_STORES = "kdiffhash_stores"  # what is recorded for each table of codes
_ROWS = 50_000  # rows read or written at a time
_AMONG = "id IN (SELECT value FROM json_each(?))"  # ids are passed as a JSON array


class Table:
    """A table, by its name, and the connection to its file."""

    def __init__(self, connection: Connection, name: str) -> None:
        if not is_name(name) or name.lower().startswith("sqlite_") or name.lower() == _STORES:
            raise ValueError(
                "the name of a table must be a text with at least 1 character, no zero byte, not "
                f"start with sqlite_ and not be {_STORES}, got {name!r}"
            )
        self.name, self.connection = name, connection
        self.quoted = '"' + name.replace('"', '""') + '"'
        self.where = f"the table {name!r} of {connection.path}"

    # -- transactions and statements ------------------------------------------------------------

    def read(self, work: Callable[[Meta], T]) -> T:
        """Call `work` with the `Meta` of the table, in a transaction that reads."""
        return self.connection.read(lambda: work(self._meta()))

    def write(self, work: Callable[[Meta], T]) -> T:
        """Call `work` with the `Meta` of the table, in a transaction that writes."""
        return self.connection.write(lambda: work(self._meta()))

    def execute(self, text: str, *values: Any) -> Any:
        """Execute a statement; ``{table}`` in it stands for the quoted name of the table."""
        return self.connection.execute(text.replace("{table}", self.quoted), *values)

    # -- the table ------------------------------------------------------------------------------

    def read_meta(self) -> Meta | None:
        """Return what is recorded for the table; None if there is no such table."""
        query = (
            "SELECT name = ?2 COLLATE NOCASE, type = 'table' AND sql LIKE 'CREATE TABLE%' "
            "FROM sqlite_master WHERE type IN ('table', 'view') "
            "AND (name = ?1 COLLATE NOCASE OR name = ?2 COLLATE NOCASE)"
        )
        found = dict(self.execute(query, self.name, _STORES).fetchall())  # is it _STORES: is it one
        if 0 not in found:
            return None
        row = None
        if found[0] and found.get(1):
            query = f"SELECT n_bits, CAST(model AS BLOB) FROM {_STORES} WHERE name = ?"
            row = self.execute(query, self.name).fetchone()
        if row is None:
            raise StoreError(f"{self.where} was not created by kdiffhash; use another name")
        n_bits, model = row
        if not isinstance(n_bits, int) or not 1 <= n_bits <= MAX_BITS:
            raise StoreError(f"{self.where} is recorded with a length of {n_bits!r}; it is damaged")
        return Meta(n_bits, None if model is None else model.decode("ascii", "replace"))

    def _meta(self) -> Meta:
        meta = self.read_meta()
        if meta is None:
            raise StoreError(f"there is no {self.where[4:]}; create it with create(n_bits)")
        return meta

    def create(self, meta: Meta) -> Meta:
        """Create the table unless it exists, and return what is recorded for it."""
        stored = self.read_meta()
        if stored is None:
            self.execute(
                f"CREATE TABLE IF NOT EXISTS {_STORES} "
                "(name TEXT PRIMARY KEY COLLATE NOCASE, n_bits INTEGER NOT NULL, model TEXT, "
                "removed INTEGER NOT NULL DEFAULT -1)"
            )
            check = f"CHECK (typeof(code) = 'blob' AND length(code) = {n_bytes(meta.n_bits)})"
            columns = f"id INTEGER PRIMARY KEY, code BLOB NOT NULL {check}, data TEXT"
            self.execute(f"CREATE TABLE {{table}} ({columns})")
            statement = f"INSERT OR REPLACE INTO {_STORES} (name, n_bits, model) VALUES (?, ?, ?)"
            self.execute(statement, self.name, *meta)
        return stored or meta

    def drop(self) -> None:
        """Drop the table, and forget its length and model."""
        self.execute("DROP TABLE {table}")
        self.execute(f"DELETE FROM {_STORES} WHERE name = ?", self.name)

    def has_triggers(self) -> bool:
        """Return whether the user has added triggers, which may drop or change rows."""
        query = "SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE"
        return self.execute(query, self.name).fetchone() is not None

    # -- reading --------------------------------------------------------------------------------

    def next_id(self) -> int:
        """Return the id above all that are stored or were removed by `SQLiteStore.remove`."""
        query = f"SELECT (SELECT max(id) FROM {{table}}), removed FROM {_STORES} WHERE name = ?"
        highest, removed = self.execute(query, self.name).fetchone()
        if not isinstance(removed, int):
            raise self._changed(f"{str(removed)[:40]!r} as the highest removed id")
        return int(1 + max(-1 if highest is None else highest, removed, -1))

    def stored_ids(self, ids: Ids) -> Ids:
        """Return those of some ids that are stored."""
        rows = self._values("id", ids)
        return np.array([i for i, _ in rows], np.int64)

    def values(self, column: str, ids: Ids) -> dict[int, Any]:
        """Return the values of a column (an SQL expression) by id, for those that are stored."""
        return dict(self._values(column, ids))

    def _values(self, column: str, ids: Ids) -> Iterator[tuple[int, Any]]:
        query = f"SELECT id, {column} FROM {{table}} WHERE {_AMONG}"
        for start in range(0, len(ids), _ROWS):
            chunk = json.dumps(ids[start : start + _ROWS].tolist())
            yield from self.execute(query, chunk).fetchall()

    def all_rows(self, n_bits: int) -> tuple[Codes, Ids]:
        """Return all codes and their ids, ascending."""
        cursor = iter(self.execute("SELECT id, code FROM {table} ORDER BY id"))
        codes, ids = [np.empty((0, n_bytes(n_bits)), np.uint8)], [np.empty(0, np.int64)]
        while rows := list(islice(cursor, _ROWS)):
            chunk_ids, blobs = zip(*rows)
            codes.append(self.to_codes(blobs, n_bits))
            try:
                ids.append(np.array(chunk_ids, np.int64))
            except (TypeError, ValueError, OverflowError):
                raise self._changed("ids that are not integers") from None
        return np.concatenate(codes), np.concatenate(ids)

    def to_codes(self, blobs: Any, n_bits: int) -> Codes:
        """Return stored blobs as codes, after checking them."""
        width = n_bytes(n_bits)
        if any(type(blob) is not bytes or len(blob) != width for blob in blobs):
            raise self._changed(f"codes that are not blobs of {width} bytes")
        codes = np.frombuffer(b"".join(blobs), np.uint8).reshape(-1, width)
        try:
            return check_codes(codes, n_bits)
        except ValueError:
            raise self._changed(f"codes with bits beyond the first {n_bits}") from None

    def _changed(self, content: str) -> StoreError:
        return StoreError(f"{self.where} holds {content}; it was changed by other means")

    # -- writing --------------------------------------------------------------------------------

    def insert(self, codes: Codes, ids: Ids, data: Data | None, *, replace: bool = False) -> None:
        """Insert rows; with `replace`, overwrite those with the same ids."""
        columns = ("id", "code") if data is None else ("id", "code", "data")
        statement = f"INSERT INTO {self.quoted} ({', '.join(columns)}) VALUES ({_marks(columns)})"
        if replace:
            changes = ", ".join(f"{name} = excluded.{name}" for name in columns[1:])
            statement += f" ON CONFLICT (id) DO UPDATE SET {changes}"
        for start in range(0, len(ids), _ROWS):
            part = slice(start, start + _ROWS)
            items = None if data is None else data[part]
            self.connection.execute_many(statement, _rows(codes[part], ids[part], items))
        if self.has_triggers() and (n_stored := len(self.stored_ids(ids))) != len(ids):
            raise StoreError(
                f"{self.where} accepted {n_stored} of {len(ids)} rows; remove the trigger that "
                "drops rows"
            )

    def delete(self, ids: Ids) -> None:
        """Delete rows by id, and record the highest id, so that it is not assigned again."""
        if len(ids):
            statement = f"UPDATE {_STORES} SET removed = max(removed, ?) WHERE name = ?"
            self.execute(statement, int(ids.max()), self.name)
        for start in range(0, len(ids), _ROWS):
            chunk = json.dumps(ids[start : start + _ROWS].tolist())
            self.execute(f"DELETE FROM {{table}} WHERE {_AMONG}", chunk)


def _marks(columns: tuple[str, ...]) -> str:
    return ", ".join("?" * len(columns))


def _rows(codes: Codes, ids: Ids, data: Data | None) -> Iterator[tuple[Any, ...]]:
    """Yield the values of each row."""
    content, width = codes.tobytes(), codes.shape[1]
    blobs = (content[i : i + width] for i in range(0, len(content), width))
    if data is None:
        return zip(ids.tolist(), blobs)
    texts = (None if item is None else encode_data(item, i) for i, item in zip(ids.tolist(), data))
    return zip(ids.tolist(), blobs, texts)
