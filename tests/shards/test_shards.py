"""Rows in files of every kind, alone and together in a folder."""

import itertools
import pickle

import numpy as np
import pytest

from kdiffhash import KernelLDAHash, draw_pairs
from kdiffhash.shards import is_shards, open_shards
from kdiffhash.shards.codes import shards_to_write, write_shard

h5py = pytest.importorskip("h5py")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).integers(0, 200, (700, 6)).astype(np.uint8)


LABELS = np.arange(700) % 90
GROUPS = np.arange(700) // 100


def write(path, kind, X, y, g):
    """Write rows, labels and groups, each kind as its users have it."""
    path = path.with_suffix(f".{kind.partition('-')[0]}")
    if kind == "npy":
        np.save(path, X)
        np.save(path.with_suffix(".labels.npy"), y)
        np.save(path.with_suffix(".groups.npy"), g)
    elif kind == "npz":
        np.savez_compressed(path, X=X, y=y, groups=g)
    elif kind == "npz-fortran":
        np.savez(path, embeddings=np.asfortranarray(X), labels=y, groups=g)
    elif kind.startswith("parquet"):
        item = pa.from_numpy_dtype(X.dtype)
        form = pa.list_(item) if kind == "parquet-lists" else pa.list_(item, X.shape[1])
        column = pa.array(list(X), form)
        table = pa.table({"y": y, "descriptors": column, "groups": g})
        pq.write_table(table, path, row_group_size=130)
    elif kind == "h5-plain":
        with h5py.File(path, "w") as file:
            file["X"], file["y"], file["groups"] = X, y, g
    elif kind == "h5":  # hloc: a group an image, columns are keypoints
        with h5py.File(path, "w") as file:
            for number in range(g.min(), g.max() + 1):
                image = file.create_group(f"day/{number:02d}.jpg")
                image["descriptors"] = X[g == number].T
                image["keypoints"] = np.zeros((int((g == number).sum()), 2))
            file.create_group("day/empty.jpg")["descriptors"] = np.empty((X.shape[1], 0), X.dtype)
    return path


KINDS = ["npy", "npz", "npz-fortran", "parquet", "parquet-lists", "h5-plain", "h5"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_read_as_it_was_written(kind, rows, tmp_path):
    path = write(tmp_path / "a", kind, rows, LABELS, GROUPS)
    shards = open_shards(path)
    assert shards.shape == rows.shape
    assert shards.dtype == rows.dtype
    np.testing.assert_array_equal(np.concatenate(list(shards.blocks(37))), rows)
    assert max(len(block) for block in shards.blocks(37)) <= 37
    np.testing.assert_array_equal(np.asarray(shards), rows)
    np.testing.assert_array_equal(shards.groups(), GROUPS)
    if kind == "h5":
        assert shards.labels() is None
    else:
        np.testing.assert_array_equal(shards.labels(), LABELS)
    chosen = np.array([699, 3, 3, 129, 130, 0])
    again = pickle.loads(pickle.dumps(shards))
    np.testing.assert_array_equal(again[chosen], rows[chosen])
    np.testing.assert_array_equal(again[5:600:7], rows[5:600:7])
    assert len(again[np.empty(0, np.int64)]) == 0


def test_a_folder_of_all_kinds_is_one_array(rows, tmp_path):
    edges = np.linspace(0, 700, len(KINDS)).astype(int)
    kinds = KINDS[:-1]  # hloc has no labels
    for number, (kind, start, stop) in enumerate(zip(kinds, edges, edges[1:])):
        part = slice(start, stop)
        write(tmp_path / f"part-{8 + number}", kind, rows[part], LABELS[part], GROUPS[part])
    (tmp_path / "README.txt").write_text("not rows")
    (tmp_path / "_SUCCESS").touch()
    np.save(tmp_path / ".part-1.npy", np.zeros((3, 9)))
    shards = open_shards(tmp_path)
    assert [file.path.stem for file in shards.files] == [f"part-{i}" for i in range(8, 14)]
    np.testing.assert_array_equal(np.asarray(shards), rows)
    np.testing.assert_array_equal(shards.labels(), LABELS)
    order = np.random.default_rng(1).permutation(700)
    np.testing.assert_array_equal(shards[order], rows[order])
    groups = shards.groups()
    for start, stop in itertools.pairwise(edges):  # groups of different files are different
        inside = groups[start:stop]
        assert not np.isin(np.delete(groups, np.arange(start, stop)), inside).any()
        same = GROUPS[start:stop, None] == GROUPS[start:stop]
        np.testing.assert_array_equal(inside[:, None] == inside, same)


def test_learning_from_a_folder_is_learning_from_the_array(rows, tmp_path):
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", rows[175 * number : 175 * (number + 1)])
    pairs, similar = draw_pairs(LABELS, 400, 400, random_state=0)
    hasher = KernelLDAHash(n_bits=16, n_basis=50, random_state=0)
    whole = hasher.fit_pairs(rows, pairs, similar).transform(rows)
    np.testing.assert_array_equal(
        hasher.fit_pairs(open_shards(tmp_path), pairs, similar).transform(rows), whole
    )


def test_codes_in_a_folder_are_made_once(rows, tmp_path):
    source, out = tmp_path / "rows", tmp_path / "codes"
    source.mkdir()
    for number in range(3):
        np.save(source / f"{number}.npy", rows[200 * number : 200 * (number + 1)])
    pairs, similar = draw_pairs(LABELS, 400, 400, random_state=0)
    hasher = KernelLDAHash(n_bits=16, n_basis=50, random_state=0).fit_pairs(rows, pairs, similar)
    shards = open_shards(source)
    todo = shards_to_write(hasher, shards, out)
    assert [target.name for _, target in todo] == ["0.npy", "1.npy", "2.npy"]
    write_shard(hasher, *todo[1])
    assert [t.name for _, t in shards_to_write(hasher, shards, out)] == ["0.npy", "2.npy"]
    for shard, target in shards_to_write(hasher, shards, out):
        write_shard(hasher, shard, target)
    assert shards_to_write(hasher, shards, out) == []
    np.testing.assert_array_equal(np.asarray(open_shards(out)), hasher.transform(rows[:600]))
    np.save(source / "1.npy", rows[200:390])  # other rows: their codes are made again
    assert [t.name for _, t in shards_to_write(hasher, open_shards(source), out)] == ["1.npy"]
    with pytest.raises(ValueError, match="another model"):
        shards_to_write(hasher.truncate(8), shards, out)
    with pytest.raises(ValueError, match="of their own"):
        shards_to_write(hasher, shards, source)
    (source / "1.parquet").write_bytes(pq_bytes(rows[:3]))
    with pytest.raises(ValueError, match="several shards"):
        shards_to_write(hasher, open_shards(source), out)


def pq_bytes(X):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"X": pa.array(list(X), pa.list_(pa.uint8(), X.shape[1]))}), sink)
    return sink.getvalue().to_pybytes()


def read(path):
    shards = open_shards(path)
    list(shards.blocks(100))
    shards.labels()


def test_bad_files_are_named(rows, tmp_path):
    def fails(match, path):
        with pytest.raises(ValueError, match=match) as told:
            read(path)
        assert str(path.name) in str(told.value)

    for kind in ("npy", "npz", "parquet", "h5"):
        whole = write(tmp_path / "whole", kind, rows, LABELS, GROUPS)
        cut = tmp_path / f"cut{whole.suffix}"
        cut.write_bytes(whole.read_bytes()[:-300])
        fails("not a readable|damaged|truncated", cut)
    ragged = pa.table({"X": pa.array([[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]])})
    pq.write_table(ragged, tmp_path / "ragged.parquet")
    fails("row 1 is not 2 long", tmp_path / "ragged.parquet")
    gaps = pa.table({"X": pa.array([[1.0, 2.0], None, [1.0, 2.0]], pa.list_(pa.float32(), 2))})
    pq.write_table(gaps, tmp_path / "gaps.parquet")
    fails("missing", tmp_path / "gaps.parquet")
    pq.write_table(pa.table({"z": [1, 2]}), tmp_path / "none.parquet")
    fails("column of lists", tmp_path / "none.parquet")
    text = pa.table({"X": pa.array([[1.0], [2.0]]), "y": ["b", "a"]})
    pq.write_table(text, tmp_path / "text.parquet")
    assert open_shards(tmp_path / "text.parquet").labels().tolist() == ["b", "a"]
    with h5py.File(tmp_path / "widths.h5", "w") as file:
        file["a/descriptors"], file["b/descriptors"] = np.zeros((3, 4)), np.zeros((5, 4))
    fails("different widths", tmp_path / "widths.h5")
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(80))
    with h5py.File(tmp_path / "outside.h5", "w") as file:
        file.create_dataset("X", (10, 1), "f8", external=[(str(secret), 0, 80)])
    fails("other files", tmp_path / "outside.h5")
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["X"] = h5py.ExternalLink(str(tmp_path / "whole.h5"), "/day/00.jpg/descriptors")
    fails("other files", tmp_path / "link.h5")
    np.save(tmp_path / "short.npy", rows)
    np.save(tmp_path / "short.labels.npy", LABELS[:5])
    fails("700 rows", tmp_path / "short.npy")
    np.save(tmp_path / "words.npy", np.array([["a", "b"]]))
    fails("must hold numbers", tmp_path / "words.npy")
    folder = tmp_path / "mixed"
    folder.mkdir()
    assert not is_shards(folder)
    with pytest.raises(ValueError, match="no files of rows"):
        open_shards(folder)
    np.save(folder / "a.npy", rows)
    np.save(folder / "b.npy", rows[:, :3])
    with pytest.raises(ValueError, match=r"different widths: 3 in .*b.npy"):
        open_shards(folder)
    with pytest.raises(FileNotFoundError):
        open_shards(folder / "c.npy")
