"""Attacks on index files: killed writers, mutated files, and power loss."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from common import CRASHED, RIGHT, WRONG, Tally, attack, mutate, outcome_of, run_isolated
from power_loss import Recorder, crash_states, write_state

from kdiffhash import HammingIndex, IndexFileError
from kdiffhash.search.index_repair import repair

WIDTH = 8  # bytes per code
Id = int | str
Content = dict[Id, bytes]
HAS_CELLS = hasattr(HammingIndex, "build_cells")
# Syncing is what takes time on a disk; where it is only simulated, files are in memory.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
in_memory = partial(tempfile.TemporaryDirectory, dir=MEMORY)


def content_of(path: Path) -> Content:
    """Ids and codes of an index file."""
    with HammingIndex.open(path) as index:
        return read(index)


def read(index: HammingIndex) -> Content:
    """Ids and codes of an index."""
    ids = index.ids
    return dict(zip(ids.tolist(), map(bytes, index.get(ids)), strict=True))


def to_ids(numbers: np.ndarray, strings: bool) -> list[Id]:
    """Integers, or strings of many lengths and alphabets."""
    if not strings:
        return numbers.tolist()
    return [f"{i}{'ä/' * (i % 7)}{'x' * 500 if i % 97 == 0 else ''}" for i in numbers.tolist()]


def change(
    index: HammingIndex | None, number: int, content: Content, strings: bool = False
) -> Content:
    """Change number `number`, applied to an index and to a plain dictionary."""
    rng = np.random.default_rng(number)
    kind = rng.random() + (0.5 if len(content) > 3000 else 0.0)
    if kind < 0.6 or not content:
        codes = rng.integers(0, 256, (int(2 ** rng.uniform(0, 9)), WIDTH), dtype=np.uint8)
        ids = 10_000 * number + np.sort(rng.permutation(9999)[: len(codes)] % 9999)
        if rng.random() < 0.5:
            ids = 10_000 * number + np.arange(len(codes))
        names = to_ids(ids, strings)
        if content and rng.random() < 0.3:  # some of them are stored
            old = sorted(content, key=str)[:: int(rng.integers(1, 50))][: len(names)]
            names[: len(old)] = old
            if index is not None:
                index.upsert(codes, names)
        elif index is not None:
            index.add(codes, names)
        return {**content, **dict(zip(names, map(bytes, codes), strict=True))}
    if kind < 1.4:
        n = 1 if rng.random() < 0.3 else int(rng.integers(1, len(content) + 1))
        known = sorted(content, key=str)
        gone = {known[i] for i in rng.permutation(len(known))[:n].tolist()}
        if index is not None:
            index.remove(sorted(gone, key=str))
        return {i: code for i, code in content.items() if i not in gone}
    builds_cells = HAS_CELLS and rng.random() < 0.5
    if index is not None:
        index.build_cells() if builds_cells else index.compact()
    return content


def _write_until_killed(
    path: Path, number: int, content: Content, strings: bool, told: int
) -> None:
    with HammingIndex.open(path, "a", n_bits=8 * WIDTH) as index:
        while True:
            content = change(index, number, content, strings)
            os.write(told, number.to_bytes(4, "little"))
            number += 1


@attack("index file: writer killed by SIGKILL", tries=1000)
def kill_writers(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Kill a writer at a random moment; a reader stays open all the time."""
    for strings in (False, True):
        (folder / str(strings)).mkdir()
        part = tries // 2 + (tries % 2 if strings else 0)
        _kill_writers(rng, part, folder / str(strings), tally, strings)


def _kill_writers(
    rng: np.random.Generator, tries: int, folder: Path, tally: Tally, strings: bool
) -> None:
    path, number, content = folder / "codes.index", 0, {}
    HammingIndex.open(path, "a", n_bits=8 * WIDTH).close()
    reader = HammingIndex.open(path)
    for _ in range(tries):
        read_end, told = os.pipe()
        child = os.fork()
        if not child:
            try:
                _write_until_killed(path, number, content, strings, told)
            finally:
                os._exit(1)
        os.close(told)
        seen: list[Content] = []

        def refresh(seen: list[Content] = seen) -> bool:
            reader.refresh()
            seen.append(read(reader))
            return True

        outcome, note = outcome_of(refresh)
        time.sleep(float(rng.random()) / 50)
        outcome, note = outcome_of(refresh) if outcome == RIGHT else (outcome, note)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with os.fdopen(read_end, "rb") as pipe:
            n_done = len(pipe.read()) // 4
        states = [content]
        for i in range(n_done + 1):
            states.append(change(None, number + i, states[-1], strings))
        found = content_of(path)
        if not os.WIFSIGNALED(status):
            outcome, note = CRASHED, "the writer ended by itself"
        elif outcome != RIGHT:
            outcome = WRONG
        elif found not in states[n_done:] or HammingIndex.verify(path):
            outcome, note = WRONG, f"change {number + n_done}: wrong content after a kill"
        elif any(state not in states for state in seen):
            outcome, note = WRONG, f"change {number + n_done}: a reader saw another content"
        tally.count(outcome, note)
        content = found
        number += n_done + (found == states[-1])
    reader.close()
    HammingIndex.open(path, "a").close()
    left = sorted(file.name for file in folder.iterdir())
    if left != ["codes.index"]:
        tally.count(WRONG, f"left behind: {left}")


# -- mutated files ------------------------------------------------------------------------------

_base: dict[str, tuple[bytes, Content, dict[int, set[bytes]]]] = {}


def _make_base(size: str) -> tuple[bytes, Content, dict[int, set[bytes]]]:
    """A file with all kinds of batches, its content, and every code that each id ever had."""
    if size not in _base:
        with in_memory() as folder:
            path, content, history = Path(folder) / "x.index", {}, {}
            strings = size == "strings"
            with HammingIndex.open(path, "a", n_bits=8 * WIDTH) as index:
                if size == "cells":  # similar codes in 64 groups
                    rng = np.random.default_rng(1)
                    groups = rng.integers(0, 256, (64, WIDTH), dtype=np.uint8)
                    codes = groups[rng.integers(0, 64, 30_000)]
                    codes[:, 0] ^= rng.integers(0, 256, 30_000, dtype=np.uint8)
                    ids = index.add(codes, -1 - np.arange(30_000)[::-1])
                    content = dict(zip(ids.tolist(), map(bytes, codes), strict=True))
                    if not index.build_cells(n_cells=64):
                        raise AssertionError("the index has no cells")
                if size == "large":  # a batch that is memory-mapped
                    codes = np.random.default_rng(0).integers(0, 256, (2**17, WIDTH), np.uint8)
                    ids = -1 - index.add(codes, -1 - np.arange(2**17)[::-1])[::-1]
                    content = dict(zip((-1 - ids).tolist(), map(bytes, codes[::-1]), strict=True))
                for i, code in content.items():
                    history.setdefault(i, set()).add(code)
                for number in range(3 if size == "cells" else 12):
                    content = change(index, number, content, strings)
                    for i, code in content.items():
                        history.setdefault(i, set()).add(code)
                    if number == 4:
                        index.compact()
            _base[size] = path.read_bytes(), content, history
    return _base[size]


def check_mutated(case: tuple[str, int]) -> bool:
    """Open, verify and repair a mutated file; refused or right, and never made to look intact."""
    size, seed = case
    good, content, history = _make_base(size)
    with in_memory() as folder:
        path, out = Path(folder) / "x.index", Path(folder) / "new.index"
        bad = mutate(good, np.random.default_rng(seed))
        path.write_bytes(bad)
        problems = HammingIndex.verify(path)
        if seed % 4 == 0:
            _check_repair(path, out, history)
            assert path.read_bytes() == bad
        try:
            found = content_of(path)
            if size == "cells":  # must not crash, whatever the cells hold
                _search_cells(path, not problems)
        except IndexFileError:
            assert problems, "refused, but verify finds nothing"
            try:
                HammingIndex.open(path, "a").close()
            except IndexFileError:
                assert path.read_bytes() == bad, "changed by a writer that refused it"
                raise
            raise AssertionError("a writer opened what a reader refused") from None
        if found == content:
            _check_search(path, seed)
            HammingIndex.open(path, "a").close()
            return content_of(path) == content
        if problems and size in ("large", "cells"):  # mapped codes are checked by verify only
            raise IndexFileError("; ".join(problems))
        return False


def _search_cells(path: Path, intact: bool) -> None:
    """Search the nearest cells, which are checked only as far as that is safe."""
    with HammingIndex.open(path) as index:
        codes = index.get(index.ids[-400::20])
        for k in (1, 30):
            distances, ids = index.search(codes, k, recall=0.9)
            assert (np.diff(distances, axis=1) >= 0).all() or not intact
            assert not intact or np.isin(ids, index.ids).all()


def _check_search(path: Path, seed: int) -> None:
    """Search an intact index, through whatever speeds it up."""
    if seed % 8:
        return
    with HammingIndex.open(path) as index:
        codes = index.get(index.ids[:3])
        distances, _ = index.search(codes, 2)
        assert not distances[:, 0].any(), "a stored code is not found"


def _check_repair(path: Path, out: Path, history: dict[int, set[bytes]]) -> None:
    try:
        repair(path, out)
    except IndexFileError:
        assert not out.exists()
        return
    assert not HammingIndex.verify(out)
    found = content_of(out)
    assert all(code in history.get(i, ()) for i, code in found.items()), "repair made up codes"


@attack("index file: mutated", tries=52_000, pieces=6)
def mutate_files(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Flip, cut, insert, remove and exchange bytes of small files, in which all is checked."""
    seeds = rng.integers(2**31, size=tries).tolist()
    run_isolated(check_mutated, [(("small", "strings")[s // 8 % 2], s) for s in seeds], tally)


@attack("index file: mutated, memory-mapped", tries=1500, pieces=3)
def mutate_large_files(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """The same for files whose codes are mapped, which `verify` checks, and for cells."""
    seeds = rng.integers(2**31, size=tries).tolist()
    sizes = ("large", "cells") if HAS_CELLS else ("large", "large")
    run_isolated(check_mutated, [(sizes[s // 8 % 2], s) for s in seeds], tally)


# -- power loss ---------------------------------------------------------------------------------


@attack("index file: power loss", tries=6000, pieces=2, records=True)
def cut_power(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Unsynced writes are lost, torn or reordered; every state must hold what was committed."""
    for strings in (False, True):
        _cut_power(rng, tries // 2 + (tries % 2 if strings else 0), tally, strings)


def _cut_power(rng: np.random.Generator, tries: int, tally: Tally, strings: bool) -> None:
    number, done, content = 0, 0, {}
    with in_memory() as disk:
        path = Path(disk) / "codes.index"
        while done < tries:
            with Recorder(Path(disk)) as recorder:
                allowed: list[Content | None] = [content if path.exists() else None]
                with HammingIndex.open(path, "a", n_bits=8 * WIDTH) as index:
                    recorder.mark()
                    allowed.append(content)
                    for _ in range(6):
                        content = change(index, number, content, strings)
                        number += 1
                        recorder.mark()
                        allowed.append(content)
            for files, marks in crash_states(recorder, rng, 60):
                check = partial(_survives, files, allowed[marks : marks + 2], strings)
                outcome, note = outcome_of(check)
                tally.count(RIGHT if outcome == RIGHT else WRONG, f"change {number}: {note}")
                done += 1


def _survives(files: dict[str, bytes], allowed: list[Content | None], strings: bool) -> bool:
    """Put the files of a crash state in a folder, and read and write the index there."""
    with in_memory() as name:
        write_state(files, Path(name))
        path = Path(name) / "codes.index"
        if not path.exists():
            return None in allowed
        found = content_of(path)
        if found not in allowed:
            return False
        with HammingIndex.open(path, "a") as index:
            last: Id = "last" if strings or isinstance(next(iter(found), 0), str) else -7
            index.add(np.zeros((1, WIDTH), np.uint8), [last])
        return content_of(path) == {**found, last: bytes(WIDTH)} and not HammingIndex.verify(path)
