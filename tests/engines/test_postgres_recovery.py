"""`PostgresStore` with several writers, lost connections, killed servers and failed statements."""

from __future__ import annotations

import os
import signal
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from postgres_faults import Proxy, kill_and_restart

from kdiffhash.engines import postgres, postgres_connection
from kdiffhash.engines.postgres import PostgresStore, StoreError

psycopg = pytest.importorskip("psycopg")

CODES = np.random.default_rng(0).integers(0, 256, (4000, 8), dtype=np.uint8)
IDS = np.arange(4000)


@pytest.fixture
def own(server):
    """The server, if it was started for the tests."""
    if server is None:
        pytest.skip("the server of KDIFFHASH_PG_DSN must not be killed")
    return server


@pytest.fixture
def table(dsn):
    """The name of a new table of 64-bit codes."""
    name = f"codes {uuid.uuid4().hex}"
    with PostgresStore(dsn, name) as store:
        store.create(64)
    return name


def query(dsn, text):
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(text)
        return cursor.fetchall() if cursor.description else []


def stored(dsn, table):
    """The codes by id, read without kdiffhash."""
    rows = query(dsn, f'SELECT id, code::text FROM "{table}" ORDER BY id')
    return {i: np.packbits([int(bit) for bit in text]).tolist() for i, text in rows}


def expected(ids, codes):
    return dict(zip(np.asarray(ids).tolist(), codes.tolist(), strict=True))


class FakeTime:
    """A clock that only `sleep` and `advance` move."""

    def __init__(self):
        self.now, self.slept = 0.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(postgres_connection, "time", fake)
    return fake


# -- lost connections --------------------------------------------------------------------------


@pytest.mark.parametrize("delivers", [True, False], ids=["answer lost", "commit lost"])
@pytest.mark.parametrize("call", ["add", "import_codes", "upsert", "remove"])
def test_a_connection_lost_during_commit_neither_repeats_nor_loses_the_call(
    own, dsn, table, call, delivers
):
    with PostgresStore(dsn, table) as store:
        store.add(CODES[:10], IDS[:10])
    cuts = 2 if call == "import_codes" else 1  # it first reads, in a transaction of its own
    with Proxy(own, cuts, delivers) as proxy, PostgresStore(proxy.dsn, table) as store:
        if call == "add":
            assert store.add(CODES[10:30]).tolist() == list(range(10, 30))
        elif call == "import_codes":
            assert store.import_codes(CODES[:30], IDS[:30]) == (20, 10)
        elif call == "upsert":
            assert store.upsert(CODES[:30], IDS[:30]) == (20, 10)
        else:
            store.remove(IDS[5:10])
        assert proxy.cuts == 0
    n = 5 if call == "remove" else 30
    assert stored(dsn, table) == expected(IDS[:n], CODES[:n])


def test_a_batch_of_over_a_minute_is_retried_after_a_lost_connection(
    own, dsn, table, clock, monkeypatch
):
    original = postgres.PostgresStore._add_batch
    tries = []

    def slow_batch(self, rows, cursor, meta):
        clock.now += 3600
        tries.append(len(rows.ids))
        if len(tries) == 1:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return original(self, rows, cursor, meta)

    monkeypatch.setattr(postgres.PostgresStore, "_add_batch", slow_batch)
    with PostgresStore(dsn, table, reconnect_timeout=60) as store:
        assert store.import_codes(CODES, IDS) == (4000, 0)
    assert tries == [4000, 4000]
    assert stored(dsn, table) == expected(IDS, CODES)


@pytest.mark.parametrize("call", ["add", "import_codes", "upsert"])
def test_a_transaction_that_had_not_ended_is_retried_whatever_its_number_says(
    dsn, table, call, monkeypatch
):
    """A server that crashed early may have given the number to another transaction, committed."""
    numbers = []

    def report_committed(self, transaction):
        numbers.append(transaction.number)
        return "committed"

    # The session ends at the first insertion of a row; the sequence counts across sessions.
    name = f"die_once_{uuid.uuid4().hex[:8]}"
    query(
        dsn,
        f"""CREATE SEQUENCE {name};
        CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          IF nextval('{name}') = 1 THEN
            PERFORM pg_terminate_backend(pg_backend_pid());
          END IF;
          RETURN NEW;
        END $$;
        CREATE TRIGGER die BEFORE INSERT ON "{table}" FOR EACH ROW EXECUTE FUNCTION {name}()""",
    )
    monkeypatch.setattr(postgres_connection.Connection, "_status", report_committed)
    with PostgresStore(dsn, table) as store:
        result = getattr(store, call)(CODES[:20], IDS[:20])
    assert len(numbers) == 1
    assert numbers[0] is not None
    assert list(result) == (IDS[:20].tolist() if call == "add" else [20, 0])
    assert stored(dsn, table) == expected(IDS[:20], CODES[:20])


def test_a_server_that_stays_away_is_given_up_after_the_timeout(own, dsn, table, clock):
    with Proxy(own, cuts=0) as proxy, PostgresStore(proxy.dsn, table, reconnect_timeout=7) as store:
        proxy.stop()
        with pytest.raises(ConnectionError, match="not restored within 7 seconds"):
            store.add(CODES[:1])
    assert 0 < sum(clock.slept) <= 7
    assert stored(dsn, table) == {}


def test_a_transaction_that_always_loses_the_connection_is_given_up(dsn, table, clock):
    query(
        dsn,
        f"""CREATE FUNCTION die_{table[-8:]}() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END';
        CREATE TRIGGER die BEFORE INSERT ON "{table}" FOR EACH ROW
        EXECUTE FUNCTION die_{table[-8:]}()""",
    )
    with PostgresStore(dsn, table) as store:
        with pytest.raises(ConnectionError, match="10 tries"):
            store.add(CODES[:1])
        assert len(store) == 0


@pytest.mark.parametrize("timeout", [-1, float("nan"), "60", None])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(dsn, timeout):
    with pytest.raises(ValueError, match="reconnect_timeout must be a number of seconds"):
        PostgresStore(dsn, reconnect_timeout=timeout)


def test_reading_continues_after_the_session_was_killed(own, dsn, table):
    with PostgresStore(dsn, table) as store:
        store.add(CODES[:100])
        for read in (
            lambda: store.search(CODES[:5], 1)[1].ravel().tolist(),
            lambda: store.ids[:5].tolist(),
            lambda: store.search_radius(CODES[:5], 0)[2].tolist(),
        ):
            query(
                dsn,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
            )
            assert read() == [0, 1, 2, 3, 4]


def test_a_crashed_server_gives_no_number_of_a_transaction_to_another(own, dsn):
    """Else the status of the other one would be taken for that of the interrupted one."""
    if query(dsn, "SHOW server_version_num")[0][0] < "170000":
        pytest.skip("before version 17, a number cannot be written to disk at once")
    connection, numbers = postgres_connection.Connection(dsn, 60.0), []

    def note_and_kill_the_server(cursor):
        (number,) = cursor.execute("SELECT pg_current_xact_id()::text").fetchone()
        numbers.append(int(number))
        if len(numbers) <= 5:
            kill_and_restart(own)
            cursor.execute("SELECT 1")

    connection.write(note_and_kill_the_server)
    connection.close()
    assert len(numbers) == 6
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("victim", ["session", "server"])
def test_import_continues_after_a_kill(own, dsn, table, victim, monkeypatch):
    monkeypatch.setattr(postgres, "_BATCH", 500)
    batches = []
    with PostgresStore(dsn, table) as store:

        def kill_after_the_third_batch(n):
            batches.append(n)
            if len(batches) != 3:
                return
            if victim == "server":
                kill_and_restart(own)
            else:
                os.kill(store._table.connection._connection.info.backend_pid, signal.SIGKILL)

        imported = store.import_codes(CODES, IDS, advance=kill_after_the_third_batch)
        assert imported == (4000, 0)
        assert batches == [500] * 8
    assert stored(dsn, table) == expected(IDS, CODES)


# -- statements that fail ----------------------------------------------------------------------


def fail_on_insert(dsn, table, sqlstate, times):
    """Let the first insertions of a table fail with an error code; return the name of a counter."""
    name = f"failures_{uuid.uuid4().hex[:8]}"
    query(
        dsn,
        f"""CREATE SEQUENCE {name};
        CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          IF nextval('{name}') <= {times} THEN
            RAISE EXCEPTION 'forced' USING ERRCODE = '{sqlstate}';
          END IF;
          RETURN NEW;
        END $$;
        CREATE TRIGGER fail BEFORE INSERT ON "{table}" FOR EACH ROW EXECUTE FUNCTION {name}()""",
    )
    return name


@pytest.mark.parametrize("sqlstate", ["40P01", "40001"], ids=["deadlock", "serialisation"])
@pytest.mark.parametrize("call", ["add", "import_codes", "upsert"])
def test_a_deadlock_is_retried(dsn, table, clock, sqlstate, call):
    fail_on_insert(dsn, table, sqlstate, times=3)
    with PostgresStore(dsn, table) as store:
        getattr(store, call)(CODES[:20], IDS[:20])
    assert stored(dsn, table) == expected(IDS[:20], CODES[:20])
    assert len(clock.slept) == 3


def test_endless_deadlocks_are_given_up_with_nothing_stored(dsn, table, clock):
    counter = fail_on_insert(dsn, table, "40P01", times=10**6)
    message = r"10 tries.*forced"
    with PostgresStore(dsn, table) as store, pytest.raises(StoreError, match=message):
        store.upsert(CODES[:1], IDS[:1])
    assert query(dsn, f"SELECT last_value FROM {counter}") == [(10,)]
    assert stored(dsn, table) == {}


@pytest.mark.parametrize("call", ["add", "import_codes", "upsert"])
def test_a_full_disk_is_reported_as_such_and_not_retried(dsn, table, call):
    counter = fail_on_insert(dsn, table, "53100", times=1)
    with PostgresStore(dsn, table) as store:
        with pytest.raises(StoreError, match="disk of the PostgreSQL server is full"):
            getattr(store, call)(CODES[:20], IDS[:20])
        assert query(dsn, f"SELECT last_value FROM {counter}") == [(1,)]
        assert stored(dsn, table) == {}
        getattr(store, call)(CODES[:20], IDS[:20])  # there is space again
    assert stored(dsn, table) == expected(IDS[:20], CODES[:20])


# -- several writers ---------------------------------------------------------------------------


def in_parallel(dsn, table, calls):
    """Run each call with a store of its own, all at once, and return the results."""

    def run(call):
        with PostgresStore(dsn, table) as store:
            return call(store)

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_writers_may_create_the_same_table_at_once(dsn):
    for _ in range(5):
        table = f"codes {uuid.uuid4().hex}"
        n_bits = in_parallel(dsn, table, [lambda store: store.create(64).n_bits] * 8)
        assert n_bits == [64] * 8


def test_four_importers_of_overlapping_rows_count_each_row_once(dsn, table, monkeypatch):
    monkeypatch.setattr(postgres, "_BATCH", 250)
    orders = [np.random.default_rng(seed).permutation(4000)[:3000] for seed in range(4)]
    calls = [lambda store, at=at: store.import_codes(CODES[at], IDS[at]) for at in orders]
    results = in_parallel(dsn, table, calls)
    everything = np.unique(np.concatenate(orders))
    assert sum(result.added for result in results) == len(everything)
    assert [sum(result) for result in results] == [3000] * 4
    assert stored(dsn, table) == expected(everything, CODES[everything])


def test_four_upserts_of_overlapping_rows_count_each_new_row_once(dsn, table):
    orders = [np.random.default_rng(seed).permutation(4000)[:3000] for seed in range(4)]
    calls = [lambda store, at=at: store.upsert(CODES[at], IDS[at]) for at in orders]
    results = in_parallel(dsn, table, calls)
    everything = np.unique(np.concatenate(orders))
    assert sum(result.added for result in results) == len(everything)
    assert sum(result.replaced for result in results) == 12_000 - len(everything)
    assert stored(dsn, table) == expected(everything, CODES[everything])


def test_import_refuses_an_id_that_another_writer_has_just_stored_with_another_code(dsn, table):
    """The other writer commits while the import waits for it."""
    with psycopg.connect(dsn) as other, ThreadPoolExecutor(1) as pool:
        bits = "".join(str(bit) for bit in np.unpackbits(~CODES[7]))
        other.execute(f'INSERT INTO "{table}" (id, code) VALUES (7, %s::bit(64))', [bits])
        with PostgresStore(dsn, table) as store:
            waiting = pool.submit(store.import_codes, CODES[:20], IDS[:20])
            with psycopg.connect(dsn, autocommit=True) as watch:
                while not watch.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall():
                    assert not waiting.done()
            other.commit()
            with pytest.raises(ValueError, match="id 7 is stored with a different code"):
                waiting.result()
    assert stored(dsn, table) == expected([7], ~CODES[7:8])


def test_threads_may_share_a_store(dsn, table):
    with PostgresStore(dsn, table) as store, ThreadPoolExecutor(4) as pool:
        added = list(pool.map(lambda i: store.add(CODES[i : i + 10]), range(0, 400, 10)))
    assert np.sort(np.concatenate(added)).tolist() == list(range(400))
    assert len(stored(dsn, table)) == 400
