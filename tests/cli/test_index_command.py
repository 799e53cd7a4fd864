"""`kdiffhash index`."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from kdiffhash import HammingIndex
from kdiffhash.hashers.fingerprint import fingerprint
from kdiffhash.study.baselines import RandomHyperplaneHash


@pytest.fixture
def run(command):
    return partial(command, "index")


@pytest.fixture
def folder(tmp_path, run):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (300, 8), dtype=np.uint8)
    codes[200] = codes[7]
    np.save(tmp_path / "codes.npy", codes)
    np.savez_compressed(tmp_path / "more.npz", codes=codes[:20] ^ np.uint8(1))
    np.save(tmp_path / "ids.npy", 1000 + np.arange(20))
    np.save(tmp_path / "queries.npy", codes[5:9])
    run("build", tmp_path / "codes.npy", "-o", tmp_path / "x.index")
    return tmp_path


def test_every_command_agrees_with_an_index_in_memory(folder, run):
    codes, path = np.load(folder / "codes.npy"), folder / "x.index"
    queries = folder / "queries.npy"
    index = HammingIndex(codes)
    result = run("search", path, queries, "-k", 3, "--json")
    distances, ids = index.search(codes[5:9], 3)
    assert [row["ids"] for row in result["rows"]] == ids.tolist()
    assert [row["distances"] for row in result["rows"]] == distances.tolist()

    assert run("add", path, folder / "more.npz", "--ids", folder / "ids.npy", "--json") == {
        "index": str(path),
        "added": 20,
        "codes": 320,
    }
    index.add(codes[:20] ^ np.uint8(1), 1000 + np.arange(20))
    result = run("search", path, queries, "-k", 4, "-o", folder / "found.npz", "--json")
    assert result["written"] == str(folder / "found.npz")
    written = np.load(folder / "found.npz")
    np.testing.assert_array_equal(written["ids"], index.search(codes[5:9], 4)[1])
    np.testing.assert_array_equal(written["distances"], index.search(codes[5:9], 4)[0])
    run("search", path, queries, "-o", folder / "found.npy")
    np.testing.assert_array_equal(np.load(folder / "found.npy"), index.search(codes[5:9], 10)[1])

    np.save(folder / "some.npy", np.arange(100))
    result = run("search", path, queries, "-k", 1, "--allowed", folder / "some.npy", "--json")
    assert [row["ids"] for row in result["rows"]] == [[5], [6], [7], [8]]

    result = run("radius", path, queries, "-r", 9, "--json")
    lims, distances, ids = index.search_radius(codes[5:9], 9)
    assert [i for row in result["rows"] for i in row["ids"]] == ids.tolist()
    run("radius", path, queries, "-r", 9, "-o", folder / "near.npz")
    near = np.load(folder / "near.npz")
    for name, array in (("lims", lims), ("distances", distances), ("ids", ids)):
        np.testing.assert_array_equal(near[name], array)

    result = run("duplicates", path, "--json")
    assert result["rows"] == [{"a": 7, "b": 200, "distance": 0}]
    assert run("duplicates", path, "-r", 8, "--json")["pairs"] == len(index.duplicates(8)[0])

    assert run("remove", path, 7, folder / "ids.npy", "--json")["removed"] == 21
    result = run("info", path, "--json")
    assert (result["codes"], result["removed"], result["bits"]) == (299, 21, 64)
    size = path.stat().st_size
    result = run("compact", path, "--json")
    assert (result["codes"], result["bytes_before"]) == (299, size)
    assert run("info", path, "--json")["removed"] == 0
    assert run("verify", path, "--json")["damage"] == []
    assert "299" in run("info", path)
    lines = [line.split() for line in run("search", path, queries, "-k", 1).splitlines()]
    table = [list(map(int, line)) for line in lines if line and "".join(line).isdigit()]
    assert table == [[0, 5, 0], [1, 6, 0], [2, 200, 0], [3, 8, 0]]  # 200 has the code of 7


def test_search_reranks_by_projections(folder, run):
    rng = np.random.default_rng(1)
    projections = rng.standard_normal((30, 64)).astype(np.float32)
    np.save(folder / "p.npy", projections)
    np.save(folder / "q.npy", np.packbits(projections > 0, axis=1))
    arguments = (folder / "x.index", folder / "q.npy", "--rerank-projections", folder / "p.npy")
    result = run("search", *arguments, "--rerank-factor", 10, "--json")
    expected = HammingIndex(np.load(folder / "codes.npy")).search(
        np.load(folder / "q.npy"), 10, rerank_projections=projections
    )
    assert [row["ids"] for row in result["rows"]] == expected[1].tolist()


def test_verify_fails_on_a_damaged_file(folder, run):
    path = folder / "x.index"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "checksum" in run("verify", path, fail=True)


def test_errors_are_reported_and_change_nothing(folder, run):
    path, codes = folder / "x.index", folder / "codes.npy"
    before = path.read_bytes()
    np.save(folder / "narrow.npy", np.zeros((3, 4), np.uint8))
    np.save(folder / "floats.npy", np.zeros((3, 8)))
    (folder / "cut.npy").write_bytes(codes.read_bytes()[:500])
    assert "index add" in run("build", codes, "-o", path, fail=True)
    assert "64 bits" in run("add", path, folder / "narrow.npy", fail=True)
    assert "uint8" in run("add", path, folder / "floats.npy", fail=True)
    assert "cut.npy" in run("add", path, folder / "cut.npy", fail=True)
    assert "nothing.npy" in run("add", path, codes, "--ids", folder / "nothing.npy", fail=True)
    assert "ids" in run("add", path, codes, "--ids", folder / "ids.npy", fail=True)
    assert "whole number" in run("remove", path, "seven", fail=True)
    assert "4711" in run("remove", path, 4711, fail=True)
    assert "not a kdiffhash index" in run("search", codes, codes, fail=True)
    assert "No such file" in run("info", folder / "nothing.index", fail=True)
    assert ".npz" in run("radius", path, codes, "-r", 1, "-o", folder / "x.npy", fail=True)
    assert "cut.npy" in run("build", folder, "-o", folder / "y.index", fail=True)
    (folder / "empty").mkdir()
    assert "has no shards" in run("build", folder / "empty", "-o", folder / "y.index", fail=True)
    both = (codes, folder / "narrow.npy")
    assert "64 bits" in run("build", *both, "-o", folder / "y.index", fail=True)
    assert path.read_bytes() == before
    assert not [p for p in folder.iterdir() if ".part" in p.name or p.name == "y.index"]


def test_no_codes_are_added_if_one_input_is_invalid(folder, run):
    path, codes = folder / "x.index", folder / "codes.npy"
    np.save(folder / "narrow.npy", np.zeros((3, 4), np.uint8))
    np.save(folder / "twelve.npy", np.arange(5000, 5012))
    np.save(folder / "empty.npy", np.zeros((0, 8), np.uint8))
    np.savez(folder / "named.npz", other=np.zeros((3, 8), np.uint8))
    content = bytearray((folder / "more.npz").read_bytes())
    content[60:90] = bytes(30)
    (folder / "bad.npz").write_bytes(content)
    assert "4 bytes" in run("add", path, codes, folder / "narrow.npy", fail=True)
    assert "12 ids" in run("add", path, codes, "--ids", folder / "twelve.npy", fail=True)
    assert run("info", path, "--json")["codes"] == 300
    assert "no codes" in run("search", path, folder / "empty.npy", fail=True)
    assert "its arrays are other" in run("search", path, folder / "named.npz", fail=True)
    assert "bad.npz" in run("search", path, folder / "bad.npz", fail=True)
    np.save(folder / "p.npy", np.zeros((9, 64), np.float32))
    arguments = (folder / "queries.npy", "--rerank-projections", folder / "p.npy")
    assert "one row for each" in run("search", path, *arguments, fail=True)


def test_codes_of_another_model_are_refused(tmp_path, run, command):
    rows = np.random.default_rng(0).normal(size=(50, 4))
    (tmp_path / "rows").mkdir()
    np.save(tmp_path / "rows" / "a.npy", rows)
    models = {}
    for seed, name in enumerate(("one", "two")):
        models[name] = RandomHyperplaneHash(n_bits=12, random_state=seed).fit(rows)
        models[name].save(tmp_path / name)
        command("encode", tmp_path / name, tmp_path / "rows", "-o", tmp_path / f"{name}-codes")
    one, two = tmp_path / "one-codes", tmp_path / "two-codes"
    plain = one / "a.npy"  # a single file does not record its model
    index = tmp_path / "x.index"
    run("build", one, "-o", index)
    result = run("info", index, "--json")
    assert (result["bits"], result["model"]) == (12, fingerprint(models["one"]))
    other = "x.index holds codes of another model"
    for name in ("search", "add"):
        assert other in run(name, index, two, fail=True)
        assert other in run(name, index, plain, "--model", tmp_path / "two", fail=True)
    assert other in run("radius", index, two, "-r", 1, fail=True)
    assert "two-codes holds codes of another" in run(
        "search", index, two, "--model", tmp_path / "one", fail=True
    )
    both = (one, two, "-o", tmp_path / "y.index")
    assert "two-codes holds codes of another model" in run("build", *both, fail=True)
    assert not (tmp_path / "y.index").exists()
    assert run("add", index, plain, "--model", tmp_path / "one", "--json")["codes"] == 100
    assert run("add", index, plain, "--json")["codes"] == 150
    expected = models["one"].transform(rows)
    result = run("search", index, one, "-k", 1, "--model", tmp_path / "one", "--json")
    assert [row["ids"] for row in result["rows"]] == [
        [int(np.flatnonzero((expected == code).all(axis=1))[0])] for code in expected
    ]

    model = ("--model", tmp_path / "two")
    run("build", two / "a.npy", "-o", tmp_path / "z.index", *model)
    result = run("info", tmp_path / "z.index", "--json")
    assert (result["bits"], result["model"]) == (12, fingerprint(models["two"]))
    np.save(tmp_path / "short.npy", models["two"].transform(rows)[:, :1])
    run("build", tmp_path / "short.npy", "-o", tmp_path / "s.index", *model)  # prefixes
    result = run("info", tmp_path / "s.index", "--json")
    assert (result["bits"], result["model"]) == (8, fingerprint(models["two"].truncate(8)))


def test_repair_copies_the_whole_batches_of_a_damaged_file(folder, run):
    path, new = folder / "x.index", folder / "new.index"
    run("add", path, folder / "more.npz")
    path.write_bytes(path.read_bytes()[:-1])
    damaged = path.read_bytes()
    assert "kdiffhash index repair" in run("info", path, fail=True)
    assert "kdiffhash index repair" in run("verify", path, fail=True)
    assert "also an input" in run("repair", path, "-o", path, fail=True)
    result = run("repair", path, "-o", new, "--json")
    lost = 64 + 3 * 8 * 8  # the second batch: a header, and 20 codes in three blocks of eight
    assert result == {"index": str(new), "codes": 300, "batches": 1, "lost_bytes": lost}
    with HammingIndex.open(new) as index:
        np.testing.assert_array_equal(index.get(np.arange(300)), np.load(folder / "codes.npy"))
    assert run("verify", new, "--json")["damage"] == []
    assert "already exists" in run("repair", path, "-o", new, fail=True)
    assert "not a kdiffhash index" in run(
        "repair", folder / "codes.npy", "-o", folder / "z.index", fail=True
    )
    assert path.read_bytes() == damaged
    assert not (folder / "z.index").exists()


# -- string ids ---------------------------------------------------------------------------------


@pytest.fixture
def named(tmp_path, run):
    codes = np.random.default_rng(0).integers(0, 256, (4, 8), dtype=np.uint8)
    codes[3] = codes[1]
    np.save(tmp_path / "codes.npy", codes)
    (tmp_path / "names.txt").write_bytes("a.jpg\r\n0007\nä b.npy\n12\n".encode())
    run(
        "build", tmp_path / "codes.npy", "--ids", tmp_path / "names.txt", "-o", tmp_path / "x.index"
    )
    return tmp_path, codes


def test_names_from_a_text_file_are_kept_and_shown(named, run):
    folder, _ = named
    path = folder / "x.index"
    assert run("info", path, "--json")["ids"] == "strings"
    result = run("search", path, folder / "codes.npy", "-k", 2, "--json")
    assert [row["ids"][0] for row in result["rows"]] == ["a.jpg", "0007", "ä b.npy", "0007"]
    assert "ä b.npy" in run("search", path, folder / "codes.npy")
    run("search", path, folder / "codes.npy", "-k", 2, "-o", folder / "found.npz")
    assert np.load(folder / "found.npz")["ids"][1].tolist() == ["0007", "12"]
    run("radius", path, folder / "codes.npy", "-r", 0, "-o", folder / "near.npz")
    assert np.load(folder / "near.npz")["ids"].tolist() == [
        *("a.jpg", "0007", "12", "ä b.npy"),
        *("0007", "12"),
    ]
    (folder / "some.txt").write_text("12\na.jpg\n")
    found = run(
        "search", path, folder / "codes.npy", "--allowed", folder / "some.txt", "-k", 1, "--json"
    )
    assert [row["ids"] for row in found["rows"]][:2] == [["a.jpg"], ["12"]]
    assert run("duplicates", path, "--json")["rows"] == [{"a": "0007", "b": "12", "distance": 0}]
    (folder / "first.txt").write_text("12\n")
    groups = ("duplicates", path, "--groups", "--priority", folder / "first.txt")
    out = (
        "--keep",
        folder / "keep.txt",
        "--drop",
        folder / "drop.txt",
        "-o",
        folder / "groups.csv",
    )
    run(*groups, *out)
    assert (folder / "keep.txt").read_text() == "12\na.jpg\nä b.npy\n"
    assert (folder / "drop.txt").read_text() == "0007\n"
    lines = (folder / "groups.csv").read_text().splitlines()
    assert lines == ["representative,id,distance", "12,12,0", "12,0007,0"]
    run(*groups, "-o", folder / "groups.npz")
    arrays = np.load(folder / "groups.npz")
    assert arrays["ids"].tolist() == ["12", "a.jpg", "0007", "ä b.npy"]
    assert arrays["representatives"].tolist() == ["12", "a.jpg", "12", "ä b.npy"]


def test_names_can_be_added_overwritten_and_removed(named, run):
    folder, codes = named
    path = folder / "x.index"
    np.save(folder / "more.npy", codes[:2] ^ np.uint8(255))
    np.save(folder / "names.npy", np.array(["new", "a.jpg"]))
    more = (path, folder / "more.npy", "--ids", folder / "names.npy")
    assert "already stored, for example a.jpg" in run("add", *more, fail=True)
    result = run("upsert", *more, "--json")
    assert (result["added"], result["replaced"], result["codes"]) == (1, 1, 5)
    with HammingIndex.open(path) as index:
        np.testing.assert_array_equal(index.get(["new", "a.jpg"]), codes[:2] ^ np.uint8(255))
    assert run("remove", path, "ä b.npy", "12", "--json")["removed"] == 2  # names, not files
    (folder / "gone.txt").write_text("new\n")
    assert run("remove", path, "0007", "--ids", folder / "gone.txt", "--json")["codes"] == 1
    assert "not stored, for example new" in run("remove", path, "new", fail=True)
    assert "give the ids to remove" in run("remove", path, fail=True)
    run("compact", path)
    assert run("verify", path, "--json")["damage"] == []
    assert run("repair", path, "-o", folder / "y.index", "--json")["without_id"] == 0


def test_text_files_hold_integers_for_an_index_that_has_integers(folder, run):
    path = folder / "x.index"
    (folder / "ids.txt").write_text("".join(f"{i}\n" for i in range(2000, 2020)))
    run("add", path, folder / "more.npz", "--ids", folder / "ids.txt")
    with HammingIndex.open(path) as index:
        assert index.ids[-1] == 2019
    result = run("upsert", path, folder / "more.npz", "--ids", folder / "ids.npy", "--json")
    assert (result["added"], result["replaced"]) == (20, 0)
    (folder / "ids.txt").write_text("2000\nseven\n" + "1\n" * 18)
    message = run("add", path, folder / "more.npz", "--ids", folder / "ids.txt", fail=True)
    assert "line 2: 'seven' is not an id of this index" in message
    assert run("remove", path, "2000", "--ids", folder / "ids.npy", "--json")["removed"] == 21
    assert "whole numbers, got 'x y'" in run("remove", path, "x", "y", fail=True)
    (folder / "ids.txt").write_bytes(b"\xff\xfe\n" * 20)
    message = run("add", path, folder / "more.npz", "--ids", folder / "ids.txt", fail=True)
    assert "not text in UTF-8" in message


def test_a_name_with_a_line_break_is_not_written_to_a_list(named, run, tmp_path):
    folder, codes = named
    HammingIndex(codes, ids=["a\nb", "c", "d", "e"]).save(folder / "y.index")
    keep = folder / "keep.txt"
    message = run("duplicates", folder / "y.index", "--groups", "--keep", keep, fail=True)
    assert "contains a line break" in message
    assert not keep.exists()
