"""`kdiffhash eval --retrieval`, compared with hand-worked cases, NumPy and scikit-learn."""

from __future__ import annotations

import os

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

import kdiffhash
from kdiffhash.cli.eval_command import _warn

MEASURES = ("recall_at_1", "recall_at_10", "recall_at_100", "ndcg_at_10", "mrr")


@pytest.fixture
def codes(tmp_path):
    """Four documents and three queries of 8 bits; the ranking of each query is worked by hand.

    Query 0 (00000000): documents at distances 1, 2, 3, 8, so the order is 0, 1, 2, 3.
    Query 1 (11111111): distances 7, 6, 5, 0, so the order is 3, 2, 1, 0.
    Query 2 (00000001): distances 0, 1, 2, 7, so the order is 0, 1, 2, 3.
    """
    np.save(tmp_path / "documents.npy", np.array([[1], [3], [7], [255]], np.uint8))
    np.save(tmp_path / "queries.npy", np.array([[0], [255], [1]], np.uint8))
    return tmp_path


def of_codes(codes, command, *options):
    files = (codes / "documents.npy", "--queries", codes / "queries.npy")
    return command("eval", *files, "--retrieval", "--resamples", 0, *options, "--json")


def test_codes_with_pairs_from_a_csv_file_equal_the_hand_worked_case(codes, command):
    lines = "query,document\n0,1\n1,3\n\n2,0\n2,2\n"
    (codes / "relevant.csv").write_text(lines)
    result = of_codes(codes, command, "--relevant", codes / "relevant.csv")
    (row,) = result["rows"]
    # Ranks of the relevant documents: query 0: 2; query 1: 1; query 2: 1 and 3.
    ideal = 1 + 1 / np.log2(3)
    assert row["recall_at_1"] == pytest.approx((0 + 1 + 1 / 2) / 3)
    assert row["recall_at_10"] == row["recall_at_100"] == 1
    assert row["ndcg_at_10"] == pytest.approx((1 / np.log2(3) + 1 + (1 + 1 / 2) / ideal) / 3)
    assert row["mrr"] == pytest.approx((1 / 2 + 1 + 1) / 3)
    assert (row["bits"], result["documents"], result["queries"]) == (8, 4, 3)


def test_gains_and_queries_without_relevant_documents(codes, command):
    (codes / "relevant.csv").write_text("0,0,1\n0,1,3\n2,3,0\n")
    result = of_codes(codes, command, "--relevant", codes / "relevant.csv")
    assert result["queries_without_relevant"] == 2  # query 1, and query 2 with a gain of 0
    expected = ndcg_score([[1, 3, 0, 0]], [[-1, -2, -3, -8]], k=10)
    assert result["rows"][0]["ndcg_at_10"] == pytest.approx(expected)


def test_one_document_per_query_and_pairs_in_npy_files_agree(codes, command):
    np.save(codes / "ids.npy", [1, 3, 2])
    np.save(codes / "pairs.npy", [[2, 2], [0, 1], [1, 3]])
    results = [of_codes(codes, command, "--relevant", codes / n) for n in ("ids.npy", "pairs.npy")]
    assert results[0]["rows"] == results[1]["rows"]
    assert results[0]["rows"][0]["mrr"] == pytest.approx((1 / 2 + 1 + 1 / 3) / 3)


@pytest.fixture(scope="module")
def trained(objects, tmp_path_factory):
    """A model, and rows of which even ones are queries and odd ones documents, with labels."""
    folder = tmp_path_factory.mktemp("retrieval")
    X, y = objects
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    hasher = kdiffhash.DiffHash(12, random_state=0).fit(X, y)
    hasher.save(folder / "model")
    for name, rows in (("queries", slice(0, None, 2)), ("documents", slice(1, None, 2))):
        np.savez(folder / f"{name}.npz", X=X[rows], y=y[rows])
        np.save(folder / f"{name}.npy", X[rows])
    return folder, hasher, X[::2], X[1::2], y[::2], y[1::2]


def test_models_are_compared_with_floats_and_sign_bits(trained, command):
    folder, hasher, queries, documents, y_queries, y_documents = trained
    files = (folder / "model", folder / "documents.npz", "--queries", folder / "queries.npz")
    result = command("eval", *files, "--retrieval", "--bits", 5, "--json")
    rows = {(row["method"], row["bits"]): row for row in result["rows"]}
    assert set(rows) == {
        *(("floats", 384), ("sign bits", 12), ("bits", 5), ("bits", 12)),
        *(("bits, float query", 5), ("bits, float query", 12)),
    }
    relevant = y_queries[:, None] == y_documents[None]
    signs = np.where(hasher.project(documents) > 0, 1, -1)
    projections = hasher.project(queries).astype(float)
    scores = {
        ("floats", 384): queries.astype(float) @ documents.T,
        ("bits", 12): np.sign(projections) @ signs.T,
        ("bits, float query", 12): projections @ signs.T,
        ("bits, float query", 5): projections[:, :5] @ signs[:, :5].T,
    }
    for name, score in scores.items():
        score -= np.arange(len(documents)) * 1e-9  # the lower id first
        row, order = rows[name], np.argsort(-score, axis=1)
        hits = np.take_along_axis(relevant, order, axis=1)
        assert row["ndcg_at_10"] == pytest.approx(ndcg_score(relevant, score, k=10), abs=1e-6)
        for k in (1, 10, 100):
            assert row[f"recall_at_{k}"] == pytest.approx((hits[:, :k].sum(axis=1) / 2).mean())
        low, high = row["recall_at_10_interval"]
        assert low <= row["recall_at_10"] <= high
        kept = row["recall_at_10"] / rows["floats", 384]["recall_at_10"]
        assert row["kept_recall_at_10"] == pytest.approx(kept)
    assert rows["floats", 384]["kept_ndcg_at_10_interval"] == [1, 1]
    assert not any(side["is_far"] for side in result["domain_shift"].values())
    text = command("eval", *files, "--retrieval", "--resamples", 0)
    assert "float query" in text
    assert "recall" in text


def test_without_labels_row_i_is_relevant_to_query_i(trained, command):
    folder, _, queries, documents, *_ = trained
    files = (folder / "model", folder / "documents.npy", "--queries", folder / "queries.npy")
    result = command("eval", *files, "--retrieval", "--resamples", 0, "--json")
    scores = queries.astype(float) @ documents.T
    ranks = (scores > np.diag(scores)[:, None]).sum(axis=1) + 1
    expected = np.where(ranks <= 100, 1 / ranks, 0).mean()
    assert result["rows"][0]["mrr"] == pytest.approx(expected)


def test_cross_models_encode_queries_and_documents_by_their_own_maps(tmp_path, command):
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(300, 6))
    X, Y = shared @ rng.normal(size=(6, 10)), shared @ rng.normal(size=(6, 10))
    model = kdiffhash.CrossDiffHash(8, random_state=0).fit(X, Y)
    model.save(tmp_path / "model")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    files = (tmp_path / "model", tmp_path / "y.npy", "--queries", tmp_path / "x.npy")
    result = command("eval", *files, "--retrieval", "--resamples", 0, "--json")
    a, b = (np.unpackbits(codes, axis=1) for codes in model.transform(X, Y))
    distances = (a[:, None] != b[None]).sum(axis=2)
    first = distances.argmin(axis=1) == np.arange(300)  # the lower id first
    row = next(row for row in result["rows"] if row["method"] == "bits")
    assert row["recall_at_1"] == pytest.approx(first.mean())


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_share_of_the_floats_quality_is_plotted(trained, tmp_path, suffix, command):
    pytest.importorskip("matplotlib")
    folder, plot = trained[0], tmp_path / f"kept{suffix}"
    files = (folder / "model", folder / "documents.npz", "--queries", folder / "queries.npz")
    result = command("eval", *files, "--retrieval", "--plot", plot, "--resamples", 50, "--json")
    assert result["plot"] == str(plot)
    assert plot.read_bytes().startswith({".svg": b"<?xml", ".png": b"\x89PNG"}[suffix])


def test_rows_of_another_domain_give_a_warning(trained, tmp_path, command, capsys):
    folder, _, queries, *_ = trained
    np.save(tmp_path / "far.npy", queries + 3)
    files = (folder / "model", folder / "queries.npy", "--queries", tmp_path / "far.npy")
    result = command("eval", *files, "--retrieval", "--resamples", 0, "--json")
    is_far = {name: shift["is_far"] for name, shift in result["domain_shift"].items()}
    assert is_far == {"queries": True, "documents": False}
    _warn(result)
    assert capsys.readouterr().err.startswith("warning: the queries are far from the rows")
    _warn({**result, "domain_shift": {}})
    assert capsys.readouterr().err == ""
    np.savez(tmp_path / "far.npz", X=queries + 3, y=np.repeat(np.arange(150), 2))
    result = command("eval", folder / "model", tmp_path / "far.npz", "--json")
    assert result["domain_shift"]["rows"]["is_far"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--retrieval"], "needs --queries"),
        (["--queries", "Q"], "belong to --retrieval"),
        (["--retrieval", "--queries", "Q", "--labels", "Q"], "--labels is for pairs"),
        (["--retrieval", "--queries", "Q", "--relevant", "x.txt"], "must end in .csv or .npy"),
        (["--retrieval", "--queries", "Q", "--plot", "x.gif"], "must end in .svg"),
        (["--retrieval", "--queries", "Q", "--bits", 13], "which have 12 bits"),
        (["--retrieval", "--queries", "Q", "--relevant", "BAD"], "line 2: expected query,document"),
        (["--retrieval", "--queries", "Q", "--relevant", "FAR"], "documents 0 to 300, but"),
        (["--retrieval", "--queries", "Q", "--relevant", "LATE"], "queries 0 to 300, but"),
        (["--retrieval", "--queries", "Q", "--relevant", "FEW"], "2 documents for 300 queries"),
    ],
)
def test_wrong_options_and_files_are_refused(trained, tmp_path, options, message, command):
    folder = trained[0]
    (tmp_path / "bad.csv").write_text("query,document\n1,x\n")
    (tmp_path / "far.csv").write_text("0,0\n1,300\n")
    (tmp_path / "late.csv").write_text("0,0\n300,1\n")
    np.save(tmp_path / "few.npy", [0, 1])
    names = {"Q": folder / "queries.npy", "BAD": tmp_path / "bad.csv", "FAR": tmp_path / "far.csv"}
    names |= {"LATE": tmp_path / "late.csv", "FEW": tmp_path / "few.npy"}
    arguments = [names.get(option, option) for option in options]
    files = (folder / "model", folder / "documents.npy")
    assert message in command("eval", *files, *arguments, fail=True)


def test_a_plot_of_codes_alone_and_missing_data_are_refused(trained, codes, command):
    files = (codes / "documents.npy", "--queries", codes / "queries.npy", "--retrieval")
    assert "give MODEL and rows" in command("eval", *files, "--plot", "x.svg", fail=True)
    assert "3 queries and 4 documents" in command("eval", *files, fail=True)
    assert "DATA is missing" in command("eval", trained[0] / "model", fail=True)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (b"0,1\n1," + b"9" * 400, "line 2: '1,9999"),
        (b"0,1\n1,%d" % 2**63, "line 2: '1,9223372036854775808' is no pair of rows"),
        (b"0,1,nan", "line 1: a gain must be finite and not negative, got 'nan'"),
        (b"0,1,-1", "line 1: a gain must be finite and not negative, got '-1'"),
        (b'0,"' + b"1" * 200_000, "line 1: field larger than field limit"),
        (b"\xff,1", "line 1: not UTF-8 text"),
    ],
)
def test_damaged_relevance_is_one_sentence_that_names_the_line(codes, command, lines, message):
    path = codes / "relevant.csv"
    path.write_bytes(lines)
    files = (codes / "documents.npy", "--queries", codes / "queries.npy", "--retrieval")
    found = command("eval", *files, "--relevant", path, fail=True)
    assert found.startswith(f"error: {path}, {message}")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_place_of_relevant_documents_is_refused_without_waiting(codes, command):
    os.mkfifo(codes / "pipe.csv")
    files = (codes / "documents.npy", "--queries", codes / "queries.npy", "--retrieval")
    found = command("eval", *files, "--relevant", codes / "pipe.csv", fail=True)
    assert "not a regular file" in found
