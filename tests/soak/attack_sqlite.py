"""Attacks on `SQLiteStore`: killed writers, damaged files, and several writers at once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from bounded import limit_memory
from common import CRASHED, RIGHT, WRONG, Tally, attack, mutate, outcome_of, run_isolated

from kdiffhash import HammingIndex
from kdiffhash.engines.sqlite import SQLiteStore, StoreError

WIDTH = 8
Content = dict[int, bytes]


def content_of(path: Path) -> Content:
    """Ids and codes of a store, read without kdiffhash."""
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT id, code FROM codes"))


def read(store: SQLiteStore) -> Content:
    """Ids and codes of a store."""
    ids = store.ids
    return dict(zip(ids.tolist(), map(bytes, store.get(ids)), strict=True))


def change(store: SQLiteStore | None, number: int, content: Content) -> Content:
    """Change number `number`, applied to a store and to a plain dictionary."""
    rng = np.random.default_rng([7, number])
    kind = rng.random()
    if kind > 0.7 and content:
        gone = set(rng.permutation(sorted(content))[: int(rng.integers(1, len(content) + 1))])
        if store is not None:
            store.remove(sorted(gone))
        return {i: code for i, code in content.items() if i not in gone}
    n = int(2 ** rng.uniform(0, 9))
    codes = rng.integers(0, 256, (n, WIDTH), dtype=np.uint8)
    ids = rng.permutation(2000)[:n]
    if kind < 0.2:  # each batch is a transaction, but there is only one
        ids = np.setdiff1d(ids, list(content))
        codes = codes[: len(ids)]
        if store is not None:
            store.import_codes(codes, ids)
    elif store is not None:
        data = None if kind < 0.4 else [{"n": i} for i in ids.tolist()]
        store.upsert(codes, ids, data)
    return {**content, **dict(zip(ids.tolist(), map(bytes, codes), strict=True))}


def _write_until_killed(path: Path, method: str, number: int, content: Content, told: int) -> None:
    with SQLiteStore(path, method=method) as store:
        while True:
            content = change(store, number, content)
            os.write(told, number.to_bytes(4, "little"))
            number += 1


@attack("SQLite stores: writer killed by SIGKILL", 600)
def kill_writers(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Kill a writer at a random moment; a reader stays open meanwhile."""
    path, number, content = folder / "codes.db", 0, {}
    SQLiteStore(path).create(8 * WIDTH).close()
    reader = SQLiteStore(path)
    for turn in range(tries):
        if turn % 50 == 0:
            mode = ("DELETE", "WAL")[turn // 50 % 2]
            reader.close()  # SQLite leaves WAL only when no other connection is open
            with closing(sqlite3.connect(path)) as connection:
                connection.execute(f"PRAGMA journal_mode = {mode}")
            reader = SQLiteStore(path)
        method = ("scan", "sqlite-vec")[int(rng.integers(2))]
        read_end, told = os.pipe()
        child = os.fork()
        if not child:
            try:
                _write_until_killed(path, method, number, content, told)
            finally:
                os._exit(1)
        os.close(told)
        seen: list[Content] = []
        outcome, note = RIGHT, ""
        for _ in range(2):
            outcome, note = outcome_of(partial(read_into, reader, seen))
            if outcome != RIGHT:
                break
            time.sleep(float(rng.random()) / 50)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with os.fdopen(read_end, "rb") as pipe:
            n_done = len(pipe.read()) // 4
        states = [content]
        for i in range(n_done + 1):
            states.append(change(None, number + i, states[-1]))
        found = content_of(path)
        note = f"change {number + n_done}: {note}"
        if not os.WIFSIGNALED(status):
            outcome, note = CRASHED, "the writer ended by itself"
        elif outcome != RIGHT or found not in states[n_done:] or read_once(reader) != found:
            outcome = WRONG
        elif any(state not in states for state in seen):
            outcome, note = WRONG, f"{note}: a reader saw another content"
        tally.count(outcome, note)
        content = found
        number += n_done + (found == states[-1])
    reader.close()


def read_into(store: SQLiteStore, seen: list[Content]) -> bool:
    """Append the ids and codes found by one search."""
    seen.append(read_once(store))
    return True


def read_once(store: SQLiteStore) -> Content:
    """Ids and codes found by one search, which is one transaction: all at once."""
    query = np.zeros((1, WIDTH), np.uint8)
    _, _, ids = store.search_radius(query, 8 * WIDTH)
    if not len(ids):
        return {}
    with contextlib.suppress(KeyError):  # removed in the meantime; then the next search decides
        codes = store.get(ids)
        again = store.search_radius(query, 8 * WIDTH)[2]
        if np.array_equal(np.sort(again), np.sort(ids)) and np.array_equal(store.get(ids), codes):
            return dict(zip(ids.tolist(), map(bytes, codes), strict=True))
    return read_once(store)


# -- damaged files --------------------------------------------------------------------------------


def make_stores(folder: Path) -> None:
    """Write a store with data and a column of vectors, in both journal modes."""
    path = folder / "DELETE.db"
    rng = np.random.default_rng(0)
    with SQLiteStore(path).create(8 * WIDTH) as store:
        codes = rng.integers(0, 256, (300, WIDTH), dtype=np.uint8)
        store.add(codes, data=[{"n": i, "text": "x" * (i % 50)} for i in range(300)])
        store.remove(np.arange(0, 300, 7))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE codes ADD COLUMN v BLOB")
        connection.execute("UPDATE codes SET v = zeroblob(16) WHERE id % 3")
        connection.execute("CREATE TABLE other (a TEXT UNIQUE, b)")
        connection.execute("INSERT INTO other SELECT id, data FROM codes")
    shutil.copy(path, folder / "WAL.db")
    with closing(sqlite3.connect(folder / "WAL.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")


VALUES: tuple[Any, ...] = (None, 1, -1, 2**63 - 1, 1.5, "", "text", b"", b"\0" * 7, b"\0" * 8)
VALUES += (b"\xff" * 16, "ä" * 300, "\0", "{", "[" * 3000, "9" * 5000, 1e999)


def damage_values(path: Path, rng: np.random.Generator) -> None:
    """Change values and the schema in ways that SQLite allows."""
    table = str(rng.choice(["codes", "kdiffhash_stores"]))
    with closing(sqlite3.connect(path)) as database, database:
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        database.execute("PRAGMA ignore_check_constraints = ON")
        value = VALUES[int(rng.integers(len(VALUES)))]
        statements: list[tuple[str, tuple[Any, ...]]] = [
            (f"UPDATE {table} SET {rng.choice(columns)} = ?", (value,)),
            (f"UPDATE {table} SET {rng.choice(columns)} = ? WHERE rowid = 8", (value,)),
            (f"ALTER TABLE {table} RENAME COLUMN {rng.choice(columns)} TO other", ()),
            (f"DROP TABLE {table}", ()),
            ("DELETE FROM kdiffhash_stores", ()),
            (f"UPDATE kdiffhash_stores SET n_bits = {rng.choice([-1, 0, 8, 63, 65, 4097])}", ()),
            ("ALTER TABLE codes RENAME TO c", ()),
            ("CREATE TRIGGER t AFTER INSERT ON codes BEGIN DELETE FROM codes; END", ()),
            ("CREATE TRIGGER t BEFORE INSERT ON codes BEGIN SELECT RAISE(IGNORE); END", ()),
            ("CREATE TRIGGER t AFTER UPDATE ON codes BEGIN SELECT RAISE(ABORT, 'no'); END", ()),
            ("CREATE UNIQUE INDEX u ON codes (code)", ()),
            ("CREATE INDEX u ON codes (zeroblob(9000))", ()),
            ("PRAGMA user_version = 9", ()),
        ]
        statement, values = statements[int(rng.integers(len(statements)))]
        with contextlib.suppress(sqlite3.Error):
            database.execute(statement, values)


@cache
def original(path: Path) -> bytes:
    return path.read_bytes()


def check_store(case: tuple[Path, int]) -> bool:
    """Search and change a damaged store: refused, or what SQLite itself reads from the file."""
    limit_memory()
    folder, seed = case
    rng = np.random.default_rng(seed)
    name = str(rng.choice(["DELETE.db", "WAL.db"], p=[0.8, 0.2]))
    path = folder / f"{os.getpid()}.db"
    for old in folder.glob(f"{path.name}*"):
        old.unlink()
    by_value = rng.random() < 0.4
    content = original(folder / name)
    path.write_bytes(content if by_value else mutate(content, rng))
    if by_value:
        damage_values(path, rng)
    method = ("scan", "sqlite-vec")[int(rng.integers(2))]
    codes = rng.integers(0, 256, (20, WIDTH), dtype=np.uint8)
    with SQLiteStore(path, method=method) as store:
        rows = plain_rows(path)
        if any(type(code) is not bytes or len(code) != WIDTH for _, code in rows):
            rows = []
        found = store.search(codes, 10)
        if rows:
            ids = np.array([number for number, _ in rows])
            stored = np.array([np.frombuffer(code, np.uint8) for _, code in rows])
            distances, positions = HammingIndex(stored).search(codes, 10)
            expected = distances, ids[positions]
            if not all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True)):
                return False
        store.search(codes, 5, rerank_vectors=np.ones((20, 4)), rerank_column="v")
        store.get_data(found[1][0])
        new = store.add(codes)
        store.upsert(codes[:5], new[:5], [{"a": 1}] * 5)
        if not np.array_equal(store.get(new[5:]), codes[5:]):
            return False
        store.remove(new)
    return True


def plain_rows(path: Path) -> list[tuple[int, Any]]:
    """Rows as SQLite reads them, by id, which damage can make equal; none if it cannot."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT id, code FROM codes").fetchall()
    except (sqlite3.Error, ValueError):
        return []
    return sorted(rows, key=lambda row: row[0])


@attack("SQLite stores: damaged values and bytes", 8000, pieces=4)
def damaged_stores(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    make_stores(folder)
    run_isolated(check_store, [(folder, int(s)) for s in rng.integers(2**62, size=tries)], tally)


# -- several writers ------------------------------------------------------------------------------


def _work(path: Path, method: str, kind: str, codes: Any, ids: Any) -> Any:
    with SQLiteStore(path, method=method) as store:
        if kind == "add":
            return [store.add(codes[i : i + 100]).tolist() for i in range(0, len(codes), 100)]
        return [
            list(getattr(store, kind)(codes[i : i + 100], ids[i : i + 100]))
            for i in range(0, len(ids), 100)
        ]


def _kill_later(process: Any, seconds: float) -> None:
    time.sleep(seconds)
    process.kill()


@attack("SQLite stores: 4 writers, one killed", 60)
def four_writers(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """The counts of the writers add up to the table; assigned ids are distinct."""
    context = get_context("fork")
    codes = rng.integers(0, 256, (600, WIDTH), dtype=np.uint8)
    for number in range(tries):
        path = folder / f"{number}.db"
        kind = ("add", "upsert", "import_codes")[number % 3]
        method = ("scan", "sqlite-vec")[int(rng.integers(2))]
        SQLiteStore(path).create(8 * WIDTH).close()
        victim = context.Process(target=_work, args=(path, method, kind, codes, np.arange(600)))
        victim.start()
        orders = [rng.permutation(600) for _ in range(3)]
        delay = float(rng.random()) / 10
        with context.Pool(3) as pool, ThreadPoolExecutor(1) as killer:
            killer.submit(_kill_later, victim, delay)
            calls = [
                pool.apply_async(_work, (path, method, kind, codes[order], order))
                for order in orders
            ]
            try:
                results = [call.get(timeout=120) for call in calls]
            except Exception as error:
                tally.count(WRONG, f"{number}, {kind}, {method}: {error!r}")
                continue
            finally:
                victim.kill()
                victim.join()
        table = content_of(path)
        if kind == "add":
            ids = [i for result in results for batch in result for i in batch]
            rows = [bytes(codes[i]) for order in orders for i in order]
            right = len(set(ids)) == 1800 and all(
                table[i] == row for i, row in zip(ids, rows, strict=True)
            )
        else:
            right = table == {i: bytes(codes[i]) for i in range(600)}
            n_new = sum(batch[0] for result in results for batch in result)
            right &= n_new <= 600  # the killed writer added the others
            right &= all(sum(batch) == 100 for result in results for batch in result)
        tally.count(RIGHT if right else WRONG, f"{number}, {kind}, {method}: {len(table)} rows")
        with contextlib.suppress(StoreError), SQLiteStore(path) as store:
            json.dumps(store.info())
