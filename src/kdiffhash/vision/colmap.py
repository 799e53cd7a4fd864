"""COLMAP databases: match by codes, verify, and keep codes in place of descriptors.

The user's database is read and written by Python's SQLite alone, and what is new goes in by one
transaction. pycolmap verifies, and puts matches into COLMAP's form in a database of its own, from
which they are taken over. (Two copies of SQLite in one process, Python's and pycolmap's, must not
have the same file open.)
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.extras import need
from .._util.files import replacing
from .._util.threads import run_tiles
from ..codes import Codes
from ..hashers import BaseHasher
from ..hashers.fingerprint import fingerprint, is_same_model
from ..search.matching import match_codes
from .features import encode_descriptors
from .image_pairs import image_pairs
from .photo_matching import RATIO

_PATIENCE = 5.0  # seconds that another process may keep the database locked
_TABLE = "kdiffhash"  # in a database whose descriptors are codes: model and bits


class DatabaseError(ValueError):
    """A database is none of COLMAP's, of another version, locked, or lacks descriptors."""


@dataclass(frozen=True)
class ImageFeatures:
    """An image of a database: its camera, keypoints and codes."""

    id: int
    name: str
    camera: Any
    points: NDArray[np.float32]
    codes: Codes


@dataclass(frozen=True)
class PairMatches:
    """Matches of two images, and what COLMAP makes of them (None if it was not asked)."""

    a: ImageFeatures
    b: ImageFeatures
    matches: NDArray[np.uint32]
    geometry: Any = None

    @property
    def n_verified(self) -> int:
        """Matches that agree with one geometry."""
        return 0 if self.geometry is None else len(self.geometry.inlier_matches)


def read_images(path: str | os.PathLike[str], model: BaseHasher) -> list[ImageFeatures]:
    """All images of a database that have descriptors, with their codes.

    Parameters
    ----------
    path : path
    model : fitted hasher
        Of what the descriptors are. COLMAP makes RootSIFT unless it is told otherwise:
        ``load_pretrained("rootsift")``. Codes that `shrink_database` wrote are taken as they are.
    """
    pycolmap = need("pycolmap", "colmap")
    with _opened(path) as database:
        cameras = {
            number: pycolmap.Camera(
                camera_id=number,
                model=pycolmap.CameraModelId(kind),
                width=width,
                height=height,
                params=np.frombuffer(params, np.float64),
                has_prior_focal_length=bool(prior),
            )
            for number, kind, width, height, params, prior in database.execute(
                "SELECT camera_id, model, width, height, params, prior_focal_length FROM cameras"
            )
            if len(params) % 8 == 0
        }
        shrunk = _model_of(database, path)
        if shrunk is not None and not _is_of(model, *shrunk):
            raise DatabaseError(f"{path} has codes of another model or length: {shrunk[1]} bits")
        pictures = []
        for number, name, camera, descriptors, points in _features(database, path):
            codes = descriptors if shrunk else _encode(model, descriptors, path, name)
            if camera not in cameras:
                raise DatabaseError(f"{path}: {name} has no camera, or a damaged one")
            pictures.append(ImageFeatures(number, name, cameras[camera], points[:, :2], codes))
    if len(pictures) < 2:
        raise DatabaseError(
            f"{path} has {len(pictures)} images with descriptors, and two make a pair; extract "
            "features first (colmap feature_extractor)"
        )
    return pictures


def match_images(
    pictures: Sequence[ImageFeatures],
    pairs: str | os.PathLike[str] | None = None,
    *,
    ratio: float | None = RATIO,
    max_distance: int | None = None,
    n_jobs: int | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> list[PairMatches]:
    """Match pairs of images by Hamming distance.

    Parameters
    ----------
    pictures : sequence of ImageFeatures
    pairs : path, optional
        A file with two names in each line; all pairs by default.
    ratio, max_distance
        See `match_codes`.
    n_jobs : int, optional
        Pairs that are matched at a time; by default as many as this process may use.
    advance : callable
        Told how many more pairs are done.
    """
    by_name = {picture.name: picture for picture in pictures}
    wanted = image_pairs(list(by_name), pairs)

    def match(i: int) -> PairMatches:
        a, b = (by_name[name] for name in wanted[i])
        found = match_codes(a.codes, b.codes, ratio=ratio, max_distance=max_distance, n_jobs=1)
        return PairMatches(a, b, found.pairs.astype(np.uint32))

    return _for_each(match, len(wanted), n_jobs, advance)


def verify_pairs(
    found: Sequence[PairMatches],
    *,
    n_jobs: int | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> list[PairMatches]:
    """Find the geometry of each pair with COLMAP's own estimator, which drops wrong matches."""
    pycolmap = need("pycolmap", "colmap")
    options = pycolmap.TwoViewGeometryOptions()
    options.ransac.random_seed = 0

    def verify(i: int) -> PairMatches:
        pair = found[i]
        points = (picture.points.astype(np.float64) for picture in (pair.a, pair.b))
        geometry = pycolmap.estimate_two_view_geometry(
            pair.a.camera, next(points), pair.b.camera, next(points), pair.matches, options
        )
        return replace(pair, geometry=geometry)

    return _for_each(verify, len(found), n_jobs, advance)


def _for_each(
    work: Callable[[int], PairMatches],
    n: int,
    n_jobs: int | None,
    advance: Callable[[int], None],
) -> list[PairMatches]:
    """What `work` makes of each of n numbers, some at a time."""
    out: list[Any] = [None] * n

    def some(start: int, stop: int) -> None:
        for i in range(start, stop):
            out[i] = work(i)
            advance(1)

    run_tiles(lambda: some, n, 1, n_jobs)
    return out


def write_matches(
    path: str | os.PathLike[str],
    found: Sequence[PairMatches],
    *,
    keep: str | os.PathLike[str] | None = None,
) -> None:
    """Write matches and geometries into a database, all or none.

    Other tables, and other pairs, stay as they are; what was known of these pairs is replaced.

    Parameters
    ----------
    path : path
    found : sequence of PairMatches
    keep : path, optional
        Copy the database there first.
    """
    pycolmap = need("pycolmap", "colmap")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "matches.db"
        with closing(pycolmap.Database.open(scratch)) as database:
            for pair in found:
                database.write_matches(pair.a.id, pair.b.id, pair.matches)
                if pair.geometry is not None:
                    database.write_two_view_geometry(pair.a.id, pair.b.id, pair.geometry)
        if keep is not None:
            with _opened(path) as database, replacing(keep) as temporary:
                _copy(database, temporary)
        with _opened(path, write=True, scratch=scratch) as database:
            for table in ("matches", "two_view_geometries"):
                database.execute(
                    f"DELETE FROM main.{table} WHERE pair_id IN (SELECT pair_id FROM new.matches)"
                )
                database.execute(f"INSERT INTO main.{table} SELECT * FROM new.{table}")


def shrink_database(
    path: str | os.PathLike[str], out: str | os.PathLike[str], model: BaseHasher
) -> None:
    """Write a copy of a database with codes in place of descriptors.

    `read_images` takes it as it is; COLMAP cannot match it, but maps once it is matched.
    """
    with _opened(path) as database, replacing(out) as temporary:
        if _model_of(database, path) is not None:
            raise DatabaseError(f"{path} has codes already")
        _copy(database, temporary)
        with closing(sqlite3.connect(temporary)) as new:
            with new:
                for number, name, _, descriptors, _ in _features(database, path):
                    codes = _encode(model, descriptors, path, name)
                    new.execute(
                        "UPDATE descriptors SET type = -1, cols = ?, data = ? WHERE image_id = ?",
                        (codes.shape[1], codes.tobytes(), number),
                    )
                new.execute(f"CREATE TABLE {_TABLE} (model TEXT, bits INTEGER)")
                new.execute(
                    f"INSERT INTO {_TABLE} VALUES (?, ?)", (fingerprint(model), model.n_bits_)
                )
            new.execute("VACUUM")


@contextmanager
def _opened(
    path: str | os.PathLike[str], *, write: bool = False, scratch: Path | None = None
) -> Iterator[sqlite3.Connection]:
    """A database of COLMAP's; what is written counts only if nothing goes wrong."""
    if not Path(path).is_file():
        raise FileNotFoundError(errno.ENOENT, "there is no database", os.fspath(path))
    uri = f"{Path(path).resolve().as_uri()}?mode={'rw' if write else 'ro'}"
    try:
        with closing(
            sqlite3.connect(uri, uri=True, timeout=_PATIENCE, isolation_level=None)
        ) as database:
            _check_version(database, path)
            if scratch is not None:
                database.execute("ATTACH ? AS new", (str(scratch),))
            database.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield database
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite may have done so itself
                    database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
    except sqlite3.Error as error:
        raise DatabaseError(f"{path}: {error}; nothing was changed") from error


def _check_version(database: sqlite3.Connection, path: Any) -> None:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    if not {"cameras", "images", "keypoints", "descriptors", "matches"} <= tables:
        raise DatabaseError(f"{path} is not a database of COLMAP")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder) / "new.db"
        need("pycolmap", "colmap").Database.open(new).close()
        with closing(sqlite3.connect(new)) as ours:
            (wanted,) = ours.execute("PRAGMA user_version").fetchone()
    if version != wanted:
        named, ours_named = (
            f"{number // 1_000_000}.{number // 10_000 % 100}.{number // 100 % 100}"
            for number in (version, wanted)
        )
        raise DatabaseError(
            f"{path} is of version {named}, and this pycolmap is of {ours_named}; "
            "pycolmap.Database.open brings an older one up to date, a newer one needs a newer "
            "pycolmap"
        )


def _features(
    database: sqlite3.Connection, path: Any
) -> Iterator[tuple[int, str, int, NDArray[np.uint8], NDArray[np.float32]]]:
    """Number, name, camera, descriptors and keypoints of all images that have them."""
    rows = database.execute(
        "SELECT image_id, name, camera_id, d.rows, d.cols, d.data, k.rows, k.cols, k.data "
        "FROM images JOIN descriptors d USING (image_id) JOIN keypoints k USING (image_id) "
        "ORDER BY image_id"
    )
    for number, name, camera, n, width, data, n_points, n_columns, points in rows:
        data, points = data or b"", points or b""
        if n != n_points or len(data) != n * width or len(points) != 4 * n * n_columns:
            raise DatabaseError(f"{path}: keypoints and descriptors of {name} do not fit together")
        values, places = np.frombuffer(data, np.uint8), np.frombuffer(points, np.float32)
        yield number, name, camera, values.reshape(n, width), places.reshape(n, n_columns)


def _encode(model: BaseHasher, descriptors: NDArray[np.uint8], path: Any, name: str) -> Codes:
    if len(descriptors) and descriptors.shape[1] != model.n_features_in_:
        raise DatabaseError(
            f"{path}: descriptors of {name} have {descriptors.shape[1]} bytes, but the model takes "
            f"{model.n_features_in_}"
        )
    return encode_descriptors(model, descriptors)


def _is_of(model: BaseHasher, stored: str, n_bits: int) -> bool:
    return n_bits == model.n_bits_ and is_same_model(model, stored)


def _model_of(database: sqlite3.Connection, path: Any) -> tuple[str, int] | None:
    """Which model made the codes, if descriptors are codes."""
    there = "SELECT 1 FROM sqlite_master WHERE name = ?"
    if database.execute(there, (_TABLE,)).fetchone() is None:
        return None
    line = database.execute(f"SELECT model, bits FROM {_TABLE}").fetchone()
    if line is None:
        raise DatabaseError(f"{path} has codes, but does not say of which model; shrink it again")
    return str(line[0]), int(line[1])


def _copy(database: sqlite3.Connection, to: Path) -> None:
    with closing(sqlite3.connect(to)) as copy:
        database.backup(copy)
