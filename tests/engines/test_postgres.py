"""Codes in a real PostgreSQL, beside `HammingIndex`."""

from __future__ import annotations

import threading
import uuid

import numpy as np
import pytest
from contract import ChangingContract

from kdiffhash import HammingIndex, KernelDiffHash
from kdiffhash.engines import postgres
from kdiffhash.engines.postgres import PostgresStore, StoreError
from kdiffhash.hashers.fingerprint import fingerprint

psycopg = pytest.importorskip("psycopg")


@pytest.fixture
def store(dsn):
    with PostgresStore(dsn, f"codes {uuid.uuid4().hex}") as made:
        yield made


class TestContract(ChangingContract):
    @pytest.fixture
    def make(self, dsn):
        def create(codes, ids, n_bits):
            store = PostgresStore(dsn, f"codes {uuid.uuid4().hex}").create(n_bits)
            store.add(codes, ids)
            return store

        return create


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
    assert store.import_codes(codes, ids) == (400, 0)
    index = HammingIndex(codes, ids, n_bits=n_bits)
    for found, expected in zip(store.search(queries, 7), index.search(queries, 7)):
        np.testing.assert_array_equal(found, expected)
    radius = n_bits // 3
    for found, expected in zip(
        store.search_radius(queries, radius), index.search_radius(queries, radius)
    ):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(store.get(ids[:9]), codes[:9])
    assert store.search(queries, 1000)[0].shape == (30, 400)
    assert store.search(queries[:0], 3)[0].shape == (0, 3)


def test_rows_carry_data_and_are_replaced(store):
    store.create(16)
    codes = codes_of(4, 16)
    store.add(codes[:3], [1, 2, 3], [{"name": "a 'quoted' \"one\""}, None, {"x": [1, 2]}])
    assert store.get_data([3, 1, 2]) == [{"x": [1, 2]}, {"name": "a 'quoted' \"one\""}, None]
    store.upsert(codes[3:], [2], [{"new": True}])
    assert (store.get(2) == codes[3]).all()
    assert store.get_data([2]) == [{"new": True}]
    with pytest.raises(ValueError, match="data for 2"):
        store.upsert(codes[3:], [2], [{}, {}])
    store.remove([1])
    with pytest.raises(KeyError, match="for example 1"):
        store.get_data([1])
    assert store.info()["codes"] == 2


def test_an_import_that_is_done_again_changes_nothing(store, monkeypatch):
    monkeypatch.setattr(postgres, "_BATCH", 100)
    codes, ids = codes_of(1000, 64), np.arange(1000)
    store.create(64)
    assert store.import_codes(codes[:350], ids[:350]) == (350, 0)
    assert store.import_codes(codes, ids) == (650, 350)
    assert store.import_codes(codes, ids) == (0, 1000)
    with pytest.raises(ValueError, match="id 5 is stored with another code"):
        store.import_codes(~codes[5:6], [5])
    np.testing.assert_array_equal(store.get(ids), codes)


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

    assert sum(store.import_codes(codes, ids, advance=stop)) == 20_000
    assert store.info()["codes"] == 20_000
    np.testing.assert_array_equal(store.get(ids), codes)


def test_approximate_search_uses_the_graph(store):
    codes = codes_of(3000, 64)
    store.create(64)
    store.add(codes)
    store.build_index(m=16, ef_construction=64)
    assert store.info()["hnsw"]
    distances, _ = store.search(codes[:50], 10, ef_search=200)
    exact, _ = store.search(codes[:50], 10)
    assert (distances[:, 0] == 0).all()
    assert (distances == exact).mean() > 0.9
    assert (np.diff(exact, axis=1) >= 0).all()


def test_models_and_lengths_are_not_mixed(store, dsn, objects):
    X, y = objects
    a, b = (KernelDiffHash(32, n_basis=50, random_state=seed).fit(X, y) for seed in (0, 1))
    store.create(32, a)
    store.create(32, a)  # the same again is fine
    store.create(32)  # what is not known is taken on trust
    assert store.model == fingerprint(a)
    codes, ids = a.transform(X), np.arange(len(X))
    store.import_codes(codes[:400], ids[:400], model=a)
    store.add(codes[400:], ids[400:], model=fingerprint(a))
    with pytest.raises(StoreError, match="32 bits"):
        store.create(16)
    for call in (
        lambda: store.create(32, b),
        lambda: store.import_codes(b.transform(X), ids, model=b),
        lambda: store.add(b.transform(X), model=b),
        lambda: store.upsert(b.transform(X), ids, model=fingerprint(b)),
    ):
        with pytest.raises(ValueError, match="holds codes of another model"):
            call()
    np.testing.assert_array_equal(store.get(ids), codes)
    with pytest.raises(ValueError, match="produces codes of 32 bits"):
        PostgresStore(dsn, f"codes {uuid.uuid4().hex}").create(16, a)
    with pytest.raises(ValueError, match="bytes per code"):
        store.import_codes(np.zeros((1, 8), np.uint8), [1])
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
        store.add(np.array([[1], [2]], np.uint8), [1, 2], [{name: name}, None])
        assert store.search(np.array([[2]], np.uint8), 1)[1].tolist() == [[2]]
        assert store.get_data([1]) == [{name: name}]
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
        (lambda: store.import_codes(codes, [1]), "1 ids"),
        (lambda: store.import_codes(codes, [1, 1]), "duplicates"),
        (lambda: store.import_codes(codes, ["1; DROP TABLE x", "2"]), "ids must be integers"),
        (lambda: store.import_codes(codes, [1, 2], [{}]), "data for 1"),
        (lambda: store.add(codes, [1, 2], [{}]), "data for 1"),
        (lambda: store.search(codes, 0), "of at least 1"),
        (lambda: store.search(codes, 1, ef_search=0), "ef_search"),
        (lambda: store.search_radius(codes, -1), "zero or more"),
        (lambda: store.build_index(m=1), "ef_construction"),
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


def test_the_command_line(dsn, tmp_path, objects, command):
    X, y = objects
    hasher = KernelDiffHash(32, n_basis=50, random_state=0).fit(X, y)
    hasher.save(tmp_path / "model")
    codes, table = hasher.transform(X), f"cli {uuid.uuid4().hex}"
    np.save(tmp_path / "codes.npy", codes)
    np.save(tmp_path / "queries.npy", codes[:3])
    where = ("--dsn", dsn, "--table", table, "--json")
    model = ("--model", tmp_path / "model")
    told = command("pg", "import", tmp_path / "codes.npy", *model, *where)
    assert (told["added"], told["there_before"]) == (600, 0)
    assert command("pg", "import", tmp_path / "codes.npy", *model, *where)["there_before"] == 600
    hasher.set_params(random_state=1).fit(X, y).save(tmp_path / "other")
    other = (*where, "--model", tmp_path / "other")
    assert "another model" in command("pg", "import", tmp_path / "codes.npy", *other, fail=True)
    assert "another model" in command("pg", "search", tmp_path / "queries.npy", *other, fail=True)
    told = command("pg", "search", tmp_path / "queries.npy", "-k", 4, *where)
    expected = HammingIndex(codes).search(codes[:3], 4)
    assert [row["ids"] for row in told["rows"]] == expected[1].tolist()
    command("pg", "search", tmp_path / "queries.npy", "-k", 4, "-o", tmp_path / "found.npz", *where)
    np.testing.assert_array_equal(np.load(tmp_path / "found.npz")["distances"], expected[0])
    told = command("pg", "info", *where)
    assert (told["codes"], told["bits"], told["hnsw"]) == (600, 32, False)
    nowhere = ("--dsn", "postgresql://127.0.0.1:1/none")
    assert "no connection" in command("pg", "info", *nowhere, fail=True)
