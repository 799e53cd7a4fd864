"""Finding photographs that show what another one shows.

An index is a folder: `codes.index` has the codes of all photographs, `photos.sqlite` their paths
and keypoints, `model.safetensors` what made the codes. The id of a code says which keypoint of
which photograph it belongs to.

A photograph counts once its line is in `photos.sqlite`, which is written after its codes and
removed before them. So whatever breaks off leaves, at worst, codes that nobody looks at, and the
next update takes them away.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from ..codes import Codes
from ..datasets.pictures import SUFFIXES, list_photos
from ..hashers import BaseHasher
from ..hashers.stored import fingerprint, is_same_model
from ..search import HammingIndex
from ..search.match import match_codes
from .features import HashedFeatures, HashedSIFT
from .photos import (
    RATIO,
    SIZE,
    TOLERANCE,
    Geometry,
    Photo,
    PhotoMatches,
    read_photo,
    verify_matches,
)

_SURE = 15  # inliers, as COLMAP wants them
_ROOM = 2**20  # ids of a photograph
_BATCH = 32  # photographs that are added at a time
_NEIGHBOURS = 8  # codes that each keypoint of a query looks at
_NEAR = 0.25  # of all bits: codes that are not closer have no vote
_LINES, _MODEL = "photos.sqlite", "model.safetensors"
_TABLES = """
CREATE TABLE IF NOT EXISTS photos (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT UNIQUE, bytes INTEGER, changed INTEGER, points BLOB
);
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT);
"""


@dataclass(frozen=True)
class Update:
    """What an update did.

    Attributes
    ----------
    added, unchanged, removed : int
        Photographs.
    unreadable : dict
        What is wrong with those that could not be read, by path.
    """

    added: int
    unchanged: int
    removed: int
    unreadable: dict[str, str]


@dataclass(frozen=True)
class Found:
    """A photograph that was found.

    Attributes
    ----------
    path : Path
    votes : float
        Of the query's keypoints.
    matches : PhotoMatches
        Of the query with it.
    """

    path: Path
    votes: float
    matches: PhotoMatches

    @property
    def n_inliers(self) -> int:
        """Matches that agree with one geometry."""
        return int(self.matches.inliers.sum())

    @property
    def is_sure(self) -> bool:
        """Whether there are more of them than photographs of different things have by chance."""
        return self.n_inliers >= _SURE


class PhotoIndex:
    """The codes of many photographs, on disk.

    Parameters
    ----------
    folder : path
        Where the index is; made by the first `update`.
    features : HashedFeatures
        What finds keypoints and encodes them. An index takes codes of one model only.
    size : int, optional
        Pixels of the longer side, to which larger photographs are reduced.

    Examples
    --------
    ::

        index = PhotoIndex("photos.index", HashedSIFT(n_bits=128, n_features=2000))
        index.update("holidays")
        for found in index.search("query.jpg"):
            print(found.path, found.n_inliers)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        features: HashedFeatures,
        *,
        size: int | None = SIZE,
    ) -> None:
        self.folder, self.features, self.size = Path(folder), features, size

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """An index of SIFT with codes (`HashedSIFT`), as it was made."""
        path = Path(folder)
        if not (path / _MODEL).is_file() or not (path / _LINES).is_file():
            raise FileNotFoundError(errno.ENOENT, "there is no index of photographs", str(folder))
        with _connected(path / _LINES) as lines:
            settings = dict(lines.execute("SELECT name, value FROM settings"))
        if settings.get("sift") in (None, "null"):
            raise ValueError(f"{folder} was made with features of another kind; give them")
        features = HashedSIFT(model=BaseHasher.load(path / _MODEL), **json.loads(settings["sift"]))
        size = None if settings["size"] == "None" else int(settings["size"])
        return cls(folder, features, size=size)

    def update(
        self,
        photos: str | os.PathLike[str],
        *,
        advance: Callable[[int], None] = lambda _: None,
    ) -> Update:
        """Take in a folder of photographs, with those in folders inside it.

        Photographs that have not changed since the last time are left as they are; those that are
        gone from the folder are removed. One that cannot be read does not stop the others.

        Parameters
        ----------
        photos : path
        advance : callable
            Told how many more photographs are done.

        Returns
        -------
        update : Update
        """
        root = Path(photos).resolve()
        states = {str(path): _state(path) for path in list_photos(root)}
        if not states:
            raise ValueError(f"there are no photographs in {photos} ({', '.join(SUFFIXES)})")
        is_other = self.folder.exists() and not (self.folder / _LINES).exists()
        if is_other and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise ValueError(f"{self.folder} is a folder of something else; name a new one")
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._open_lines(new=True) as lines, self._open_codes("a") as codes:
            ids = _repair(codes, lines)
            known = {
                path: (number, (size, changed))
                for path, number, size, changed in lines.execute(
                    "SELECT path, number, bytes, changed FROM photos"
                )
            }
            old = [
                number
                for path, (number, state) in known.items()
                if Path(path).is_relative_to(root) and states.get(path) != state
            ]
            gone = [p for p in known if Path(p).is_relative_to(root) and p not in states]
            with lines:
                lines.executemany("DELETE FROM photos WHERE number = ?", [(n,) for n in old])
            if old:
                codes.remove(ids[np.isin(ids // _ROOM, old)])
            todo = [p for p, state in states.items() if p not in known or known[p][1] != state]
            unchanged = len(states) - len(todo)
            advance(unchanged)
            unreadable: dict[str, str] = {}
            for i in range(0, len(todo), _BATCH):
                batch = []
                for path in todo[i : i + _BATCH]:
                    try:
                        batch.append((path, self._read(path)))
                    except (ValueError, OSError) as error:
                        unreadable[path] = str(error)
                    advance(1)
                _add(codes, lines, batch, states)
        return Update(len(todo) - len(unreadable), unchanged, len(gone), unreadable)

    def search(
        self,
        query: Photo | str | os.PathLike[str],
        best: int = 10,
        *,
        geometry: Geometry = "fundamental",
        tolerance: float = TOLERANCE,
        n_jobs: int | None = None,
    ) -> list[Found]:
        """Find the photographs that show the most of what the query shows.

        Each keypoint of the query votes for the photographs that the nearest codes belong to. The
        `best` by votes are matched with the query, and the geometry of the matches decides.

        Parameters
        ----------
        query : path or Photo
        best : int
            Photographs that are looked at closely.
        geometry, tolerance, n_jobs
            See `match_photos`.

        Returns
        -------
        found : list of Found
            Most inliers first.
        """
        photo = query if isinstance(query, Photo) else self._read(query)
        if not len(photo.codes):
            raise ValueError(f"{photo.name} has no keypoints: nothing in it stands out")
        with self._open_lines() as lines, self._open_codes() as codes:
            where = "SELECT path, points FROM photos WHERE number = ?"
            numbers = [number for (number,) in lines.execute("SELECT number FROM photos")]
            ranked = _votes(codes, photo.codes, set(numbers), n_jobs)[:best]
            found = []
            for number, votes in ranked:
                line = lines.execute(where, (number,)).fetchone()
                if line is None:  # removed meanwhile
                    continue
                path, blob = line
                points = np.frombuffer(blob, np.float32).reshape(-1, 2)
                own = codes.get(number * _ROOM + np.arange(len(points)))
                pairs = match_codes(photo.codes, own, ratio=RATIO, n_jobs=n_jobs).pairs
                matches = verify_matches(photo.points, points, pairs, geometry, tolerance)
                found.append(Found(Path(path), votes, matches))
        return sorted(found, key=lambda one: (-one.n_inliers, -one.votes))

    def __len__(self) -> int:
        """Number of photographs."""
        with self._open_lines() as lines:
            return int(lines.execute("SELECT count(*) FROM photos").fetchone()[0])

    def _open_codes(self, mode: Literal["r", "a"] = "r") -> HammingIndex:
        model = self.features.model
        path = self.folder / "codes.index"
        return HammingIndex.open(path, mode, n_bits=model.n_bits_, model=model)

    def _read(self, path: str | os.PathLike[str]) -> Photo:
        photo = read_photo(path, self.features, self.size)
        if len(photo.codes) > _ROOM:
            raise ValueError(f"{path} has more than {_ROOM} keypoints; limit their number")
        return photo

    @contextmanager
    def _open_lines(self, new: bool = False) -> Iterator[sqlite3.Connection]:
        """The list of photographs, which belongs to one model and one size."""
        if not new and not (self.folder / _LINES).is_file():
            raise FileNotFoundError(
                errno.ENOENT, "there is no index of photographs", str(self.folder)
            )
        settings = {
            "model": fingerprint(self.features.model),
            "sift": json.dumps(getattr(self.features, "options", None), sort_keys=True),
            "size": str(self.size),
        }
        with _connected(self.folder / _LINES) as lines:
            tables = {name for (name,) in lines.execute("SELECT name FROM sqlite_master")}
            if tables and not {"photos", "settings"} <= tables:
                raise ValueError(f"{self.folder} is a folder of something else; name a new one")
            if new:
                lines.executescript(_TABLES)
                with lines:
                    lines.executemany(
                        "INSERT OR IGNORE INTO settings VALUES (?, ?)", settings.items()
                    )
            there = dict(lines.execute("SELECT name, value FROM settings"))
            for name, value in settings.items():
                known = there.get(name)
                if name == "model" and known and is_same_model(self.features.model, known):
                    continue
                if known != value:
                    raise ValueError(
                        f"{self.folder} was made with another {name} ({known}, now "
                        f"{value}); use the same, or make a new index"
                    )
            if new and not (self.folder / _MODEL).exists():
                self.features.model.save(self.folder / _MODEL)
            yield lines


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(path)) as lines:
            yield lines
    except sqlite3.Error as error:
        raise ValueError(f"{path} is damaged or in use: {error}") from error


def _state(path: Path) -> tuple[int, int]:
    """Size and time of a file, which tell whether it has changed."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _add(
    codes: HammingIndex,
    lines: sqlite3.Connection,
    batch: list[tuple[str, Photo]],
    states: dict[str, tuple[int, int]],
) -> None:
    """Add photographs: their codes, then their lines."""
    # Numbers are not used again: a search that goes on meanwhile would mistake one for another.
    sequence = lines.execute("SELECT seq FROM sqlite_sequence WHERE name = 'photos'").fetchone()
    last = sequence[0] if sequence else 0
    ids, rows = [], []
    for number, (path, photo) in enumerate(batch, last + 1):
        ids.append(number * _ROOM + np.arange(len(photo.codes)))
        rows.append((number, path, *states[path], photo.points.tobytes()))
    if any(len(some) for some in ids):
        codes.add(np.concatenate([photo.codes for _, photo in batch]), np.concatenate(ids))
    with lines:
        lines.executemany("INSERT INTO photos VALUES (?, ?, ?, ?, ?)", rows)


def _repair(codes: HammingIndex, lines: sqlite3.Connection) -> NDArray[np.int64]:
    """Remove codes of no photograph and photographs that lack codes; return the ids that stay."""
    wanted = dict(lines.execute("SELECT number, length(points) / 8 FROM photos"))
    ids = codes.ids
    there = dict(zip(*(a.tolist() for a in np.unique(ids // _ROOM, return_counts=True))))
    broken = [(number,) for number, n in wanted.items() if there.get(number, 0) != n]
    with lines:
        lines.executemany("DELETE FROM photos WHERE number = ?", broken)
    whole = [number for number, n in wanted.items() if there.get(number, 0) == n]
    stay = np.isin(ids // _ROOM, whole)
    if not stay.all():
        codes.remove(ids[~stay])
    return ids[stay]


def _votes(
    codes: HammingIndex, query: Codes, numbers: set[int], n_jobs: int | None
) -> list[tuple[int, float]]:
    """Photographs by votes, most first.

    Each keypoint looks at its nearest codes and has one vote for each photograph among them, which
    weighs the more the closer the code is.
    """
    distances, ids = codes.search(query, _NEIGHBOURS, n_jobs=n_jobs)
    weights = np.maximum(0, 1 - distances / (_NEAR * codes.n_bits))
    owners = ids // _ROOM
    keypoints = np.broadcast_to(np.arange(len(query))[:, None], owners.shape)
    both = np.stack([owners.ravel(), keypoints.ravel()], axis=1)
    once, first = np.unique(both, axis=0, return_index=True)  # the first is the closest
    there, place = np.unique(once[:, 0], return_inverse=True)
    votes = np.bincount(place, weights.ravel()[first])
    ranked = sorted(zip(there.tolist(), votes.tolist()), key=lambda one: (-one[1], one[0]))
    return [(number, vote) for number, vote in ranked if vote > 0 and number in numbers]
