"""The database of a photo index: photographs with their keypoints, and settings.

SQLite does not detect a changed byte, so each row has a checksum of its own, and the settings hold
one of all rows and settings, which finds rows that are missing. It contains a sum over the rows, so
that a change of a few rows does not read all others.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CHECKSUM = "checksum"  # a setting
_COLUMNS = {
    "photos": ("number", "path", "bytes", "changed", "crc", "points"),
    "settings": ("name", "value"),
}
_TABLES = (
    "CREATE TABLE photos (number INTEGER PRIMARY KEY AUTOINCREMENT, "
    "path TEXT UNIQUE, bytes INTEGER, changed INTEGER, crc INTEGER, points BLOB)",
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT)",
)


@contextmanager
def connect(path: Path) -> Iterator[sqlite3.Connection]:
    """Connect to a database; errors of SQLite become a ValueError that names the file."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")  # as SQLite advises for any input
            connection.execute("PRAGMA cell_size_check = ON")
            # A commit deletes the journal; its folder is synced as well, so that it stays deleted.
            connection.execute("PRAGMA synchronous = EXTRA")
            yield connection
    except sqlite3.Error as error:
        raise ValueError(f"{path} is damaged or in use: {error}") from error


def create_tables(connection: sqlite3.Connection, settings: dict[str, str]) -> None:
    """Create the tables in an empty database, with these settings."""
    with changing(connection):
        connection.execute("BEGIN IMMEDIATE")
        if _columns(connection) is None:  # and not created by another process in the meantime
            for statement in _TABLES:
                connection.execute(statement)
            connection.executemany("INSERT INTO settings VALUES (?, ?)", settings.items())


def read_settings(connection: sqlite3.Connection, path: Path) -> dict[str, str]:
    """Return the settings, or raise if the database is not intact or of another program."""
    columns = _columns(connection)
    if columns != _COLUMNS:
        raise ValueError(
            f"{path.parent} exists, but is not an index of photographs of this version; choose "
            "another folder"
        )
    connection.execute("BEGIN")  # rows and checksum of one moment, while others may write
    settings = dict(connection.execute("SELECT name, value FROM settings"))
    rows = connection.execute("SELECT number, crc FROM photos")
    checksum = _checksum(connection, _row_sum(rows))
    connection.rollback()
    if settings.pop(_CHECKSUM, None) != checksum:
        raise _damaged(path)
    return settings


def is_empty(connection: sqlite3.Connection) -> bool:
    """Return whether a database has no tables, which an interrupted creation leaves behind."""
    return _columns(connection) is None


@contextmanager
def changing(connection: sqlite3.Connection) -> Iterator[None]:
    """Change rows or settings in a transaction, and store their new checksum with them."""
    with connection:
        yield
        _store_checksum(connection, _row_sum(connection.execute("SELECT number, crc FROM photos")))


def check_integrity(connection: sqlite3.Connection, path: Path) -> None:
    """Raise if tables and their indexes disagree: changes would then make it worse."""
    if connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
        raise _damaged(path)


def add_rows(
    connection: sqlite3.Connection, rows: Iterable[tuple[int, str, int, int, bytes]]
) -> None:
    """Add photographs: number, path, size and modification time of the file, keypoints."""
    values = [(*row[:4], _row_checksum(row), row[4]) for row in rows]
    with connection:
        total = _stored_sum(connection) + _row_sum((row[0], row[4]) for row in values)
        connection.executemany("INSERT INTO photos VALUES (?, ?, ?, ?, ?, ?)", values)
        _store_checksum(connection, total)


def remove_rows(connection: sqlite3.Connection, numbers: Iterable[int]) -> None:
    """Remove photographs by their numbers."""
    chosen, select = [(n,) for n in numbers], "SELECT number, crc FROM photos WHERE number = ?"
    with connection:
        found = [row for one in chosen for row in connection.execute(select, one)]
        total = _stored_sum(connection) - _row_sum(found)
        connection.executemany("DELETE FROM photos WHERE number = ?", chosen)
        _store_checksum(connection, total)


def last_number(connection: sqlite3.Connection) -> int:
    """Return the highest number that a photograph ever had, 0 before the first."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'photos'").fetchone()
    return row[0] if row else 0


def read_photo_row(
    connection: sqlite3.Connection, number: int, path: Path
) -> tuple[str, NDArray[np.float32]] | None:
    """Return path and keypoints of a photograph, or None if it is not in the database."""
    row = connection.execute("SELECT * FROM photos WHERE number = ?", (number,)).fetchone()
    if row is None:
        return None
    *values, checksum, points = row
    is_array = isinstance(points, bytes) and len(points) % 8 == 0
    if not is_array or checksum != _row_checksum((*values, points)):
        raise _damaged(path)
    return str(values[1]), np.frombuffer(points, np.float32).reshape(-1, 2)


def _columns(connection: sqlite3.Connection) -> dict[str, tuple[str, ...]] | None:
    """Return the columns of each table (not of views), None without any table."""
    names = [
        name
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        )
    ]
    info = "SELECT name FROM pragma_table_info(?)"
    columns = {name: tuple(c for (c,) in connection.execute(info, (name,))) for name in names}
    return columns or None


def _checksum(connection: sqlite3.Connection, row_sum: int) -> str:
    """Return the checksum of all rows, given their sum, of all settings and of the last number."""
    settings = connection.execute(
        "SELECT name, value FROM settings WHERE name != ? ORDER BY name", (_CHECKSUM,)
    ).fetchall()
    others = zlib.crc32(repr((settings, last_number(connection))).encode())
    return f"{row_sum:x}-{others:08x}"


def _row_sum(rows: Iterable[tuple[int, int]]) -> int:
    """Return the sum of the checksums of rows, given by number and checksum."""
    return sum(zlib.crc32(repr(tuple(row)).encode()) for row in rows)


def _stored_sum(connection: sqlite3.Connection) -> int:
    """Return the sum that the stored checksum was made from."""
    select = "SELECT value FROM settings WHERE name = ?"
    (value,) = connection.execute(select, (_CHECKSUM,)).fetchone()
    return int(value.partition("-")[0], 16)


def _store_checksum(connection: sqlite3.Connection, row_sum: int) -> None:
    """Store the checksum of the database, given the sum of its rows."""
    value = _checksum(connection, row_sum)
    connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (_CHECKSUM, value))


def _row_checksum(row: tuple[Any, ...]) -> int:
    """Return the checksum of a row: its values, and its keypoints as they are stored."""
    *values, points = row
    return zlib.crc32(points, zlib.crc32(repr(values).encode()))


def _damaged(path: Path) -> ValueError:
    return ValueError(
        f"{path} is damaged: its checksum does not match; delete the folder {path.parent} and "
        "index the photographs again"
    )
