"""`SQLiteStore`, by a scan and by sqlite-vec, compared with `HammingIndex` and plain NumPy."""

from __future__ import annotations

import pickle
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import oracle
import pytest
from contract import ChangingContract

from kdiffhash import HammingIndex, KernelDiffHash
from kdiffhash.engines import sqlite
from kdiffhash.engines.sqlite import SQLiteStore, StoreError
from kdiffhash.hashers.fingerprint import fingerprint


@pytest.fixture(params=["scan", "sqlite-vec"])
def method(request):
    if request.param == "sqlite-vec":
        pytest.importorskip("apsw")
        pytest.importorskip("sqlite_vec")
    return request.param


@pytest.fixture
def path(tmp_path):
    return tmp_path / "codes.db"


@pytest.fixture
def store(path, method):
    with SQLiteStore(path, method=method) as store:
        yield store


def codes_of(n, n_bits, seed=0, n_distinct=None):
    return oracle.random_codes(np.random.default_rng(seed), n, n_bits, n_distinct)


def query(path, *statements):
    """Execute statements without kdiffhash, and return the rows of the last one."""
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            rows = connection.execute(statement).fetchall()
    connection.close()
    return rows


class TestContract(ChangingContract):
    @pytest.fixture
    def make(self, tmp_path, method):
        made = []

        def create(codes, ids, n_bits):
            made.append(f"codes {len(made)}")
            store = SQLiteStore(tmp_path / "codes.db", made[-1], method=method).create(n_bits)
            store.add(codes, ids)
            return store

        return create


@pytest.mark.parametrize("n_bits", [1, 13, 64, 256, 1000])
@pytest.mark.parametrize("n_distinct", [None, 5])
def test_search_equals_hamming_index(store, n_bits, n_distinct):
    codes = codes_of(400, n_bits, n_distinct=n_distinct)
    ids = np.random.default_rng(1).permutation(5000)[:400] - 100
    queries = codes_of(30, n_bits, seed=2)
    store.create(n_bits)
    assert store.import_codes(codes, ids) == (400, 0)
    index = HammingIndex(codes, ids, n_bits=n_bits)
    projections = np.random.default_rng(3).normal(size=(30, n_bits))
    radius = n_bits // 3
    for call in (
        lambda x: x.search(queries, 7),
        lambda x: x.search(queries, 1000),
        lambda x: x.search(queries, 7, allowed=ids[::3]),
        lambda x: x.search(queries, 7, allowed=[]),
        lambda x: x.search(queries, 4, rerank_projections=projections, rerank_factor=5),
        lambda x: x.search(queries[0], 4, rerank_projections=projections[0]),
        lambda x: x.search_radius(queries, radius),
        lambda x: x.search_radius(queries[:0], radius),
        lambda x: (x.get(ids[:9]), x.ids),
    ):
        for found, expected in zip(call(store), call(index), strict=True):
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype


def test_more_neighbours_than_sqlite_vec_returns_from_its_own_tables(store):
    codes = codes_of(5000, 16, n_distinct=40)
    store.create(16).add(codes)
    expected = oracle.nearest(codes[:1], codes, np.arange(5000), 4500)
    np.testing.assert_array_equal(store.search(codes[:1], 4500)[1], expected[1])


# -- codes in memory ---------------------------------------------------------------------------


def test_searches_see_every_change_of_this_store_and_of_other_connections(store, path, method):
    rng = np.random.default_rng(0)
    known: dict[int, np.ndarray] = {}
    store.create(16)
    with SQLiteStore(path, method=method) as other:
        for step in range(60):
            writer = (store, other)[rng.integers(2)]
            kind = rng.integers(3) if known else 0
            some = rng.permutation(sorted(known))[:5]
            codes = codes_of(5, 16, seed=step)
            if kind == 0:
                known |= dict(zip(writer.add(codes).tolist(), codes))
            elif kind == 1:
                writer.upsert(codes[: len(some)], some)
                known |= dict(zip(some.tolist(), codes))
            else:
                writer.remove(some)
                for i in some.tolist():
                    del known[i]
            ids = np.array(sorted(known), np.int64)
            stored = np.array([known[i] for i in ids], np.uint8).reshape(-1, 2)
            expected = oracle.nearest(codes, stored, ids, 4)
            for reader in (store, other):
                np.testing.assert_array_equal(reader.search(codes, 4)[1], expected[1])


def test_a_store_reads_all_codes_only_after_changes_by_others(path):
    with SQLiteStore(path) as store:
        codes = codes_of(100, 64)
        store.create(64).add(codes[:50])
        loads = []
        read = store._table.all_rows
        store._table.all_rows = lambda n_bits: loads.append(1) or read(n_bits)
        for start in range(50, 100, 10):
            store.search(codes[:3])
            store.add(codes[start : start + 10])
        with pytest.raises(ValueError, match="already stored"):
            store.add(codes[:1], [0])
        assert store.search(codes[99], 1)[1].tolist() == [99]
        assert len(loads) == 1
        query(path, "DELETE FROM codes WHERE id = 99")
        assert store.search(codes[98:], 1)[1][0].tolist() == [98]
        assert 99 not in store.search(codes[99], 100)[1]
        assert len(loads) == 2


# -- data --------------------------------------------------------------------------------------


def test_codes_have_data_and_upsert_overwrites_both(store, path):
    store.create(16)
    codes = codes_of(5, 16)
    store.add(codes[:3], [1, 2, 3], [{"name": "a 'quoted' \"one\""}, None, {"x": [1, "\0"]}])
    assert store.get_data([3, 1, 2]) == [{"x": [1, "\0"]}, {"name": "a 'quoted' \"one\""}, None]
    assert store.upsert(codes[3:4], [2], [{"new": True}]) == (0, 1)
    assert (store.get(2) == codes[3]).all()
    assert store.upsert(codes[2:], [1, 2, 4]) == (1, 2)  # without data, the stored data stays
    assert store.get_data([2, 4]) == [{"new": True}, None]
    np.testing.assert_array_equal(store.get([1, 2, 3, 4]), codes[[2, 3, 2, 4]])
    store.upsert(codes[:1], [2], [None])
    assert store.get_data(2) == [None]
    with pytest.raises(KeyError, match="for example 9"):
        store.get_data([1, 9])
    store.close()
    (row,) = query(path, "SELECT json_extract(data, '$.x[0]') FROM codes WHERE id = 3")
    assert row == (1,)


@pytest.mark.parametrize("call", ["add", "import_codes", "upsert"])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{}], "3 codes but data for 1"),
        ({1: {}, 2: {}, 3: {}}, "data must be a sequence"),
        (iter([{}, {}, {}]), "data must be a sequence"),
        ([{}, {"x": float("nan")}, {}], "data of id 2 cannot be stored as JSON"),
        ([{}, {}, {"x": object()}], "data of id 3 cannot be stored as JSON"),
    ],
    ids=["too few", "mapping", "iterator", "nan", "object"],
)
def test_data_that_does_not_fit_is_refused_and_nothing_is_stored(store, call, data, message):
    store.create(16)
    with pytest.raises(ValueError, match=message):
        getattr(store, call)(codes_of(3, 16), [1, 2, 3], data)
    assert len(store) == 0


# -- tables ------------------------------------------------------------------------------------


def test_codes_of_another_model_or_length_are_refused(store, path, objects):
    X, y = objects
    a, b = (KernelDiffHash(32, n_basis=50, random_state=seed).fit(X, y) for seed in (0, 1))
    store.create(32, a).create(32, a).create(32)
    assert store.model == fingerprint(a)
    codes, ids = a.transform(X), np.arange(len(X))
    store.import_codes(codes[:400], ids[:400], model=a)
    store.add(codes[400:], ids[400:], model=fingerprint(a))
    with pytest.raises(StoreError, match="holds codes of 32 bits, not 16"):
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


@pytest.mark.parametrize(
    "name", ['x"; DROP TABLE victims; --', "a'b", "ünïcode ✓", "SELECT", "a.b", "{table} ?1", " "]
)
def test_table_names_are_quoted(path, method, name):
    query(path, "CREATE TABLE victims (x)")
    with SQLiteStore(path, name, method=method) as store:
        store.create(8).add(np.array([[1], [2]], np.uint8), [1, 2], [{name: name}, None])
        assert store.search(np.array([2], np.uint8), 1)[1].tolist() == [2]
        assert store.get_data([1]) == [{name: name}]
        other_case = name.upper() if name.isascii() else name  # SQLite ignores the case of ASCII
        with SQLiteStore(path, other_case, method=method) as same:
            assert len(same) == 2
        store.drop()
        with pytest.raises(StoreError, match="there is no table"):
            len(store)
        assert len(store.create(16)) == 0  # a new table, of another length
    assert query(path, "SELECT count(*) FROM victims") == [(0,)]


def test_columns_of_the_user_are_kept_and_their_constraints_hold(store, path):
    codes = np.array([[1], [2], [3]], np.uint8)
    store.create(8)
    store.close()
    query(
        path,
        "ALTER TABLE codes ADD COLUMN d TEXT DEFAULT 'new'",
        "ALTER TABLE codes ADD COLUMN value INT",
        "CREATE UNIQUE INDEX one_each ON codes (code)",
    )
    with SQLiteStore(path, method=store._method) as store:
        store.add(codes[:2], [1, 2])
        for call in (store.add, store.import_codes, store.upsert):
            with pytest.raises(StoreError, match="UNIQUE constraint failed"):
                call(codes[1:], [5, 6])
            assert store.ids.tolist() == [1, 2]
        assert store.search(codes[1], 1, allowed=[2])[1].tolist() == [2]
        store.upsert(codes[2:], [2])
        assert store.search_radius(codes[2], 0)[2].tolist() == [2]
    assert query(path, "SELECT id, d, value FROM codes") == [(1, "new", None), (2, "new", None)]


@pytest.mark.parametrize("call", ["add", "import_codes", "upsert"])
def test_rows_that_a_trigger_drops_or_changes_are_noticed(path, call):
    with SQLiteStore(path) as store:
        store.create(16).add(codes_of(1, 16), [0])
        store.search(codes_of(1, 16))
        query(
            path,
            "CREATE TRIGGER dropping BEFORE INSERT ON codes WHEN NEW.id = 2 "
            "BEGIN SELECT RAISE(IGNORE); END",
            "CREATE TRIGGER changing AFTER INSERT ON codes WHEN NEW.id = 5 "
            "BEGIN UPDATE codes SET code = x'ffff' WHERE id = 5; END",
        )
        with pytest.raises(StoreError, match="accepted 2 of 3 rows"):
            getattr(store, call)(codes_of(3, 16), [1, 2, 3])
        assert store.ids.tolist() == [0]
        store.search(codes_of(1, 16))
        getattr(store, call)(np.zeros((1, 2), np.uint8), [5])
        assert store.search(np.array([255, 255], np.uint8), 1)[1].tolist() == [5]


def test_repeated_import_adds_only_missing_codes(store, monkeypatch):
    monkeypatch.setattr(sqlite, "_BATCH", 100)
    codes, ids = codes_of(1000, 64), np.arange(1000)
    store.create(64)
    batches = []
    assert store.import_codes(codes[:350], ids[:350], advance=batches.append) == (350, 0)
    assert batches == [100, 100, 100, 50]
    assert store.import_codes(codes, ids, [{"i": int(i)} for i in ids]) == (650, 350)
    assert store.get_data([349, 350]) == [None, {"i": 350}]
    assert store.import_codes(codes, ids) == (0, 1000)
    with pytest.raises(ValueError, match="id 5 is stored with a different code"):
        store.import_codes(~codes[5:6], [5])
    np.testing.assert_array_equal(store.get(ids), codes)


def test_removed_ids_are_remembered_by_the_file_and_forgotten_with_the_table(path, method):
    with SQLiteStore(path, method=method) as store:
        store.create(16).add(codes_of(5, 16))
        store.remove([3, 4])
    with SQLiteStore(path, "CODES", method=method) as store:  # SQLite ignores the case
        assert store.add(codes_of(1, 16)).tolist() == [5]
        store.remove(5)
        store.drop()
        assert store.create(16).add(codes_of(1, 16)).tolist() == [0]


KILLED = """
import os, sys
import numpy as np
from kdiffhash.engines import sqlite
sqlite._BATCH = 1000
store = sqlite.SQLiteStore(sys.argv[1], method=sys.argv[2])
codes = np.arange(6000, dtype="<u2").view(np.uint8).reshape(-1, 2)
done = []
def advance(n):
    done.append(n)
    if len(done) == 3:  # the fourth batch is then written, but not committed
        execute = store._table.connection.execute
        store._table.connection.execute = (
            lambda text, *values: os.kill(os.getpid(), 9) if text == "COMMIT"
            else execute(text, *values)
        )
store.import_codes(codes, np.arange(6000), advance=advance)
"""


def test_an_import_that_is_killed_keeps_its_committed_batches_and_can_be_resumed(path, method):
    with SQLiteStore(path, method=method) as store:
        store.create(16)
        command = [sys.executable, "-c", KILLED, str(path), method]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert store.ids.tolist() == list(range(3000))
        codes = np.arange(6000, dtype="<u2").view(np.uint8).reshape(-1, 2)
        assert store.import_codes(codes, np.arange(6000)) == (3000, 3000)
        np.testing.assert_array_equal(store.get(np.arange(6000)), codes)
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_commands_import_search_and_report(path, tmp_path, objects, method, command):
    X, y = objects
    hasher = KernelDiffHash(32, n_basis=50, random_state=0).fit(X, y)
    hasher.save(tmp_path / "model")
    codes = hasher.transform(X)
    np.save(tmp_path / "codes.npy", codes)
    np.save(tmp_path / "queries.npy", codes[:3])
    options = ("--database", path, "--table", "my codes", "--json")
    model = ("--model", tmp_path / "model")
    searching = (tmp_path / "queries.npy", "-k", 4, "--method", method, *options)
    assert "there is no file" in command("sqlite", "info", *options, fail=True)
    assert not path.exists()
    result = command("sqlite", "import", tmp_path / "codes.npy", *model, *options)
    assert (result["added"], result["already_stored"]) == (600, 0)
    result = command("sqlite", "import", tmp_path / "codes.npy", *model, *options)
    assert (result["added"], result["already_stored"]) == (0, 600)
    hasher.set_params(random_state=1).fit(X, y).save(tmp_path / "other")
    other = ("--model", tmp_path / "other")
    message = command("sqlite", "import", tmp_path / "codes.npy", *other, *options, fail=True)
    assert "another model" in message
    assert "another model" in command("sqlite", "search", *searching, *other, fail=True)
    expected = HammingIndex(codes).search(codes[:3], 4)
    result = command("sqlite", "search", *searching)
    assert [row["ids"] for row in result["rows"]] == expected[1].tolist()
    command("sqlite", "search", *searching, "-o", tmp_path / "found.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "found.npz")["distances"], expected[0])
    info = command("sqlite", "info", *options)
    assert (info["codes"], info["bits"], info["model"]) == (600, 32, fingerprint_of(tmp_path))
    np.save(tmp_path / "ids.npy", np.arange(599))
    ids = ("--ids", tmp_path / "ids.npy")
    message = command("sqlite", "import", tmp_path / "codes.npy", *ids, *options, fail=True)
    assert "599 ids" in message
    (tmp_path / "not.db").write_text("x" * 5000)
    in_memory = ("--database", ":memory:")
    assert "would be lost" in command("sqlite", "import", *searching[:1], *in_memory, fail=True)
    not_one = ("--database", tmp_path / "not.db")
    assert "not an SQLite database" in command("sqlite", "info", *not_one, fail=True)


def fingerprint_of(folder):
    return fingerprint(KernelDiffHash.load(folder / "model"))


def test_a_pickled_store_opens_the_file_again(store, path, method):
    store.create(16).add(codes_of(3, 16))
    with pickle.loads(pickle.dumps(store)) as again:
        assert (again._method, len(again)) == (method, 3)


# -- re-ranking by a column of floats ----------------------------------------------------------


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "inner_product"])
def test_re_ranking_by_a_column_equals_plain_numpy(store, path, metric):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(300, 6)).astype(np.float32)
    codes, ids = np.packbits(vectors > 0, axis=1), rng.permutation(300) - 20
    queries = rng.normal(size=(20, 6)).astype(np.float32)
    store.create(6).add(codes, ids)
    store.close()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute('ALTER TABLE codes ADD COLUMN "my ""floats""" BLOB')
        connection.executemany(
            'UPDATE codes SET "my ""floats""" = ? WHERE id = ?',
            [(v.tobytes(), i) for v, i in zip(vectors, ids.tolist()) if i % 7],
        )
    connection.close()
    vectors[ids % 7 == 0] = np.nan  # those have none
    bits = np.packbits(queries > 0, axis=1)
    options = {"rerank_column": 'my "floats"', "rerank_metric": metric, "rerank_factor": 8}
    with SQLiteStore(path, method=store._method) as store:
        distances, found = store.search(bits, 5, rerank_vectors=queries, **options)
        one = store.search(bits[0], 5, rerank_vectors=queries[0], **options)
        with pytest.raises(StoreError, match="no column 'floats'"):
            store.search(bits, rerank_vectors=queries, rerank_column="floats")
        with pytest.raises(StoreError, match="must hold blobs of 28 bytes"):
            store.search(bits, rerank_vectors=np.zeros((20, 7)), rerank_column='my "floats"')
    np.testing.assert_array_equal(one[1], found[0])
    _, shortlist = oracle.nearest(bits, codes, ids, 40)
    row_of = {i: row for row, i in enumerate(ids.tolist())}
    for q, candidates in zip(range(20), shortlist.tolist()):
        scored = []
        for i in candidates:
            a, b = queries[q].astype(float), vectors[row_of[i]].astype(float)
            score = {
                "cosine": 1 - a @ b / np.sqrt((a @ a) * (b @ b)),
                "euclidean": np.sqrt(((a - b) ** 2).sum()),
                "inner_product": -(a @ b),
            }[metric]
            scored.append((np.inf if np.isnan(score) else score, i))
        expected = sorted(scored)[:5]
        assert found[q].tolist() == [i for _, i in expected]
        np.testing.assert_allclose(distances[q], [d for d, _ in expected], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rerank_vectors": np.zeros((2, 3))}, "belong together"),
        ({"rerank_column": "x"}, "belong together"),
        (
            {
                "rerank_vectors": np.zeros((2, 3)),
                "rerank_column": "x",
                "rerank_projections": np.zeros((2, 16)),
            },
            "not both",
        ),
        ({"rerank_vectors": np.zeros((3, 3)), "rerank_column": "x"}, "each of the 2 queries"),
        ({"rerank_vectors": np.full((2, 3), np.nan), "rerank_column": "x"}, "finite"),
        (
            {"rerank_vectors": np.zeros((2, 3)), "rerank_column": "x", "rerank_metric": "l3"},
            "rerank_metric must be one of",
        ),
        (
            {"rerank_vectors": np.zeros((2, 3)), "rerank_column": "x", "rerank_factor": 0},
            "rerank_factor must be",
        ),
        ({"rerank_projections": np.zeros((2, 15))}, r"must have shape \(2, 16\)"),
        ({"rerank_vectors": np.zeros((2, 3), complex), "rerank_column": "x"}, "must be numbers"),
        ({"rerank_vectors": [["a"], ["b"]], "rerank_column": "x"}, "must be numbers"),
        ({"rerank_vectors": np.full((2, 3), 1e300), "rerank_column": "x"}, "finite"),
    ],
)
def test_invalid_arguments_for_re_ranking_are_refused(store, options, message):
    store.create(16).add(codes_of(9, 16))
    with pytest.raises(ValueError, match=message):
        store.search(codes_of(2, 16), **options)
