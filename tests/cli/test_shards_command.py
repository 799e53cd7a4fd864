"""Commands on a folder of shards, from training to search results."""

import numpy as np
import pytest

import kdiffhash
from kdiffhash.study.baselines import RandomHyperplaneHash

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def test_a_folder_of_shards_gives_the_same_results_as_one_file(command, tmp_path):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(200), 5)[rng.permutation(1000)]
    X = (rng.normal(size=(200, 12))[y] + 0.3 * rng.normal(size=(1000, 12))).astype(np.float32)
    rows, codes = tmp_path / "rows", tmp_path / "codes"
    rows.mkdir()
    for number in range(3):
        some = slice(400 * number, 400 * (number + 1))
        lists = pa.FixedSizeListArray.from_arrays(pa.array(X[some].ravel()), 12)
        pq.write_table(pa.table({"X": lists, "y": y[some]}), rows / f"{number}.parquet")
    np.savez(tmp_path / "all.npz", X=X, y=y)

    options = ["--bits", 32, "--basis", 100, "--positives", 800, "--json"]
    trained = command("train", rows, "-o", tmp_path / "a", *options)
    assert (trained["trained_on_rows"], trained["positive_pairs"]) == (1000, 800)
    command("train", tmp_path / "all.npz", "-o", tmp_path / "b", *options)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    encode = ["encode", tmp_path / "a", rows, "-o", codes, "--json"]
    encoded = command(*encode)
    assert (encoded["shards"], encoded["already_encoded"], encoded["shape"]) == (3, 0, [1000, 4])
    (codes / "1.npy").unlink()
    assert command(*encode)["already_encoded"] == 2
    command("encode", tmp_path / "a", rows, "-o", tmp_path / "codes.npy", "--json")
    expected = kdiffhash.load(tmp_path / "a").transform(X)
    np.testing.assert_array_equal(np.load(tmp_path / "codes.npy"), expected)

    from_one_file = command("eval", tmp_path / "a", tmp_path / "all.npz", "--json")
    assert command("eval", tmp_path / "a", rows, "--json")["rows"] == from_one_file["rows"]

    assert command("index", "build", codes, "-o", tmp_path / "x.index", "--json")["codes"] == 1000
    search = ["index", "search", tmp_path / "x.index", codes, "-k", 2, "-o", tmp_path / "f.npz"]
    command(*search, "--json")
    ids = kdiffhash.HammingIndex(expected).search(expected, 2)[1]
    np.testing.assert_array_equal(np.load(tmp_path / "f.npz")["ids"], ids)


def test_errors_are_reported_in_one_sentence(command, tmp_path):
    rows = tmp_path / "rows"
    rows.mkdir()
    np.save(rows / "a.npy", np.zeros((5, 4)))
    model = RandomHyperplaneHash(n_bits=8, random_state=0).fit(np.zeros((5, 4)))
    model.save(tmp_path / "m")
    assert "--labels" in command("train", rows, "-o", tmp_path / "x", fail=True)
    assert "also an input" in command("encode", tmp_path / "m", rows, "-o", rows, fail=True)
    command("encode", tmp_path / "m", rows, "-o", tmp_path / "codes", "--json")
    shorter = ["encode", tmp_path / "m", rows, "-o", tmp_path / "codes", "--bits", 4]
    assert "another model" in command(*shorter, fail=True)
    np.save(rows / "b.npy", np.full((5, 4), np.nan))
    error = command("encode", tmp_path / "m", rows, "-o", tmp_path / "codes", fail=True)
    assert "b.npy" in error
    assert "NaN" in error
    assert sorted(path.name for path in (tmp_path / "codes").iterdir()) == ["a.npy", "codes.json"]
    scene = tmp_path / "scene"
    scene.mkdir()
    assert "subfolders" in command("train", scene, "-o", tmp_path / "x", fail=True)
    (scene / "info.txt").write_text("0 0\n")
    assert "sift.npy" in command("encode", tmp_path / "m", scene, "-o", tmp_path / "c", fail=True)
