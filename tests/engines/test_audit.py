"""Audits of approximate indexes of FAISS and pgvector, on real ones."""

from __future__ import annotations

import uuid

import numpy as np
import oracle
import pytest
from scipy.stats import binomtest

from kdiffhash import HammingIndex
from kdiffhash.search.search_audit import audit, mean_interval


def codes_of(n, n_bits=64, seed=0):
    return oracle.random_codes(np.random.default_rng(seed), n, n_bits)


def recall_of(found, queries, codes, k):
    """Recall@k by brute force, in which any choice among ties is right."""
    shares = []
    for query, ids in zip(queries, found):
        distances = oracle.distances_of(query[None], codes)[0]
        bound = np.sort(distances)[k - 1]
        own = {int(i) for i in ids if i >= 0}
        shares.append(min(k, sum(distances[i] <= bound for i in own)) / k)
    return float(np.mean(shares))


def test_ties_unknown_and_repeated_ids_are_counted_right():
    codes = np.array([[0], [1], [2], [3], [0]], np.uint8)
    exact = HammingIndex(codes)
    queries = np.array([[0], [0], [0]], np.uint8)
    # The nearest three are 0 and 4 at distance 0, and any of 1 and 2 at distance 1.
    found = [np.array([4, 0, 2]), np.array([0, 0, -1, 99]), np.array([1, 2, 3])]
    result = audit(exact, queries, found, 3)
    assert result.recall.value == pytest.approx((1 + 1 / 3 + 2 / 3) / 3)
    assert result.complete == pytest.approx(1 / 3)
    assert (result.at_zero, result.missed_at_zero) == (3, 2)
    assert [(m.query, m.ids) for m in result.examples] == [(1, [4]), (2, [0, 4])]
    with pytest.raises(ValueError, match="at least one query"):
        audit(exact, queries[:0], [], 3)


def test_the_interval_is_that_of_clopper_and_pearson_for_independent_results():
    shares = np.repeat([0.0, 1.0], [13, 87])
    exact = binomtest(87, 100).proportion_ci(0.95, method="exact")
    found = mean_interval(shares, 1)
    # The sample variance is divided by n - 1, so there is one trial less.
    fewer = binomtest(86, 99).proportion_ci(0.95, method="exact")
    assert min(exact.low, fewer.low) - 0.002 <= found[0] <= max(exact.low, fewer.low) + 0.002
    assert abs(found[1] - exact.high) < 0.003
    low, high = mean_interval(np.ones(100), 10)  # nothing was missed in 100 queries
    assert low == pytest.approx(binomtest(100, 100).proportion_ci(0.95, method="exact").low)
    assert high == 1
    assert mean_interval(np.zeros(50), 10)[0] == 0


def test_the_interval_covers_the_true_recall():
    """Results of a query depend on each other: its recall is drawn from a beta distribution."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        shares = rng.binomial(10, rng.beta(9, 1, 60)) / 10  # mean 0.9
        low, high = mean_interval(shares, 10)
        covered += low <= 0.9 <= high
    assert covered / 300 > 0.92


def graph_file(tmp_path, codes, ids=None, ef_search=8):
    faiss = pytest.importorskip("faiss")
    graph = faiss.IndexBinaryHNSW(8 * codes.shape[1], 4)
    graph.hnsw.efConstruction, graph.hnsw.efSearch = 8, ef_search
    index = graph
    if ids is None:
        graph.add(codes)
    else:
        index = faiss.IndexBinaryIDMap(graph)
        index.add_with_ids(codes, np.asarray(ids))
    path = tmp_path / "graph.faiss"
    faiss.write_index_binary(index, str(path))
    return path, index


def test_a_faiss_graph_in_a_file(tmp_path, command):
    codes = codes_of(3000)
    path, index = graph_file(tmp_path, codes, 10 + np.arange(3000))
    queries = codes_of(200, seed=1)
    np.save(tmp_path / "queries.npy", queries)
    result = command("index", "audit", path, "--queries", tmp_path / "queries.npy", "--json")
    expected = recall_of(index.search(queries, 10)[1] - 10, queries, codes, 10)
    (row,) = result["rows"]
    assert row["setting"] == "efSearch=8"
    assert row["recall"] == pytest.approx(expected)
    assert expected < 0.8
    assert row["recall_low"] < expected < row["recall_high"]
    rows = command("index", "audit", path, "--ef-search", 8, "--ef-search", 500, "--json")["rows"]
    assert [row["setting"] for row in rows] == ["efSearch=8", "efSearch=500"]
    assert rows[1]["recall"] > rows[0]["recall"]
    command("index", "audit", path, "--min-recall", 0.99, fail=True)
    command("index", "audit", path, "--ef-search", 3000, "--min-recall", 0.5)


def test_misses_at_distance_0_are_named(tmp_path, command):
    codes = codes_of(2000)
    codes[1500:] = codes[3]  # a graph of many equal codes comes apart
    path, index = graph_file(tmp_path, codes)
    result = command("index", "audit", path, "-k", 5, "--n-queries", 2000, "--json")
    (row,) = result["rows"]
    missing = [
        q
        for q, ids in enumerate(index.search(codes, 5)[1])
        if sum((codes[i] == codes[q]).all() for i in ids if i >= 0)
        < min(5, (codes == codes[q]).all(axis=1).sum())
    ]
    assert row["equal_code_stored"] == 2000
    assert row["equal_code_missed"] == len(missing) > 0
    for example in result["missed"]:
        assert all((codes[i] == codes[missing]).all(axis=1).any() for i in example["ids"])
    assert "missed at distance 0" in command("index", "audit", path)


def test_other_faiss_indexes(tmp_path, command):
    faiss = pytest.importorskip("faiss")
    codes = codes_of(2000)
    ivf = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(64), 64, 20)
    ivf.train(codes)
    ivf.add(codes)
    faiss.write_index_binary(ivf, str(tmp_path / "ivf"))
    rows = command("index", "audit", tmp_path / "ivf", "--n-probe", 1, "--n-probe", 20, "--json")
    assert [row["setting"] for row in rows["rows"]] == ["nprobe=1", "nprobe=20"]
    assert rows["rows"][0]["recall"] < rows["rows"][1]["recall"] == 1
    flat = faiss.IndexBinaryFlat(64)
    flat.add(codes)
    faiss.write_index_binary(flat, str(tmp_path / "flat"))
    assert command("index", "audit", tmp_path / "flat", "--json")["rows"][0]["recall"] == 1
    message = command("index", "audit", tmp_path / "flat", "--n-probe", 2, fail=True)
    assert "no efSearch or nprobe" in message
    (tmp_path / "text").write_text("no index")
    assert "not a binary FAISS index" in command("index", "audit", tmp_path / "text", fail=True)
    assert "give the database" in command("index", "audit", tmp_path / "absent", fail=True)
    both = ("--n-probe", 2, "--ef-search", 2)
    assert "give one of them" in command("index", "audit", tmp_path / "flat", *both, fail=True)


# -- PostgreSQL ---------------------------------------------------------------------------------


@pytest.fixture
def table(dsn):
    """A connection, and the name of a new table with a space and a capital letter."""
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        name = f"Photos {uuid.uuid4().hex}"
        yield connection, name
        connection.execute(f'DROP TABLE IF EXISTS "{name}"')


def as_bits(codes, n_bits):
    bits = np.unpackbits(codes, axis=1, count=n_bits)
    return ["".join(map(str, row)) for row in bits.tolist()]


def test_a_table_that_others_created(dsn, table, command, tmp_path):
    connection, name = table
    codes = codes_of(1500, 36)
    connection.execute(f'CREATE TABLE "{name}" (file text PRIMARY KEY, hash bit(36))')
    with connection.cursor() as cursor:
        rows = [(f"p{i}.jpg", text) for i, text in enumerate(as_bits(codes, 36))]
        cursor.executemany(f'INSERT INTO "{name}" VALUES (%s, %s::text::bit(36))', rows)
    connection.execute(f"INSERT INTO \"{name}\" VALUES ('without a hash', NULL)")
    audit_table = ("index", "audit", name, "--dsn", dsn, "--json")
    assert "no index with bit_hamming_ops" in command(*audit_table, fail=True)
    connection.execute(f'CREATE INDEX ON "{name}" USING hnsw (hash bit_hamming_ops) WITH (m = 2)')
    queries = codes_of(100, 36, seed=1)
    np.save(tmp_path / "queries.npy", queries)
    options = ("--queries", tmp_path / "queries.npy", "--ef-search", 10, "--ef-search", 400)
    result = command(*audit_table, *options)
    recalls = []
    for ef_search in (10, 400):
        found = []
        with connection.transaction():
            connection.execute("SELECT set_config('hnsw.ef_search', %s, true)", [str(ef_search)])
            connection.execute("SET LOCAL enable_seqscan = off")
            connection.execute("SET LOCAL enable_sort = off")
            for text in as_bits(queries, 36):
                rows = connection.execute(
                    f'SELECT file FROM "{name}" ORDER BY hash <~> %s::text::bit(36) LIMIT 10',
                    [text],
                ).fetchall()
                found.append([int(row[0][1:-4]) for row in rows])
        recalls.append(recall_of(found, queries, codes, 10))
    assert [row["setting"] for row in result["rows"]] == [
        *("hnsw.ef_search=10", "hnsw.ef_search=400")
    ]
    assert [row["recall"] for row in result["rows"]] == pytest.approx(recalls)
    assert recalls[0] < recalls[1]
    drawn = command(*audit_table, "--n-queries", 50)
    assert drawn["rows"][0]["equal_code_stored"] == drawn["queries"] == 50


def test_partial_indexes_on_expressions_and_ivfflat(dsn, table, command):
    connection, name = table
    connection.execute(f'CREATE TABLE "{name}" (a int, b int, v vector(16), PRIMARY KEY (a, b))')
    vectors = np.random.default_rng(0).normal(size=(800, 16)).round(3)
    with connection.cursor() as cursor:
        rows = [(i, i % 2, str(v.tolist())) for i, v in enumerate(vectors)]
        cursor.executemany(f'INSERT INTO "{name}" VALUES (%s, %s, %s)', rows)
    connection.execute(
        f'CREATE INDEX ON "{name}" USING ivfflat ((binary_quantize(v)::bit(16)) bit_hamming_ops) '
        "WITH (lists = 20) WHERE b = 1"
    )
    result = command(
        *("index", "audit", name, "--dsn", dsn, "--json"),
        *("--n-queries", 1000, "--n-probe", 1, "--n-probe", 20),
    )
    first, second = result["rows"]
    assert first["setting"] == "ivfflat.probes=1"
    assert first["recall"] < second["recall"] == 1
    assert first["equal_code_stored"] == 400  # the index covers half of the rows
    message = command("index", "audit", "no table", "--dsn", dsn, fail=True)
    assert "there is no table 'no table'" in message


def test_a_table_of_postgres_store(dsn, command):
    from kdiffhash.engines.postgres import PostgresStore

    name = f"codes {uuid.uuid4().hex}"
    with PostgresStore(dsn, name).create(64) as store:
        store.add(codes_of(500))
        store.build_index()
        result = command("index", "audit", name, "--dsn", dsn, "--ef-search", 500, "--json")
        assert result["rows"][0]["recall"] > 0.9
        store.drop()
