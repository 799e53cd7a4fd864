"""String ids and `upsert`: expected content is kept in a dict, in the order of adding."""

from __future__ import annotations

import pickle
import shutil
import tracemalloc
import zlib
from itertools import islice
from pathlib import Path

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_index_file import Disk, images, tear_slot

from kdiffhash import HammingIndex, IndexFileError
from kdiffhash.search.index_repair import repair
from kdiffhash.search.string_ids import StringIds, Texts, new_block

DATA = Path(__file__).parent.parent / "data"
N_BITS = 16
NAMES = ["a", "b", "ab", "ä", "名前", "img/0001.jpg", "img/0002.jpg", "x" * 300, " ", "7"]


def code(*values: int) -> np.ndarray:
    return np.array([[v % 256, v // 256] for v in values], np.uint8).reshape(-1, 2)


def check(index: HammingIndex, content: dict, by_id: bool = False) -> None:
    """Compare an index with a dict from ids to codes, in the order in which ties are returned."""
    order = sorted(content) if by_id else list(content)
    assert index.ids.tolist() == order
    assert len(index) == len(content)
    rows = np.array([content[i] for i in order], np.uint8).reshape(-1, 2)
    np.testing.assert_array_equal(index.get(order), rows)
    queries = code(0, 3, 300)
    distances, numbers = oracle.nearest(queries, rows, np.arange(len(rows)), 4)
    found = index.search(queries, 4)
    np.testing.assert_array_equal(found[0], distances)
    assert found[1].tolist() == [[order[j] for j in row] for row in numbers.tolist()]
    lists = oracle.range_search(queries, rows, np.arange(len(rows)), 3)
    lims, distances, ids = index.search_radius(queries, 3)
    for q, expected in enumerate(lists):
        own = slice(lims[q], lims[q + 1])
        assert list(zip(distances[own].tolist(), ids[own].tolist())) == [
            (distance, order[j]) for distance, j in expected
        ]


operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "upsert", "upsert", "remove", "compact", "reopen"]),
        st.lists(st.integers(0, len(NAMES) - 1), max_size=6, unique=True),
        st.integers(0, 2**16 - 1),
    ),
    max_size=12,
)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("kind", ["strings", "integers"])
@settings(max_examples=40, deadline=None)
@given(operations=operations)
def test_any_sequence_of_changes_gives_the_content_of_a_dict(
    tmp_path_factory, kind, mapped, operations
):
    path = tmp_path_factory.mktemp("index") / "x.index"
    ids = NAMES if kind == "strings" else [70 - i**2 for i in range(len(NAMES))]
    content: dict = {}
    with pytest.MonkeyPatch.context() as patch:
        if mapped:
            patch.setattr("kdiffhash.search.index_file._SMALL", 64)
        memory, file = HammingIndex(n_bits=N_BITS), HammingIndex.open(path, "a", n_bits=N_BITS)
        reader = HammingIndex.open(path)
        for what, rows, seed in operations:
            chosen, codes = [ids[i] for i in rows], code(*(seed * (i + 1) % 2**16 for i in rows))
            known = [i for i in chosen if i in content]
            for index in (memory, file):
                if what == "add" and known:
                    with pytest.raises(ValueError, match=f"{len(known)} of the ids are already"):
                        index.add(codes, chosen)
                elif what == "add":
                    assert index.add(codes, chosen).tolist() == chosen
                elif what == "upsert":
                    assert index.upsert(codes, chosen) == (len(chosen) - len(known), len(known))
                elif what == "remove" and len(known) < len(chosen):
                    with pytest.raises(KeyError, match="of the ids are not stored"):
                        index.remove(chosen)
                elif what == "remove":
                    index.remove(chosen)
                elif what == "compact":
                    index.compact()
            if what == "remove" and len(known) == len(chosen):
                content = {i: row for i, row in content.items() if i not in chosen}
            elif what == "upsert" or (what == "add" and not known):
                content = {i: row for i, row in content.items() if i not in chosen}
                content |= {i: row.tolist() for i, row in zip(chosen, codes)}
            elif what == "reopen":
                file.close()
                file = HammingIndex.open(path, "a")
                memory = pickle.loads(pickle.dumps(memory))
            for index in (memory, file):
                check(index, content, kind == "integers")
        reader.refresh()
        check(reader, content, kind == "integers")
        reader.close()
        file.close()
        assert HammingIndex.verify(path) == []
    memory.save(path)
    with HammingIndex.open(path) as saved:
        check(saved, content, kind == "integers")


def test_all_searches_return_strings():
    codes = code(0b1111, 0b0000, 0b0111, 0b0011)
    index = HammingIndex(codes, ids=["d", "c", "b", "a"])
    assert index.search(codes[0], 2)[1].tolist() == ["d", "b"]
    assert index.search(codes[:2], 2)[1].dtype == object
    pairs, distances = index.duplicates(1)
    assert pairs.tolist() == [["d", "b"], ["b", "a"]]
    assert distances.tolist() == [1, 1]
    groups = index.groups(1, priority=["a"])
    assert [group.tolist() for group in groups] == [["a", "d", "b"]]
    assert (groups.keep.tolist(), groups.drop.tolist()) == (["a", "c"], ["d", "b"])
    with pytest.raises(KeyError, match="example zebra"):
        index.groups(1, priority=["a", "zebra"])
    found = index.search(codes[0], 4, allowed=["c", "a", "not stored"])
    assert found[1].tolist() == ["a", "c"]
    assert index.search(codes[0], 4, allowed=[True, False, False, True])[1].tolist() == ["d", "a"]
    asked = []

    def distance(query, ids):
        asked.append(ids.tolist())
        return [{"a": 1.5, "b": 3, "c": 0.5, "d": 1.5}[i] for i in ids]

    found = index.search(codes[0], 3, rerank=distance)
    assert found[1].tolist() == ["c", "d", "a"]  # of equal distances, the one added first
    assert asked == [["d", "b", "a", "c"]]
    floats = np.ones((1, N_BITS))
    assert index.search(queries_float=floats, k=1)[1].tolist() == [["d"]]
    assert "a" in index
    assert index.info()["ids"] == "strings"
    for absent in ("e", "", 0, None, "\ud800"):
        assert absent not in index


@pytest.mark.parametrize(
    "ids",
    [
        np.array(["x", "yy"]),
        np.array(["x", "yy"], object),
        np.array(["x", "yy"], np.dtypes.StringDType()),
        ("x", "yy"),
    ],
)
def test_strings_are_accepted_in_any_array(ids):
    index = HammingIndex(code(1, 2), ids=ids)
    assert index.ids.tolist() == ["x", "yy"]
    assert all(type(i) is str for i in index.ids)
    np.testing.assert_array_equal(index.get(ids[1]), code(2)[0])
    np.testing.assert_array_equal(index.get(ids), code(1, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.add(code(1)), "ids of this index are strings; pass one string per code"),
        (lambda x: x.add(code(1), [5]), "are strings; pass one string per code"),
        (lambda x: x.add(code(1, 2), ["c"]), "got 2 codes but 1 ids"),
        (lambda x: x.add(code(1, 2), ["c", "c"]), "duplicates"),
        (lambda x: x.add(code(1, 2), ["c", "a"]), "1 of the ids are already stored, for example a"),
        (lambda x: x.add(code(1, 2), ["c", 5]), "all strings or all integers, got 5"),
        (lambda x: x.add(code(1, 2), ["c", ""]), "empty"),
        (lambda x: x.add(code(1, 2), np.array([["c", "d"]])), "shape"),
        (lambda x: x.add(code(1), ["\udcff"]), "not valid Unicode"),
        (lambda x: x.add(code(1), ["ä" * 40_000]), "80000 bytes as UTF-8; at most 65535"),
        (lambda x: x.upsert(code(1), None), "upsert needs the ids"),
        (lambda x: x.upsert(code(1), [5]), "are strings; pass one string per code"),
        (lambda x: x.upsert(code(1, 2), ["c", "c"]), "duplicates"),
        (lambda x: x.remove([5]), "are strings, but others"),
        (lambda x: x.get(5), "are strings, but others"),
        (lambda x: x.search(code(1), allowed=[5]), "are strings, but others"),
    ],
)
def test_invalid_ids_are_refused_and_nothing_changes(call, message):
    index = HammingIndex(code(7, 8), ids=["a", "b"])
    with pytest.raises(ValueError, match=message):
        call(index)
    check(index, {"a": [7, 0], "b": [8, 0]})


def test_one_long_id_among_many_takes_no_memory_for_the_others():
    names = ["x" * 60_000, *(f"{i}" for i in range(3000))]  # 720 MB as an array of fixed width
    codes = np.zeros((3001, 2), np.uint8)
    tracemalloc.start()
    index = HammingIndex(codes, ids=names)
    index.upsert(codes, names)
    index.search(codes[:1], allowed=names)
    assert index.get(names).shape == (3001, 2)
    assert index.ids.tolist() == names
    index.remove(names)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


def test_an_index_has_ids_of_one_kind():
    index = HammingIndex(code(7))
    for call in (
        lambda: index.add(code(1), ["a"]),
        lambda: index.upsert(code(1), ["a"]),
        lambda: index.get("a"),
        lambda: index.remove(["a"]),
        lambda: index.search(code(1), allowed=["a"]),
    ):
        with pytest.raises(ValueError, match="are integers, but strings were given"):
            call()
    assert "a" not in index
    assert index.add(code(1)).tolist() == [1]


# -- files --------------------------------------------------------------------------------------


def test_only_files_that_need_it_have_format_4(tmp_path):
    path = tmp_path / "x.index"
    with HammingIndex.open(path, "a", n_bits=N_BITS) as index:
        index.upsert(code(1, 2), [1, 2])  # nothing is overwritten
        assert index.info()["format"] == 3
        before = path.stat().st_ino
        index.upsert(code(3), [2])
        assert (index.info()["format"], index.info()["ids"]) == (4, "integers")
        assert path.stat().st_ino != before
        index.upsert(code(4), [1])
        index.compact()
        assert index.info()["format"] == 4  # the next upsert need not rewrite it
        assert index.add(code(9)).tolist() == [3]
        check(index, {1: [4, 0], 2: [3, 0], 3: [9, 0]}, by_id=True)
    HammingIndex(code(1), ids=["a"]).save(path)
    assert HammingIndex.open(path).info()["format"] == 4
    HammingIndex(code(1), ids=[5]).save(path)
    assert HammingIndex.open(path).info()["format"] == 3


@pytest.mark.parametrize("version", [1, 2, 3])
def test_codes_in_older_files_can_be_overwritten(tmp_path, version):
    path = tmp_path / "x.index"
    shutil.copy(DATA / f"index_v{version}.index", path)
    with HammingIndex.open(path, "a") as index:
        ids, codes = index.ids, index.get(index.ids)
        model = index.model
        assert index.upsert(codes[:1], ids[-1:]) == (0, 1)
        codes[-1] = codes[0]
    with HammingIndex.open(path) as index:
        np.testing.assert_array_equal(index.ids, ids)
        np.testing.assert_array_equal(index.get(ids), codes)
        assert (index.model, index.info()["format"]) == (model, 4)


def test_a_reader_follows_when_the_first_ids_are_strings(tmp_path):
    path = tmp_path / "x.index"
    with HammingIndex.open(path, "a", n_bits=N_BITS) as writer, HammingIndex.open(path) as reader:
        writer.add(code(1), ["a"])
        assert len(reader) == 0
        reader.refresh()
        check(reader, {"a": [1, 0]})
        HammingIndex(code(5)).save(tmp_path / "other.index")
        shutil.copy(tmp_path / "other.index", tmp_path / "y.index")
        (tmp_path / "y.index").replace(path)
        with pytest.raises(IndexFileError, match="whose ids are integers, not strings"):
            reader.refresh()


def changes(path: Path, kind: str):
    """Change an index of format 4 step by step; yield its content after each step."""
    ids = [f"name-{i}" if kind == "strings" else i for i in range(9)]
    with HammingIndex.open(path, "a", n_bits=N_BITS) as index:
        index.add(code(1), ids[:1])
        index.upsert(code(2), ids[:1])
    content = {ids[0]: [2, 0]}
    with HammingIndex.open(path, "a") as index:
        yield content
        for step, rows in enumerate(([1, 2], [2, 3, 0], [1], [4, 3])):
            values = [10 * step + row for row in rows]
            index.upsert(code(*values), [ids[row] for row in rows])
            content = {i: c for i, c in content.items() if i not in [ids[row] for row in rows]}
            content |= {ids[row]: [value, 0] for row, value in zip(rows, values)}
            yield content
        index.remove(ids[2:4])
        content = {i: c for i, c in content.items() if i not in ids[2:4]}
        yield content
        index.add(code(77, 78), ids[2:4])
        yield content | {ids[2]: [77, 0], ids[3]: [78, 0]}


@pytest.mark.parametrize("kind", ["strings", "integers"])
def test_a_crash_at_any_moment_leaves_the_content_before_or_after(tmp_path, monkeypatch, kind):
    path, copy = tmp_path / "x.index", tmp_path / "copy.index"
    steps = changes(path, kind)
    before = next(steps)
    start = path.read_bytes()
    disk = Disk(monkeypatch)
    n_images = 0
    for after in steps:
        log, disk.log = disk.log, []
        for image in islice(images(start, log), None, None, 4):
            copy.write_bytes(image)
            with HammingIndex.open(copy) as index:
                found = {i: row.tolist() for i, row in zip(index.ids, index.get(index.ids))}
            assert found in (before, after)
            n_images += 1
        before, start = after, path.read_bytes()
        with HammingIndex.open(path) as index:
            check(index, after, kind == "integers")
    assert n_images > 300


@pytest.mark.parametrize("kind", ["strings", "integers"])
def test_a_torn_slot_loses_no_upsert(tmp_path, kind):
    path = tmp_path / "x.index"
    *_, content = changes(path, kind)
    name = next(iter(content))
    with HammingIndex.open(path, "a") as index:
        index.upsert(code(99), [name])
    tear_slot(path)
    content.pop(name)
    content |= {name: [99, 0]}
    with HammingIndex.open(path, "a") as index:
        check(index, content, kind == "integers")
        index.upsert(code(98), [name])
    tear_slot(path)
    with HammingIndex.open(path) as index:
        check(index, content | {name: [98, 0]}, kind == "integers")


def test_an_interrupted_commit_leaves_string_ids_without_codes_that_have_no_effect(
    tmp_path, monkeypatch
):
    path = tmp_path / "x.index"
    content = {"a": [1, 0]}
    with HammingIndex.open(path, "a", n_bits=N_BITS) as index:
        index.add(code(1), ["a"])
        with monkeypatch.context() as patch:

            def fail(*_):
                raise OSError("broken")

            patch.setattr(type(index._file), "add_rows", fail)
            with pytest.raises(OSError, match="broken"):
                index.upsert(code(5, 6), ["a", "b"])
        check(index, content)
        assert "b" not in index
        index.upsert(code(7, 8), ["b", "c"])
        content |= {"b": [7, 0], "c": [8, 0]}
        check(index, content)
    with HammingIndex.open(path, "a") as index:
        check(index, content)
        index.compact()
        check(index, content)
        assert len(index._snapshot.strings.blocks[0].texts) == 3


def batches_of(path: Path):
    with HammingIndex.open(path) as index:
        return index._file.batches


@pytest.fixture
def filled(tmp_path) -> tuple[Path, dict]:
    """Batches: ids a b c, their codes, ids b d, their codes which replace b, a removal of c."""
    path = tmp_path / "x.index"
    with HammingIndex.open(path, "a", n_bits=N_BITS, model="a fingerprint") as index:
        index.add(code(1, 2, 3), ["a", "b", "c"])
        index.upsert(code(4, 5), ["b", "d"])
        index.remove("c")
    return path, {"a": [1, 0], "b": [4, 0], "d": [5, 0]}


def test_repair_copies_all_batches_but_a_damaged_one(filled, tmp_path):
    path, content = filled
    whole, batches = path.read_bytes(), batches_of(path)
    assert [batch.kind for batch in batches] == [5, 1, 5, 1, 3]
    expected = {
        None: content,
        0: {"b": [4, 0], "d": [5, 0]},  # a and c are lost
        1: {"b": [4, 0], "d": [5, 0]},
        2: {"a": [1, 0]},  # the newer code of b has no id, and replaces the older
        3: {"a": [1, 0], "b": [2, 0]},
        4: {"a": [1, 0], "c": [3, 0], "b": [4, 0], "d": [5, 0]},
    }
    for number, left in expected.items():
        damaged = bytearray(whole)
        if number is not None:
            damaged[batches[number].start + 64] ^= 1
        path.write_bytes(damaged)
        out = tmp_path / f"{number}.index"
        result = repair(path, out)
        lost = 0 if number is None else batches[number].end - batches[number].start
        without_id = {0: 3, 2: 2}.get(number, 0)
        assert result == {
            "codes": len(left),
            "batches": 5 - (number is not None),
            "lost_bytes": lost,
            "without_id": without_id,
        }
        with HammingIndex.open(out, "a", model="a fingerprint") as index:
            check(index, left)
            index.add(code(9), ["new"])
            check(index, left | {"new": [9, 0]})
        assert HammingIndex.verify(out) == []


def test_verify_detects_a_flipped_bit_anywhere(filled, tmp_path, monkeypatch):
    path, _ = filled
    whole, copy = path.read_bytes(), tmp_path / "copy.index"
    monkeypatch.setattr("kdiffhash.search.index_file._SMALL", 64)  # mapped, not read on opening
    for offset in (*range(0, 4096, 31), *range(4096, len(whole), 2)):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << offset % 8
        copy.write_bytes(damaged)
        assert HammingIndex.verify(copy), offset
        try:
            with HammingIndex.open(copy) as index:
                index.search(code(0), 4)
                index.get(index.ids)
                list(index.ids)
                "a" in index  # noqa: B015
        except (IndexFileError, KeyError):
            continue


@pytest.mark.parametrize(
    ("array", "values"),
    [
        ("offsets", [0, 1, 2]),  # one too few
        ("offsets", [1, 2, 3, 4]),
        ("offsets", [0, 2**62, 2, 3]),
        ("offsets", [0, -(2**62), 2, 3]),
        ("offsets", [0, 1, 2, 2**40]),
        ("offsets", [0, 0, 1, 3]),
        ("order", [2**32 - 1] * 3),
        ("text", [255, 255, 255]),
    ],
)
def test_a_forged_batch_of_string_ids_raises_a_clear_error(
    tmp_path, monkeypatch, filled, array, values
):
    """Checksums are right, but the content is not (nothing large is allocated)."""
    path, _ = filled
    batch, content = batches_of(path)[0], bytearray(path.read_bytes())
    place = {"offsets": 0, "hashes": 64, "order": 128, "text": 192}[array]
    dtype = {"offsets": "<i8", "order": "<u4", "text": "u1"}[array]
    start = batch.start + 64 + place
    content[start : start + 64] = np.array(values, dtype).tobytes().ljust(64, b"\0")
    payload = content[batch.start + 64 : batch.end]
    header = bytearray(content[batch.start : batch.start + 64])
    header[40:44] = zlib.crc32(payload).to_bytes(4, "little")
    header[60:] = zlib.crc32(header[:60]).to_bytes(4, "little")
    content[batch.start : batch.start + 64] = header
    path.write_bytes(content)
    for small in (2**20, 64):
        monkeypatch.setattr("kdiffhash.search.index_file._SMALL", small)
        with pytest.raises(IndexFileError, match="string ids"):
            _read_strings(path)


def _read_strings(path: Path) -> None:
    with HammingIndex.open(path) as index:
        assert all(i in index for i in index.ids)
        assert "c" not in index


# -- parts --------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    batches=st.lists(st.lists(st.text(min_size=1, max_size=5), max_size=6, unique=True)),
    asked=st.lists(st.text(min_size=1, max_size=5), max_size=6),
)
def test_strings_are_found_under_all_their_numbers(batches, asked):
    strings, known, n = StringIds(), [], 0
    for texts in batches:
        if texts:
            strings = strings.with_block(new_block(n, texts))
            n += len(texts)
            known += texts
    everything = asked + known[:3]
    rows, numbers = strings.find(everything)
    expected = {(q, i) for q, s in enumerate(everything) for i, k in enumerate(known) if s == k}
    assert set(zip(rows.tolist(), numbers.tolist())) == expected
    assert len(rows) == len(expected)
    order = np.arange(n)[::-1]
    assert strings.strings(order).tolist() == known[::-1]
    assert strings.renumbered(5, order).texts.to_list() == known[::-1]


def test_equal_hashes_do_not_confuse_strings(monkeypatch):
    monkeypatch.setattr(Texts, "hashes", lambda self: np.full(len(self), 7, np.uint64))
    index = HammingIndex(code(*range(10)), ids=NAMES)
    for number, name in enumerate(NAMES):
        np.testing.assert_array_equal(index.get(name), code(number)[0])
    assert "absent" not in index


def test_many_small_batches_make_few_blocks(tmp_path):
    names = [f"{i}" for i in range(100)]
    with HammingIndex.open(tmp_path / "x.index", "a", n_bits=N_BITS) as index:
        for i, name in enumerate(names):
            index.add(code(i), [name])
        assert len(index._snapshot.strings.blocks) < 12
        np.testing.assert_array_equal(index.get(names), code(*range(100)))


def test_faiss_refuses_string_ids():
    index = HammingIndex(np.zeros((2, 8), np.uint8), ids=["a", "b"])
    faiss = pytest.importorskip("kdiffhash.engines.faiss")
    with pytest.raises(ValueError, match="FAISS has integer ids only"):
        faiss.to_faiss(index)
