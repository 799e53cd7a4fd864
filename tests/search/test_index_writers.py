"""Index files: one writer at a time, whatever happens to the names of the file."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from kdiffhash import HammingIndex, IndexFileError
from kdiffhash.search.index_lock import creating

DATA = Path(__file__).parent.parent / "data"
CODES = np.arange(90, dtype=np.uint8).reshape(30, 3)


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "codes.index"
    with HammingIndex.open(path, "a", n_bits=24) as index:
        index.add(CODES[:10])
        index.add(CODES[10:20])
    return path


def codes_of(path: Path) -> np.ndarray:
    with HammingIndex.open(path) as index:
        return index.get(index.ids)


def test_close_waits_for_a_change_on_another_thread(path, tmp_path, monkeypatch):
    index, victim = HammingIndex.open(path, "a"), tmp_path / "victim"
    real, closers, files = os.fsync, [], []

    def close_in_between(file):
        real(file)
        if not closers:
            closers.append(threading.Thread(target=index.close))
            closers[0].start()
            closers[0].join(0.2)  # ends at once if close does not wait
            files.append(os.open(victim, os.O_RDWR | os.O_CREAT))  # may reuse a descriptor

    monkeypatch.setattr(os, "fsync", close_in_between)
    index.add(CODES[20:])
    closers[0].join()
    os.close(files[0])
    assert victim.read_bytes() == b""
    np.testing.assert_array_equal(codes_of(path), CODES)


def test_a_second_writer_through_a_hard_link_is_refused(path, tmp_path):
    os.link(path, tmp_path / "link.index")
    with HammingIndex.open(path, "a"), pytest.raises(BlockingIOError, match="another writer"):
        HammingIndex.open(tmp_path / "link.index", "a")
    HammingIndex.open(tmp_path / "link.index", "a").close()


def test_a_writer_leaves_no_other_file_behind(path, tmp_path):
    with HammingIndex.open(path, "a") as index:
        assert list(tmp_path.iterdir()) == [path]
        index.compact()
        assert list(tmp_path.iterdir()) == [path]
        with pytest.raises(BlockingIOError, match="another writer"):
            HammingIndex.open(path, "a")
    with pytest.raises(FileNotFoundError):
        HammingIndex.open(tmp_path / "missing.index", "a")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("what", ["replaced", "deleted", "moved", "overwritten"])
def test_a_writer_does_not_write_after_its_file_was_exchanged(path, tmp_path, what):
    other = tmp_path / "other.index"
    HammingIndex(CODES[20:]).save(other)
    with HammingIndex.open(path, "a") as index:
        if what == "replaced":
            other.replace(path)
        elif what == "deleted":
            path.unlink()
        elif what == "moved":
            path.rename(tmp_path / "moved.index")
        else:
            path.write_bytes(other.read_bytes())
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        for change in (
            lambda: index.add(CODES[:1]),
            lambda: index.remove([0]),
            index.compact,
            index.refresh,
        ):
            with pytest.raises(IndexFileError, match="while it was open for writing"):
                change()
        np.testing.assert_array_equal(index.get(index.ids), CODES[:20])
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_file_exchanged_while_a_batch_is_written_gets_no_slot(path, tmp_path, monkeypatch):
    HammingIndex(CODES[20:]).save(tmp_path / "other.index")
    expected = (tmp_path / "other.index").read_bytes()
    index, real = HammingIndex.open(path, "a"), os.fsync

    def exchange(file):
        real(file)
        (tmp_path / "other.index").replace(path)
        monkeypatch.undo()

    monkeypatch.setattr(os, "fsync", exchange)
    with pytest.raises(IndexFileError, match="moved, deleted or replaced"):
        index.add(CODES[:5])
    assert len(index) == 20
    index.close()
    assert path.read_bytes() == expected


def test_a_file_exchanged_during_compaction_is_not_replaced(path, tmp_path, monkeypatch):
    HammingIndex(CODES[20:]).save(tmp_path / "other.index")
    expected = (tmp_path / "other.index").read_bytes()
    index, real = HammingIndex.open(path, "a"), os.fsync

    def exchange(file):
        real(file)
        (tmp_path / "other.index").replace(path)
        monkeypatch.undo()

    monkeypatch.setattr(os, "fsync", exchange)
    with pytest.raises(IndexFileError, match="moved, deleted or replaced"):
        index.compact()
    index.close()
    assert path.read_bytes() == expected
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("small", [64, 2**20])  # mapped or read
def test_refresh_after_the_file_was_overwritten_loads_the_new_file_only(
    tmp_path, monkeypatch, version, small
):
    monkeypatch.setattr("kdiffhash.search.index_file._SMALL", small)
    path, rng = tmp_path / "x.index", np.random.default_rng(0)
    if version == 3:
        first, second = (rng.integers(0, 256, (400, 3), dtype=np.uint8) for _ in range(2))
        new = tmp_path / "new.index"
        for file, codes in ((path, first), (new, second)):
            with HammingIndex.open(file, "a", n_bits=24) as index:
                index.add(codes[:300])  # batches of the same sizes in both
                index.add(codes[300:])
    else:  # neither head tells the two files apart
        shutil.copy(DATA / "index_v2.index", path)
        new = tmp_path / "new.index"
        shutil.copy(path, new)
        with HammingIndex.open(path, "a") as index:
            width = index.get(index.ids).shape[1]
            index.add(np.zeros((9, width), np.uint8))
        with HammingIndex.open(new, "a") as index:
            index.add(np.full((9, width), 16, np.uint8))
            index.add(np.full((1, width), 16, np.uint8))
        second = codes_of(new)
    with HammingIndex.open(path) as reader:
        reader.get(reader.ids)
        inode = path.stat().st_ino
        path.write_bytes(new.read_bytes())
        assert path.stat().st_ino == inode
        reader.refresh()
        np.testing.assert_array_equal(reader.get(reader.ids), second)


def test_leftovers_of_killed_writers_are_deleted_by_the_next_writer(path, tmp_path):
    leftover = tmp_path / ".codes.index.0123abcd.part"
    others = [tmp_path / name for name in (".codes.index.part", ".other.index.0123abcd.part")]
    for file in (leftover, *others):
        file.write_bytes(b"half a file")
    HammingIndex.open(path).close()
    assert leftover.exists()
    live = tmp_path / ".codes.index.89abcdef.part"
    with HammingIndex.open(live, "a", n_bits=24), HammingIndex.open(path, "a"):
        assert not leftover.exists()
        assert all(file.exists() for file in (live, *others))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_neither_releases_nor_keeps_the_lock(path):
    index = HammingIndex.open(path, "a")
    (read, told), (waits, write) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            index.close()
            os.write(told, b"x")
            os.read(waits, 1)
        finally:
            os._exit(0)
    os.read(read, 1)  # the child has closed its copy
    with pytest.raises(BlockingIOError, match="another writer"):
        HammingIndex.open(path, "a")
    second = os.fork()
    if not second:
        os.read(waits, 1)
        os._exit(0)
    index.close()  # the second child still has the file open
    HammingIndex.open(path, "a").close()
    os.write(write, b"xx")
    for process in (child, second):
        os.waitpid(process, 0)
    for end in (read, told, waits, write):
        os.close(end)


def test_a_new_file_does_not_replace_one_that_appeared_meanwhile(path, tmp_path):
    new = tmp_path / "new.index"
    before = path.read_bytes()

    def create_late():
        with creating(new) as temporary:
            temporary.write_bytes(b"late")
            path.rename(new)

    with pytest.raises(FileExistsError, match="already exists"):
        create_late()
    assert new.read_bytes() == before
    assert list(tmp_path.iterdir()) == [new]


def test_a_file_system_without_hard_links_can_hold_an_index(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with HammingIndex.open(tmp_path / "x.index", "a", n_bits=24) as index:
        index.add(CODES)
    np.testing.assert_array_equal(codes_of(tmp_path / "x.index"), CODES)
    assert len(list(tmp_path.iterdir())) == 1


def test_saving_over_an_index_that_is_being_written_is_refused(path):
    memory = HammingIndex(CODES)
    with HammingIndex.open(path, "a"), pytest.raises(BlockingIOError, match="another writer"):
        memory.save(path)
    memory.save(path)
    np.testing.assert_array_equal(codes_of(path), CODES)


def test_every_new_file_has_its_own_id(path, monkeypatch):
    ids = [path.read_bytes()[152:168]]
    with HammingIndex.open(path, "a") as index:
        index.add(CODES[20:])
        assert path.read_bytes()[152:168] == ids[0]
        for _ in range(2):
            index.compact()
            ids.append(path.read_bytes()[152:168])
    assert len(set(ids)) == 3
    monkeypatch.setattr(secrets, "token_bytes", lambda n: b"sixteen bytes...")
    HammingIndex(CODES).save(path)
    assert path.read_bytes()[152:168] == b"sixteen bytes..."


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs os.mkfifo")
def test_a_pipe_or_a_folder_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        for use in (
            HammingIndex.open,
            lambda path: HammingIndex.open(path, "a"),
            HammingIndex.verify,
        ):
            with pytest.raises(IndexFileError, match="not a regular file"):
                use(path)
        with pytest.raises(ValueError, match="not a regular file"):
            HammingIndex(CODES).save(path)
