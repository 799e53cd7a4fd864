"""A folder of shards on the command line, from rows to what was found."""

import numpy as np
import pytest

import kdiffhash
from kdiffhash.study.baselines import RandomHyperplaneHash

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def test_from_rows_to_neighbours(command, tmp_path):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(200), 5)[rng.permutation(1000)]
    X = (rng.normal(size=(200, 12))[y] + 0.3 * rng.normal(size=(1000, 12))).astype(np.float32)
    rows, codes = tmp_path / "rows", tmp_path / "codes"
    rows.mkdir()
    for number in range(3):
        part = slice(400 * number, 400 * (number + 1))
        lists = pa.FixedSizeListArray.from_arrays(pa.array(X[part].ravel()), 12)
        pq.write_table(pa.table({"X": lists, "y": y[part]}), rows / f"{number}.parquet")
    np.savez(tmp_path / "all.npz", X=X, y=y)

    options = ["--bits", 32, "--basis", 100, "--positives", 800, "--json"]
    told = command("train", rows, "-o", tmp_path / "a", *options)
    assert (told["trained_on_rows"], told["similar_pairs"]) == (1000, 800)
    command("train", tmp_path / "all.npz", "-o", tmp_path / "b", *options)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    told = command("encode", tmp_path / "a", rows, "-o", codes, "--json")
    assert (told["shards"], told["there_before"], told["shape"]) == (3, 0, [1000, 4])
    (codes / "1.npy").unlink()
    assert command("encode", tmp_path / "a", rows, "-o", codes, "--json")["there_before"] == 2
    command("encode", tmp_path / "a", rows, "-o", tmp_path / "codes.npy", "--json")
    expected = kdiffhash.load(tmp_path / "a").transform(X)
    np.testing.assert_array_equal(np.load(tmp_path / "codes.npy"), expected)

    whole = command("eval", tmp_path / "a", tmp_path / "all.npz", "--json")
    assert command("eval", tmp_path / "a", rows, "--json")["rows"] == whole["rows"]

    assert command("index", "build", codes, "-o", tmp_path / "x.index", "--json")["codes"] == 1000
    search = ["index", "search", tmp_path / "x.index", codes, "-k", 2, "-o", tmp_path / "f.npz"]
    command(*search, "--json")
    found = kdiffhash.HammingIndex(expected).search(expected, 2)[1]
    np.testing.assert_array_equal(np.load(tmp_path / "f.npz")["ids"], found)


def test_what_goes_wrong_is_said(command, tmp_path):
    rows = tmp_path / "rows"
    rows.mkdir()
    np.save(rows / "a.npy", np.zeros((5, 4)))
    model = RandomHyperplaneHash(n_bits=8, random_state=0).fit(np.zeros((5, 4)))
    model.save(tmp_path / "m")
    assert "--labels" in command("train", rows, "-o", tmp_path / "x", fail=True)
    assert "to another folder" in command("encode", tmp_path / "m", rows, "-o", rows, fail=True)
    command("encode", tmp_path / "m", rows, "-o", tmp_path / "codes", "--json")
    shorter = ["encode", tmp_path / "m", rows, "-o", tmp_path / "codes", "--bits", 4]
    assert "another model" in command(*shorter, fail=True)
    np.save(rows / "b.npy", np.full((5, 4), np.nan))
    told = command("encode", tmp_path / "m", rows, "-o", tmp_path / "codes", fail=True)
    assert "b.npy" in told
    assert "NaN" in told
    assert sorted(path.name for path in (tmp_path / "codes").iterdir()) == ["a.npy", "codes.json"]
    scene = tmp_path / "scene"
    scene.mkdir()
    assert "subfolders" in command("train", scene, "-o", tmp_path / "x", fail=True)
    (scene / "info.txt").write_text("0 0\n")
    assert "sift.npy" in command("encode", tmp_path / "m", scene, "-o", tmp_path / "c", fail=True)
