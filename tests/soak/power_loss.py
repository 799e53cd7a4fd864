"""Simulated power loss: record what a program does to a folder, and make legal crash states of it.

After a power loss, a file has the content of its last sync, with any of the later writes applied:
lost, torn or in another order. The names in the folder are those of its last sync, or those after
any of the later renames, links and deletions, in order.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

_CALLS = ("write", "fsync", "ftruncate", "replace", "rename", "link", "unlink")
_SECTOR = 512  # bytes that a disk writes at once, if it does not tear even these

Names = dict[str, int]  # name in the folder, number of the file


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
        self._real: dict[str, Callable[..., Any]] = {}
        self._handles: dict[int, int] = {}  # keeps numbers of deleted files from being reused
        self._current: dict[int, bytes] = {}

    def __enter__(self) -> Self:
        self._look()
        self._names = [self._there]
        self._synced = dict(self._current)
        for name in _CALLS:
            self._real[name] = getattr(os, name)
            setattr(os, name, self._intercepted(name))
        self._note()
        return self

    def __exit__(self, *error: object) -> None:
        for name, call in self._real.items():
            setattr(os, name, call)
        for handle in self._handles.values():
            os.close(handle)

    def mark(self) -> None:
        """Note that an operation has returned, so that its result must survive."""
        self.marks += 1
        self._note()

    def _intercepted(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._note()
            result = self._real[name](*args, **kwargs)
            if name == "fsync":
                status = os.fstat(args[0])
                if stat.S_ISDIR(status.st_mode):
                    self._names = [self._there]
                elif status.st_ino in self._current:
                    self._synced[status.st_ino] = self._current[status.st_ino]
            self._note()
            return result

        return call

    def _look(self) -> None:
        self._there: Names = {}
        for entry in os.scandir(self.folder):
            number = entry.inode()
            self._there[entry.name] = number
            if number not in self._handles:
                self._handles[number] = os.open(entry.path, os.O_RDONLY)
        for number, handle in self._handles.items():
            content = os.pread(handle, os.fstat(handle).st_size, 0)
            if content != self._current.get(number):
                self._current = {**self._current, number: content}

    def _note(self) -> None:
        self._look()
        if self._there != self._names[-1]:
            self._names = [*self._names, self._there]
        self.moments.append(Moment(self._names, dict(self._synced), self._current, self.marks))


def crash_states(
    recorder: Recorder, rng: np.random.Generator, n: int
) -> Iterator[tuple[dict[str, bytes], int]]:
    """Yield files after a power loss at random moments, and how many marks had been passed."""
    for _ in range(n):
        moment = recorder.moments[int(rng.integers(len(recorder.moments)))]
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
