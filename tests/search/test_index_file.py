"""Index files: committed batches survive crashes, failing disks and concurrent use."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import oracle
import pytest
from contract import ChangingContract

from kdiffhash import HammingIndex, IndexFileError
from kdiffhash.hashers.fingerprint import _old_fingerprints, fingerprint
from kdiffhash.search.index_file import IndexFile
from kdiffhash.study.baselines import RandomHyperplaneHash

DATA = Path(__file__).parent.parent / "data"
N_BITS = 24


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a few codes of batch `number`, with ids that may be out of order."""
    rng = np.random.default_rng(number)
    n = int(rng.integers(1, 9))
    return oracle.random_codes(rng, n, N_BITS), 100 * number + rng.permutation(n)


def steps(path: Path):
    """Change an index step by step; yield its content after each step."""
    content: dict[int, bytes] = {}
    with HammingIndex.open(path, "a", n_bits=N_BITS) as index:
        yield dict(content)
        for number in range(5):
            codes, ids = batch(number)
            index.add(codes, ids)
            content |= {int(i): bytes(code) for i, code in zip(ids, codes)}
            yield dict(content)
            if number == 2:
                gone = sorted(content)[::3]
                index.remove(gone)
                content = {i: code for i, code in content.items() if i not in gone}
                yield dict(content)


def content_of(path: Path) -> dict[int, bytes]:
    with HammingIndex.open(path) as index:
        found = {int(i): bytes(index.get([i])[0]) for i in index.ids}
        if found:
            code = np.frombuffer(found[min(found)], np.uint8)[None]
            assert index.search(code, 1)[0][0, 0] == 0
        return found


@pytest.fixture
def filled(tmp_path) -> tuple[Path, list[dict[int, bytes]]]:
    path = tmp_path / "codes.index"
    return path, list(steps(path))


class TestInAFile(ChangingContract):
    @pytest.fixture
    def make(self, tmp_path):
        def open_new(codes, ids, n_bits):
            path = tmp_path / f"{len(list(tmp_path.iterdir()))}.index"
            index = HammingIndex.open(path, "a", n_bits=n_bits)
            index.add(codes[:70], ids[:70])
            index.add(codes[70:], ids[70:])
            return index

        return open_new


def test_content_survives_reopening_and_compaction(filled):
    path, states = filled
    assert content_of(path) == states[-1]
    assert HammingIndex.verify(path) == []
    with HammingIndex.open(path, "a") as index:
        index.compact()
        assert {int(i) for i in index.ids} == set(states[-1])
    assert content_of(path) == states[-1]
    assert HammingIndex.verify(path) == []


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files in /proc")
def test_a_writer_keeps_a_bounded_number_of_memory_maps(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "kdiffhash.search.index_file._SMALL", 64
    )  # bytes; larger batches are memory-mapped
    path, rng = tmp_path / "codes.index", np.random.default_rng(0)
    codes = oracle.random_codes(rng, 1500, N_BITS)
    queries = oracle.random_codes(rng, 20, N_BITS)
    most, reads, read_rows = 0, [], IndexFile.read_rows
    monkeypatch.setattr(
        IndexFile, "read_rows", lambda file, batch: (reads.append(batch), read_rows(file, batch))[1]
    )
    with HammingIndex.open(path, "a", n_bits=N_BITS) as index:
        for start in range(0, 1500, 10):
            index.add(codes[start : start + 10])
            most = max(most, _times_open(path))
            if start in (640, 650, 1490):  # before, at and after the first time maps are dropped
                stop = start + 10
                expected = oracle.nearest(queries, codes[:stop], np.arange(stop), 5)
                for found, correct in zip(index.search(queries, 5), expected):
                    np.testing.assert_array_equal(found, correct)
        index.remove(np.arange(0, 1500, 2))
        remaining = np.arange(1, 1500, 2)
        expected = oracle.nearest(queries, codes[remaining], remaining, 5)
        np.testing.assert_array_equal(index.search(queries, 5)[1], expected[1])
        np.testing.assert_array_equal(index.get(remaining), codes[remaining])
    assert 60 < most < 70  # 150 batches; one of the open files is the writer's own
    assert 150 < len(reads) < 400  # each batch once, and again whenever maps are dropped
    before = _times_open(path)
    with HammingIndex.open(path) as reader:
        assert _times_open(path) == before + 2  # the file and one memory map
        np.testing.assert_array_equal(reader.get(remaining), codes[remaining])


def _times_open(path: Path) -> int:
    """Count how often this process has a file open, including memory maps."""
    links = list(Path("/proc/self/fd").iterdir())
    return sum(os.path.realpath(link) == str(path.resolve()) for link in links)


def test_a_saved_index_returns_the_same_results(tmp_path):
    rng = np.random.default_rng(0)
    codes = oracle.random_codes(rng, 5000, 100)
    index = HammingIndex(codes, rng.permutation(9000)[:5000], n_bits=100)
    index.remove(index.ids[::7])
    index.save(tmp_path / "x.index")
    opened = HammingIndex.open(tmp_path / "x.index")
    for a, b in zip(index.search(codes[:30], 9), opened.search(codes[:30], 9)):
        np.testing.assert_array_equal(a, b)
    assert len(opened) == len(index)
    assert opened.n_bits == 100
    index.add(codes[:1])
    index.save(tmp_path / "x.index")  # replaces the old file, which stays readable while open
    assert len(opened) == len(index) - 1
    opened.refresh()
    assert len(opened) == len(index)


def test_large_batches_are_memory_mapped(tmp_path):
    rng = np.random.default_rng(1)
    codes = oracle.random_codes(rng, 300_000, 64)
    with HammingIndex.open(tmp_path / "x.index", "a", n_bits=64) as index:
        index.add(codes[:140_000])
        index.add(codes[140_000:])
        assert all(segment.mapped for segment in index._segments)
        expected = HammingIndex(codes).search(codes[:50], 5)
        for a, b in zip(index.search(codes[:50], 5), expected):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_files_of_older_versions_stay_readable(version):
    expected = np.load(DATA / f"index_v{version}.npz")
    with HammingIndex.open(DATA / f"index_v{version}.index") as index:
        np.testing.assert_array_equal(index.ids, expected["ids"])
        np.testing.assert_array_equal(index.get(expected["ids"]), expected["codes"])
        assert index.n_bits == int(expected["n_bits"])
        assert index.info()["format"] == version
        if version >= 2:
            assert index.model == str(expected["model"])
            distances, found = index.search(expected["queries"], 6)
            np.testing.assert_array_equal(distances, expected["distances"])
            np.testing.assert_array_equal(found, expected["found"])
        else:
            assert index.model is None
    assert HammingIndex.verify(DATA / f"index_v{version}.index") == []


def test_an_old_file_keeps_its_version_until_it_is_compacted(tmp_path):
    path = tmp_path / "x.index"
    shutil.copy(DATA / "index_v1.index", path)
    expected, n_bytes = np.load(DATA / "index_v1.npz"), 13
    with HammingIndex.open(path, "a", model="unknown models are not checked") as index:
        (new,) = index.add(np.zeros((1, n_bytes), np.uint8))
        assert index.info()["format"] == 1
        assert index.model is None
    assert path.read_bytes()[:1024] == (DATA / "index_v1.index").read_bytes()[:1024]
    assert HammingIndex.verify(path) == []
    with HammingIndex.open(path, "a") as index:
        index.compact()
        assert index.info()["format"] == 3
        np.testing.assert_array_equal(index.ids, [*expected["ids"], new])
        np.testing.assert_array_equal(index.get(expected["ids"]), expected["codes"])


# -- models -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hashers(objects):
    X, _ = objects
    return [RandomHyperplaneHash(n_bits=16, random_state=seed).fit(X) for seed in (0, 1)]


def test_a_file_stores_the_fingerprint_of_its_model(objects, hashers, tmp_path):
    (X, _), (hasher, other) = objects, hashers
    path, codes = tmp_path / "x.index", hasher.transform(X)
    with HammingIndex.open(path, "a", n_bits=16, model=hasher) as index:
        index.add(codes)
        index.add(codes[:5], model=hasher)
        index.add(codes[:5])  # a plain array is not checked
        with pytest.raises(ValueError, match="the index holds codes of another model"):
            index.add(other.transform(X), model=other)
        assert len(index) == len(X) + 10
        index.remove([0])
        index.compact()
        assert index.model == index.info()["model"] == fingerprint(hasher)
    for model in (None, hasher, fingerprint(hasher)):
        with HammingIndex.open(path, model=model) as index:
            assert index.model == fingerprint(hasher)
            assert pickle.loads(pickle.dumps(index)).model == fingerprint(hasher)
            index.save(tmp_path / "copy.index")
    for model in (other, fingerprint(other), hasher.truncate(8)):
        for mode in ("r", "a"):
            with pytest.raises(ValueError, match=r"copy\.index holds codes of another model"):
                HammingIndex.open(tmp_path / "copy.index", mode, model=model)


def test_old_fingerprints_of_the_same_model_are_accepted(objects, hashers):
    (X, _), (hasher, other) = objects, hashers
    (old,) = _old_fingerprints(hasher)
    assert old != fingerprint(hasher)
    index = HammingIndex(n_bits=16, model=old)
    index.add(hasher.transform(X), model=hasher)
    with pytest.raises(ValueError, match="another model"):
        index.add(other.transform(X), model=other)
    assert (len(index), index.model) == (len(X), old)


def test_an_index_in_memory_stores_the_fingerprint_too(objects, hashers, tmp_path):
    (X, _), (hasher, other) = objects, hashers
    index = HammingIndex(hasher.transform(X), model=hasher)
    assert pickle.loads(pickle.dumps(index)).model == index.model == fingerprint(hasher)
    index.save(tmp_path / "x.index")
    with HammingIndex.open(tmp_path / "x.index", model=hasher) as reader:
        HammingIndex(other.transform(X), model=other).save(tmp_path / "x.index")
        with pytest.raises(IndexFileError, match="another model"):
            reader.refresh()
        assert len(reader) == len(X)
    nine = RandomHyperplaneHash(n_bits=9, random_state=0).fit(X)
    assert HammingIndex(nine.transform(X), model=nine).n_bits == 9
    assert HammingIndex(model=nine).n_bits == 9
    with pytest.raises(ValueError, match="produces codes of 9 bits, not 16"):
        HammingIndex(n_bits=16, model=nine)
    for wrong in ("", "x" * 129, "fingerprint\n"):
        with pytest.raises(ValueError, match="not the fingerprint"):
            HammingIndex(n_bits=16, model=wrong)


# -- readers and writers ------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_readers_are_not_blocked(filled):
    path, states = filled
    reader = HammingIndex.open(path)
    with HammingIndex.open(path, "a") as writer:
        with pytest.raises(OSError, match="another writer has"):
            HammingIndex.open(path, "a")
        with pytest.raises(OSError, match="another writer has"):
            writer.save(path)
        new = writer.add(np.zeros((1, 3), np.uint8))
        assert len(reader) == len(states[-1])
        reader.refresh()
        assert int(new[0]) in reader
        writer.remove(new)
        reader.refresh()
        assert int(new[0]) not in reader
        writer.compact()
        assert len(reader) == len(states[-1])
        reader.refresh()
        assert reader.search(np.zeros((1, 3), np.uint8), 3)[1].shape == (1, 3)
    with pytest.raises(ValueError, match="mode='a'"):
        reader.add(np.zeros((1, 3), np.uint8))
    with pytest.raises(ValueError, match="closed"):
        writer.add(np.zeros((1, 3), np.uint8))
    assert content_of(path) == states[-1]


def test_files_that_are_not_an_index_are_refused(tmp_path):
    path = tmp_path / "x.index"
    with pytest.raises(FileNotFoundError):
        HammingIndex.open(path)
    for content in (b"", b"x" * 5000, np.random.default_rng(0).bytes(9000)):
        path.write_bytes(content)
        with pytest.raises(IndexFileError, match="not a kdiffhash index"):
            HammingIndex.open(path)
        assert HammingIndex.verify(path)
        with pytest.raises(IndexFileError):
            HammingIndex.open(path, "a", n_bits=8)
        assert path.read_bytes() == content
    with pytest.raises(ValueError, match="holds codes of 100 bits"):
        HammingIndex.open(DATA / "index_v1.index", n_bits=64)
    with pytest.raises(ValueError, match="mode"):
        HammingIndex.open(path, "w")


# -- crashes ------------------------------------------------------------------------------------


class Crash(BaseException):
    """Simulated power failure."""


class Disk:
    """Intercept writes to disk: log them, and fail at a chosen call."""

    def __init__(self, monkeypatch) -> None:
        self.log: list[tuple] = []
        self.calls, self.fail_at, self.fail_after, self.error = 0, None, False, None
        for name in ("write", "fsync", "replace", "ftruncate"):
            monkeypatch.setattr(os, name, self._intercept(name, getattr(os, name)))

    def _intercept(self, name, real):
        def call(*args, **kwargs):
            number, self.calls = self.calls, self.calls + 1
            failing = self.fail_at is not None and number == self.fail_at
            if isinstance(self.error, Crash) and self.fail_at is not None and number > self.fail_at:
                raise self.error  # after a crash nothing is executed
            if failing and not self.fail_after:
                raise self.error
            if name == "write":
                offset = os.lseek(args[0], 0, os.SEEK_CUR)
                self.log.append(("write", offset, bytes(args[1])))
            elif name == "fsync":
                self.log.append(("sync",))
            result = real(*args, **kwargs)
            if failing:
                raise self.error
            return result

        return call


def images(start: bytes, log: list[tuple]):
    """Yield possible disk contents after each call: synced writes, and some of those since."""
    synced, waiting = bytearray(start), []

    def apply(content: bytearray, offset: int, data: bytes) -> bytearray:
        content = bytearray(content)
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data
        return content

    for event in log:
        if event[0] == "sync":
            for _, offset, data in waiting:
                synced = apply(synced, offset, data)
            waiting = []
            yield synced
        elif event[0] == "write":
            waiting.append(event)
            everything = synced
            for _, offset, data in waiting:
                everything = apply(everything, offset, data)
            yield everything
            offset, data = event[1:]
            yield apply(synced, offset, data)  # only the last write reached the disk
            for size in {*range(min(len(data), 80)), *range(0, len(data), 97)}:
                yield apply(everything, offset, data[:size] + bytes(len(data) - size))
                yield apply(synced, offset, data[:size])


def test_a_crash_at_any_moment_keeps_all_committed_batches(tmp_path, monkeypatch):
    path, copy = tmp_path / "codes.index", tmp_path / "copy.index"
    disk = Disk(monkeypatch)
    changes = steps(path)
    before = next(changes)
    n_images = 0
    for after in iter(lambda: next(changes, None), None):
        start, log = copy_start(path, disk)
        for image in images(start, log):
            copy.write_bytes(image)
            assert content_of(copy) in (before, after)
            n_images += 1
        assert content_of(path) == after
        before = after
    assert n_images > 1000


def copy_start(path: Path, disk: Disk) -> tuple[bytes, list[tuple]]:
    """Return the file as it was before the writes in the log, and the log; clear the log."""
    log, disk.log = disk.log, []
    content = path.read_bytes()
    if not hasattr(disk, "last"):
        from kdiffhash.search.index_format import empty_file

        disk.last = empty_file(N_BITS)
        log = [event for event in log if event[0] == "sync" or event[1] != 0]
    start, disk.last = disk.last, content
    return start, log


@pytest.mark.parametrize("kind", ["error", "crash"])
def test_a_failing_disk_loses_nothing(tmp_path, monkeypatch, kind):
    path = tmp_path / "codes.index"
    states = list(steps(path))
    path.unlink()
    disk = Disk(monkeypatch)
    list(steps(path))
    total = disk.calls
    assert total > 20
    for fail_after in (False, True):
        for fail_at in range(total):
            path.unlink(missing_ok=True)
            disk.calls, disk.fail_at, disk.fail_after = 0, fail_at, fail_after
            disk.error = OSError(errno.EIO, "broken") if kind == "error" else Crash()
            done = []
            with pytest.raises((OSError, Crash)):
                done.extend(steps(path))
            disk.fail_at = None
            if not done:
                assert not path.exists() or content_of(path) == {}
                continue
            found = content_of(path)
            assert found in states[len(done) - 1 : len(done) + 1], (fail_at, fail_after)
            with HammingIndex.open(path, "a") as index:  # the index can still be written to
                index.add(np.zeros((1, 3), np.uint8), [9999])
            assert content_of(path) == {**found, 9999: b"\0\0\0"}


@pytest.mark.parametrize("what", ["save", "compact"])
def test_a_failing_rewrite_leaves_the_old_file(tmp_path, monkeypatch, what):
    path = tmp_path / "codes.index"
    *_, state = steps(path)
    other = HammingIndex(np.zeros((2, 3), np.uint8))
    disk, original = Disk(monkeypatch), path.read_bytes()

    def change():
        if what == "save":
            other.save(path)
            return
        with HammingIndex.open(path, "a") as index:
            index.compact()

    change()
    total, after = disk.calls, content_of(path)
    for fail_after in (False, True):
        for fail_at in range(total):
            path.write_bytes(original)
            disk.calls, disk.fail_at, disk.fail_after = 0, fail_at, fail_after
            disk.error = OSError(errno.ENOSPC, "No space left on device")
            with pytest.raises(OSError, match="space"):
                change()
            disk.fail_at = None
            assert content_of(path) in (state, after)
            assert [p.name for p in tmp_path.iterdir()] == ["codes.index"]


def test_a_file_that_lacks_committed_bytes_is_refused_and_not_changed(filled, tmp_path):
    path, _ = filled
    content, copy = path.read_bytes(), tmp_path / "copy.index"
    with HammingIndex.open(path) as index:
        last = index._file.batches[-1]
    assert last.end == len(content)
    for size in {*range(last.start, last.end), *range(0, last.start, 37)}:
        copy.write_bytes(content[:size])
        for mode in ("r", "a"):
            with pytest.raises(IndexFileError):
                HammingIndex.open(copy, mode)
        assert HammingIndex.verify(copy)
        assert copy.read_bytes() == content[:size]
    copy.write_bytes(content[:-1])
    with pytest.raises(
        IndexFileError, match=f"ends at byte {len(content) - 1} instead of .*repair"
    ):
        HammingIndex.open(copy)


def test_verify_detects_a_flipped_bit_anywhere(filled, tmp_path):
    path, states = filled
    content = path.read_bytes()
    copy = tmp_path / "copy.index"
    for offset in range(len(content)):
        damaged = bytearray(content)
        damaged[offset] ^= 1 << offset % 8
        copy.write_bytes(damaged)
        assert HammingIndex.verify(copy), offset
        try:
            with HammingIndex.open(copy) as index:
                index.search(np.zeros((2, 3), np.uint8), 5)
                opened = set(index.ids.tolist())
        except IndexFileError:
            continue
        assert opened == set(states[-1]), offset  # in the head: one intact slot is enough


def test_a_full_disk_raises_and_loses_nothing(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        rng = np.random.default_rng(0)
        path, expected = folder / "x.index", []
        with HammingIndex.open(path, "a", n_bits=512) as index:

            def fill():
                while True:
                    codes = oracle.random_codes(rng, 100, 512)
                    index.add(codes)
                    expected.append(codes)

            with pytest.raises(OSError, match="nothing was added") as caught:
                fill()
            assert caught.value.errno == errno.ENOSPC
            assert len(expected) > 10
            assert len(index) == 100 * len(expected)
            index.search(expected[0][:3], 4)
        with HammingIndex.open(path) as index:
            np.testing.assert_array_equal(index.get(index.ids), np.concatenate(expected))
        assert HammingIndex.verify(path) == []
    finally:
        subprocess.run(["umount", str(folder)], check=True)


_WRITER = """
import sys
import numpy as np
from kdiffhash import HammingIndex
with HammingIndex.open(sys.argv[1], "a", n_bits=64) as index:
    start = len(index)
    print(start, flush=True)
    for number, _ in enumerate(sys.stdin, start // 50):  # one batch per line
        rng = np.random.default_rng(number)
        index.add(rng.integers(0, 256, (50, 8), dtype=np.uint8))
        if number % 10 == 9:
            some = number * 50 + np.arange(10)
            index.remove(some)
            index.add(np.zeros((10, 8), np.uint8), some)
        print(len(index), flush=True)
"""


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_whole_batches(tmp_path):
    path = tmp_path / "x.index"
    rng = np.random.default_rng()
    n_kills = int(os.environ.get("KDIFFHASH_KILLS", "20"))
    reader = None
    for _ in range(n_kills):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

        def request_batches(n, writer=writer):
            writer.stdin.write("\n" * n)
            writer.stdin.flush()

        committed = int(writer.stdout.readline())
        reader = reader or HammingIndex.open(path)
        for _ in range(int(rng.integers(0, 30))):
            request_batches(1)
            committed = int(writer.stdout.readline())
            reader.refresh()
            assert (
                len(reader) >= committed - 10
            )  # ten codes are removed and added again every ten batches
            reader.search(np.zeros((3, 8), np.uint8), 5)
        request_batches(20)
        time.sleep(rng.random() / 50)  # most likely in the middle of a batch
        writer.send_signal(signal.SIGKILL)
        committed = max([committed, *map(int, writer.stdout.read().split())])
        writer.wait()
        assert HammingIndex.verify(path) == []
        with HammingIndex.open(path) as index:
            number = len(index) // 50
            assert len(index) % 50 in (0, 40)
            assert len(index) >= committed - 10
            for i in range(max(0, number - 3), number):
                if i % 10 != 9:
                    codes = np.random.default_rng(i).integers(0, 256, (50, 8), dtype=np.uint8)
                    np.testing.assert_array_equal(index.get(50 * i + np.arange(50)), codes)
            if len(index) % 50:  # killed between remove and add: add them now
                with HammingIndex.open(path, "a") as again:
                    again.add(np.zeros((10, 8), np.uint8), (number) * 50 + np.arange(10))
    reader.close()


# -- recovery -----------------------------------------------------------------------------------


def tear_slot(path: Path) -> None:
    """Damage the newest slot like a crash in the middle of writing it."""
    content = bytearray(path.read_bytes())
    slots = [int.from_bytes(content[offset : offset + 8], "little") for offset in (1024, 2048)]
    offset = 1024 if slots[0] > slots[1] else 2048
    content[offset + 16 : offset + 1024] = bytes(1008)
    path.write_bytes(content)


def test_two_crashes_in_a_row_lose_nothing(filled):
    path, states = filled
    tear_slot(path)
    assert content_of(path) == states[-1]  # the batch had been synced before its slot
    with HammingIndex.open(path, "a") as index:
        index.add(np.zeros((1, 3), np.uint8), [9999])
    tear_slot(path)
    assert content_of(path) == {**states[-1], 9999: b"\0\0\0"}


def test_a_damaged_slot_followed_by_a_damaged_batch_is_refused(filled):
    path, _ = filled
    tear_slot(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)  # the other slot alone would silently lose the last batch
    with pytest.raises(IndexFileError, match="unreadable"):
        HammingIndex.open(path)
    path.write_bytes(content[:-1])
    with pytest.raises(IndexFileError, match="unreadable"):
        HammingIndex.open(path, "a")


def test_a_damaged_batch_header_is_refused(filled, tmp_path):
    path, _ = filled
    content = path.read_bytes()
    with HammingIndex.open(path) as index:
        batches = index._file.batches
    for damaged_batch in (batches[0], batches[-1]):
        for offset in range(damaged_batch.start, damaged_batch.start + 64):
            damaged = bytearray(content)
            damaged[offset] ^= 4
            path.write_bytes(damaged)
            with pytest.raises(IndexFileError, match="bad header"):
                HammingIndex.open(path)


def test_a_replaced_file_is_not_written_to(filled, monkeypatch):
    path, states = filled
    index = HammingIndex.open(path, "a")
    from kdiffhash._util import files

    def fail(folder):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(files, "sync_folder", fail)
    with pytest.raises(OSError, match="broken"):
        index.compact()
    monkeypatch.undo()
    with pytest.raises(ValueError, match="closed"):
        index.add(np.zeros((1, 3), np.uint8))
    assert content_of(path) == states[-1]


def test_after_an_interrupted_commit_the_index_is_closed(filled, monkeypatch):
    path, states = filled
    index = HammingIndex.open(path, "a")
    real, calls = os.fsync, []

    def interrupt(file):
        real(file)
        calls.append(file)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        index.add(np.zeros((1, 3), np.uint8), [9999])
    monkeypatch.undo()
    with pytest.raises(ValueError, match="closed"):
        index.add(np.ones((1, 3), np.uint8), [9998])
    assert content_of(path) == {**states[-1], 9999: b"\0\0\0"}


def test_refresh_refuses_a_file_with_codes_of_another_length(tmp_path):
    path = tmp_path / "x.index"
    HammingIndex(np.zeros((3, 8), np.uint8)).save(path)
    with HammingIndex.open(path) as reader:
        HammingIndex(np.zeros((3, 64), np.uint8)).save(path)
        with pytest.raises(IndexFileError, match="512 bits"):
            reader.refresh()
        assert reader.search(np.zeros((1, 8), np.uint8), 1)[1].tolist() == [[0]]


def test_ids_are_not_reused_after_everything_was_removed(tmp_path):
    path = tmp_path / "x.index"
    with HammingIndex.open(path, "a", n_bits=8) as index:
        index.add(np.zeros((3, 1), np.uint8))
        index.remove([0, 1, 2])
        index.compact()
        assert index.add(np.zeros((1, 1), np.uint8)).tolist() == [3]


def test_compaction_merges_batches_and_keeps_permissions(tmp_path):
    path, rng = tmp_path / "x.index", np.random.default_rng(0)
    codes = oracle.random_codes(rng, 80_000, 512)
    with HammingIndex.open(path, "a", n_bits=512) as index:
        for start in range(0, 80_000, 20_000):
            index.add(codes[start : start + 20_000])
        path.chmod(0o600)
        index.remove(np.arange(0, 80_000, 2))
        index.compact()
        assert index.info()["batches"] == 1
        np.testing.assert_array_equal(index.get(np.arange(1, 80_000, 2)), codes[1::2])
    assert path.stat().st_mode & 0o777 == 0o600


def test_several_threads_can_add_to_one_index(tmp_path):
    path = tmp_path / "x.index"
    with HammingIndex.open(path, "a", n_bits=24) as index, ThreadPoolExecutor(4) as pool:
        codes = np.zeros((5, 3), np.uint8)
        ids = list(pool.map(lambda _: index.add(codes), range(60)))
        assert sorted(np.concatenate(ids).tolist()) == list(range(300))
    assert len(content_of(path)) == 300


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_cannot_write(filled):
    path, states = filled
    with HammingIndex.open(path, "a") as index:
        child = os.fork()
        if not child:
            try:
                index.add(np.zeros((1, 3), np.uint8))
            except ValueError as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    assert content_of(path) == states[-1]


def test_indexes_can_be_pickled_and_leave_no_open_files(filled):
    path, states = filled
    index = HammingIndex.open(path)
    other = pickle.loads(pickle.dumps(index))
    index.close()
    assert set(other.ids.tolist()) == set(states[-1])
    del other, index
    gc.collect()
    descriptors = Path("/proc/self/fd")
    if descriptors.is_dir():
        opened = {str(one.readlink()) for one in descriptors.iterdir() if one.is_symlink()}
        assert str(path.resolve()) not in opened
    memory = HammingIndex(np.arange(8, dtype=np.uint8)[:, None])
    memory.remove([3])
    again = pickle.loads(pickle.dumps(memory))
    assert again.ids.tolist() == memory.ids.tolist()
    assert again.add(np.zeros((1, 1), np.uint8)).tolist() == [8]


def test_missing_folders_are_not_created(tmp_path):
    for arguments in ({}, {"n_bits": 8}):
        with pytest.raises(FileNotFoundError, match="folder"):
            HammingIndex.open(tmp_path / "typo" / "x.index", "a", **arguments)
    with pytest.raises(FileNotFoundError):
        HammingIndex.open(tmp_path / "x.index", "a")
    assert not list(tmp_path.iterdir())
