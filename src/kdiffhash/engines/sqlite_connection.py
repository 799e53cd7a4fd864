"""A connection to an SQLite file, through the standard library or apsw, and its transactions."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from .._util.extras import need
from .._util.files import check_regular
from .store_rows import StoreError, one_line

T = TypeVar("T")
Version = tuple[int, int]  # of the connection, and of the file as this connection sees it

_LOCKED, _READ_ONLY, _DAMAGED, _FULL, _NOT_OPENED, _NO_DATABASE = (5, 6), 8, 11, 13, 14, 26


class Connection:
    """A connection that threads may share: one transaction runs at a time.

    With `sqlite_vec`, the file is opened by apsw and the extension sqlite-vec is loaded; otherwise
    the file is opened by the standard library.
    """

    def __init__(self, path: str, timeout: float, sqlite_vec: bool) -> None:
        if not isinstance(timeout, int | float) or not 0 <= timeout <= 1e6:
            raise ValueError(f"timeout must be a number of seconds from 0 to 1e6, got {timeout!r}")
        if "\0" in path:
            raise ValueError(f"a path cannot contain a zero byte, got {path!r}")
        self.path, self._timeout, self._sqlite_vec = path, timeout, sqlite_vec
        # Absolute, so that the working directory may change, and that no path looks like a URI.
        self._file = None if path == ":memory:" else Path(path).absolute()
        self._driver = need("apsw", "sqlite") if sqlite_vec else sqlite3
        self.lock = threading.RLock()
        self._process = os.getpid()
        self._of_parents: list[Any] = []  # connections that processes must not close for others
        self._closed = False
        self._connection: Any = None
        self._number = 0  # of the connection
        self._inode: tuple[int, int] | None = None
        # SQLite would create a missing file when it is opened; only `write` is to create one.
        if self._file is not None and not self._file.exists():
            self._check_folder(self._file)
        else:
            self._open()

    def close(self) -> None:
        """Close the connection."""
        with self.lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection, self._closed = None, True

    def read(self, work: Callable[[], T]) -> T:
        """Call `work` in a transaction that reads, all from one state of the file."""
        if self._file is not None and not self._file.exists():
            raise StoreError(f"there is no file {self.path}; create it with create(n_bits)")
        return self._run("BEGIN", work)

    def write(self, work: Callable[[], T]) -> T:
        """Call `work` in a transaction that writes, which is rolled back if it raises."""
        return self._run("BEGIN IMMEDIATE", work)

    def execute(self, statement: str, *values: Any) -> Any:
        """Execute a statement and return its cursor; each ``?`` stands for one of `values`."""
        return self._connection.execute(statement, values)

    def execute_many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Execute a statement once for each row of values."""
        self._connection.executemany(statement, rows)

    def data_version(self) -> Version:
        """Return a value that changes when another connection has committed a change."""
        return self._number, int(self.execute("PRAGMA data_version").fetchone()[0])

    def _run(self, begin: str, work: Callable[[], T]) -> T:
        with self.lock:
            if self._closed:
                raise StoreError(f"the store of {self.path} was closed; open it again")
            self._reopen_if_needed()
            try:
                self.execute(begin)
                try:
                    result = work()
                    self.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:  # some errors have ended it already
                        self.execute("ROLLBACK")
                    raise
                return result
            except self._driver.Error as error:
                raise self._refusal(error) from error

    def _check_folder(self, file: Path) -> None:
        """Raise unless the folder of a file that is to be created exists."""
        if not file.parent.is_dir():
            raise StoreError(f"{self.path} cannot be created: there is no folder {file.parent}")

    def _open(self) -> None:
        """Open the file, and create it if it does not exist."""
        if self._file is not None and self._file.exists():
            check_regular(self._file)
        elif self._file is not None:
            self._check_folder(self._file)
        try:
            self._connection = self._connect(str(self._file or self.path))
            # The directory is synced as well when a journal is deleted, which commits a change.
            self.execute("PRAGMA synchronous = EXTRA")
        except self._driver.Error as error:
            raise self._refusal(error) from error
        self._process, self._number = os.getpid(), self._number + 1
        self._inode = self._inode_of_file()

    def _connect(self, file: str) -> Any:
        if not self._sqlite_vec:
            # None: transactions begin and end only where we say so.
            return sqlite3.connect(
                file, self._timeout, isolation_level=None, check_same_thread=False
            )
        connection = self._driver.Connection(file)
        connection.set_busy_timeout(int(1000 * self._timeout))
        connection.enable_load_extension(True)
        connection.load_extension(need("sqlite_vec", "sqlite").loadable_path())
        connection.enable_load_extension(False)
        return connection

    def _inode_of_file(self) -> tuple[int, int] | None:
        if self._file is None:
            return None
        try:
            status = self._file.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _reopen_if_needed(self) -> None:
        """Open the file, again after a fork or if it was replaced by another one.

        A forked process must not use its parent's connection, nor close it.
        """
        if self._connection is None:
            self._open()
        elif self._process != os.getpid():
            if self._file is None:
                raise StoreError("a database in memory cannot be used by a forked process")
            self._of_parents.append(self._connection)
            self._open()
        elif (inode := self._inode_of_file()) != self._inode:
            if inode is None:
                raise StoreError(
                    f"{self.path} was moved or deleted while it was open; put it back, or open the "
                    "store again"
                )
            self._connection.close()
            self._open()

    def _refusal(self, error: Any) -> StoreError:
        """Return the error to raise for a failed statement."""
        code = getattr(error, "sqlite_errorcode", getattr(error, "result", None)) or 0
        kind, text = code & 0xFF, one_line(error)
        if kind in _LOCKED:
            return StoreError(
                f"{self.path} was locked by another connection for {self._timeout:g} seconds; "
                "repeat the call, or open the store with a longer timeout"
            )
        if kind == _FULL:
            return StoreError(
                f"the disk of {self.path} is full, and nothing of this transaction was stored; "
                f"free some space and repeat the call ({text})"
            )
        meaning = {
            _READ_ONLY: "cannot be written to",
            _DAMAGED: "is damaged; restore a copy, or save what is left with sqlite3's .recover",
            _NOT_OPENED: "cannot be opened",
            _NO_DATABASE: "is not an SQLite database; give another path",
        }.get(kind)
        return StoreError(
            f"{self.path}: {text}" if meaning is None else f"{self.path} {meaning} ({text})"
        )
