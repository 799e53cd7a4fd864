"""Damaged index files are repaired batch by batch; ids and removals are stored compactly."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiffhash import HammingIndex, IndexFileError
from kdiffhash.search.index_repair import repair
from kdiffhash.search.segment import IdRuns, Segment

DATA = Path(__file__).parent.parent / "data"
N_BITS = 24
GONE = (5, 27, 40)  # ids that batch 2 removes


@pytest.fixture
def path(tmp_path) -> Path:
    """Five batches: ids 0 to 19, 20 to 39, a removal, listed ids, ids from 1000 on."""
    path = tmp_path / "codes.index"
    with HammingIndex.open(path, "a", n_bits=N_BITS, model="a fingerprint") as index:
        index.add(code(range(20)))
        index.add(code(range(20, 60)), np.arange(20, 60))
        index.remove(GONE)
        index.add(code((900, 700, 800)), [900, 700, 800])
        index.add(code(range(1000, 1010)), np.arange(1000, 1010))
    return path


def code(ids) -> np.ndarray:
    """Return the codes that the test stores under these ids."""
    return np.array([[i % 256, i // 256, 77] for i in ids], np.uint8).reshape(-1, 3)


BATCHES = [range(20), range(20, 60), GONE, (700, 800, 900), range(1000, 1010)]
ALL = set(range(60)) - set(GONE) | {700, 800, 900} | set(range(1000, 1010))


def check_content(path: Path, expected: set[int]) -> None:
    with HammingIndex.open(path, model="a fingerprint") as index:
        assert set(index.ids.tolist()) == expected
        np.testing.assert_array_equal(index.get(index.ids), code(index.ids.tolist()))
    assert HammingIndex.verify(path) == []


def batches_of(path: Path):
    with HammingIndex.open(path) as index:
        return index._file.batches


def test_repair_copies_an_intact_file(path, tmp_path):
    before = path.read_bytes()
    result = repair(path, tmp_path / "new.index")
    assert result == {"codes": len(ALL), "batches": 5, "lost_bytes": 0}
    check_content(tmp_path / "new.index", ALL)
    assert path.read_bytes() == before
    with pytest.raises(FileExistsError, match="already exists"):
        repair(path, tmp_path / "new.index")
    with HammingIndex.open(tmp_path / "new.index", "a") as index:
        assert index.add(code([0])).tolist() == [1010]


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("where", ["header", "payload"])
def test_repair_copies_all_batches_but_a_damaged_one(path, tmp_path, number, where):
    batch, content = batches_of(path)[number], bytearray(path.read_bytes())
    content[batch.start + (10 if where == "header" else 64)] ^= 1
    path.write_bytes(content)
    with pytest.raises(IndexFileError, match="repair"):
        HammingIndex.open(path)
    result = repair(path, tmp_path / "new.index")
    lost = set(BATCHES[number])
    expected = ALL | lost if number == 2 else ALL - lost
    assert result["lost_bytes"] == batch.end - batch.start
    assert result["batches"] == 4
    assert result["codes"] == len(expected)
    check_content(tmp_path / "new.index", expected)


def test_repair_of_a_cut_file_keeps_the_batches_before(path, tmp_path):
    content, batches = path.read_bytes(), batches_of(path)
    for number, size in enumerate(range(4096, len(content), 61)):
        path.write_bytes(content[:size])
        out = tmp_path / f"{number}.index"
        repair(path, out)
        expected: set[int] = set()
        for batch, ids in zip(batches, BATCHES):
            if batch.end <= size:
                expected = expected - set(ids) if ids is GONE else expected | set(ids)
        check_content(out, expected)


def test_repair_works_without_slots_and_not_without_a_head(path, tmp_path):
    content = path.read_bytes()
    path.write_bytes(content[:1024] + b"x" * 2048 + content[3072:])
    with pytest.raises(IndexFileError, match="slots"):
        HammingIndex.open(path)
    repair(path, tmp_path / "new.index")
    check_content(tmp_path / "new.index", ALL)
    path.write_bytes(content[:200] + b"x" + content[201:])
    with pytest.raises(IndexFileError, match="damaged head"):
        repair(path, tmp_path / "other.index")
    assert not (tmp_path / "other.index").exists()


def test_repair_leaves_out_a_batch_that_was_never_committed(path, tmp_path):
    before = path.read_bytes()
    with HammingIndex.open(path, "a") as index:
        index.add(code([5000]), [5000])
    content = path.read_bytes()
    path.write_bytes(before[:4096] + content[4096:])  # as if killed before the slot was written
    repair(path, tmp_path / "new.index")
    check_content(tmp_path / "new.index", ALL)


def test_repair_keeps_the_newer_code_if_a_removal_is_lost(path, tmp_path):
    with HammingIndex.open(path, "a") as index:
        index.add(code([7]), [5])
        number = len(index._file.batches)
    damaged, content = batches_of(path)[2], bytearray(path.read_bytes())
    assert number == 6
    content[damaged.start] ^= 1
    path.write_bytes(content)
    repair(path, tmp_path / "new.index")
    with HammingIndex.open(tmp_path / "new.index") as index:
        np.testing.assert_array_equal(index.get([5, 27]), code([7, 27]))


def test_compaction_does_not_copy_damaged_codes(path, tmp_path, monkeypatch):
    monkeypatch.setattr("kdiffhash.search.index_file._SMALL", 64)  # mapped, not checked on opening
    content = bytearray(path.read_bytes())
    content[batches_of(path)[1].start + 100] ^= 1
    path.write_bytes(content)
    with HammingIndex.open(path, "a") as index:
        with pytest.raises(IndexFileError, match="fails its checksum"):
            index.compact()
        index.add(code([3]), [3000])  # the rest can be used
    assert len(HammingIndex.verify(path)) == 1
    assert list(tmp_path.iterdir()) == [path]


# -- runs of ids --------------------------------------------------------------------------------


def test_compaction_after_few_removals_makes_the_file_smaller(tmp_path):
    path, rng = tmp_path / "x.index", np.random.default_rng(0)
    codes = oracle.random_codes(rng, 50_000, 128)
    with HammingIndex.open(path, "a", n_bits=128) as index:
        index.add(codes)
        index.remove([100])
        index.remove([30_000])
        before = index.info()["bytes"]
        index.compact()
        # Head, header of the batch, three runs padded to 64 bytes, blocks of 8 codes of 16 bytes.
        assert index.info()["bytes"] == 4096 + 64 + 64 + -(-49_998 // 8) * 128 < before
        left = np.delete(np.arange(50_000), [100, 30_000])
        for opened in (index, HammingIndex.open(path)):
            np.testing.assert_array_equal(opened.ids, left)
            np.testing.assert_array_equal(opened.get(left), codes[left])
            assert 100 not in opened
            assert 101 in opened
            for found, right in zip(
                opened.search(codes[:9], 7), oracle.nearest(codes[:9], codes[left], left, 7)
            ):
                np.testing.assert_array_equal(found, right)
            assert opened.nbytes == -(-49_998 // 8) * 128 + 8 * 7  # three runs take seven numbers
        index.remove([30_001])
        index.add(codes[:2], [100, 30_001])
        np.testing.assert_array_equal(index.get([100, 30_001, 0]), codes[[0, 1, 0]])
    assert HammingIndex.verify(path) == []


def test_a_file_of_version_2_gets_no_batch_that_version_2_lacks(tmp_path):
    path = tmp_path / "x.index"
    shutil.copy(DATA / "index_v2.index", path)
    with HammingIndex.open(path, "a") as index:
        width = index.get(index.ids).shape[1]
        ids = 10_000 + np.delete(np.arange(100), 50)
        index.add(np.zeros((99, width), np.uint8), ids)
        assert index._file.batches[-1].kind == 2
        index.compact()
        assert index.info()["format"] == 3
        assert 10_099 in index
        assert 10_050 not in index
    assert HammingIndex.verify(path) == []


@settings(max_examples=200, deadline=None)
@given(
    ids=st.sets(
        st.integers(-20, 20) | st.integers(2**63 - 5, 2**63 - 1) | st.integers(-(2**63), 5 - 2**63),
        min_size=1,
    )
)
def test_runs_of_ids_agree_with_a_list(ids):
    listed = np.array(sorted(ids), np.int64)
    runs = IdRuns.of(listed)
    assert len(runs.firsts) == sum(i - 1 not in ids for i in ids)
    np.testing.assert_array_equal(runs.ids_of(np.arange(len(listed))), listed)
    asked = [*range(-25, 25), *range(2**63 - 9, 2**63), *range(-(2**63), 9 - 2**63)]
    expected = [sorted(ids).index(i) if i in ids else -1 for i in asked]
    assert runs.rows_of(np.array(asked, np.int64)).tolist() == expected


def test_a_batch_whose_runs_do_not_add_up_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.index"
    monkeypatch.setattr(
        IdRuns, "of", classmethod(lambda cls, ids: cls(ids[:1], np.array([0, len(ids) + 1])))
    )
    index = HammingIndex.open(path, "a", n_bits=N_BITS)
    with pytest.raises(IndexFileError, match="wrong ids"):
        index.add(code([1, 2, 4, 5]), [1, 2, 4, 5])
    index.close()
    monkeypatch.undo()
    with pytest.raises(IndexFileError, match="wrong ids"):
        HammingIndex.open(path)


# -- removals -----------------------------------------------------------------------------------


def test_opening_a_file_applies_all_removals_at_once(tmp_path, monkeypatch):
    path = tmp_path / "x.index"
    with HammingIndex.open(path, "a", n_bits=N_BITS) as index:
        index.add(code(range(500)))
        for i in range(0, 400, 2):
            index.remove([i])
            index.add(code([i + 1]), [2000 + i])
    calls, real = [], Segment.without
    monkeypatch.setattr(
        Segment, "without", lambda self, rows: (calls.append(len(rows)), real(self, rows))[1]
    )
    with HammingIndex.open(path) as reader:
        expected = {*range(500)} - {*range(0, 400, 2)} | {*range(2000, 2400, 2)}
        assert set(reader.ids.tolist()) == expected
    assert calls == [200]  # the first batch, once for all 200 removals


@pytest.mark.parametrize("seed", range(5))
def test_ids_removed_and_added_again_keep_their_last_code(tmp_path, seed):
    rng, path = np.random.default_rng(seed), tmp_path / "x.index"
    content: dict[int, bytes] = {}
    with HammingIndex.open(path, "a", n_bits=N_BITS) as index:
        reader = HammingIndex.open(path)
        for step in range(60):
            free = [i for i in range(40) if i not in content]
            if free and rng.random() < 0.5:
                ids = rng.permutation(free)[: rng.integers(1, 9)]
                codes = oracle.random_codes(rng, len(ids), N_BITS)
                index.add(codes, ids)
                content |= {int(i): bytes(row) for i, row in zip(ids, codes)}
            elif content:
                ids = rng.permutation(sorted(content))[: rng.integers(1, 9)]
                index.remove(ids)
                content = {i: row for i, row in content.items() if i not in ids}
            if step % 7 == 0:
                reader.refresh()  # several batches at a time
                assert {int(i): bytes(reader.get([i])[0]) for i in reader.ids} == content
    with HammingIndex.open(path) as opened:
        assert {int(i): bytes(opened.get([i])[0]) for i in opened.ids} == content
