"""Learn codes for the descriptors of a COLMAP database from its own verified matches."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..hashers import KernelLDAHash
from .colmap_database import DatabaseError, opened, read_features, read_verified, stored_model

__all__ = ["Tracks", "read_tracks", "train_model"]

_CONSTANT_LENGTH = 0.05  # relative spread of lengths, up to which rows are scaled to unit length
_MIN_TRACKS = 100


@dataclass(frozen=True)
class Tracks:
    """Descriptors of points that were matched in several images, as returned by `read_tracks`.

    Attributes
    ----------
    rows : array of shape (n, d)
        Descriptors.
    labels : int64 array of shape (n,)
        The track that each descriptor belongs to.
    images : int64 array of shape (n,)
        The id of the image that each descriptor comes from.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import LDAHash
    >>> from kdiffhash.vision.colmap import Tracks
    >>> rows = np.random.default_rng(0).normal(size=(60, 8))
    >>> tracks = Tracks(rows, labels=np.arange(60) // 2, images=np.arange(60) % 2)
    >>> LDAHash(4).fit(tracks.rows, tracks.labels).n_bits_
    4
    """

    rows: NDArray[Any]
    labels: NDArray[np.int64]
    images: NDArray[np.int64]


def read_tracks(path: str | os.PathLike[str]) -> Tracks:
    """Read the descriptors of a database that are connected by verified matches.

    Keypoints that are connected by verified matches form a track. A track with two keypoints of the
    same image has a wrong match in it and is left out.

    Parameters
    ----------
    path : path
        COLMAP database with verified matches.

    Returns
    -------
    tracks : Tracks

    Raises
    ------
    DatabaseError
        If the database is invalid, its descriptors are codes already, or it has fewer than 100
        tracks.

    Examples
    --------
    >>> from kdiffhash.vision.colmap import read_tracks
    >>> tracks = read_tracks("database.db")  # doctest: +SKIP
    """
    with opened(path) as database:
        if stored_model(database, path) is not None:
            raise DatabaseError(
                f"{path} has codes in place of descriptors; train on the original database"
            )
        features = {number: rows for number, _, _, rows, _ in read_features(database, path)}
        verified = [pair for pair in read_verified(database) if {*pair[:2]} <= features.keys()]
    numbers = np.array(sorted(features), np.int64)
    counts = np.array([len(features[number]) for number in numbers.tolist()], np.int64)
    first = dict(zip(numbers.tolist(), (np.cumsum(counts) - counts).tolist()))
    widths = {rows.shape[1] for rows in features.values() if len(rows)}
    if len(widths) > 1:
        raise DatabaseError(
            f"{path} has descriptors of different widths: {sorted(widths)}; a model takes one kind"
        )
    edges = [matches + np.array([first[a], first[b]]) for a, b, matches in verified]
    images = np.repeat(numbers, counts)
    rows, labels = _consistent_tracks(edges, images)
    n_tracks = len(np.unique(labels))
    if n_tracks < _MIN_TRACKS:
        raise DatabaseError(
            f"{path} has {n_tracks} tracks of verified matches, but learning takes at least "
            f"{_MIN_TRACKS}; match its images first (colmap exhaustive_matcher)"
        )
    owner = np.searchsorted(numbers, images[rows])
    chosen = [
        features[number][rows[owner == i] - first[number]]
        for i, number in enumerate(numbers.tolist())
        if (owner == i).any()
    ]
    return Tracks(np.concatenate(chosen), labels, images[rows])


def train_model(
    tracks: Tracks,
    *,
    n_bits: int = 256,
    n_basis: int = 1000,
    refine: int = 1000,
    preprocess: Literal["auto", "unit", "hellinger"] | None = "auto",
    random_state: int = 0,
    n_jobs: int | None = None,
) -> KernelLDAHash:
    """Learn codes for the descriptors of a database from its tracks.

    Parameters
    ----------
    tracks : Tracks
        Tracks, as returned by `read_tracks`. Pairs are drawn across images.
    n_bits : int, default=256
        Length of the codes.
    n_basis : int, default=1000
        Number of basis rows; fewer if there are fewer descriptors.
    refine : int, default=1000
        Steps of gradient descent after the closed form; 0 for none.
    preprocess : {"auto", "unit", "hellinger", None}, default="auto"
        Preprocessing of each row. "auto" scales rows to unit length if all have nearly the same
        length anyway, as descriptors that were normalised and rounded do.
    random_state : int, default=0
        Seed.
    n_jobs : int, optional
        Number of threads; by default all cores available to the process.

    Returns
    -------
    model : KernelLDAHash

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash.vision.colmap import Tracks, train_model
    >>> rng = np.random.default_rng(0)
    >>> labels, images = np.arange(900) // 3, np.arange(900) % 3
    >>> rows = rng.normal(size=(300, 16))[labels] + 0.3 * rng.normal(size=(900, 16))
    >>> model = train_model(Tracks(rows, labels, images), n_bits=32, n_basis=100, refine=0)
    >>> model.transform(rows).shape
    (900, 4)
    """
    kind = _preprocessing(tracks.rows) if preprocess == "auto" else preprocess
    model = KernelLDAHash(
        n_bits=n_bits,
        n_basis=min(n_basis, len(tracks.rows)),
        refine=refine,
        preprocess=kind,
        random_state=random_state,
        n_jobs=n_jobs,
    )
    return model.fit(tracks.rows, tracks.labels, groups=tracks.images)


def _preprocessing(rows: NDArray[Any]) -> Literal["unit"] | None:
    """Return "unit" if all rows have nearly the same length."""
    lengths = np.linalg.norm(rows[:: max(1, len(rows) // 10_000)].astype(np.float64), axis=1)
    return "unit" if lengths.std() < _CONSTANT_LENGTH * lengths.mean() else None


def _consistent_tracks(
    edges: list[NDArray[np.int64]], images: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the keypoints of tracks with at most one keypoint per image, and their tracks."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = len(images)
    ends = np.concatenate([np.empty((0, 2), np.int64), *edges])
    graph = coo_array((np.ones(len(ends), bool), (ends[:, 0], ends[:, 1])), shape=(n, n))
    labels = connected_components(graph, directed=False)[1].astype(np.int64)
    sizes = np.bincount(labels, minlength=1)
    seen = np.unique(np.stack([labels, images], axis=1), axis=0)[:, 0]
    n_images = np.bincount(seen, minlength=len(sizes))
    rows = np.flatnonzero(((sizes >= 2) & (n_images == sizes))[labels])
    return rows, np.unique(labels[rows], return_inverse=True)[1].astype(np.int64)
