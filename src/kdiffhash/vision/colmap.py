"""Match COLMAP databases by codes, verify the matches, and store codes in place of descriptors.

The user's database is read and written with Python's SQLite only, in one transaction. pycolmap
verifies the matches and converts them to COLMAP's format in a temporary database, from which they
are copied. Python and pycolmap have separate copies of SQLite, and two copies in one process must
not have the same file open.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.extras import need
from .._util.files import replacing
from .._util.threads import run_tiles
from ..codes import Codes, check_codes
from ..hashers import BaseHasher
from ..hashers.fingerprint import fingerprint, is_same_model
from ..search.matching import match_codes
from .colmap_database import (
    CODES_TABLE,
    DatabaseError,
    check_camera,
    copy_database,
    opened,
    read_features,
    stored_model,
)
from .colmap_training import Tracks, read_tracks, train_model
from .features import encode_descriptors
from .image_pairs import image_pairs
from .pair_selection import likely_pairs
from .photo_matching import RATIO

__all__ = [
    "DatabaseError",
    "ImageFeatures",
    "PairMatches",
    "Tracks",
    "likely_pairs",
    "match_images",
    "read_images",
    "read_tracks",
    "shrink_database",
    "train_model",
    "verify_pairs",
    "write_matches",
]


@dataclass(frozen=True)
class ImageFeatures:
    """An image of a database with its camera, keypoints and codes."""

    id: int
    name: str
    camera: Any
    points: NDArray[np.float32]
    codes: Codes
    scales: NDArray[np.float32] | None = None  # of the keypoints, if the database has them


@dataclass(frozen=True)
class PairMatches:
    """Matches of two images and their two-view geometry, which is None before verification."""

    a: ImageFeatures
    b: ImageFeatures
    matches: NDArray[np.uint32]
    geometry: Any = None

    @property
    def n_verified(self) -> int:
        """Number of inliers after geometric verification."""
        return 0 if self.geometry is None else len(self.geometry.inlier_matches)


def read_images(path: str | os.PathLike[str], model: BaseHasher) -> list[ImageFeatures]:
    """Read the images of a database that have descriptors, and encode the descriptors.

    Parameters
    ----------
    path : path
        COLMAP database.
    model : fitted hasher
        Model for these descriptors. COLMAP computes RootSIFT by default, for which there is
        ``load_pretrained("rootsift")``. Codes written by `shrink_database` are read as they are.

    Returns
    -------
    images : list of ImageFeatures

    Raises
    ------
    DatabaseError
        If the database is invalid, or has fewer than two images with descriptors.

    Examples
    --------
    >>> import tempfile
    >>> import pycolmap
    >>> from kdiffhash import load_pretrained
    >>> from kdiffhash.vision.colmap import read_images
    >>> path = tempfile.mkdtemp() + "/database.db"
    >>> options = pycolmap.SyntheticDatasetOptions(
    ...     num_rigs=1, num_cameras_per_rig=1, num_frames_per_rig=3
    ... )
    >>> with pycolmap.Database.open(path) as database:
    ...     _ = pycolmap.synthesize_dataset(options, database)
    >>> images = read_images(path, load_pretrained("rootsift", n_bits=128))
    >>> [image.codes.shape for image in images]
    [(110, 16), (110, 16), (110, 16)]
    """
    with opened(path) as database:
        shrunk = stored_model(database, path)
        if shrunk is not None and not _made_codes(model, *shrunk):
            raise DatabaseError(
                f"{path} has codes of another model or length: {shrunk[1]} bits; use the model "
                "that made them"
            )
        images = []
        for number, name, camera, descriptors, points in read_features(database, path):
            to_codes = _check_stored if shrunk else _encode
            codes = to_codes(model, descriptors, path, name)
            scales = _scales(points)
            images.append(ImageFeatures(number, name, camera, points[:, :2], codes, scales))
    if len(images) < 2:
        raise DatabaseError(
            f"{path} has {len(images)} images with descriptors, but matching takes at least 2; "
            "extract features first (colmap feature_extractor)"
        )
    return images


def match_images(
    images: Sequence[ImageFeatures],
    pairs: str | os.PathLike[str] | Sequence[tuple[str, str]] | None = None,
    *,
    ratio: float | None = RATIO,
    max_distance: int | None = None,
    n_jobs: int | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> list[PairMatches]:
    """Match pairs of images by Hamming distance.

    Parameters
    ----------
    images : sequence of ImageFeatures
        Images with codes, as returned by `read_images`.
    pairs : path or sequence of (str, str), optional
        File with two image names per line, or pairs of names, such as those that `likely_pairs`
        returns; all pairs by default.
    ratio : float or None, default=0.74
        Ratio test: a match is kept if its Hamming distance is below `ratio` times the mean of the
        second-nearest distances in both directions; None skips the test.
    max_distance : int, optional
        Largest Hamming distance of a match; unlimited by default.
    n_jobs : int, optional
        Number of threads; by default all cores available to the process.
    advance : callable, optional
        Called with the number of pairs completed since the last call.

    Returns
    -------
    matches : list of PairMatches
        One for each pair, in the order of the pairs.

    Examples
    --------
    >>> import tempfile
    >>> import pycolmap
    >>> from kdiffhash import load_pretrained
    >>> from kdiffhash.vision.colmap import match_images, read_images
    >>> path = tempfile.mkdtemp() + "/database.db"
    >>> options = pycolmap.SyntheticDatasetOptions(
    ...     num_rigs=1, num_cameras_per_rig=1, num_frames_per_rig=3
    ... )
    >>> with pycolmap.Database.open(path) as database:
    ...     _ = pycolmap.synthesize_dataset(options, database)
    >>> images = read_images(path, load_pretrained("rootsift", n_bits=128))
    >>> [len(pair.matches) for pair in match_images(images)]
    [100, 100, 100]
    """
    by_name = {image.name: image for image in images}
    if pairs is None or isinstance(pairs, str | os.PathLike):
        selected = image_pairs(list(by_name), pairs)
    else:
        selected = list(pairs)

    def match_pair(i: int) -> PairMatches:
        a, b = (by_name[name] for name in selected[i])
        matches = match_codes(a.codes, b.codes, ratio=ratio, max_distance=max_distance, n_jobs=1)
        return PairMatches(a, b, matches.pairs.astype(np.uint32))

    return _for_each(match_pair, len(selected), n_jobs, advance)


def verify_pairs(
    matched: Sequence[PairMatches],
    *,
    n_jobs: int | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> list[PairMatches]:
    """Verify matches geometrically with COLMAP's estimator.

    Parameters
    ----------
    matched : sequence of PairMatches
        Matches, as returned by `match_images`.
    n_jobs : int, optional
        Number of threads; by default all cores available to the process.
    advance : callable, optional
        Called with the number of pairs completed since the last call.

    Returns
    -------
    verified : list of PairMatches
        The same pairs with their two-view geometries, which hold the inliers.

    Raises
    ------
    DatabaseError
        If a camera does not have the parameters of its model, or matches refer to keypoints that
        do not exist.

    Examples
    --------
    >>> import tempfile
    >>> import pycolmap
    >>> from kdiffhash import load_pretrained
    >>> from kdiffhash.vision.colmap import match_images, read_images, verify_pairs
    >>> path = tempfile.mkdtemp() + "/database.db"
    >>> options = pycolmap.SyntheticDatasetOptions(
    ...     num_rigs=1, num_cameras_per_rig=1, num_frames_per_rig=3
    ... )
    >>> with pycolmap.Database.open(path) as database:
    ...     _ = pycolmap.synthesize_dataset(options, database)
    >>> images = read_images(path, load_pretrained("rootsift", n_bits=128))
    >>> [pair.n_verified for pair in verify_pairs(match_images(images))]
    [100, 100, 100]
    """
    pycolmap = need("pycolmap", "colmap")
    options = pycolmap.TwoViewGeometryOptions()
    options.ransac.random_seed = 0
    for pair in matched:
        _check_pair(pair)

    def verify_pair(i: int) -> PairMatches:
        pair = matched[i]
        left, right = (image.points.astype(np.float64) for image in (pair.a, pair.b))
        geometry = pycolmap.estimate_two_view_geometry(
            pair.a.camera, left, pair.b.camera, right, pair.matches, options
        )
        return replace(pair, geometry=geometry)

    return _for_each(verify_pair, len(matched), n_jobs, advance)


def _check_pair(pair: PairMatches) -> None:
    """Raise if a pair would make COLMAP read beyond an array."""
    for image, column in ((pair.a, 0), (pair.b, 1)):
        check_camera(image.camera, f"the camera of {image.name}")
        if len(pair.matches) and pair.matches[:, column].max() >= len(image.points):
            raise DatabaseError(
                f"matches of {pair.a.name} and {pair.b.name} refer to keypoints that {image.name} "
                "does not have; match the images again"
            )


def _for_each(
    work: Callable[[int], PairMatches],
    n: int,
    n_jobs: int | None,
    advance: Callable[[int], None],
) -> list[PairMatches]:
    """Return ``[work(0), ..., work(n - 1)]``, computed by several threads."""
    results: list[Any] = [None] * n

    def work_on_range(start: int, stop: int) -> None:
        for i in range(start, stop):
            results[i] = work(i)
            advance(1)

    run_tiles(lambda: work_on_range, n, 1, n_jobs)
    return results


def write_matches(
    path: str | os.PathLike[str],
    matched: Sequence[PairMatches],
    *,
    keep: str | os.PathLike[str] | None = None,
) -> None:
    """Write matches and geometries to a database in one transaction.

    Existing matches and geometries of these pairs are replaced. Other pairs and other tables are
    not changed.

    Parameters
    ----------
    path : path
        COLMAP database.
    matched : sequence of PairMatches
        Matches, as returned by `match_images` or `verify_pairs`.
    keep : path, optional
        Copy the database to this file first.

    Examples
    --------
    >>> import tempfile
    >>> import pycolmap
    >>> from kdiffhash import load_pretrained
    >>> from kdiffhash.vision.colmap import match_images, read_images, write_matches
    >>> path = tempfile.mkdtemp() + "/database.db"
    >>> options = pycolmap.SyntheticDatasetOptions(
    ...     num_rigs=1, num_cameras_per_rig=1, num_frames_per_rig=3
    ... )
    >>> with pycolmap.Database.open(path) as database:
    ...     _ = pycolmap.synthesize_dataset(options, database)
    >>> images = read_images(path, load_pretrained("rootsift", n_bits=128))
    >>> write_matches(path, match_images(images))
    """
    pycolmap = need("pycolmap", "colmap")
    with tempfile.TemporaryDirectory() as folder:
        temporary_database = Path(folder) / "matches.db"
        with closing(pycolmap.Database.open(temporary_database)) as database:
            for pair in matched:
                database.write_matches(pair.a.id, pair.b.id, pair.matches)
                if pair.geometry is not None:
                    database.write_two_view_geometry(pair.a.id, pair.b.id, pair.geometry)
        if keep is not None:
            with opened(path) as database, replacing(keep) as temporary:
                copy_database(database, temporary)
        with opened(path, write=True, attach=temporary_database) as database:
            for table in ("matches", "two_view_geometries"):
                database.execute(
                    f"DELETE FROM main.{table} WHERE pair_id IN (SELECT pair_id FROM new.matches)"
                )
                # An upgraded database may have its columns in another order.
                info = database.execute(f"PRAGMA new.table_info({table})")
                columns = ", ".join(name for _, name, *_ in info)
                database.execute(
                    f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}"
                )


def shrink_database(
    path: str | os.PathLike[str], out: str | os.PathLike[str], model: BaseHasher
) -> None:
    """Write a copy of a database with codes in place of descriptors.

    `read_images` accepts the copy. COLMAP itself cannot match it, but can run its mapper on it once
    `write_matches` has written matches.

    Parameters
    ----------
    path : path
        COLMAP database.
    out : path
        Database to write; an existing file is replaced.
    model : fitted hasher
        Model for these descriptors.

    Raises
    ------
    DatabaseError
        If the database is invalid or has codes already.

    Examples
    --------
    >>> import tempfile
    >>> import pycolmap
    >>> from kdiffhash import load_pretrained
    >>> from kdiffhash.vision.colmap import read_images, shrink_database
    >>> path = tempfile.mkdtemp() + "/database.db"
    >>> options = pycolmap.SyntheticDatasetOptions(
    ...     num_rigs=1, num_cameras_per_rig=1, num_frames_per_rig=3
    ... )
    >>> with pycolmap.Database.open(path) as database:
    ...     _ = pycolmap.synthesize_dataset(options, database)
    >>> model = load_pretrained("rootsift", n_bits=128)
    >>> shrink_database(path, path + ".codes", model)
    >>> [image.codes.shape for image in read_images(path + ".codes", model)]
    [(110, 16), (110, 16), (110, 16)]
    """
    with opened(path) as database, replacing(out) as temporary:
        if stored_model(database, path) is not None:
            raise DatabaseError(f"{path} already has codes in place of descriptors")
        copy_database(database, temporary)
        with closing(sqlite3.connect(temporary)) as new:
            with new:
                for number, name, _, descriptors, _ in read_features(database, path):
                    codes = _encode(model, descriptors, path, name)
                    new.execute(
                        "UPDATE descriptors SET type = -1, cols = ?, data = ? WHERE image_id = ?",
                        (codes.shape[1], codes.tobytes(), number),
                    )
                new.execute(f"CREATE TABLE {CODES_TABLE} (model TEXT, bits INTEGER)")
                new.execute(
                    f"INSERT INTO {CODES_TABLE} VALUES (?, ?)", (fingerprint(model), model.n_bits_)
                )
            new.execute("VACUUM")


def _scales(points: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Return the scales of keypoints: stored in 4 columns, the root of the area in 6."""
    if points.shape[1] == 4:
        return points[:, 2]
    if points.shape[1] == 6:
        area: NDArray[np.float32] = points[:, 2] * points[:, 5] - points[:, 3] * points[:, 4]
        return np.sqrt(np.abs(area))
    return None


def _encode(model: BaseHasher, descriptors: NDArray[Any], path: Any, name: str) -> Codes:
    """Encode the descriptors of an image; raise if they are not of the model's width."""
    if len(descriptors) and descriptors.shape[1] != model.n_features_in_:
        raise DatabaseError(
            f"{path}: descriptors of {name} have {descriptors.shape[1]} values, but the model "
            f"expects {model.n_features_in_}; train a model for them (kdiffhash colmap train) and "
            "pass it with --model"
        )
    return encode_descriptors(model, descriptors)


def _check_stored(model: BaseHasher, codes: Codes, path: Any, name: str) -> Codes:
    """Return the stored codes of an image; raise if they are not of the model's length."""
    if not len(codes):
        return encode_descriptors(model, None)
    try:
        return check_codes(codes, model.n_bits_)
    except ValueError as error:
        raise DatabaseError(f"{path}: codes of {name}: {error}") from error


def _made_codes(model: BaseHasher, stored: str, n_bits: int) -> bool:
    """Return whether a model is the one with the stored fingerprint and code length."""
    return n_bits == model.n_bits_ and is_same_model(model, stored)
