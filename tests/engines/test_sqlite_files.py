"""`SQLiteStore` and the file beneath it: moved, replaced, named oddly; arguments out of range."""

from __future__ import annotations

import os
import pickle
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from kdiffhash.engines.sqlite import SQLiteStore, StoreError

CODES = np.random.default_rng(0).integers(0, 256, (50, 8), dtype=np.uint8)


@pytest.fixture(params=["scan", "sqlite-vec"])
def method(request):
    if request.param == "sqlite-vec":
        pytest.importorskip("apsw")
        pytest.importorskip("sqlite_vec")
    return request.param


@pytest.fixture
def store(tmp_path, monkeypatch, method):
    monkeypatch.chdir(tmp_path)
    with SQLiteStore("codes.db", method=method).create(64) as store:
        store.add(CODES)
        yield store


def count(path):
    connection = sqlite3.connect(Path(path).absolute())
    (n,) = connection.execute("SELECT count(*) FROM codes").fetchone()
    connection.close()
    return n


def test_a_relative_path_stays_the_same_file_when_the_folder_changes(store, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.add(CODES[:1])
    assert store.search(CODES[7], 1)[1].tolist() == [7]
    with pickle.loads(pickle.dumps(store)) as again:
        assert len(again) == 51
    assert count(tmp_path / "codes.db") == 51


def test_a_replaced_file_is_opened_again_for_reading_and_writing(store, tmp_path, method):
    store.search(CODES[:1])  # codes are in memory now
    with SQLiteStore("new.db", method=method).create(64) as new:
        new.add(CODES[:5][::-1])
    Path("new.db").replace("codes.db")
    assert (len(store), store.search(CODES[0], 1)[1].tolist()) == (5, [4])
    with SQLiteStore("new.db", method=method).create(64) as new:
        new.add(CODES[:9])
    Path("new.db").replace("codes.db")
    assert store.add(CODES[:1]).tolist() == [9]
    assert count(tmp_path / "codes.db") == 10


def test_nothing_is_written_to_a_deleted_file(store):
    Path("codes.db").rename("moved.db")
    with pytest.raises(StoreError, match="was moved or deleted while it was open"):
        store.add(CODES[:1])
    with pytest.raises(StoreError, match="there is no file"):
        store.search(CODES[:1])
    assert not Path("codes.db").exists()
    Path("moved.db").rename("codes.db")
    assert store.add(CODES[:1]).tolist() == [50]


def test_a_path_that_looks_like_a_uri_is_a_path(store, method):
    name = "file:codes.db?mode=ro"
    with SQLiteStore(name, method=method).create(16) as other:
        other.add(CODES[:3, :2])
    assert (count(name), count("codes.db")) == (3, 50)
    with SQLiteStore(os.fsencode("codes.db"), method=method) as again:
        assert len(again) == 50


def test_more_candidates_than_sqlite_can_count_are_all_candidates(store):
    many = {"k": 2**62, "rerank_factor": 2**70}
    _, ids = store.search(CODES[:2], **many, rerank_projections=np.ones((2, 64)))
    assert ids.shape == (2, 50)


@pytest.mark.parametrize("name", [3, "\ud800", ""])
def test_names_of_tables_that_cannot_be_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="the name of a table must be"):
        SQLiteStore(tmp_path / "codes.db", name)


def test_a_set_has_no_order_and_is_no_data(store):
    with pytest.raises(ValueError, match="must be a sequence"):
        store.add(CODES[:1], data={1})


def test_an_error_of_sqlite_names_the_file(store):
    connection = sqlite3.connect("codes.db")
    connection.execute("CREATE UNIQUE INDEX once ON codes (code)")
    connection.close()
    with pytest.raises(StoreError, match=r"codes\.db: UNIQUE constraint failed"):
        store.add(CODES[:1])
    assert len(store) == 50
