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
    assert store.upsert(codes[3:], [2], [{"new": True}]) == (0, 1)
    assert (store.get(2) == codes[3]).all()
    assert store.get_data([2]) == [{"new": True}]
    store.remove([1])
    with pytest.raises(KeyError, match="for example 1"):
        store.get_data([1])
    assert store.info()["codes"] == 2


def test_upsert_without_data_keeps_the_stored_data(store):
    store.create(16)
    codes = codes_of(5, 16)
    store.add(codes[:3], [1, 2, 3], [{"n": 1}, {"n": 2}, {"n": 3}])
    assert store.upsert(codes[2:], [1, 2, 4]) == (1, 2)
    assert store.get_data([1, 2, 3, 4]) == [{"n": 1}, {"n": 2}, {"n": 3}, None]
    np.testing.assert_array_equal(store.get([1, 2, 3, 4]), codes[[2, 3, 2, 4]])
    store.upsert(codes[:2], [1, 2], [None, {"n": 5}])  # None for one code clears its data
    assert store.get_data([1, 2]) == [None, {"n": 5}]


@pytest.mark.parametrize("call", ["add", "import_codes", "upsert"])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{}], "3 codes but data for 1"),
        ([{}] * 4, "3 codes but data for 4"),
        ({1: {}, 2: {}, 3: {}}, "data must be a sequence"),
        (iter([{}, {}, {}]), "data must be a sequence"),
        ([{}, {"x": float("nan")}, {}], "data of id 2 cannot be stored as JSON"),
        ([{}, {}, {"x": object()}], "data of id 3 cannot be stored as JSON"),
        ([{}, {}, {"x": "\0"}], "PostgreSQL: unsupported Unicode"),
    ],
    ids=["too few", "too many", "mapping", "iterator", "nan", "object", "zero byte"],
)
def test_data_that_does_not_fit_is_refused_and_nothing_is_stored(store, call, data, message):
    store.create(16)
    with pytest.raises(ValueError, match=message):
        getattr(store, call)(codes_of(3, 16), [1, 2, 3], data)
    assert len(store) == 0


@pytest.mark.parametrize("call", ["add", "import_codes", "upsert"])
def test_unsigned_ids_above_the_signed_range_are_refused(store, call):
    store.create(16)
    with pytest.raises(ValueError, match="signed 64-bit integer, got 9223372036854775808"):
        getattr(store, call)(codes_of(2, 16), np.array([1, 2**63], np.uint64))
    assert len(store) == 0
    getattr(store, call)(codes_of(2, 16), np.array([1, 2**63 - 2], np.uint64))
    assert store.ids.tolist() == [1, 2**63 - 2]


@pytest.mark.parametrize("name", ["kdiffhash_staged", "stored", "query", "batch", "done"])
def test_tables_named_like_something_in_our_statements_keep_all_rows(dsn, name):
    codes = codes_of(20, 16)
    with PostgresStore(dsn, name) as store:
        store.create(16)
        assert store.upsert(codes[:10], np.arange(10)) == (10, 0)
        assert store.import_codes(codes, np.arange(20)) == (10, 10)
        assert store.upsert(codes[5:], np.arange(5, 20)) == (0, 15)
        np.testing.assert_array_equal(store.get(np.arange(20)), codes)
        expected = HammingIndex(codes, n_bits=16).search(codes, 3)
        np.testing.assert_array_equal(store.search(codes, 3)[1], expected[1])
        store.drop()


def alter(dsn, store, change):
    with psycopg.connect(dsn) as connection:
        connection.execute(change.format(f'"{store.info()["table"]}"'))


def test_columns_added_by_users_keep_their_defaults_and_values(store, dsn):
    codes = codes_of(30, 16)
    store.create(16)
    columns = ("note text NOT NULL DEFAULT 'new'", "query_code text", "d int", "number int")
    for column in columns:
        alter(dsn, store, f"ALTER TABLE {{}} ADD {column}")
    store.add(codes[:10], np.arange(10))
    alter(dsn, store, "UPDATE {} SET note = 'mine', d = -id")
    assert store.import_codes(codes[:20], np.arange(20)) == (10, 10)
    assert store.upsert(codes[15:], np.arange(15, 30), [{}] * 15) == (10, 5)
    assert store.upsert(codes[:5], np.arange(5)) == (0, 5)
    with psycopg.connect(dsn) as connection:
        query = f'SELECT id, note, d FROM "{store.info()["table"]}" ORDER BY id'
        rows = connection.execute(query).fetchall()
    mine = [(i, "mine", -i) for i in range(10)]
    assert rows == mine + [(i, "new", None) for i in range(10, 30)]
    index = HammingIndex(codes, n_bits=16)
    np.testing.assert_array_equal(store.search(codes, 3)[1], index.search(codes, 3)[1])
    np.testing.assert_array_equal(
        store.search_radius(codes, 4)[2], index.search_radius(codes, 4)[2]
    )


@pytest.mark.parametrize("call", ["add", "import_codes", "upsert"])
def test_rows_that_violate_a_constraint_of_the_user_are_refused_and_not_skipped(store, dsn, call):
    codes = np.array([[1], [2], [3]], np.uint8)
    store.create(8)
    alter(dsn, store, "ALTER TABLE {} ADD UNIQUE (code)")
    store.add(codes[:2], [1, 2])
    with pytest.raises(StoreError, match="violates unique constraint"):
        getattr(store, call)(codes[1:], [5, 6])
    assert store.ids.tolist() == [1, 2]
    getattr(store, call)(codes[2:], [6])
    assert store.ids.tolist() == [1, 2, 6]
    assert store.import_codes(codes, [1, 2, 6]) == (0, 3)


@pytest.mark.parametrize("call", ["add", "import_codes", "upsert"])
def test_rows_that_a_trigger_drops_are_noticed(store, dsn, call):
    name = f"drop_{uuid.uuid4().hex[:8]}"
    store.create(16)
    store.upsert(codes_of(1, 16), [0])
    alter(
        dsn,
        store,
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF NEW.id = 2 THEN RETURN NULL; END IF; RETURN NEW; END'; "
        f"CREATE TRIGGER dropping BEFORE INSERT ON {{}} FOR EACH ROW EXECUTE FUNCTION {name}()",
    )
    with pytest.raises(StoreError, match="accepted 2 of 3 rows"):
        getattr(store, call)(codes_of(3, 16), [1, 2, 3])
    if call == "import_codes":  # the id 0 is stored already
        with pytest.raises(StoreError, match="1 rows were removed"):
            store.import_codes(codes_of(3, 16), [0, 2, 3])
    assert store.ids.tolist() == [0]


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


def weighted(query, code, projections):
    differs = np.unpackbits(query ^ code)[: len(projections)] == 1
    return np.abs(projections)[differs].sum()


@pytest.mark.parametrize("ef_search", [None, 200])
def test_re_ranking_by_projections_equals_plain_numpy(store, ef_search):
    codes, ids = codes_of(300, 40), np.random.default_rng(1).permutation(900)[:300] - 50
    projections = np.random.default_rng(3).normal(size=(12, 40))
    queries = np.packbits(projections > 0, axis=1)
    store.create(40).add(codes, ids)
    store.build_index()
    options = {"rerank_projections": projections, "rerank_factor": 6}
    distances, found = store.search(queries, 5, ef_search=ef_search, **options)
    assert (distances.dtype, distances.shape) == (np.float32, (12, 5))
    _, shortlist = store.search(queries, 30, ef_search=ef_search)
    code_of = dict(zip(ids.tolist(), codes))
    for q in range(12):
        candidates = [i for i in shortlist[q].tolist() if i in code_of]
        scored = sorted((weighted(queries[q], code_of[i], projections[q]), i) for i in candidates)
        assert found[q].tolist() == [i for _, i in scored[:5]]
        np.testing.assert_allclose(distances[q], [d for d, _ in scored[:5]], rtol=1e-5)
    if ef_search is None:
        expected = HammingIndex(codes, ids, n_bits=40).search(queries, 5, **options)
        np.testing.assert_array_equal(found, expected[1])
        one = store.search(queries[3], 5, rerank_projections=projections[3], rerank_factor=6)
        np.testing.assert_array_equal(one[1], found[3])


@pytest.mark.parametrize("kind", ["vector(6)", "halfvec(6)", "vector"])
@pytest.mark.parametrize("metric", ["cosine", "euclidean", "inner_product"])
def test_re_ranking_by_a_float_column_equals_plain_numpy(store, dsn, kind, metric):
    rng = np.random.default_rng(0)
    vectors = rng.integers(-40, 40, (200, 6)) / 8  # exact in half precision
    vectors[:5] = 0
    codes, ids = np.packbits(vectors > 0, axis=1), rng.permutation(200) - 20
    queries = rng.normal(size=(9, 6)).astype(np.float32)
    bits = np.packbits(queries > 0, axis=1)
    store.create(6).add(codes, ids)
    alter(dsn, store, f'ALTER TABLE {{}} ADD "my 50%% ""floats""" {kind}'.replace("%%", "%"))
    with psycopg.connect(dsn) as connection:
        update = f'UPDATE "{store.info()["table"]}" SET "my 50%% ""floats""" = %s WHERE id = %s'
        rows = [(str(v.tolist()), i) for v, i in zip(vectors, ids.tolist()) if i % 7]
        connection.cursor().executemany(update, rows)
    options = {"rerank_column": 'my 50% "floats"', "rerank_metric": metric, "rerank_factor": 8}
    distances, found = store.search(bits, 5, rerank_vectors=queries, **options)
    one = store.search(bits[0], 5, rerank_vectors=queries[0], **options)
    np.testing.assert_array_equal(one[1], found[0])
    _, shortlist = HammingIndex(codes, ids, n_bits=6).search(bits, 40)
    row_of = {i: row for row, i in enumerate(ids.tolist())}
    for q in range(9):
        scores = []
        for i in shortlist[q].tolist():
            a, b = queries[q].astype(float), vectors[row_of[i]]
            with np.errstate(invalid="ignore"):
                score = {
                    "cosine": 1 - a @ b / np.sqrt((a @ a) * (b @ b)),
                    "euclidean": np.sqrt(((a - b) ** 2).sum()),
                    "inner_product": -(a @ b),
                }[metric]
            scores.append((np.inf if i % 7 == 0 or np.isnan(score) else score, i))
        expected = sorted(scores)[:5]
        np.testing.assert_allclose(distances[q], [d for d, _ in expected], rtol=1e-4, atol=1e-5)
        score_of = {i: d for d, i in scores}
        chosen = [score_of[i] for i in found[q].tolist()]
        np.testing.assert_allclose(chosen, distances[q], rtol=1e-4, atol=1e-5)


def test_a_column_that_holds_no_vectors_is_refused(store, dsn):
    codes = codes_of(3, 16)
    store.create(16).add(codes)
    alter(dsn, store, "ALTER TABLE {} ADD v vector(4), ADD n int")
    for column, message in (
        ("x", "no such column"),
        ("n", "one of type int4"),
        ("v", "vectors of 4 numbers, rerank_vectors has 3"),
    ):
        with pytest.raises(StoreError, match=message):
            store.search(codes, rerank_vectors=np.zeros((3, 3)), rerank_column=column)
    with pytest.raises(ValueError, match="belong together"):
        store.search(codes, rerank_vectors=np.zeros((3, 3)))


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


@pytest.mark.parametrize("name", ["", "a\0", "a" * 64, "\ud800", 3])
def test_names_that_no_table_can_have_are_refused(name):
    with pytest.raises(ValueError, match="the name of a table must be a text of 1 to 63 bytes"):
        PostgresStore("host=nowhere.invalid", name)


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
    for n in (599, 601):
        np.save(tmp_path / "ids.npy", np.arange(n) + 10_000)
        ids = ("--ids", tmp_path / "ids.npy")
        message = command("pg", "import", tmp_path / "codes.npy", *ids, *options, fail=True)
        assert f"{n} ids" in message
    assert command("pg", "info", *options)["codes"] == 600
    unreachable = ("--dsn", "postgresql://127.0.0.1:1/none")
    assert "cannot connect" in command("pg", "info", *unreachable, fail=True)


def test_the_id_of_a_removed_last_row_is_not_assigned_again(store, dsn):
    store.create(64).add(codes_of(5, 64))
    store.remove([4])
    assert store.add(codes_of(1, 64)).tolist() == [5]
    store.upsert(codes_of(1, 64), [900])
    store.remove([5, 900])
    store.remove([0])
    with PostgresStore(dsn, store._table.name) as other:
        assert other.add(codes_of(2, 64)).tolist() == [901, 902]
    store.remove(store.ids)
    assert store.add(codes_of(1, 64)).tolist() == [903]


def test_a_failed_removal_uses_no_ids(store):
    store.create(64).add(codes_of(3, 64))
    with pytest.raises(KeyError):
        store.remove([2, 77])
    assert store.add(codes_of(1, 64)).tolist() == [3]


def test_tables_without_a_record_of_removed_ids_still_work(store, dsn):
    store.create(64).add(codes_of(3, 64))
    with psycopg.connect(dsn) as connection:
        sequence = connection.execute(
            "SELECT pg_get_serial_sequence(%s, 'id')", [f'"{store._table.name}"']
        ).fetchone()[0]
        connection.execute(f"DROP SEQUENCE {sequence}")
    store.remove([2])
    assert store.add(codes_of(1, 64)).tolist() == [2]
