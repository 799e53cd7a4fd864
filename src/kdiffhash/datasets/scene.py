"""Scenes in the layout of the Winder/Brown patch data: patches around 3D points in photographs.

A scene is a folder with these files:

- `info.txt`: one line per patch with point id and photo id (further columns are ignored);
- `patchesNNNN.bmp` (or `.png`, `.jpg`): sheets of 16 x 16 patches;
- `m50_*.txt`: lists of test pairs, each line with patch, point, 0, patch, point, 0;
- `sift.npy` or another `NAME.npy`: one descriptor per patch;
- `confident.npy` (optional): one bool per patch, False where its point id is uncertain.

A scene needs sheets or descriptors, not both.
"""

from __future__ import annotations

import json
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

from .._util.files import check_regular, open_npy, sync_files, sync_folder
from ..learn.pairs import Pairs, Similar, draw_pairs
from .sheets import PER_SHEET, PatchSheets, find_sheets, is_sheet, write_sheets

MADE_BY = "kdiffhash"


@dataclass(frozen=True, eq=False)
class Scene:
    """A scene, or a subset of one; patches and descriptors are read on first access.

    Use `load_scene` to open a scene.

    Parameters
    ----------
    path : Path
        Folder of the scene.
    points : int64 array of shape (n,)
        Id of the 3D point that each patch shows.
    photos : int64 array of shape (n,) or None
        Id of the photograph that each patch comes from; None if unknown (all ids are 0).
    descriptor : str, default="sift"
        Descriptors to use: the name of the file without `.npy`.
    rows : int64 array of shape (n,) or None, default=None
        Indices of the patches in the folder, for a subset of a scene; None for a whole scene.
    confident : bool array of shape (n,) or None, default=None
        False for patches whose point id is uncertain, which are left out of all drawn pairs. None
        if all are certain.

    Examples
    --------
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from kdiffhash.datasets import Scene
    >>> scene = Scene(Path("example"), points=np.array([0, 0, 1, 1, 2]), photos=None)
    >>> pairs, similar = scene.draw_pairs(n_positives=2, n_negatives=3, random_state=0)
    >>> pairs[similar].tolist()
    [[0, 1], [2, 3]]
    """

    path: Path
    points: NDArray[np.int64]
    photos: NDArray[np.int64] | None
    descriptor: str = "sift"
    rows: NDArray[np.int64] | None = None
    confident: NDArray[np.bool_] | None = None

    @property
    def name(self) -> str:
        """Name of the scene, which is the name of its folder."""
        return self.path.name

    def __len__(self) -> int:
        return len(self.points)

    @cached_property
    def descriptors(self) -> NDArray[Any]:
        """One descriptor per patch, memory-mapped (copied in a subset of a scene)."""
        descriptors = _open_descriptors(self.path / f"{self.descriptor}.npy")
        return descriptors if self.rows is None else np.asarray(descriptors[self.rows])

    @cached_property
    def patches(self) -> PatchSheets:
        """The patches as a lazy array of shape (n, 64, 64)."""
        sheets = find_sheets(self.path)
        if not sheets:
            raise FileNotFoundError(
                f"{self.path} has descriptors only: there are no sheets of patches"
            )
        return PatchSheets(sheets, len(self.points), self.rows)

    def draw_pairs(
        self,
        n_positives: int = 100_000,
        n_negatives: int = 200_000,
        *,
        across_photos: bool = False,
        random_state: int | np.random.Generator | None = None,
    ) -> tuple[Pairs, Similar]:
        """Draw training pairs; the default numbers are those of the paper.

        Patches whose `confident` entry is False are left out.

        Parameters
        ----------
        n_positives : int, default=100_000
            Number of positive pairs; if there are fewer, all of them are returned.
        n_negatives : int, default=200_000
            Number of negative pairs.
        across_photos : bool, default=False
            Draw pairs from different photographs only. In scenes made like the published ones,
            the patches of a point come from different photographs anyway.
        random_state : int, Generator instance or None, default=None

        Returns
        -------
        pairs : int64 array of shape (p, 2)
            Indices of patches.
        similar : bool array of shape (p,)
            True for positive pairs.
        """
        if across_photos and self.photos is None:
            raise ValueError(
                f"across_photos needs photo ids, but {self.path / 'info.txt'} does not say which "
                "photo a patch comes from (its second column is all 0)"
            )
        usable = np.arange(len(self)) if self.confident is None else np.flatnonzero(self.confident)
        groups = self.photos[usable] if across_photos and self.photos is not None else None
        pairs, similar = draw_pairs(
            self.points[usable], n_positives, n_negatives, groups=groups, random_state=random_state
        )
        return usable[pairs], similar

    def test_pairs(
        self, n_negatives: int | None = None, *, random_state: int = 0
    ) -> tuple[Pairs, Similar]:
        """Return the test pairs of the longest list `m50_*.txt`.

        For a subset of a scene, or a scene without a list, up to 50,000 positive and 50,000
        negative pairs are drawn, as in the paper.

        Parameters
        ----------
        n_negatives : int, optional
            Draw this many negative pairs instead of using those of the list. Measuring an FPR of
            0.01 % takes a million.
        random_state : int, default=0

        Returns
        -------
        pairs : int64 array of shape (p, 2)
            Indices of patches.
        similar : bool array of shape (p,)
            True for positive pairs.
        """
        lists = sorted(self.path.glob("m50_*.txt"), key=lambda path: path.stat().st_size)
        if not lists or self.rows is not None:
            n_drawn = 50_000 if n_negatives is None else n_negatives
            return self.draw_pairs(50_000, n_drawn, random_state=random_state)
        pairs, similar = self._read_list(lists[-1])
        if n_negatives is None:
            return pairs, similar
        drawn, drawn_similar = self.draw_pairs(1, n_negatives, random_state=random_state)
        combined = np.concatenate([pairs[similar], drawn[~drawn_similar]])
        return combined, np.arange(len(combined)) < similar.sum()

    def split(
        self,
        test_share: float = 0.5,
        *,
        by: Literal["points", "photos", "blocks"] = "points",
        block_size: int = 1000,
        random_state: int | np.random.Generator | None = 0,
    ) -> tuple[Scene, Scene]:
        """Split into a training and a test scene that share no point.

        Parameters
        ----------
        test_share : float, default=0.5
            Share of the points, photographs or blocks that go to the test scene.
        by : {"points", "photos", "blocks"}, default="points"
            ``"points"`` assigns points at random. ``"photos"`` also assigns photographs at random
            and drops patches whose point and photograph were assigned to different scenes, so that
            the two scenes share no photograph either. ``"blocks"`` assigns blocks of consecutive
            patches alternately: in published scenes, points that are close in the file are often
            close in space.
        block_size : int, default=1000
            Number of patches per block. A point belongs to the block of its first patch.
        random_state : int, Generator instance or None, default=0
            Ignored by ``"blocks"``.

        Returns
        -------
        train, test : Scene
        """
        if not 0 < test_share < 1:
            raise ValueError(f"test_share must lie strictly between 0 and 1, got {test_share}")
        if by not in ("points", "photos", "blocks"):
            raise ValueError(f"by must be 'points', 'photos' or 'blocks', got {by!r}")
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        if by == "blocks":
            in_test = _sample_blocks(self.points, block_size, test_share)
            in_train = ~in_test
        else:
            rng = np.random.default_rng(random_state)
            in_test = _sample(self.points, test_share, rng)
            in_train = ~in_test
        if by == "photos":
            if self.photos is None:
                raise ValueError(
                    f"by='photos' needs photo ids, but {self.path} does not say which photo a "
                    "patch comes from"
                )
            photo_in_test = _sample(self.photos, test_share, rng)
            in_test, in_train = in_test & photo_in_test, in_train & ~photo_in_test
        if not in_test.any() or not in_train.any():
            raise ValueError(
                f"{self.path} is too small for this split: one of the two scenes would be empty"
            )
        return self.select(np.flatnonzero(in_train)), self.select(np.flatnonzero(in_test))

    def select(self, rows: NDArray[np.int64]) -> Scene:
        """Return a scene with some of the patches.

        Parameters
        ----------
        rows : int64 array of shape (m,)
            Indices of the patches, in the order of the new scene.

        Returns
        -------
        scene : Scene
            A scene that refers to the same folder.
        """
        photos = None if self.photos is None else self.photos[rows]
        confident = None if self.confident is None else self.confident[rows]
        in_folder = rows if self.rows is None else self.rows[rows]
        return replace(
            self, points=self.points[rows], photos=photos, rows=in_folder, confident=confident
        )

    def _read_list(self, path: Path) -> tuple[Pairs, Similar]:
        table = _read_numbers(path, 6)
        pairs, points = table[:, [0, 3]], table[:, [1, 4]]
        invalid = (pairs < 0) | (pairs >= len(self.points))
        invalid |= self.points[np.where(invalid, 0, pairs)] != points
        if invalid.any():
            line = int(np.flatnonzero(invalid.any(axis=1))[0])
            raise ValueError(
                f"{path}, line {_filled_lines(path)[line][0]}: patches {pairs[line].tolist()} of "
                f"points {points[line].tolist()} do not agree with info.txt "
                f"({len(self.points)} patches)"
            )
        return pairs, points[:, 0] == points[:, 1]


def read_scene(folder: Path, descriptor: str = "sift") -> Scene:
    """Open the scene in a folder and check that it has descriptors or patches."""
    scene = open_scene(folder, descriptor)
    path = scene.path / f"{descriptor}.npy"
    if path.is_file():
        shape = _open_descriptors(path).shape
        if len(shape) != 2 or shape[0] != len(scene) or not shape[1]:
            raise ValueError(
                f"{path} has shape {shape}, but info.txt has {len(scene)} lines; one row per line "
                "is expected"
            )
    elif not find_sheets(scene.path):
        raise FileNotFoundError(f"{scene.path} has neither {path.name} nor sheets of patches")
    return scene


def open_scene(folder: Path, descriptor: str) -> Scene:
    """Open the scene in a folder without checking its descriptors."""
    if not re.fullmatch(r"[\w-]+", descriptor):
        raise ValueError(
            "descriptor must be the name of a file in the scene without .npy, such as 'sift', got "
            f"{descriptor!r}"
        )
    table = _read_numbers(folder / "info.txt", 2)
    n_patches = len(table)
    n_sheets = len(find_sheets(folder))
    if n_sheets and n_sheets != -(-n_patches // PER_SHEET):
        raise ValueError(
            f"{folder}: info.txt has {n_patches} lines, so the number of sheets must be "
            f"{-(-n_patches // PER_SHEET)}, but it is {n_sheets}"
        )
    photos = table[:, 1].copy() if table[:, 1].any() else None
    confident = _read_confident(folder / "confident.npy", n_patches)
    return Scene(folder, table[:, 0].copy(), photos, descriptor, confident=confident)


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
    """Write a scene in the published layout, replacing an existing one.

    All files are first written to a temporary folder. `info.txt`, without which a folder is not a
    scene, is moved last.

    `frames` has one row per patch: x and y in its photograph, orientation in radians, scale sigma.
    `interest.txt` stores these values after the photo id, with the base-2 logarithm of the scale.
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
            a, b = rng.permutation(pairs[: 2 * similar.sum()]).T  # as many negatives as positives
            zero = np.zeros_like(a)
            table = np.column_stack([a, points[a], zero, b, points[b], zero])
            np.savetxt(new / f"m50_{len(table)}_{len(table)}_0.txt", table, fmt="%d")
        (new / "meta.json").write_text(json.dumps({"made_by": MADE_BY, **meta}, indent=1) + "\n")
        np.savetxt(new / "info.txt", np.column_stack([points, photos]), fmt="%d")
        sync_files(new)
        (folder / "info.txt").unlink(missing_ok=True)
        sync_folder(folder)
        for old in folder.iterdir():
            if is_sheet(old.name) or old.suffix == ".npy" or old.name.startswith("m50_"):
                old.unlink()
        for path in sorted(new.iterdir(), key=lambda path: path.name == "info.txt"):
            path.replace(folder / path.name)
        sync_folder(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def read_meta(folder: Path) -> dict[str, Any]:
    """Return the contents of `meta.json`, empty if it is missing or unreadable."""
    path = folder / "meta.json"
    try:
        meta = json.loads(path.read_text()) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return meta if isinstance(meta, dict) else {}


def _sample(ids: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Choose a share of the distinct ids at random; return True for entries with a chosen id."""
    distinct, which = np.unique(ids, return_inverse=True)
    chosen = np.zeros(len(distinct), bool)
    chosen[rng.permutation(len(distinct))[: round(share * len(distinct))]] = True
    return chosen[which]


def _sample_blocks(ids: NDArray[np.int64], block_size: int, share: float) -> NDArray[np.bool_]:
    """Choose every so many blocks; return True for patches of points that belong to them."""
    _, first, which = np.unique(ids, return_index=True, return_inverse=True)
    blocks = np.arange(-(-len(ids) // block_size))
    chosen = np.floor((blocks + 1) * share + 1e-9) > np.floor(blocks * share + 1e-9)
    return np.asarray(chosen[first // block_size][which])


def _read_confident(path: Path, n_patches: int) -> NDArray[np.bool_] | None:
    if not path.is_file():
        return None
    confident = np.asarray(open_npy(path))
    if confident.shape != (n_patches,) or confident.dtype != np.bool_:
        raise ValueError(
            f"{path} holds {confident.dtype} of shape {confident.shape}; it must hold one bool per "
            f"patch, and info.txt has {n_patches} lines"
        )
    return confident


def _open_descriptors(path: Path) -> NDArray[Any]:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path.parent} has no {path.name}; compute it with: kdiffhash data describe "
            f"{path.parent} --descriptor {path.stem}"
        )
    array: NDArray[Any] = open_npy(path)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{path} holds {array.dtype}; descriptors must be numbers")
    return array


def _read_numbers(path: Path, n_columns: int) -> NDArray[np.int64]:
    """Read the first columns of a text file of integers."""
    check_regular(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns about an empty file
            columns, encoding = range(n_columns), "utf-8-sig"
            table: NDArray[np.int64] = np.loadtxt(
                path, np.int64, comments=None, usecols=columns, ndmin=2, encoding=encoding
            )
    except (ValueError, OverflowError):
        raise _syntax_error(path, n_columns) from None
    if not len(table):
        raise ValueError(f"{path} is empty")
    return table


def _filled_lines(path: Path) -> list[tuple[int, str]]:
    """Return the lines that are not blank, with their 1-based numbers."""
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def _syntax_error(path: Path, n_columns: int) -> ValueError:
    """Return an error that names the first line that does not start with integers."""
    for number, line in _filled_lines(path):
        words = line.split()[:n_columns]
        valid = all(re.fullmatch(r"[+-]?\d{1,18}", word) for word in words)
        if len(words) < n_columns or not valid:
            got = f"expected {n_columns} integers, got {line[:80]!r}"
            return ValueError(f"{path}, line {number}: {got}")
    return ValueError(f"{path} is not a table of integers")
