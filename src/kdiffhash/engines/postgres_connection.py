"""A connection to PostgreSQL that is reopened when it is lost, and transactions that are retried.

If the connection is lost during a transaction, the server is asked whether the transaction was
committed. So every transaction takes effect once, and its result is known.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .._util.extras import need
from .store_rows import StoreError, one_line

T = TypeVar("T")

_TRIES = 10  # how often a transaction is tried


@dataclass
class _Transaction(Generic[T]):
    """One try of a transaction: its number and process on the server, and its result."""

    work: Callable[[Any], T]  # is given a cursor
    writes: bool
    number: str | None = None
    process: int | None = None
    is_complete: bool = False  # before that, it cannot have been committed
    result: T | None = None


class Connection:
    """A connection that threads may share: one transaction runs at a time."""

    def __init__(self, dsn: str, reconnect_timeout: float) -> None:
        if not isinstance(reconnect_timeout, int | float) or not reconnect_timeout >= 0:
            raise ValueError(
                f"reconnect_timeout must be a number of seconds from 0, got {reconnect_timeout!r}"
            )
        self._psycopg = need("psycopg", "postgres")
        self._dsn, self._timeout = dsn, reconnect_timeout
        self._lock = threading.Lock()
        self._connection = self._connect()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def read(self, work: Callable[[Any], T]) -> T:
        """Call `work` with a cursor in a transaction that only reads, all from one snapshot."""
        return self._run(work, writes=False)

    def write(self, work: Callable[[Any], T]) -> T:
        """Call `work` with a cursor in a transaction, which is rolled back if it raises."""
        return self._run(work, writes=True)

    def savepoint(self) -> Any:
        """Return a context manager that undoes the statements within it if an error is raised."""
        return self._connection.transaction()

    # -- transactions ---------------------------------------------------------------------------

    def _run(self, work: Callable[[Any], T], *, writes: bool) -> T:
        errors = self._psycopg.errors
        with self._lock:
            for attempt in range(1, _TRIES + 1):
                transaction = _Transaction(work, writes)
                try:
                    return self._attempt(transaction)
                except self._psycopg.Error as error:
                    failure, is_lost = error, self._is_lost(error)
                if is_lost:
                    if self._reconnect(transaction):
                        return transaction.result  # type: ignore[return-value]  # was committed
                elif isinstance(failure, errors.DeadlockDetected | errors.SerializationFailure):
                    time.sleep(random.uniform(0, 0.05 * attempt))  # so that the other one is done
                else:
                    raise _refusal(failure) from failure
        text = f"PostgreSQL: {_TRIES} tries of a transaction were rolled back: {one_line(failure)}"
        raise (ConnectionError if is_lost else StoreError)(text) from failure

    def _attempt(self, transaction: _Transaction[T]) -> T:
        if self._connection.closed:
            self._reconnect(None)
        with self._connection.transaction(), self._connection.cursor() as cursor:
            if transaction.writes:
                query = "SELECT pg_current_xact_id()::text, pg_backend_pid()"
                transaction.number, transaction.process = cursor.execute(query).fetchone()
                # A server that crashes may give the number to another transaction, unless a record
                # with it is on disk. Only messages outside of transactions are written at once, and
                # these carry the number too. Before version 17 there is no function for that.
                if self._connection.info.server_version >= 170_000:
                    cursor.execute("SELECT pg_logical_emit_message(false, 'kdiffhash', '', true)")
            else:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            transaction.result = result = transaction.work(cursor)
            transaction.is_complete = True
        return result

    # -- connecting -----------------------------------------------------------------------------

    def _connect(self) -> Any:
        try:
            connection = self._psycopg.connect(self._dsn, connect_timeout=10)
        except self._psycopg.Error as error:
            raise ConnectionError(f"cannot connect to PostgreSQL: {one_line(error)}") from None
        connection.isolation_level = self._psycopg.IsolationLevel.READ_COMMITTED
        return connection

    def _is_lost(self, error: Any) -> bool:
        return self._connection.closed or error.diag.severity_nonlocalized in ("FATAL", "PANIC")

    def _reconnect(self, transaction: _Transaction[T] | None) -> bool:
        """Connect again, and return whether the interrupted transaction was committed.

        The time allowed starts here, however long the transaction had been running.
        """
        deadline, delay = time.monotonic() + self._timeout, 0.1
        while True:
            self._connection.close()
            try:
                self._connection = self._connect()
                status = self._status(transaction)
                if status != "in progress":
                    # A server that crashed early has given the number to another transaction.
                    return (
                        status == "committed"
                        and transaction is not None
                        and transaction.is_complete
                    )
                reason = "the interrupted transaction has not ended"
            except (ConnectionError, self._psycopg.Error) as error:
                reason = one_line(error)
            if time.monotonic() + delay > deadline:
                self._connection.close()
                unknown = (
                    ""
                    if transaction is None or not transaction.is_complete
                    else ("; the last transaction may or may not have been committed")
                )
                raise ConnectionError(
                    "the connection to PostgreSQL was lost and not restored within "
                    f"{self._timeout:g} seconds ({reason}){unknown}"
                )
            time.sleep(delay)
            delay = min(2 * delay, 1.0)

    def _status(self, transaction: _Transaction[T] | None) -> str | None:
        """Return the status of an interrupted transaction, and end it if it is in progress."""
        if transaction is None or transaction.number is None:
            return None
        number = transaction.number
        try:
            with self._connection.transaction(), self._connection.cursor() as cursor:
                query = "SELECT pg_xact_status(%s::xid8)"
                status: str | None = cursor.execute(query, [number]).fetchone()[0]
                if status == "in progress":  # the server has not noticed the loss, and holds locks
                    cursor.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE pid = %s AND backend_xid = (%s::xid8)::xid",
                        [transaction.process, number],
                    )
        except self._psycopg.errors.InvalidParameterValue:
            return "aborted"  # the number is in the future: the server crashed and forgot it
        return status


def _refusal(error: Any) -> StoreError:
    """Return the error to raise for a statement that failed and would fail again."""
    if error.sqlstate == "53100":
        return StoreError(
            "the disk of the PostgreSQL server is full, and nothing of this transaction was "
            f"stored; free some space and repeat the call: {one_line(error)}"
        )
    return StoreError(f"PostgreSQL: {one_line(error)}")
