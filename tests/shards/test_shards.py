"""Shards of every file type, alone and in a folder."""

import io
import itertools
import pickle
import zipfile

import numpy as np
import pytest

from kdiffhash import KernelLDAHash, draw_pairs
from kdiffhash.shards import is_shards, open_shards
from kdiffhash.shards.code_folder import shards_to_write, write_shard

h5py = pytest.importorskip("h5py")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).integers(0, 200, (700, 6)).astype(np.uint8)


LABELS = np.arange(700) % 90
GROUPS = np.arange(700) // 100


def write(path, kind, X, y, g):
    """Write rows, labels and groups in the usual layout of each file type."""
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
    elif kind == "h5":  # hloc: one group per image, one column per keypoint
        with h5py.File(path, "w") as file:
            for number in range(g.min(), g.max() + 1):
                image = file.create_group(f"day/{number:02d}.jpg")
                image["descriptors"] = X[g == number].T
                image["keypoints"] = np.zeros((int((g == number).sum()), 2))
            file.create_group("day/empty.jpg")["descriptors"] = np.empty((X.shape[1], 0), X.dtype)
    return path


KINDS = ["npy", "npz", "npz-fortran", "parquet", "parquet-lists", "h5-plain", "h5"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_read_back_as_written(kind, rows, tmp_path):
    path = write(tmp_path / "a", kind, rows, LABELS, GROUPS)
    shards = open_shards(path)
    assert shards.shape == rows.shape
    assert shards.dtype == rows.dtype
    np.testing.assert_array_equal(np.concatenate(list(shards.chunks(37))), rows)
    assert max(len(chunk) for chunk in shards.chunks(37)) <= 37
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


def test_a_folder_of_mixed_files_is_one_array(rows, tmp_path):
    edges = np.linspace(0, 700, len(KINDS)).astype(int)
    kinds = KINDS[:-1]  # hloc has no labels
    for number, (kind, start, stop) in enumerate(zip(kinds, edges, edges[1:])):
        chunk = slice(start, stop)
        write(tmp_path / f"shard-{8 + number}", kind, rows[chunk], LABELS[chunk], GROUPS[chunk])
    (tmp_path / "README.txt").write_text("not rows")
    (tmp_path / "_SUCCESS").touch()
    np.save(tmp_path / ".shard-1.npy", np.zeros((3, 9)))
    shards = open_shards(tmp_path)
    assert [file.path.stem for file in shards.files] == [f"shard-{i}" for i in range(8, 14)]
    np.testing.assert_array_equal(np.asarray(shards), rows)
    np.testing.assert_array_equal(shards.labels(), LABELS)
    order = np.random.default_rng(1).permutation(700)
    np.testing.assert_array_equal(shards[order], rows[order])
    groups = shards.groups()
    for start, stop in itertools.pairwise(edges):  # groups of different files are distinct
        inside = groups[start:stop]
        assert not np.isin(np.delete(groups, np.arange(start, stop)), inside).any()
        same = GROUPS[start:stop, None] == GROUPS[start:stop]
        np.testing.assert_array_equal(inside[:, None] == inside, same)


def test_codes_are_in_the_order_of_their_rows(rows, tmp_path):
    pairs, similar = draw_pairs(LABELS, 400, 400, random_state=0)
    hasher = KernelLDAHash(n_bits=32, n_basis=50, random_state=0).fit_pairs(rows, pairs, similar)
    source, store = tmp_path / "rows", tmp_path / "store"
    source.mkdir()
    store.mkdir()
    write(source / "scan", "h5", rows[:100], LABELS[:100], GROUPS[:100])
    for number, name in enumerate(["scan.left", "scan-left", "shard 10", "shard 9"]):
        chunk = slice(100 * number + 100, 100 * number + 200)
        with h5py.File(source / f"{name}.h5", "w") as file:
            file["X"] = rows[chunk]
    np.save(store / "zzz.npy", rows[500:600])
    np.save(store / "aaa.npy", rows[600:])
    (source / "x-0.npy").symlink_to(store / "zzz.npy")
    (source / "x-1.npy").symlink_to(store / "aaa.npy")
    shards = open_shards(source)
    names = [file.path.stem for file in shards.files]
    assert names == ["scan", "scan-left", "scan.left", "shard 9", "shard 10", "x-0", "x-1"]
    for shard, target in shards_to_write(hasher, shards, tmp_path / "codes"):
        write_shard(hasher, shard, target)
    codes = open_shards(tmp_path / "codes")
    assert [file.path.stem for file in codes.files] == names
    np.testing.assert_array_equal(np.asarray(codes), hasher.transform(np.asarray(shards)))


def test_shards_are_indexed_like_an_array(rows, tmp_path):
    np.save(tmp_path / "a.npy", rows)
    shards = open_shards(tmp_path)
    np.testing.assert_array_equal(shards[LABELS == 3], rows[LABELS == 3])
    np.testing.assert_array_equal(shards[-5:], rows[-5:])
    np.testing.assert_array_equal(shards[::-3], rows[::-3])
    for invalid in (3, (slice(1, 3), 0), np.zeros(5, bool), [0.5], [700], [-1]):
        with pytest.raises(IndexError):
            shards[invalid]
    with_nan = rows.astype(np.float32)
    with_nan[20, 3] = np.nan
    np.save(tmp_path / "b.npy", with_nan)
    with pytest.raises(ValueError, match=r"b\.npy: row 20 contains NaN"):
        open_shards(tmp_path)[[3, 710, 720]]


def test_fitting_on_a_folder_equals_fitting_on_the_array(rows, tmp_path):
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", rows[175 * number : 175 * (number + 1)])
    pairs, similar = draw_pairs(LABELS, 400, 400, random_state=0)
    hasher = KernelLDAHash(n_bits=16, n_basis=50, random_state=0)
    whole = hasher.fit_pairs(rows, pairs, similar).transform(rows)
    np.testing.assert_array_equal(
        hasher.fit_pairs(open_shards(tmp_path), pairs, similar).transform(rows), whole
    )


def test_only_missing_or_outdated_codes_are_written(rows, tmp_path):
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
    np.save(source / "1.npy", rows[200:390])  # other rows: their codes are outdated
    assert [t.name for _, t in shards_to_write(hasher, open_shards(source), out)] == ["1.npy"]
    (out / "0.npy").write_bytes((out / "0.npy").read_bytes()[:-9])  # damaged: written again
    again = shards_to_write(hasher, open_shards(source), out)
    assert [t.name for _, t in again] == ["0.npy", "1.npy"]
    np.save(source / "1.npy", rows[200:300])
    with pytest.raises(ValueError, match="changed while it was read: 190 rows at first, then 100"):
        write_shard(hasher, *again[1])
    (source / "2.npy").rename(source / "9.npy")
    with pytest.raises(ValueError, match=r"2\.npy has no corresponding shard"):
        shards_to_write(hasher, open_shards(source), out)
    (source / "9.npy").rename(source / "2.npy")
    with pytest.raises(ValueError, match="another model"):
        shards_to_write(hasher.truncate(8), shards, out)
    with pytest.raises(ValueError, match="write the codes to another folder"):
        shards_to_write(hasher, shards, source)
    (source / "x.labels.parquet").write_bytes(pq_bytes(rows[:3]))
    with pytest.raises(ValueError, match="reserved for labels"):
        shards_to_write(hasher, open_shards(source), out)
    (source / "1.parquet").write_bytes(pq_bytes(rows[:3]))
    with pytest.raises(ValueError, match="codes of several shards"):
        shards_to_write(hasher, open_shards(source), out)


def pq_bytes(X):
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({"X": pa.array(list(X), pa.list_(pa.uint8(), X.shape[1]))}), buffer)
    return buffer.getvalue().to_pybytes()


def read(path):
    shards = open_shards(path)
    list(shards.chunks(100))
    shards.labels()


def test_errors_name_the_damaged_file(rows, tmp_path):
    def fails(match, path):
        with pytest.raises(ValueError, match=match) as error:
            read(path)
        assert str(path.name) in str(error.value)

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
    fails("nulls", tmp_path / "gaps.parquet")
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
    fails("another file", tmp_path / "outside.h5")
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["X"] = h5py.ExternalLink(str(tmp_path / "whole.h5"), "/day/00.jpg/descriptors")
    fails("another file", tmp_path / "link.h5")
    with h5py.File(tmp_path / "labels.h5", "w") as file:
        file["X"] = np.zeros((10, 1))
        file.create_dataset("y", (10,), "f8", external=[(str(secret), 0, 80)])
    fails("another file", tmp_path / "labels.h5")
    with h5py.File(tmp_path / "null.h5", "w") as file:
        file["X"] = h5py.Empty("f4")
    fails("shape None", tmp_path / "null.h5")
    with h5py.File(tmp_path / "utf8.h5", "w") as file:
        file["X"], file["y"] = np.zeros((2, 1)), ["é", "a"]
    assert open_shards(tmp_path / "utf8.h5").labels().tolist() == ["é", "a"]
    nested = pa.table({"X": pa.array([[1.0], [2.0]]), "y": [[1], [2]]})
    pq.write_table(nested, tmp_path / "nested.parquet")
    fails("one value per row", tmp_path / "nested.parquet")
    huge = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**13, 4)}
    np.lib.format.write_array_header_1_0(huge, header)
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("X.npy", huge.getvalue())
    fails("its header gives shape", tmp_path / "huge.npz")
    np.save(tmp_path / "short.npy", rows)
    np.save(tmp_path / "short.labels.npy", LABELS[:5])
    fails("700 rows", tmp_path / "short.npy")
    np.save(tmp_path / "words.npy", np.array([["a", "b"]]))
    fails("must hold real numbers", tmp_path / "words.npy")
    folder = tmp_path / "mixed"
    folder.mkdir()
    assert not is_shards(folder)
    with pytest.raises(ValueError, match="has no shards"):
        open_shards(folder)
    empty = pa.table({"X": pa.array([], pa.list_(pa.float32())), "y": pa.array([], pa.int64())})
    pq.write_table(empty, folder / "0.parquet")
    np.savez(folder / "1.npz", X=rows, y=LABELS)
    assert open_shards(folder).shape == rows.shape
    np.savez(folder / "2.npz", X=rows)
    with pytest.raises(ValueError, match=r"2\.npz has no labels, but other shards have"):
        open_shards(folder).labels()
    for name in ("0.parquet", "1.npz", "2.npz"):
        (folder / name).unlink()
    np.save(folder / "a.npy", rows)
    np.save(folder / "b.npy", rows[:, :3])
    with pytest.raises(ValueError, match=r"different widths: 3 in .*b.npy"):
        open_shards(folder)
    with pytest.raises(FileNotFoundError):
        open_shards(folder / "c.npy")
