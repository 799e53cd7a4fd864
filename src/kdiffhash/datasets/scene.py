"""Scenes in the layout of the Winder/Brown patch data: views of 3D points in photographs.

A scene is a folder with `info.txt` (a line a patch: point id, photo id), `m50_*.txt` (test pairs:
patch, point, 0, patch, point, 0) and `sift.npy` (a descriptor a patch).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..pairs import Pairs, Similar


@dataclass(frozen=True)
class Scene:
    """A scene whose descriptors are memory-mapped.

    Attributes
    ----------
    path : Path
    descriptors : uint8 array of shape (n, d)
    points : int64 array of shape (n,)
        The 3D point that each patch shows.
    photos : int64 array of shape (n,) or None
        The photograph that each patch comes from; None where the scene does not say.
    """

    path: Path
    descriptors: NDArray[np.uint8]
    points: NDArray[np.int64]
    photos: NDArray[np.int64] | None

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name

    def test_pairs(self) -> tuple[Pairs, Similar]:
        """The pairs of the longest test list `m50_*.txt`, whose length is read, not its name."""
        lists = sorted(self.path.glob("m50_*.txt"), key=lambda path: path.stat().st_size)
        if not lists:
            raise ValueError(f"{self.path} has no test list m50_*.txt")
        table = _read_numbers(lists[-1], 6)
        pairs, points = table[:, [0, 3]], table[:, [1, 4]]
        wrong = (pairs < 0) | (pairs >= len(self.points))
        wrong |= self.points[np.where(wrong, 0, pairs)] != points
        if wrong.any():
            line = int(np.flatnonzero(wrong.any(axis=1))[0])
            raise ValueError(
                f"{lists[-1]}, line {line + 1}: patch {pairs[line].tolist()} of point "
                f"{points[line].tolist()} does not fit info.txt ({len(self.points)} patches)"
            )
        return pairs, points[:, 0] == points[:, 1]


def find_scene(name: str | os.PathLike[str]) -> Path:
    """The folder of a scene: a path, or a name that is looked up in KDIFFHASH_SCENES."""
    folder = Path(name)
    if (folder / "info.txt").is_file():
        return folder
    root = os.environ.get("KDIFFHASH_SCENES")
    if root and (Path(root) / name / "info.txt").is_file():
        return Path(root) / name
    where = f"nor in KDIFFHASH_SCENES={root}" if root else "and KDIFFHASH_SCENES is not set"
    raise FileNotFoundError(f"no scene {os.fspath(name)!r}: no info.txt in that folder, {where}")


def load_scene(name: str | os.PathLike[str]) -> Scene:
    """Open a scene by path or name."""
    folder = find_scene(name)
    table = _read_numbers(folder / "info.txt", 2)
    if not (folder / "sift.npy").is_file():
        raise FileNotFoundError(f"{folder} has no sift.npy with a descriptor for each patch")
    try:
        descriptors = np.load(folder / "sift.npy", mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{folder / 'sift.npy'} cannot be read: {error}") from error
    if descriptors.ndim != 2 or len(descriptors) != len(table):
        raise ValueError(
            f"{folder}: sift.npy has shape {descriptors.shape}, info.txt has {len(table)} lines"
        )
    photos = table[:, 1]
    return Scene(folder, descriptors, table[:, 0], photos if photos.any() else None)


def _read_numbers(path: Path, n_columns: int) -> NDArray[np.int64]:
    """The first columns of a text file of whole numbers."""
    numbers = []
    with path.open(encoding="ascii", errors="replace") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            if not words:
                continue
            if len(words) < n_columns or not all(
                re.fullmatch(r"-?\d{1,18}", word) for word in words[:n_columns]
            ):
                raise ValueError(
                    f"{path}, line {number}: {n_columns} whole numbers wanted, got {line.strip()!r}"
                )
            numbers.append([int(word) for word in words[:n_columns]])
    if not numbers:
        raise ValueError(f"{path} is empty")
    return np.array(numbers, np.int64)
