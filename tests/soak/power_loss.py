"""Simulated power loss: record what a program does to a folder, and make legal crash states of it.

After a power loss, a file has the content of its last sync, with any of the later writes applied:
lost, torn or in another order. The names in the folder and its subfolders are those of the last
sync of a folder, or those after any of the later renames, links and deletions, in order.

Calls are seen through `record_writes.c`, which must be loaded by LD_PRELOAD (see `run.py`).
"""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

_HOOK = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int)
LIBRARY = Path(__file__).parents[2] / "build" / "record_writes.so"
_SECTOR = 512  # bytes that a disk writes at once, if it does not tear even these

Names = dict[str, int]  # path relative to the folder, number of the file


def build_library() -> Path:
    """Compile the library that sees the system calls; return its path."""
    source = Path(__file__).with_name("record_writes.c")
    LIBRARY.parent.mkdir(exist_ok=True)
    if not LIBRARY.exists() or LIBRARY.stat().st_mtime < source.stat().st_mtime:
        new = LIBRARY.with_suffix(f".{os.getpid()}")
        command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(new)]
        subprocess.run([*command, str(source), "-ldl"], check=True)
        new.replace(LIBRARY)
    return LIBRARY


@dataclass(frozen=True)
class Moment:
    """What is on disk for certain, and what may be."""

    names: list[Names]
    synced: dict[int, bytes]
    current: dict[int, bytes]
    marks: int


class Recorder:
    """Record every moment of the files in a folder while it is active (a context manager)."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.marks = folder, 0
        self.moments: list[Moment] = []
        self.returned: list[int] = []  # moments at which an operation had just returned
        self._library = ctypes.CDLL(str(LIBRARY))
        self._hook = _HOOK(self._after)
        self._handles: dict[int, int] = {}  # keeps numbers of deleted files from being reused
        self._current: dict[int, bytes] = {}

    def __enter__(self) -> Self:
        self._look()
        self._names = [self._there]
        self._synced = dict(self._current)
        self._note()
        self._library.set_hook(self._hook)
        return self

    def __exit__(self, *error: object) -> None:
        self._library.set_hook(_HOOK())
        for handle in self._handles.values():
            os.close(handle)

    def mark(self) -> None:
        """Note that an operation has returned, so that its result must survive."""
        self.marks += 1
        self._note()
        self.returned.append(len(self.moments) - 1)

    def _after(self, call: bytes, file: int) -> None:
        """Note the state before a call (without a name) and after it."""
        if call in (b"fsync", b"fdatasync"):
            status = os.fstat(file)
            if stat.S_ISDIR(status.st_mode):
                self._names = [self._there]
            elif status.st_ino in self._current:
                self._synced[status.st_ino] = self._current[status.st_ino]
        self._note()

    def _look(self) -> None:
        self._there: Names = {}
        for parent, _, files in os.walk(self.folder):
            for name in files:
                path = Path(parent, name)
                try:
                    number = path.stat().st_ino
                    if number not in self._handles:
                        self._handles[number] = os.open(path, os.O_RDONLY)
                except FileNotFoundError:  # deleted by another thread
                    continue
                self._there[str(path.relative_to(self.folder))] = number
        for number, handle in self._handles.items():
            content = os.pread(handle, os.fstat(handle).st_size, 0)
            if content != self._current.get(number):
                self._current = {**self._current, number: content}

    def _note(self) -> None:
        self._look()
        if self._there != self._names[-1]:
            self._names = [*self._names, self._there]
        elif self.moments and self._is_last_moment():
            return
        self.moments.append(Moment(self._names, dict(self._synced), self._current, self.marks))

    def _is_last_moment(self) -> bool:
        last = self.moments[-1]
        same = last.names is self._names and last.current is self._current
        return same and last.marks == self.marks and last.synced == self._synced


def write_state(files: dict[str, bytes], folder: Path) -> None:
    """Write the files of a crash state to an empty folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def crash_states(
    recorder: Recorder, rng: np.random.Generator, n: int
) -> Iterator[tuple[dict[str, bytes], int]]:
    """Yield files after a power loss at random moments, and how many marks had been passed."""
    for _ in range(n):
        number = int(rng.integers(len(recorder.moments)))
        if rng.random() < 0.3:
            number = int(rng.choice(recorder.returned))
        moment = recorder.moments[number]
        names = moment.names[int(rng.integers(len(moment.names)))]
        files = {
            name: _torn(moment.synced.get(number, b""), moment.current[number], rng)
            for name, number in names.items()
        }
        yield files, moment.marks


def _torn(old: bytes, new: bytes, rng: np.random.Generator) -> bytes:
    """Return a mixture of the synced content and the current one."""
    kind = rng.integers(4)
    if kind == 0 or old == new:
        return old
    if kind == 1:
        return new
    shorter, longer = sorted((len(old), len(new)))
    size = int(rng.choice([shorter, longer, rng.integers(shorter, longer + 1)]))
    a, b = (content[:size].ljust(size, b"\0") for content in (old, new))
    mixed = bytearray(a)
    share = rng.random()
    for start in range(0, size, _SECTOR):
        if rng.random() < share:
            mixed[start : start + _SECTOR] = b[start : start + _SECTOR]
    if kind == 3 and size:  # one sector is torn itself
        start = int(rng.integers(size))
        end = min(size, (start // _SECTOR + 1) * _SECTOR)
        mixed[start:end] = b[start:end]
    return bytes(mixed)
