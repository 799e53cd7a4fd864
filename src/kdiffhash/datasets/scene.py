"""Scenes in the layout of the Winder/Brown patch data: views of 3D points in photographs.

A scene is a folder with

- `info.txt`, a line a patch: point id, photo id (more columns are ignored);
- `patchesNNNN.bmp` (or `.png`, `.jpg`): sheets of 16 x 16 patches;
- `m50_*.txt`, lists of test pairs: patch, point, 0, patch, point, 0;
- `sift.npy` and the like: a descriptor a patch.

Sheets may be missing where there are descriptors, and the other way round.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

from ..files import open_npy
from ..pairs import Pairs, Similar, draw_pairs
from .sheets import PER_SHEET, PatchSheets, find_sheets, is_sheet, write_sheets

MADE_BY = "kdiffhash"


@dataclass(frozen=True, eq=False)
class Scene:
    """A scene, or a part of one. Patches and descriptors are read when they are used.

    Attributes
    ----------
    path : Path
    points : int64 array of shape (n,)
        The 3D point that each patch shows.
    photos : int64 array of shape (n,) or None
        The photograph that each patch comes from; None where the scene does not say (zeros only).
    descriptor : str
        Which descriptors are meant: the file of that name.
    rows : int64 array of shape (n,) or None
        In a part of a scene, its patches' numbers in the folder.
    """

    path: Path
    points: NDArray[np.int64]
    photos: NDArray[np.int64] | None
    descriptor: str = "sift"
    rows: NDArray[np.int64] | None = None

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name

    def __len__(self) -> int:
        return len(self.points)

    @cached_property
    def descriptors(self) -> NDArray[Any]:
        """A descriptor for each patch, memory-mapped (copied in a part of a scene)."""
        descriptors = _open_descriptors(self.path / f"{self.descriptor}.npy")
        return descriptors if self.rows is None else np.asarray(descriptors[self.rows])

    @cached_property
    def patches(self) -> PatchSheets:
        """The patches as a lazy array of shape (n, 64, 64)."""
        sheets = find_sheets(self.path)
        if not sheets:
            raise FileNotFoundError(f"{self.path} has descriptors only, no sheets of patches")
        return PatchSheets(sheets, len(self.points), self.rows)

    def draw_pairs(
        self,
        n_positives: int = 100_000,
        n_negatives: int = 200_000,
        *,
        across_photos: bool = False,
        random_state: int | np.random.Generator | None = None,
    ) -> tuple[Pairs, Similar]:
        """Draw pairs to learn from; the numbers are the paper's.

        Negatives may come from one photograph unless `across_photos` is set. Two patches of a point
        come from different photographs anyway, in scenes made as the published ones.
        """
        if across_photos and self.photos is None:
            raise ValueError(
                f"pairs across photos are wanted, but {self.path / 'info.txt'} does not say which "
                "photo a patch comes from (its second column is 0 throughout)"
            )
        groups = self.photos if across_photos else None
        return draw_pairs(
            self.points, n_positives, n_negatives, groups=groups, random_state=random_state
        )

    def test_pairs(
        self, n_negatives: int | None = None, *, random_state: int = 0
    ) -> tuple[Pairs, Similar]:
        """Pairs to test on.

        They are those of the longest list `m50_*.txt`, whose length is read, not taken from its
        name. With `n_negatives`, its positives and so many negatives drawn from the scene: a rate
        of 0.01 % wants a million. A scene without a list, or a part of a scene, has 50,000 drawn
        pairs of each kind, as in the paper.
        """
        lists = sorted(self.path.glob("m50_*.txt"), key=lambda path: path.stat().st_size)
        if not lists or self.rows is not None:
            wanted = 50_000 if n_negatives is None else n_negatives
            return self.draw_pairs(50_000, wanted, random_state=random_state)
        pairs, similar = self._read_list(lists[-1])
        if n_negatives is None:
            return pairs, similar
        drawn, flags = draw_pairs(self.points, 1, n_negatives, random_state=random_state)
        both = np.concatenate([pairs[similar], drawn[~flags]])
        return both, np.arange(len(both)) < similar.sum()

    def split(
        self,
        test_share: float = 0.5,
        *,
        by: Literal["points", "photos"] = "points",
        random_state: int | np.random.Generator | None = 0,
    ) -> tuple[Scene, Scene]:
        """Two parts, to train and to test on, that share no point.

        With ``by="photos"`` they share no photograph either: points and photographs are dealt out,
        and the patches whose point and photograph fell to different parts are left out.
        """
        if not 0 < test_share < 1:
            raise ValueError(f"test_share must lie between 0 and 1, got {test_share}")
        if by not in ("points", "photos"):
            raise ValueError(f"by must be 'points' or 'photos', got {by!r}")
        rng = np.random.default_rng(random_state)
        in_test = _deal(self.points, test_share, rng)
        in_train = ~in_test
        if by == "photos":
            if self.photos is None:
                raise ValueError(f"{self.path} does not say which photo a patch comes from")
            photo_in_test = _deal(self.photos, test_share, rng)
            in_test, in_train = in_test & photo_in_test, in_train & ~photo_in_test
        if not in_test.any() or not in_train.any():
            raise ValueError(f"{self.path} is too small to be split")
        return self._part(np.flatnonzero(in_train)), self._part(np.flatnonzero(in_test))

    def _part(self, rows: NDArray[np.int64]) -> Scene:
        photos = None if self.photos is None else self.photos[rows]
        of_folder = rows if self.rows is None else self.rows[rows]
        return replace(self, points=self.points[rows], photos=photos, rows=of_folder)

    def _read_list(self, path: Path) -> tuple[Pairs, Similar]:
        table = _read_numbers(path, 6)
        pairs, points = table[:, [0, 3]], table[:, [1, 4]]
        wrong = (pairs < 0) | (pairs >= len(self.points))
        wrong |= self.points[np.where(wrong, 0, pairs)] != points
        if wrong.any():
            line = int(np.flatnonzero(wrong.any(axis=1))[0])
            raise ValueError(
                f"{path}, line {_filled_lines(path)[line][0]}: patch {pairs[line].tolist()} of "
                f"point {points[line].tolist()} does not fit info.txt ({len(self.points)} patches)"
            )
        return pairs, points[:, 0] == points[:, 1]


def cache_folder() -> Path:
    """The folder that KDIFFHASH_CACHE names, or the user's cache folder of this system."""
    chosen = os.environ.get("KDIFFHASH_CACHE")
    return Path(chosen).expanduser() if chosen else user_cache_path("kdiffhash", appauthor=False)


def find_scene(name: str | os.PathLike[str]) -> Path:
    """The folder of a scene: a path, or a name in KDIFFHASH_SCENES or among fetched scenes.

    The names `views-train` and `views-test` stand for the embedded set, which is made when it is
    first asked for.
    """
    folder = Path(name)
    if (folder / "info.txt").is_file():
        return folder
    root = os.environ.get("KDIFFHASH_SCENES")
    if root and (Path(root) / name / "info.txt").is_file():
        return Path(root) / name
    if os.fspath(name) in ("views-train", "views-test"):
        from .views import load_views

        return load_views().train.path.with_name(str(name))
    fetched = cache_folder() / "scenes" / name
    if (fetched / "info.txt").is_file():
        return fetched
    where = f"KDIFFHASH_SCENES={root}" if root else "KDIFFHASH_SCENES (which is not set)"
    raise FileNotFoundError(
        f"no scene {os.fspath(name)!r}: no info.txt in a folder of that name, here, in {where} or "
        "among fetched scenes (kdiffhash data fetch NAME)"
    )


def load_scene(name: str | os.PathLike[str], descriptor: str = "sift") -> Scene:
    """Open a scene by path or name.

    Parameters
    ----------
    name : str or path
    descriptor : str
        Which descriptors to use: the file of that name, `sift.npy` by default.
    """
    scene = open_scene(name, descriptor)
    described = scene.path / f"{descriptor}.npy"
    if described.is_file():
        shape = _open_descriptors(described).shape
        if len(shape) != 2 or shape[0] != len(scene):
            raise ValueError(f"{described} has shape {shape}, info.txt has {len(scene)} lines")
    elif not find_sheets(scene.path):
        raise FileNotFoundError(f"{scene.path} has neither {described.name} nor sheets of patches")
    return scene


def open_scene(name: str | os.PathLike[str], descriptor: str) -> Scene:
    """Open a scene whose descriptors may be missing or damaged."""
    if not re.fullmatch(r"[\w-]+", descriptor):
        raise ValueError(f"descriptor names a file such as sift.npy; got {descriptor!r}")
    folder = find_scene(name)
    table = _read_numbers(folder / "info.txt", 2)
    n_patches = len(table)
    n_sheets = len(find_sheets(folder))
    if n_sheets and n_sheets != -(-n_patches // PER_SHEET):
        raise ValueError(
            f"{folder}: info.txt ends with line {n_patches}, which makes "
            f"{-(-n_patches // PER_SHEET)} sheets, but there are {n_sheets}"
        )
    photos = table[:, 1]
    return Scene(folder, table[:, 0].copy(), photos.copy() if photos.any() else None, descriptor)


def write_scene(
    folder: Path,
    patches: Any,
    points: NDArray[np.int64],
    photos: NDArray[np.int64],
    *,
    descriptors: NDArray[np.uint8],
    frames: NDArray[np.float64],
    meta: Mapping[str, Any],
    sheets: str = "bmp",
    random_state: int = 0,
) -> None:
    """Write a scene in the published layout, in place of one that is there.

    All is written beside it first, and `info.txt`, which makes a folder a scene, comes last.

    `frames` has a row a patch: x and y in its photograph, orientation in radians, size sigma. They
    go into `interest.txt` behind the photo id, the size as its logarithm to base 2.
    """
    folder.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    try:
        write_sheets(new, patches, sheets)
        np.save(new / "sift.npy", descriptors)
        frames = np.column_stack([photos, frames[:, :3], np.log2(frames[:, 3])])
        np.savetxt(new / "interest.txt", frames, fmt=["%d", "%.3f", "%.3f", "%.4f", "%.4f"])
        for n_lines in (2_000, 100_000):
            rng = np.random.default_rng(random_state)
            pairs, similar = draw_pairs(points, n_lines // 2, n_lines // 2, random_state=rng)
            a, b = rng.permutation(pairs[: 2 * similar.sum()]).T  # as many of each kind
            zero = np.zeros_like(a)
            table = np.column_stack([a, points[a], zero, b, points[b], zero])
            np.savetxt(new / f"m50_{len(table)}_{len(table)}_0.txt", table, fmt="%d")
        (new / "meta.json").write_text(json.dumps({"made_by": MADE_BY, **meta}, indent=1) + "\n")
        np.savetxt(new / "info.txt", np.column_stack([points, photos]), fmt="%d")
        (folder / "info.txt").unlink(missing_ok=True)
        for old in folder.iterdir():
            if is_sheet(old.name) or old.suffix == ".npy" or old.name.startswith("m50_"):
                old.unlink()
        for path in sorted(new.iterdir(), key=lambda path: path.name == "info.txt"):
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def read_meta(folder: Path) -> dict[str, Any]:
    """What `meta.json` tells of a scene; nothing where there is none that can be read."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) else {}


def _deal(ids: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Deal a share of the ids out; True where a row has one of them."""
    distinct, which = np.unique(ids, return_inverse=True)
    chosen = np.zeros(len(distinct), bool)
    chosen[rng.permutation(len(distinct))[: round(share * len(distinct))]] = True
    return chosen[which]


def _open_descriptors(path: Path) -> NDArray[Any]:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path.parent} has no {path.name}; make it: kdiffhash data describe {path.parent} "
            f"--kind {path.stem}"
        )
    array: NDArray[Any] = open_npy(path)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{path} holds {array.dtype}, not numbers")
    return array


def _read_numbers(path: Path, n_columns: int) -> NDArray[np.int64]:
    """The first columns of a text file of whole numbers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an empty file
            columns, encoding = range(n_columns), "utf-8-sig"
            table: NDArray[np.int64] = np.loadtxt(
                path, np.int64, comments=None, usecols=columns, ndmin=2, encoding=encoding
            )
    except (ValueError, OverflowError):
        raise _what_is_wrong(path, n_columns) from None
    if not len(table):
        raise ValueError(f"{path} is empty")
    return table


def _filled_lines(path: Path) -> list[tuple[int, str]]:
    """Lines that are not blank, each with its number from 1."""
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def _what_is_wrong(path: Path, n_columns: int) -> ValueError:
    """The first line of a file that does not start with whole numbers."""
    for number, line in _filled_lines(path):
        words = line.split()[:n_columns]
        right = all(re.fullmatch(r"[+-]?\d{1,18}", word) for word in words)
        if len(words) < n_columns or not right:
            wanted = f"{n_columns} whole numbers wanted, got {line[:80]!r}"
            return ValueError(f"{path}, line {number}: {wanted}")
    return ValueError(f"{path} is not a table of whole numbers")
