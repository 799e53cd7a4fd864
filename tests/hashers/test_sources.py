"""Every hasher learns the same model from an array, a memory map, shards and a dask array."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from test_contract import HASHERS

from kdiffhash import KernelLDAHash, LDAHash, draw_pairs
from kdiffhash._util import files
from kdiffhash.learn import rows
from kdiffhash.learn.pairs import pairs_of_sides
from kdiffhash.shards import open_shards

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")


@pytest.fixture(autouse=True)
def _local_scheduler():
    """Compute dask arrays in this process, whatever clients other tests have left behind."""
    with dask.config.set(scheduler="threads"):
        yield


pytestmark = pytest.mark.filterwarnings("ignore::kdiffhash.ConstantBitWarning")


@pytest.fixture(scope="module")
def sources(objects, tmp_path_factory):
    """Return the same rows as a memory map, shards with labels, and a dask array."""
    X, y = objects
    folder = tmp_path_factory.mktemp("rows")
    np.save(folder / "whole.npy", X)
    shards = folder / "shards"
    shards.mkdir()
    for number, chunk in enumerate(np.array_split(np.arange(len(X)), [100, 101, 350])):
        np.save(shards / f"{number}.npy", X[chunk])
        np.save(shards / f"{number}.labels.npy", y[chunk])
    return {
        "memory map": np.load(folder / "whole.npy", mmap_mode="r"),
        "shards": open_shards(shards),
        "dask array": da.from_array(X, chunks=(130, 5)),
    }


def contents(hasher, path):
    hasher.save(path)
    return path.read_bytes()


@pytest.mark.parametrize("hasher", HASHERS, ids=lambda h: repr(h).split("(")[0])
def test_the_model_does_not_depend_on_the_source_of_rows(hasher, objects, sources, tmp_path):
    X, y = objects
    pairs, similar = draw_pairs(y, 700, 800, random_state=0)
    from_labels = contents(clone(hasher).fit(X, y), tmp_path / "a")
    from_pairs = contents(clone(hasher).fit_pairs(X, pairs, similar, y), tmp_path / "b")
    for source in sources.values():
        assert contents(clone(hasher).fit(source, y), tmp_path / "c") == from_labels
        again = clone(hasher).fit_pairs(source, pairs, similar, y)
        assert contents(again, tmp_path / "d") == from_pairs


def test_labels_are_read_from_shards(objects, sources):
    X, y = objects
    from_array = LDAHash(6, random_state=0).fit(X, y)
    from_shards = LDAHash(6, random_state=0).fit(sources["shards"])
    np.testing.assert_array_equal(from_shards.transform(X), from_array.transform(X))
    with pytest.raises(ValueError, match="requires y"):
        LDAHash(6).fit(X)


def test_only_rows_used_for_training_are_read(objects):
    X, _ = objects
    read = []

    class Source(rows.RowSource):
        shape, dtype = X.shape, X.dtype

        def read(self, numbers):
            read.extend(numbers.tolist())
            return X[numbers]

    pairs = np.array([[3, 5], [7, 9], [7, 11], [200, 5]])
    similar = np.array([True, True, False, False])
    hasher = KernelLDAHash(4, n_basis=20, gamma=0.1, random_state=0)
    hasher.fit_pairs(Source(), pairs, similar)
    assert len(read) == len(set(read))  # each row is read once
    assert set(np.unique(pairs)) <= set(read)
    assert len(read) <= 7 + 20
    assert {tuple(row) for row in hasher.basis_} <= {tuple(X[number]) for number in read}


def test_many_rows_are_gathered_into_a_temporary_file(objects, sources, monkeypatch):
    X, y = objects
    from_array = KernelLDAHash(8, n_basis=50, random_state=0).fit(X, y)
    monkeypatch.setattr(files, "_IN_MEMORY", 1000)
    monkeypatch.setattr(rows, "_CHUNK_BYTES", 1000)
    gathered = rows.gather(sources["shards"], np.arange(0, 600, 2))
    assert isinstance(gathered.rows, np.memmap)
    np.testing.assert_array_equal(gathered[np.array([4, 100, 8])], X[[4, 100, 8]])
    from_shards = KernelLDAHash(8, n_basis=50, random_state=0).fit(sources["shards"], y)
    np.testing.assert_array_equal(from_shards.transform(X), from_array.transform(X))


def test_invalid_sources_raise_an_error(objects, tmp_path):
    X, y = objects
    broken = X.copy()
    broken[17, 2] = np.nan
    np.save(tmp_path / "x.npy", broken)
    with pytest.raises(ValueError, match="row 17 contains NaN"):
        LDAHash(4).fit(np.load(tmp_path / "x.npy", mmap_mode="r"), y)
    with pytest.raises(ValueError, match="X has 600 rows, but y has 3 labels"):
        LDAHash(4).fit(da.from_array(X), y[:3])
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        LDAHash(4).fit(da.from_array(X)[da.from_array(X)[:, 0] > 0], y)
    np.save(tmp_path / "y.npy", np.zeros(5))
    with pytest.raises(ValueError, match="shape"):
        LDAHash(4).fit(np.load(tmp_path / "y.npy", mmap_mode="r"), np.arange(5))


def test_feature_names_are_dropped_by_a_fit_without_names(objects, sources):
    import pandas as pd

    X, y = objects
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(12)])
    hasher = LDAHash(4, random_state=0).fit(frame, y)
    assert hasattr(hasher, "feature_names_in_")
    assert not hasattr(hasher.fit(sources["memory map"], y), "feature_names_in_")


def test_groups_need_one_entry_per_row_and_labels(objects):
    X, y = objects
    pairs, similar = draw_pairs(y, 50, 50, random_state=0)
    with pytest.raises(ValueError, match="groups has 3 entries"):
        LDAHash(4).fit_pairs(X, pairs, similar, y, groups=[1, 2, 3])
    with pytest.raises(ValueError, match="groups were given without y"):
        LDAHash(4).fit_pairs(X, pairs, similar, groups=y)


def test_row_numbers_may_have_any_integer_type(objects, sources):
    numbers = np.array([40, 7, 40], np.uint64)
    np.testing.assert_array_equal(sources["shards"][numbers], objects[0][[40, 7, 40]])


@pytest.mark.parametrize("hasher", HASHERS, ids=lambda h: repr(h).split("(")[0])
def test_pairs_of_two_sides_give_the_model_of_the_stacked_rows(hasher, objects, tmp_path):
    """Queries and documents, given apart or as one array with explicit pairs."""
    X, y = objects
    queries, documents, n = X[::2], X[1::2] + np.float32(0.5), len(X) // 2
    hasher = clone(hasher).set_params(refine=0) if hasattr(hasher, "refine") else clone(hasher)
    fitted = clone(hasher).fit_pairs(queries, Y=documents, groups=y[::2])
    found = pairs_of_sides((n, n), None, None, y[::2], hasher.n_negatives, hasher._rng("pairs"))
    stacked = np.concatenate([queries, documents])
    expected = clone(hasher).fit_pairs(stacked, found.pairs, found.similar, found.labels)
    np.testing.assert_array_equal(fitted.directions_, expected.directions_)
    np.testing.assert_array_equal(fitted.transform(documents), expected.transform(documents))
    np.save(tmp_path / "x.npy", queries)
    np.save(tmp_path / "y.npy", documents)
    mapped = [np.load(tmp_path / f"{side}.npy", mmap_mode="r") for side in "xy"]
    again = clone(hasher).fit_pairs(mapped[0], Y=mapped[1], groups=y[::2])
    np.testing.assert_array_equal(again.directions_, fitted.directions_)
    np.testing.assert_array_equal(again.thresholds_, fitted.thresholds_)


def test_invalid_sides_raise_an_error(objects, tmp_path):
    X, y = objects
    hasher = LDAHash(4)
    for arguments, message in (
        ({"Y": X[:, :5]}, "X has 12 features and Y has 5"),
        ({"Y": X[:-1]}, "but without pairs row i of X belongs to row i of Y"),
        ({"Y": X, "y": y}, "y and Y were both given"),
        ({"Y": X[:0]}, "minimum of 2 is required"),
        ({"Y": np.full_like(X, np.nan)}, "Y contains NaN"),
        ({}, "call fit_pairs"),
        ({"pairs": [[0, 1]]}, "pairs and similar are needed"),
    ):
        with pytest.raises(ValueError, match=message):
            hasher.fit_pairs(X, **arguments)
        assert not hasattr(hasher, "directions_")
    broken = np.array(X)
    broken[7] = np.nan
    np.save(tmp_path / "broken.npy", broken)
    with pytest.raises(ValueError, match="Y: row 7 contains NaN"):
        hasher.fit_pairs(X, Y=np.load(tmp_path / "broken.npy", mmap_mode="r"))
