"""Open COLMAP databases and check what is in them.

COLMAP trusts its database: a camera with too few parameters, for instance, makes it read beyond an
array. Everything is therefore checked here, with Python's SQLite, before pycolmap sees it.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.errors import KdiffhashError
from .._util.extras import need

_FLOAT_TYPES = (1, 2, 3, 4)  # of learned descriptors in COLMAP: float32, stored as bytes
LOCK_TIMEOUT = 5.0  # seconds to wait while another process has locked the database
CODES_TABLE = "kdiffhash"  # holds model and bits if the descriptors of a database are codes
_TABLES = ("cameras", "images", "keypoints", "descriptors", "matches", "two_view_geometries")
_MAX_IMAGE_ID = 2**31 - 1  # COLMAP's limit; a pair has the number smaller id * this + larger id
_MAX_CAMERA_ID = 2**32 - 1  # stands for an invalid camera in COLMAP
_MAX_SIZE = 2**31  # pixels, rows and columns
_GEOMETRY_SIZES = {"F": 72, "E": 72, "H": 72, "qvec": 32, "tvec": 24}  # bytes
_CAMERA_BLOB = struct.Struct("<IiQQBQ")  # id, model, width, height, prior focal length, parameters


class DatabaseError(KdiffhashError, ValueError):
    """Raised if a COLMAP database is invalid, locked, of another version or lacks descriptors.

    Examples
    --------
    >>> from kdiffhash import KdiffhashError
    >>> from kdiffhash.vision.colmap import DatabaseError
    >>> issubclass(DatabaseError, KdiffhashError), issubclass(DatabaseError, ValueError)
    (True, True)
    """


@contextmanager
def opened(
    path: str | os.PathLike[str], *, write: bool = False, attach: Path | None = None
) -> Iterator[sqlite3.Connection]:
    """Open a COLMAP database in a transaction, which is rolled back if an error occurs."""
    if not Path(path).is_file():
        raise FileNotFoundError(errno.ENOENT, "there is no COLMAP database", os.fspath(path))
    uri = f"{Path(path).resolve().as_uri()}?mode={'rw' if write else 'ro'}"
    try:
        with closing(
            sqlite3.connect(uri, uri=True, timeout=LOCK_TIMEOUT, isolation_level=None)
        ) as database:
            database.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
            database.execute("PRAGMA trusted_schema = OFF")  # as SQLite advises for any input
            database.execute("PRAGMA cell_size_check = ON")
            # A commit deletes the journal; its folder is synced as well, so that it stays deleted.
            database.execute("PRAGMA synchronous = EXTRA")
            _check_schema(database, path)
            if attach is not None:
                database.execute("ATTACH ? AS new", (str(attach),))
            database.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield database
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite may have rolled back already
                    database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
    except sqlite3.Error as error:
        message = " ".join(str(error).split())  # may quote damaged text
        raise DatabaseError(f"{path}: {message}; the database was not changed") from error


def _check_schema(database: sqlite3.Connection, path: Any) -> None:
    """Raise if this is not a COLMAP database of the version that pycolmap writes."""
    given, tables = _schema(database)
    if not all(tables.values()):
        raise DatabaseError(f"{path} is not a COLMAP database")
    expected, expected_tables = _expected_schema()
    if given != expected:
        given_version, supported = (
            f"{number // 1_000_000}.{number // 10_000 % 100}.{number // 100 % 100}"
            for number in (given, expected)
        )
        raise DatabaseError(
            f"{path} has version {given_version}, but the installed pycolmap uses version "
            f"{supported}; upgrade an older database with pycolmap.Database.open, or install a "
            "newer pycolmap for a newer database"
        )
    for table, columns in expected_tables.items():
        missing = [name for name in columns if name not in tables[table]]
        if missing:
            raise DatabaseError(
                f"{path}: table {table} lacks the columns {', '.join(missing)}; make the database "
                "anew with COLMAP"
            )


def _schema(database: sqlite3.Connection) -> tuple[int, dict[str, tuple[str, ...]]]:
    """Return the version of a database and the columns of its tables (none without the table)."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    columns = "SELECT name FROM pragma_table_info(?) WHERE ? IN "
    columns += "(SELECT name FROM sqlite_master WHERE type = 'table')"  # and not a view
    return version, {
        table: tuple(str(name) for (name,) in database.execute(columns, (table, table)))
        for table in _TABLES
    }


@cache
def _expected_schema() -> tuple[int, dict[str, tuple[str, ...]]]:
    """Return version and columns of the databases that the installed pycolmap writes."""
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder) / "new.db"
        need("pycolmap", "colmap").Database.open(new).close()
        with closing(sqlite3.connect(new)) as database:
            return _schema(database)


def _read_cameras(database: sqlite3.Connection, path: Any) -> dict[int, Any]:
    """Return all cameras by their ids, or raise if one is invalid."""
    columns = "camera_id, model, width, height, params, prior_focal_length"
    rows = database.execute(f"SELECT {columns} FROM cameras")
    return {row[0]: _camera(*row, where=f"{path}: camera {row[0]}") for row in rows}


def _camera(
    number: Any, model: Any, width: Any, height: Any, params: Any, prior: Any, *, where: str
) -> Any:
    """Return a camera with as many finite parameters as its model has, or raise."""
    pycolmap = need("pycolmap", "colmap")
    models = {kind.value: kind for kind in pycolmap.CameraModelId.__members__.values()}
    if model not in models or models[model] == pycolmap.CameraModelId.INVALID:
        raise DatabaseError(f"{where} has the model {model!r}, which the installed pycolmap lacks")
    if not _is_count(number, _MAX_CAMERA_ID):
        raise DatabaseError(f"{where}: ids must be integers from 0 to {_MAX_CAMERA_ID - 1}")
    if not (_is_count(width, _MAX_SIZE) and _is_count(height, _MAX_SIZE) and width and height):
        raise DatabaseError(f"{where} has {width!r} x {height!r} pixels; sizes must be positive")
    if not isinstance(params, bytes) or len(params) % 8 or not isinstance(prior, int):
        raise DatabaseError(f"{where} is damaged: its parameters must be float64 values")
    camera = pycolmap.Camera(
        camera_id=number,
        model=models[model],
        width=width,
        height=height,
        params=np.frombuffer(params, np.float64),
        has_prior_focal_length=bool(prior),
    )
    check_camera(camera, where)
    return camera


def check_camera(camera: Any, where: str) -> None:
    """Raise if the parameters of a camera are not finite, or not as many as its model has."""
    if not camera.verify_params():
        raise DatabaseError(
            f"{where} has {len(camera.params)} parameters, but {camera.model.name} has "
            f"{len(camera.params_info.split(','))} ({camera.params_info}); correct the camera"
        )
    if not np.isfinite(camera.params).all():
        raise DatabaseError(f"{where} has parameters that are not finite; correct the camera")


def read_features(
    database: sqlite3.Connection, path: Any
) -> Iterator[tuple[int, str, Any, NDArray[Any], NDArray[np.float32]]]:
    """Yield id, name, camera, descriptors and keypoints of each image that has them.

    Descriptors are float32 if COLMAP stores them so, as it does those of ALIKED, and uint8
    otherwise. Raise at the first value that is invalid. The other tables are checked as well.
    """
    # Rows of a damaged file can be missing without an error.
    (problem,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if problem != "ok":
        raise DatabaseError(
            f"{path} is damaged: {' '.join(problem.split())}; recover it with SQLite, or make it "
            "anew with COLMAP"
        )
    cameras = _read_cameras(database, path)
    rows = database.execute(
        "SELECT i.image_id, name, camera_id, d.image_id IS NULL, d.type, d.rows, d.cols, d.data, "
        "k.image_id IS NULL, k.rows, k.cols, k.data FROM images i "
        "LEFT JOIN descriptors d USING (image_id) LEFT JOIN keypoints k USING (image_id) "
        "ORDER BY i.image_id"
    )
    known: set[int | str] = set()  # ids and names; a damaged table may repeat them
    for number, name, camera, no_descriptors, *described, no_keypoints, a, b, c in rows:
        if not _is_count(number, _MAX_IMAGE_ID) or number in known:
            raise DatabaseError(
                f"{path}: image id {number!r}: ids must be unique integers from 0 to "
                f"{_MAX_IMAGE_ID - 1}"
            )
        if not _is_name(name) or name in known:
            raise DatabaseError(
                f"{path}: image {number} has the name {name!r}; names must be unique texts"
            )
        if camera not in cameras:
            raise DatabaseError(f"{path}: {name} has no camera; add one to the database")
        known |= {number, name}
        where = f"{path}: keypoints of {name}"
        keypoints = None if no_keypoints else _check_keypoints(a, b, c, where=where)
        if keypoints is None or no_descriptors:
            continue
        descriptors = _check_descriptors(*described, where=f"{path}: descriptors of {name}")
        if len(descriptors) != len(keypoints):
            raise DatabaseError(
                f"{path}: {name} has {len(keypoints)} keypoints, but {len(descriptors)} "
                "descriptors; extract its features again"
            )
        yield number, name, cameras[camera], descriptors, keypoints
    _check_matches(database, path)


def _check_descriptors(
    kind: Any, rows: Any, columns: Any, data: Any, *, where: str
) -> NDArray[Any]:
    """Return descriptors: one byte per value, or four for those that COLMAP stores as float32."""
    descriptors = _matrix(rows, columns, data, np.uint8, where)
    if kind not in _FLOAT_TYPES or not descriptors.size:
        return descriptors
    if columns % 4:
        raise DatabaseError(f"{where} have {columns} bytes each, which are not float32 values")
    floats = descriptors.view(np.float32)
    if not np.isfinite(floats).all():
        raise DatabaseError(f"{where} have values that are not finite; extract the features again")
    return floats


def read_verified(database: sqlite3.Connection) -> list[tuple[int, int, NDArray[np.uint32]]]:
    """Return the ids of two images and the inliers of each two-view geometry that has some.

    The database must have been checked, which `read_features` does.
    """
    select = "SELECT pair_id, rows, data FROM two_view_geometries WHERE rows > 0 ORDER BY pair_id"
    return [
        (*divmod(pair, _MAX_IMAGE_ID), np.frombuffer(data, np.uint32).reshape(n, 2))
        for pair, n, data in database.execute(select)
    ]


def _check_keypoints(rows: Any, columns: Any, data: Any, *, where: str) -> NDArray[np.float32]:
    """Return keypoints: position, and in 6 columns also an affine shape, in 4 scale and angle."""
    keypoints = _matrix(rows, columns, data, np.float32, where)
    if columns not in (2, 4, 6):
        raise DatabaseError(f"{where} have {columns} columns; COLMAP's have 2, 4 or 6")
    if not np.isfinite(keypoints[:, :2]).all():
        raise DatabaseError(
            f"{where} have positions that are not finite; extract the features again"
        )
    return keypoints


def _check_matches(database: sqlite3.Connection, path: Any) -> None:
    """Raise if existing matches or two-view geometries are damaged: COLMAP would read them."""
    n_keypoints = dict(database.execute("SELECT image_id, rows FROM keypoints"))
    for table in ("matches", "two_view_geometries"):
        cursor = database.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        for row in cursor:
            values = dict(zip(names, row))
            where = f"{path}: {table} of pair {values['pair_id']!r}"
            if not _is_count(values["pair_id"], _MAX_IMAGE_ID**2):
                raise DatabaseError(f"{where}: the number of a pair must be an integer")
            matches = _matrix(values["rows"], values["cols"], values["data"], np.uint32, where)
            if matches.shape[1] != 2:
                raise DatabaseError(f"{where} have {matches.shape[1]} columns instead of 2")
            counts = [
                n_keypoints.get(number) for number in divmod(values["pair_id"], _MAX_IMAGE_ID)
            ]
            if len(matches) and any(
                isinstance(n, int) and highest >= n for highest, n in zip(matches.max(0), counts)
            ):
                raise DatabaseError(
                    f"{where} refer to keypoints that do not exist; delete them from the database"
                )
            if table == "two_view_geometries":
                _check_geometry(values, where)


def _check_geometry(values: dict[str, Any], where: str) -> None:
    """Raise if the matrices, the pose or the cameras of a two-view geometry are damaged."""
    pycolmap = need("pycolmap", "colmap")
    configurations = pycolmap.TwoViewGeometryConfiguration.__members__.values()
    if values["config"] not in [kind.value for kind in configurations]:
        raise DatabaseError(f"{where}: {values['config']!r} is not a configuration of COLMAP")
    for name, size in _GEOMETRY_SIZES.items():
        value = values[name]
        if value is not None and (not isinstance(value, bytes) or len(value) not in (0, size)):
            raise DatabaseError(f"{where}: {name} must have {size} bytes; delete the geometry")
    for name in ("camera1", "camera2"):  # since COLMAP 4.2
        blob = values.get(name)
        if blob is None:
            continue
        if not isinstance(blob, bytes) or len(blob) < _CAMERA_BLOB.size:
            raise DatabaseError(f"{where}: {name} is damaged; delete the geometry")
        number, model, width, height, prior, n = _CAMERA_BLOB.unpack_from(blob)
        params = blob[_CAMERA_BLOB.size :]
        if len(params) != 8 * n:
            raise DatabaseError(f"{where}: {name} is damaged; delete the geometry")
        _camera(number, model, width, height, params, prior, where=f"{where}: {name}")


def stored_model(database: sqlite3.Connection, path: Any) -> tuple[str, int] | None:
    """Return fingerprint and code length of the model that made the codes, None without codes."""
    exists = "SELECT 1 FROM sqlite_master WHERE name = ?"
    if database.execute(exists, (CODES_TABLE,)).fetchone() is None:
        return None
    row = database.execute(f"SELECT model, bits FROM {CODES_TABLE}").fetchone()
    if row is None or not isinstance(row[0], str) or not isinstance(row[1], int):
        raise DatabaseError(
            f"{path} has codes, but the model that made them is not recorded; shrink the original "
            "database again"
        )
    return row[0], row[1]


def copy_database(database: sqlite3.Connection, to: Path) -> None:
    """Copy a database to a file."""
    with closing(sqlite3.connect(to)) as copy:
        database.backup(copy)


def _matrix(rows: Any, columns: Any, data: Any, dtype: Any, where: str) -> NDArray[Any]:
    """Return a blob as a matrix, or raise if it does not have this number of rows and columns."""
    content = b"" if data is None else data
    if not _is_count(rows, _MAX_SIZE) or not _is_count(columns, _MAX_SIZE):
        raise DatabaseError(f"{where} have {rows!r} rows and {columns!r} columns")
    n = rows * columns * np.dtype(dtype).itemsize
    if not isinstance(content, bytes) or len(content) != n:
        given = f"{len(content)} bytes" if isinstance(content, bytes) else repr(content)[:20]
        raise DatabaseError(
            f"{where} do not match their number: {rows} rows of {columns} columns take {n} bytes, "
            f"got {given}; make them anew with COLMAP"
        )
    return np.frombuffer(content, dtype).reshape(rows, columns)


def _is_name(value: Any) -> bool:
    """Return whether a value of a database can be the name of an image: text in UTF-8."""
    return (
        isinstance(value, str)
        and bool(value)
        and "\0" not in value
        and value.encode("utf-8", "ignore").decode() == value
    )


def _is_count(value: Any, limit: int) -> bool:
    """Return whether a value of a database is an integer from 0 to below a limit."""
    return isinstance(value, int) and 0 <= value < limit
