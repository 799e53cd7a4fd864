"""Search for photographs that show the same objects as a query.

An index is a folder: `codes.index` holds the codes of all photographs, `photos.sqlite` their paths
and keypoints, `model.safetensors` the model. The id of a code encodes its photograph and keypoint.

A photograph belongs to the index if it has a row in `photos.sqlite`. The row is written after the
codes and deleted before them. An interruption leaves at worst codes without a photograph, which
searches ignore and the next update removes.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from .._util.extras import need
from ..codes import Codes
from ..datasets.images import MAX_PIXELS, SUFFIXES, list_photos
from ..hashers import BaseHasher
from ..hashers.fingerprint import fingerprint, is_same_model
from ..search import HammingIndex
from ..search.matching import match_codes
from . import photo_database
from .features import HashedFeatures, HashedSIFT
from .photo_matching import (
    RATIO,
    SIZE,
    TOLERANCE,
    Geometry,
    Photo,
    PhotoMatches,
    read_photo,
    verify_matches,
)
from .photo_voting import count_votes

MIN_INLIERS = 15  # for a result to count as verified; COLMAP's default
_MAX_KEYPOINTS = 2**20  # code id = photograph number * _MAX_KEYPOINTS + keypoint index
_PHOTOS_PER_TRANSACTION = 32
_VOTES_PER_KEYPOINT = 8  # each keypoint of a query votes for this many nearest codes
_DATABASE, _CODES, _MODEL = "photos.sqlite", "codes.index", "model.safetensors"


@dataclass(frozen=True)
class Update:
    """Summary of a call of `PhotoIndex.update`.

    Attributes
    ----------
    added, unchanged, removed : int
        Numbers of photographs.
    unreadable : dict of str to str
        Path and error message of each photograph that could not be read.
    """

    added: int
    unchanged: int
    removed: int
    unreadable: dict[str, str]


@dataclass(frozen=True)
class PhotoResult:
    """A photograph found by `PhotoIndex.search`.

    Attributes
    ----------
    path : Path
        Path of the photograph.
    votes : float
        Sum of the weighted votes of the query's keypoints.
    matches : PhotoMatches
        Matches from the query to this photograph.
    """

    path: Path
    votes: float
    matches: PhotoMatches

    @property
    def n_inliers(self) -> int:
        """Number of inliers after geometric verification."""
        return int(self.matches.inliers.sum())

    @property
    def is_verified(self) -> bool:
        """Whether there are at least 15 inliers, more than unrelated photographs have by chance."""
        return self.n_inliers >= MIN_INLIERS


class PhotoIndex:
    """An on-disk index that finds photographs of the same objects as a query.

    Parameters
    ----------
    folder : path
        Folder of the index; created by the first `update`.
    features : HashedFeatures
        Detects and encodes keypoints. An index holds codes of one model only.
    size : int or None, default=1600
        Reduce the longer side of larger photographs to this many pixels; None keeps full size.
    max_pixels : int, default=256_000_000
        Refuse photographs with more pixels, which could fill the memory.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from PIL import Image
    >>> from kdiffhash import HashedSIFT
    >>> from kdiffhash.vision import PhotoIndex
    >>> folder = tempfile.TemporaryDirectory()
    >>> rng = np.random.default_rng(0)
    >>> for name in ("a.png", "b.png"):
    ...     noise = rng.integers(0, 256, (200, 300), dtype=np.uint8)
    ...     Image.fromarray(noise).save(os.path.join(folder.name, name))
    >>> path = os.path.join(folder.name, "photos.index")
    >>> index = PhotoIndex(path, HashedSIFT(n_bits=128, n_features=200))
    >>> index.update(folder.name).added
    2
    >>> index.search(os.path.join(folder.name, "b.png"))[0].path.name
    'b.png'
    >>> folder.cleanup()
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        features: HashedFeatures,
        *,
        size: int | None = SIZE,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.folder, self.features = Path(folder), features
        self.size, self.max_pixels = size, max_pixels

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open an index that was made with `HashedSIFT`, using its stored model and settings.

        Parameters
        ----------
        folder : path
            Folder of the index.

        Returns
        -------
        index : PhotoIndex

        Raises
        ------
        FileNotFoundError
            If there is no index of photographs in the folder.
        ValueError
            If the index was made with other features, or is damaged.
        """
        path = Path(folder)
        if not (path / _MODEL).is_file() or not (path / _DATABASE).is_file():
            raise FileNotFoundError(errno.ENOENT, "there is no index of photographs", str(folder))
        with photo_database.connect(path / _DATABASE) as connection:
            settings = photo_database.read_settings(connection, path / _DATABASE)
        if settings.get("sift") in (None, "null"):
            raise ValueError(
                f"{folder} was made with features of another kind than HashedSIFT; open it with "
                "PhotoIndex(folder, features)"
            )
        model = BaseHasher.load(path / _MODEL)
        cv2 = need("cv2", "vision")
        try:
            features = HashedSIFT(model=model, **json.loads(settings["sift"]))
            size = None if settings["size"] == "None" else int(settings["size"])
        except (TypeError, ValueError, KeyError, cv2.error) as error:
            raise ValueError(
                f"{path / _DATABASE} has invalid settings ({settings}); index the photographs again"
            ) from error
        return cls(folder, features, size=size)

    def update(
        self,
        photos: str | os.PathLike[str],
        *,
        advance: Callable[[int], None] = lambda _: None,
    ) -> Update:
        """Bring the index up to date with the photographs in a folder and its subfolders.

        New and changed photographs are added; those that are no longer in the folder are removed.
        Unreadable photographs are skipped. Photographs from other folders stay in the index.

        Parameters
        ----------
        photos : path
            Folder of photographs.
        advance : callable, optional
            Called with the number of photographs completed since the last call.

        Returns
        -------
        update : Update
        """
        root = Path(photos).resolve()
        states = {str(path): _file_state(path) for path in list_photos(root)}
        if not states:
            raise ValueError(
                f"there are no photographs in {photos}; files with these suffixes are read: "
                f"{', '.join(SUFFIXES)}"
            )
        is_other = self.folder.exists() and not (self.folder / _DATABASE).exists()
        if is_other and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise ValueError(
                f"{self.folder} exists, but is not an index of photographs; choose another folder"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._open_database(new=True) as connection, self._open_codes("a") as codes:
            photo_database.check_integrity(connection, self.folder / _DATABASE)
            _repair(codes, connection)
            known = {
                path: ((number, n_points), (size, changed))
                for path, number, size, changed, n_points in connection.execute(
                    "SELECT path, number, bytes, changed, length(points) / 8 FROM photos"
                )
            }
            inside = f"{root}{os.sep}".replace(2 * os.sep, os.sep)  # also if root is /
            outdated = [
                which
                for path, (which, state) in known.items()
                if path.startswith(inside) and states.get(path) != state
            ]
            missing = [path for path in known if path.startswith(inside) and path not in states]
            if outdated:
                photo_database.remove_rows(connection, [number for number, _ in outdated])
                codes.remove(np.concatenate([_code_ids(*which) for which in outdated]))
            todo = [p for p, state in states.items() if p not in known or known[p][1] != state]
            unchanged = len(states) - len(todo)
            advance(unchanged)
            unreadable: dict[str, str] = {}
            for i in range(0, len(todo), _PHOTOS_PER_TRANSACTION):
                batch = []
                for path in todo[i : i + _PHOTOS_PER_TRANSACTION]:
                    try:
                        batch.append((path, self._read_features(path)))
                    except (ValueError, OSError) as error:
                        unreadable[path] = str(error)
                    advance(1)
                _add_photos(codes, connection, batch, states)
        return Update(len(todo) - len(unreadable), unchanged, len(missing), unreadable)

    def search(
        self,
        query: Photo | str | os.PathLike[str],
        best: int = 10,
        *,
        geometry: Geometry = "fundamental",
        tolerance: float = TOLERANCE,
        n_jobs: int | None = None,
    ) -> list[PhotoResult]:
        """Find the photographs that have the most features in common with a query.

        Each keypoint of the query votes for the photographs of its nearest codes. The `best`
        photographs by votes are matched with the query and re-ranked by their number of inliers.

        Parameters
        ----------
        query : path or Photo
            Photograph to search for.
        best : int, default=10
            Number of photographs to match and return.
        geometry : {"fundamental", "homography", "none"}, default="fundamental"
            Geometric model for the verification, see `match_photos`.
        tolerance : float, default=2.0
            Largest error of an inlier in pixels.
        n_jobs : int, optional
            Number of threads; by default all cores available to the process.

        Returns
        -------
        results : list of PhotoResult
            Photographs by decreasing number of inliers.
        """
        photo = query if isinstance(query, Photo) else self._read_features(query)
        if not len(photo.codes):
            raise ValueError(f"{photo.name} has no keypoints: it has too little texture")
        with self._open_database() as connection, self._open_codes() as codes:
            results: list[PhotoResult] = []
            for number, votes in _rank_by_votes(codes, photo.codes, n_jobs):
                if len(results) == best:
                    break
                row = photo_database.read_photo_row(connection, number, self.folder / _DATABASE)
                if row is None:  # an update was interrupted, or is going on in another process
                    continue
                path, points = row
                stored = codes.get(_code_ids(number, len(points)))
                pairs = match_codes(photo.codes, stored, ratio=RATIO, n_jobs=n_jobs).pairs
                matches = verify_matches(photo.points, points, pairs, geometry, tolerance)
                results.append(PhotoResult(Path(path), votes, matches))
        return sorted(results, key=lambda one: (-one.n_inliers, -one.votes))

    def __len__(self) -> int:
        """Return the number of photographs in the index."""
        with self._open_database() as connection:
            return int(connection.execute("SELECT count(*) FROM photos").fetchone()[0])

    def _open_codes(self, mode: Literal["r", "a"] = "r") -> HammingIndex:
        """Open the index of the codes of all photographs."""
        model = self.features.model
        return HammingIndex.open(self.folder / _CODES, mode, n_bits=model.n_bits_, model=model)

    def _read_features(self, path: str | os.PathLike[str]) -> Photo:
        """Read a photograph, detect its keypoints and encode them."""
        photo = read_photo(path, self.features, self.size, max_pixels=self.max_pixels)
        if len(photo.codes) > _MAX_KEYPOINTS:
            raise ValueError(
                f"{path} has {len(photo.codes)} keypoints; an index takes at most {_MAX_KEYPOINTS} "
                "per photograph, set n_features"
            )
        return photo

    @contextmanager
    def _open_database(self, new: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the database of photographs and check that it belongs to this model and size."""
        if not new and not (self.folder / _DATABASE).is_file():
            raise FileNotFoundError(
                errno.ENOENT, "there is no index of photographs", str(self.folder)
            )
        path = self.folder / _DATABASE
        with photo_database.connect(path) as connection:
            # The file of codes is created later: an empty database next to it is damaged.
            is_new = new and not (self.folder / _CODES).exists()
            if is_new and photo_database.is_empty(connection):
                photo_database.create_tables(connection, self._settings())
            self._check_settings(photo_database.read_settings(connection, path))
            if new and not (self.folder / _MODEL).exists():
                self.features.model.save(self.folder / _MODEL)
            yield connection

    def _settings(self) -> dict[str, str]:
        """Return the settings that all photographs of an index must share."""
        return {
            "model": fingerprint(self.features.model),
            "sift": json.dumps(getattr(self.features, "options", None), sort_keys=True),
            "size": str(self.size),
        }

    def _check_settings(self, stored: dict[str, str]) -> None:
        """Raise if the settings of an existing index differ."""
        for name, value in self._settings().items():
            known = stored.get(name)
            if name == "model" and known and is_same_model(self.features.model, known):
                continue
            if known != value:
                raise ValueError(
                    f"{self.folder} was made with another {name} ({known}, now {value}); use the "
                    "same setting, or make a new index"
                )


def _file_state(path: Path) -> tuple[int, int]:
    """Return size and modification time of a file; if they differ, the file has changed."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _add_photos(
    codes: HammingIndex,
    connection: sqlite3.Connection,
    batch: list[tuple[str, Photo]],
    states: dict[str, tuple[int, int]],
) -> None:
    """Add photographs: their codes first, then their rows."""
    # Numbers are never reused: a concurrent search could mistake one photograph for another.
    first = photo_database.last_number(connection) + 1
    ids, rows = [], []
    for number, (path, photo) in enumerate(batch, first):
        ids.append(_code_ids(number, len(photo.codes)))
        rows.append((number, path, *states[path], photo.points.tobytes()))
    if any(len(new_ids) for new_ids in ids):
        codes.add(np.concatenate([photo.codes for _, photo in batch]), np.concatenate(ids))
    photo_database.add_rows(connection, rows)


def _code_ids(number: int, n_points: int) -> NDArray[np.int64]:
    """Return the ids of the codes of a photograph."""
    return number * _MAX_KEYPOINTS + np.arange(n_points, dtype=np.int64)


def _repair(codes: HammingIndex, connection: sqlite3.Connection) -> None:
    """Remove codes without a photograph, and photographs with missing codes.

    An interruption leaves more codes than the photographs have keypoints, damage fewer. The ids of
    all codes are only read if the numbers differ.
    """
    expected = dict(connection.execute("SELECT number, length(points) / 8 FROM photos"))
    if len(codes) == sum(expected.values()):
        return
    ids = codes.ids
    numbers, counts = np.unique(ids // _MAX_KEYPOINTS, return_counts=True)
    stored = dict(zip(numbers.tolist(), counts.tolist()))
    incomplete = [number for number, n in expected.items() if stored.get(number, 0) != n]
    if incomplete:
        photo_database.remove_rows(connection, incomplete)
    complete = [number for number, n in expected.items() if stored.get(number, 0) == n]
    keep = np.isin(ids // _MAX_KEYPOINTS, complete)
    if not keep.all():
        codes.remove(ids[~keep])


def _rank_by_votes(
    codes: HammingIndex, query: Codes, n_jobs: int | None
) -> list[tuple[int, float]]:
    """Return photographs and their votes, by decreasing votes."""
    distances, ids = codes.search(query, _VOTES_PER_KEYPOINT, n_jobs=n_jobs)
    voted, votes = count_votes(distances, ids // _MAX_KEYPOINTS, codes.n_bits)
    return sorted(zip(voted.tolist(), votes.tolist()), key=lambda one: (-one[1], one[0]))
