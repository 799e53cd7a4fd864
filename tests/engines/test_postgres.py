"""Codes in a real PostgreSQL, beside `HammingIndex`."""

from __future__ import annotations

import threading
import uuid

import numpy as np
import pytest

from kdiffhash import HammingIndex, KernelDiffHash
from kdiffhash.engines import postgres
from kdiffhash.engines.postgres import PostgresStore, StoreError

psycopg = pytest.importorskip("psycopg")


@pytest.fixture
def store(dsn):
    with PostgresStore(dsn, f"codes {uuid.uuid4().hex}") as made:
        yield made


def codes_of(n, n_bits, seed=0, alphabet=None):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (alphabet or n, n_bits), dtype=np.uint8)
    codes = np.packbits(bits, axis=1)
    return codes if alphabet is None else codes[rng.integers(0, alphabet, n)]


@pytest.mark.parametrize("n_bits", [1, 8, 13, 64, 256, 1000])
@pytest.mark.parametrize("alphabet", [None, 5])
def test_exact_results_are_those_of_the_index(store, n_bits, alphabet):
    codes = codes_of(400, n_bits, alphabet=alphabet)
    ids = np.random.default_rng(1).permutation(5000)[:400] - 100
    queries = codes_of(30, n_bits, seed=2)
    store.create(n_bits)
    assert store.load(codes, ids) == (400, 0)
    index = HammingIndex(codes, ids, n_bits=n_bits)
    for found, expected in zip(store.search(queries, 7), index.search(queries, 7)):
        np.testing.assert_array_equal(found, expected)
    radius = n_bits // 3
    for found, expected in zip(
        store.search_radius(queries, radius), index.search_radius(queries, radius)
    ):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(store.get(ids[:9])[0], codes[:9])
    assert store.search(queries, 1000)[0].shape == (30, 400)
    assert store.search(queries[:0], 3)[0].shape == (0, 3)


def test_rows_carry_data_are_replaced_and_deleted(store):
    store.create(16)
    codes = codes_of(4, 16)
    store.load(codes[:3], [1, 2, 3], [{"name": "a 'quoted' \"one\""}, None, {"x": [1, 2]}])
    assert store.get([3, 1])[1] == [{"x": [1, 2]}, {"name": "a 'quoted' \"one\""}]
    store.upsert(codes[3:], [2], [{"new": True}])
    found, data = store.get([2])
    assert (found == codes[3]).all()
    assert data == [{"new": True}]
    assert store.delete([1, 77]) == 1
    with pytest.raises(KeyError, match="among them 1"):
        store.get([1])
    assert store.info()["codes"] == 2


def test_a_load_that_is_done_again_changes_nothing(store, monkeypatch):
    monkeypatch.setattr(postgres, "_BATCH", 100)
    codes, ids = codes_of(1000, 64), np.arange(1000)
    store.create(64)
    assert store.load(codes[:350], ids[:350]) == (350, 0)
    assert store.load(codes, ids) == (650, 350)
    assert store.load(codes, ids) == (0, 1000)
    with pytest.raises(ValueError, match="id 5 is in the table with another code"):
        store.load(~codes[5:6], [5])
    np.testing.assert_array_equal(store.get(ids)[0], codes)


def test_a_server_that_stops_and_starts_is_waited_for(store, server, monkeypatch):
    if server is None:
        pytest.skip("this server is not ours to stop")
    monkeypatch.setattr(postgres, "_BATCH", 500)
    codes, ids = codes_of(20_000, 64), np.arange(20_000)
    store.create(64)
    seen = []

    def stop(n):
        seen.append(n)
        if len(seen) == 7:
            server.stop()
            threading.Timer(1.0, server.start).start()

    assert sum(store.load(codes, ids, advance=stop)) == 20_000
    assert store.info()["codes"] == 20_000
    np.testing.assert_array_equal(store.get(ids)[0], codes)


def test_approximate_search_uses_the_graph(store):
    codes = codes_of(3000, 64)
    store.create(64)
    store.load(codes, np.arange(3000))
    store.build_index(links=16, effort=64)
    assert store.info()["hnsw"]
    distances, _ = store.search(codes[:50], 10, effort=200)
    exact, _ = store.search(codes[:50], 10)
    assert (distances[:, 0] == 0).all()
    assert (distances == exact).mean() > 0.9
    assert (np.diff(exact, axis=1) >= 0).all()


def test_models_and_lengths_are_not_mixed(store, dsn, things):
    X, y = things
    a, b = (KernelDiffHash(32, n_basis=50, random_state=seed).fit(X, y) for seed in (0, 1))
    store.create(32, a)
    store.create(32, a)  # the same again is fine
    store.load(a.transform(X), np.arange(len(X)), model=a)
    for wrong, what in (((32, b), "another model"), ((32,), "another model"), ((16,), "32 bits")):
        with pytest.raises(StoreError, match=what):
            store.create(*wrong)
    with pytest.raises(StoreError, match="another model"):
        store.load(b.transform(X), np.arange(len(X)), model=b)
    with pytest.raises(ValueError, match="bytes per code"):
        store.load(np.zeros((1, 8), np.uint8), [1])
    with pytest.raises(ValueError, match="bytes per code"):
        store.search(np.zeros((1, 8), np.uint8))


@pytest.mark.parametrize(
    "name", ['x"; DROP TABLE victims; --', "a'b", "ünïcode ✓", "SELECT", "a.b", "%s {table}", " "]
)
def test_hostile_names_do_no_harm(dsn, name):
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS victims (x int)")
    with PostgresStore(dsn, name) as store:
        store.create(8)
        store.load(np.array([[1], [2]], np.uint8), [1, 2], [{name: name}, None])
        assert store.search(np.array([[2]], np.uint8), 1)[1].tolist() == [[2]]
        assert store.get([1])[1] == [{name: name}]
        store.drop()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM victims").fetchone() == (0,)


def test_bad_input_is_told(store, dsn):
    with pytest.raises(StoreError, match="no table"):
        store.search(np.zeros((1, 8), np.uint8))
    with pytest.raises(ValueError, match="n_bits"):
        store.create(0)
    store.create(64)
    codes = np.zeros((2, 8), np.uint8)
    for call, what in (
        (lambda: store.load(codes, [1]), "1 ids"),
        (lambda: store.load(codes, [1, 1]), "twice"),
        (lambda: store.load(codes, ["1; DROP TABLE x", "2"]), "whole numbers"),
        (lambda: store.load(codes, [1, 2], [{}]), "data for 1"),
        (lambda: store.search(codes, 0), "above zero"),
        (lambda: store.search(codes, 1, effort=0), "effort"),
        (lambda: store.search_radius(codes, -1), "zero or more"),
        (lambda: store.build_index(links=1), "links"),
        (lambda: PostgresStore(dsn, ""), "name"),
        (lambda: PostgresStore(dsn, "x" * 64), "name"),
    ):
        with pytest.raises(ValueError, match=what):
            call()
    assert store.info()["codes"] == 0
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS others (id int)")
    with PostgresStore(dsn, "others") as other, pytest.raises(StoreError, match="not one of"):
        other.create(8)
    with pytest.raises(ConnectionError, match="no connection"):
        PostgresStore("postgresql://127.0.0.1:1/none")


def test_the_command_line(dsn, tmp_path, things, command):
    X, y = things
    hasher = KernelDiffHash(32, n_basis=50, random_state=0).fit(X, y)
    hasher.save(tmp_path / "model")
    codes, table = hasher.transform(X), f"cli {uuid.uuid4().hex}"
    np.save(tmp_path / "codes.npy", codes)
    np.save(tmp_path / "queries.npy", codes[:3])
    where = ("--dsn", dsn, "--table", table, "--json")
    model = ("--model", tmp_path / "model")
    told = command("pg", "load", tmp_path / "codes.npy", *model, *where)
    assert (told["added"], told["there_before"]) == (600, 0)
    assert command("pg", "load", tmp_path / "codes.npy", *model, *where)["there_before"] == 600
    assert "another model" in command("pg", "load", tmp_path / "codes.npy", *where, fail=True)
    told = command("pg", "search", tmp_path / "queries.npy", "-k", 4, *where)
    expected = HammingIndex(codes).search(codes[:3], 4)
    assert [row["ids"] for row in told["rows"]] == expected[1].tolist()
    command("pg", "search", tmp_path / "queries.npy", "-k", 4, "-o", tmp_path / "found.npz", *where)
    np.testing.assert_array_equal(np.load(tmp_path / "found.npz")["distances"], expected[0])
    told = command("pg", "info", *where)
    assert (told["codes"], told["n_bits"], told["hnsw"]) == (600, 32, False)
    nowhere = ("--dsn", "postgresql://127.0.0.1:1/none")
    assert "no connection" in command("pg", "info", *nowhere, fail=True)
