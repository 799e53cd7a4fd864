"""A scene from photographs: patches around points that structure from motion has placed.

A point's patches come from the photographs in which its keypoint was found and matched, and also
from those where it was missed although the geometry says that it is visible. Without the latter the
positives would be those that SIFT matches anyway, far too easy to learn anything from.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..progress import progress
from .descriptors import describe_patches
from .frames import Frames, angle_between, corners, cut_patches, inside, move_frames, nearest
from .pictures import list_photos, read_grey
from .reconstruct import Model, Photo, Places, read_model, reconstruct
from .scene import MADE_BY, Scene, load_scene, read_meta, write_scene
from .sheets import Pixels

_NEIGHBOURS = 12  # points that tell about the surface around a point
_NEIGHBOURS_SEEN = 4  # so many of them must be seen in a photograph to tell that it shows the place
_STEEPEST = np.deg2rad(70)  # between a surface's normal and the line of sight
_FARTHEST_TURN = np.deg2rad(40)  # between the lines of sight of a photograph and the nearest other
_IN_FRONT = 0.95  # something that is closer than this share of the depth is in front
_SMALLEST, _LARGEST = 1.0, 60.0  # sigma in pixels of a patch that is added


class _Surface(NamedTuple):
    """The surface at each point: its normal, two directions in it, and the neighbouring points."""

    normal: Places
    tangent: NDArray[np.float64]  # (n, 3, 2)
    neighbours: NDArray[np.int64]


def build_scene(
    photos: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    database: str | os.PathLike[str] | None = None,
    min_photos: int = 3,
    max_error: float = 2.0,
    sheets: str = "bmp",
    random_state: int = 0,
    n_jobs: int | None = None,
    verbose: bool = False,
) -> Scene:
    """Make a scene in the published layout from a folder of photographs.

    Parameters
    ----------
    photos : path
        Folder of photographs of the same things from different places.
    out : path
        Folder of the scene. COLMAP's work is kept in its subfolder `colmap`; when the call is
        interrupted, the next one goes on from there.
    model, database : path, optional
        An existing COLMAP model (folder with `images.bin` and so on) and its database; structure
        from motion is then not run.
    min_photos : int
        Points seen in fewer photographs are left out.
    max_error : float
        Points with a larger mean reprojection error, in pixels, are left out.
    sheets : {"bmp", "png", "jpg"}
        Kind of the sheets. BMP is as published and memory-mapped.
    random_state : int
        Seed of jitter and test lists.
    n_jobs : int, optional
        Threads.
    verbose : bool
        Show progress on a terminal.

    Returns
    -------
    Scene
    """
    source, target = Path(photos), Path(out)
    if sheets not in ("bmp", "png", "jpg"):
        raise ValueError(f"sheets must be bmp, png or jpg, got {sheets!r}")
    if min_photos < 2 or not max_error > 0:
        raise ValueError("min_photos must be at least 2 and max_error positive")
    rng = np.random.default_rng(random_state)
    if target.resolve() == source.resolve():
        raise ValueError("the scene needs a folder of its own, not that of the photographs")
    if (target / "info.txt").exists() and read_meta(target).get("made_by") != MADE_BY:
        raise ValueError(f"{target} holds a scene that was not built here; choose another folder")
    if (model is None) != (database is None):
        raise ValueError("a COLMAP model and its database go together; give both or neither")
    names: list[str] | None = None
    if model is None or database is None:
        names = _checked_photos(source)
        model, database = reconstruct(
            source, names, target / "colmap", n_jobs=n_jobs, verbose=verbose
        )
    found = read_model(Path(model), Path(database), min_photos=min_photos, max_error=max_error)
    if len(found.places) < 2 * _NEIGHBOURS:
        raise ValueError(
            f"only {len(found.places)} points were seen in {min_photos} or more photographs with "
            f"an error of at most {max_error} pixels; the photographs overlap too little, or show "
            "too little texture"
        )
    added = _missed_frames(found, rng)
    cut = []
    with progress(len(found.photos), "cutting patches", verbose) as advance:
        both = zip(found.photos, added, strict=True)
        for number, (photo, (more_points, more_frames)) in enumerate(both):
            image = _read_photo(source / photo.name, photo)
            points = np.concatenate([photo.points, more_points])
            frames = np.concatenate([photo.frames, more_frames])
            whole = np.flatnonzero(inside(corners(frames), image.shape).all(axis=1))
            is_added = whole >= len(photo.points)
            patches = cut_patches(image, frames[whole])
            numbers = np.full(len(whole), number)
            cut.append((points[whole], numbers, is_added, frames[whole], patches))
            advance(1)
    points, numbers, is_added, frames, patches = (
        np.concatenate(parts) for parts in zip(*cut, strict=True)
    )
    order = np.lexsort((numbers, points))
    order = order[np.bincount(points)[points[order]] >= 2]
    if not len(order):
        raise ValueError("no point has two patches that lie wholly inside photographs")
    points = np.unique(points[order], return_inverse=True)[1].astype(np.int64)
    write_scene(
        target,
        patches[order],
        points,
        numbers[order],
        descriptors=describe_patches(patches[order], n_jobs=n_jobs, verbose=verbose),
        frames=frames[order],
        meta={
            "photos": [photo.name for photo in found.photos],
            "photos_given": len(found.photos) if names is None else len(names),
            "points": int(points.max()) + 1,
            "patches": len(points),
            "share_added_by_projection": round(float(is_added[order].mean()), 3),
        },
        sheets=sheets,
        random_state=random_state,
    )
    return load_scene(target)


def _checked_photos(folder: Path) -> list[str]:
    """Names of the photographs in a folder, each of which was opened."""
    found = list_photos(folder, inner=False)
    paths = [path for path in found if path.suffix.lower() != ".webp"]  # COLMAP reads none
    if len(paths) < 3:
        raise ValueError(
            f"{folder} has {len(paths)} photographs (.jpg, .png, .tif, .bmp; subfolders are not "
            "looked into); at least 3 that show the same things from different places are needed"
        )
    for path in paths:
        read_grey(path)
    return [path.name for path in paths]


def _read_photo(path: Path, photo: Photo) -> Pixels:
    pixels = read_grey(path)
    wanted = (photo.camera.height, photo.camera.width)
    if pixels.shape != wanted:
        raise ValueError(
            f"{path} has {pixels.shape[1]} x {pixels.shape[0]} pixels, but its camera in the model "
            f"has {wanted[1]} x {wanted[0]}; give the photographs that the model was made from"
        )
    return pixels


def _missed_frames(
    model: Model, rng: np.random.Generator
) -> list[tuple[NDArray[np.int64], Frames]]:
    """For each photograph: points that it shows but whose keypoint was missed, and their frames.

    The frame is carried over from the photograph that has the point's keypoint and the nearest line
    of sight. Detected keypoints do not lie exactly where such a prediction says; what they miss it
    by is drawn from and added, so that detected and added patches are alike.
    """
    surface = _find_surface(model)
    predictions = [_predict(model, number, surface) for number in range(len(model.photos))]
    residuals = _residuals(model, predictions)
    out = []
    for photo, (frames, visible) in zip(model.photos, predictions, strict=True):
        visible = visible.copy()
        visible[photo.points] = False
        rows = np.flatnonzero(visible)
        x, y, turn, growth = residuals[rng.integers(len(residuals), size=len(rows))].T
        sigma = frames[rows, 3]
        shaken = frames[rows] + np.column_stack([x * sigma, y * sigma, turn, 0 * turn])
        shaken[:, 3] *= 2**growth
        out.append((rows, shaken))
    return out


def _find_surface(model: Model) -> _Surface:
    """Normals from the points nearby; where those do not lie flat, the mean line of sight."""
    places = model.places
    near = nearest(places, places, _NEIGHBOURS + 1)[1][:, 1:]
    sight = np.zeros_like(places)
    for photo in model.photos:
        sight[photo.points] += _unit(photo.centre - places[photo.points])
    sight = _unit(sight)
    spread = places[near] - places[near].mean(axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(np.einsum("nki,nkj->nij", spread, spread))
    normal = vectors[:, :, 0]
    along = np.einsum("ni,ni->n", normal, sight)
    normal = normal * np.sign(along)[:, None]
    flat = (values[:, 0] < 0.1 * values[:, 1]) & (np.abs(along) > 0.5)
    normal = np.where(flat[:, None], normal, sight)
    helper = np.eye(3)[np.abs(normal).argmin(axis=1)]
    first = _unit(np.cross(normal, helper))
    return _Surface(normal, np.stack([first, np.cross(normal, first)], axis=2), near)


def _predict(model: Model, number: int, surface: _Surface) -> tuple[Frames, NDArray[np.bool_]]:
    """Frames of all points in a photograph, carried over from others, and which are visible."""
    photo, places = model.photos[number], model.places
    reference, reference_frame, turn = _nearest_view(model, number)
    ahead = photo.depth(places) > 0
    usable = ahead & (reference >= 0)
    frames = np.full((len(places), 4), np.nan)
    here = np.flatnonzero(usable)
    step = np.zeros((len(places), 2, 2))
    step[here] = _derivative(photo, places[here], surface.tangent[here])
    for other_number in np.unique(reference[here]).tolist():
        other = model.photos[other_number]
        mine = here[reference[here] == other_number]
        there = _derivative(other, places[mine], surface.tangent[mine])
        good = np.abs(np.linalg.det(there)) > 1e-12
        usable[mine[~good]] = False
        mine, there = mine[good], there[good]
        jacobians = step[mine] @ np.linalg.inv(there)
        frames[mine] = move_frames(reference_frame[mine], photo.project(places[mine]), jacobians)
    here = np.flatnonzero(usable)
    visible = np.zeros(len(places), bool)
    visible[here] = _is_visible(model, number, surface, frames, here, turn)
    return frames, visible


def _nearest_view(
    model: Model, number: int
) -> tuple[NDArray[np.int64], Frames, NDArray[np.float64]]:
    """For each point: the other photograph with the nearest line of sight, its frame, the angle."""
    places, own = model.places, model.photos[number]
    sight = _unit(own.centre - places)
    reference = np.full(len(places), -1)
    frame = np.zeros((len(places), 4))
    best = np.full(len(places), np.inf)
    for other_number, other in enumerate(model.photos):
        if other_number == number:
            continue
        rows = other.points
        cosine = np.einsum("ni,ni->n", _unit(other.centre - places[rows]), sight[rows])
        angle = np.arccos(np.clip(cosine, -1, 1))
        closer = angle < best[rows]
        reference[rows[closer]] = other_number
        frame[rows[closer]] = other.frames[closer]
        best[rows[closer]] = angle[closer]
    return reference, frame, best


def _is_visible(
    model: Model,
    number: int,
    surface: _Surface,
    frames: Frames,
    rows: NDArray[np.int64],
    turn: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Which points a photograph shows: facing it, with seen neighbours, nothing in front."""
    photo, places = model.photos[number], model.places
    sight = _unit(photo.centre - places[rows])
    visible = np.einsum("ni,ni->n", sight, surface.normal[rows]) > np.cos(_STEEPEST)
    visible &= turn[rows] < _FARTHEST_TURN
    size = frames[rows, 3]
    visible &= (size >= _SMALLEST) & (size <= _LARGEST)
    shape = (photo.camera.height, photo.camera.width)
    visible &= inside(corners(frames[rows]), shape).all(axis=1)
    seen = np.zeros(len(places), bool)
    seen[photo.points] = True
    visible &= seen[surface.neighbours[rows]].sum(axis=1) >= _NEIGHBOURS_SEEN
    if len(photo.points):
        _, near = nearest(photo.frames[:, :2], np.nan_to_num(frames[rows, :2]), 6)
        around = photo.depth(places[photo.points])[near]
        in_front = around < _IN_FRONT * photo.depth(places[rows])[:, None]
        visible &= in_front.mean(axis=1) < 0.34
    return np.asarray(visible)


def _derivative(photo: Photo, places: Places, tangent: NDArray[np.float64]) -> NDArray[np.float64]:
    """How pixels move with steps along the surface, shape (n, 2, 2)."""
    step = 1e-4 * np.abs(photo.depth(places))[:, None]
    offsets = [step * tangent[:, :, axis] for axis in (0, 1)]
    ends = [(photo.project(places + one), photo.project(places - one)) for one in offsets]
    return np.stack([(after - before) / 2 / step for after, before in ends], axis=2)


def _residuals(
    model: Model, predictions: list[tuple[Frames, NDArray[np.bool_]]]
) -> NDArray[np.float64]:
    """What detected frames miss the predicted ones by: place in sigma, angle, octaves."""
    rows = []
    for photo, (frames, visible) in zip(model.photos, predictions, strict=True):
        known = visible[photo.points]
        predicted, detected = frames[photo.points[known]], photo.frames[known]
        gap = (detected[:, :2] - predicted[:, :2]) / predicted[:, 3:]
        turn = angle_between(predicted[:, 2], detected[:, 2])
        growth = np.log2(detected[:, 3] / predicted[:, 3])
        rows.append(np.column_stack([gap, turn, growth]))
    table = np.concatenate(rows)
    table = table[(np.abs(table[:, 2]) < np.pi / 6) & (np.abs(table[:, 3]) < 0.5)]
    return table if len(table) else np.zeros((1, 4))


def _unit(vectors: Places) -> Places:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-300))
