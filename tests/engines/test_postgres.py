"""`PostgresStore` on a real PostgreSQL server, compared with `HammingIndex`."""

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
    with PostgresStore(dsn, f"codes {uuid.uuid4().hex}") as store:
        yield store


class TestContract(ChangingContract):
    @pytest.fixture
    def make(self, dsn):
        def create(codes, ids, n_bits):
            store = PostgresStore(dsn, f"codes {uuid.uuid4().hex}").create(n_bits)
            store.add(codes, ids)
            return store

        return create


def codes_of(n, n_bits, seed=0, n_distinct=None):
    """Return random codes; with `n_distinct`, many of them are equal."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (n_distinct or n, n_bits), dtype=np.uint8)
    codes = np.packbits(bits, axis=1)
    return codes if n_distinct is None else codes[rng.integers(0, n_distinct, n)]


@pytest.mark.parametrize("n_bits", [1, 8, 13, 64, 256, 1000])
@pytest.mark.parametrize("n_distinct", [None, 5])
def test_exact_search_equals_hamming_index(store, n_bits, n_distinct):
    codes = codes_of(400, n_bits, n_distinct=n_distinct)
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


def test_codes_have_data_and_upsert_overwrites_both(store):
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


def test_repeated_import_adds_only_missing_codes(store, monkeypatch):
    monkeypatch.setattr(postgres, "_BATCH", 100)
    codes, ids = codes_of(1000, 64), np.arange(1000)
    store.create(64)
    assert store.import_codes(codes[:350], ids[:350]) == (350, 0)
    assert store.import_codes(codes, ids) == (650, 350)
    assert store.import_codes(codes, ids) == (0, 1000)
    with pytest.raises(ValueError, match="id 5 is stored with a different code"):
        store.import_codes(~codes[5:6], [5])
    np.testing.assert_array_equal(store.get(ids), codes)


def test_import_continues_after_the_server_restarts(store, server, monkeypatch):
    if server is None:
        pytest.skip("the server of KDIFFHASH_PG_DSN must not be stopped")
    monkeypatch.setattr(postgres, "_BATCH", 500)
    codes, ids = codes_of(20_000, 64), np.arange(20_000)
    store.create(64)
    batches = []

    def restart_after_seven_batches(n):
        batches.append(n)
        if len(batches) == 7:
            server.stop()
            threading.Timer(1.0, server.start).start()

    imported = store.import_codes(codes, ids, advance=restart_after_seven_batches)
    assert sum(imported) == 20_000
    assert store.info()["codes"] == 20_000
    np.testing.assert_array_equal(store.get(ids), codes)


def test_approximate_search_uses_the_hnsw_index(store):
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


def test_codes_of_another_model_or_length_are_refused(store, dsn, objects):
    X, y = objects
    a, b = (KernelDiffHash(32, n_basis=50, random_state=seed).fit(X, y) for seed in (0, 1))
    store.create(32, a)
    store.create(32, a)  # an existing table of the same model is accepted
    store.create(32)  # an unknown model is not checked
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
    "name",
    ['x"; DROP TABLE victims; --', "a'b", "ünïcode ✓", "SELECT", "query", "a.b", "%s {table}", " "],
)
def test_table_names_are_quoted(dsn, name):
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


def test_invalid_input_is_refused(store, dsn):
    with pytest.raises(StoreError, match="no table"):
        store.search(np.zeros((1, 8), np.uint8))
    with pytest.raises(ValueError, match="n_bits"):
        store.create(0)
    store.create(64)
    codes = np.zeros((2, 8), np.uint8)
    for call, message in (
        (lambda: store.import_codes(codes, [1]), "1 ids"),
        (lambda: store.import_codes(codes, [1, 1]), "duplicates"),
        (lambda: store.import_codes(codes, ["1; DROP TABLE x", "2"]), "ids must be integers"),
        (lambda: store.import_codes(codes, [1, 2], [{}]), "data for 1"),
        (lambda: store.add(codes, [1, 2], [{}]), "data for 1"),
        (lambda: store.search(codes, 0), "of at least 1"),
        (lambda: store.search(codes, 1, ef_search=0), "ef_search"),
        (lambda: store.search_radius(codes, -1), "of at least 0"),
        (lambda: store.build_index(m=1), "ef_construction"),
        (lambda: PostgresStore(dsn, ""), "name"),
        (lambda: PostgresStore(dsn, "x" * 64), "name"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert store.info()["codes"] == 0
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS foreign_table (id int)")
    message = "not created by kdiffhash"
    with PostgresStore(dsn, "foreign_table") as foreign, pytest.raises(StoreError, match=message):
        foreign.create(8)
    with pytest.raises(ConnectionError, match="cannot connect"):
        PostgresStore("postgresql://127.0.0.1:1/none")


def test_commands_import_search_and_report(dsn, tmp_path, objects, command):
    X, y = objects
    hasher = KernelDiffHash(32, n_basis=50, random_state=0).fit(X, y)
    hasher.save(tmp_path / "model")
    codes, table = hasher.transform(X), f"cli {uuid.uuid4().hex}"
    np.save(tmp_path / "codes.npy", codes)
    np.save(tmp_path / "queries.npy", codes[:3])
    options = ("--dsn", dsn, "--table", table, "--json")
    model = ("--model", tmp_path / "model")
    result = command("pg", "import", tmp_path / "codes.npy", *model, *options)
    assert (result["added"], result["already_stored"]) == (600, 0)
    assert (
        command("pg", "import", tmp_path / "codes.npy", *model, *options)["already_stored"] == 600
    )
    hasher.set_params(random_state=1).fit(X, y).save(tmp_path / "other")
    other = (*options, "--model", tmp_path / "other")
    assert "another model" in command("pg", "import", tmp_path / "codes.npy", *other, fail=True)
    assert "another model" in command("pg", "search", tmp_path / "queries.npy", *other, fail=True)
    result = command("pg", "search", tmp_path / "queries.npy", "-k", 4, *options)
    expected = HammingIndex(codes).search(codes[:3], 4)
    assert [row["ids"] for row in result["rows"]] == expected[1].tolist()
    command(
        "pg", "search", tmp_path / "queries.npy", "-k", 4, "-o", tmp_path / "found.npz", *options
    )
    np.testing.assert_array_equal(np.load(tmp_path / "found.npz")["distances"], expected[0])
    info = command("pg", "info", *options)
    assert (info["codes"], info["bits"], info["hnsw"]) == (600, 32, False)
    unreachable = ("--dsn", "postgresql://127.0.0.1:1/none")
    assert "cannot connect" in command("pg", "info", *unreachable, fail=True)
