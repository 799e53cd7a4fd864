"""Build a scene from photographs: patches around the 3D points of structure from motion.

The patches of a point come from the photographs in which it was detected and matched, and also from
photographs in which it was not, although it is visible according to the geometry. Without the
latter, all positive pairs would be pairs that SIFT matches anyway, from which there is little to
learn.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._util.progress import progress
from .descriptors import describe_patches
from .frames import (
    Frames,
    angle_between,
    corners,
    cut_patches,
    inside,
    move_frames,
    nearest_neighbours,
)
from .images import MAX_PIXELS, list_photos, read_grey
from .reconstruct import RegisteredPhoto, SparseModel, Vectors, read_sparse_model, reconstruct
from .scene import MADE_BY, Scene, read_meta, read_scene, write_scene
from .sheets import Pixels

_SURFACE_NEIGHBOURS = 12  # nearest points used to estimate the surface at a point
_MIN_DETECTED_NEIGHBOURS = 4  # in a photograph where the point itself counts as visible
_MAX_INCIDENCE = np.deg2rad(70)  # between the surface normal and the viewing direction
_MAX_VIEW_CHANGE = np.deg2rad(40)  # between the viewing directions of two photographs
_OCCLUDER_DEPTH = 0.95  # points nearer than this share of a point's depth occlude it
_MIN_SIGMA, _MAX_SIGMA = 1.0, 60.0  # pixels, of an added patch


class _Surface(NamedTuple):
    """The surface at each point: normal, two tangents and the neighbouring points."""

    normal: Vectors
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
    max_pixels: int = MAX_PIXELS,
    random_state: int = 0,
    n_jobs: int | None = None,
    verbose: bool = False,
) -> Scene:
    """Build a scene in the layout of the published data from a folder of photographs.

    Parameters
    ----------
    photos : path
        Folder of photographs of the same objects from different viewpoints. Those that cannot be
        read are skipped; the scene's `meta.json` lists them under "unreadable".
    out : path
        Folder of the scene. COLMAP's files are kept in its subfolder `colmap`, so that an
        interrupted build can be resumed.
    model : path, optional
        Existing COLMAP model (a folder with `images.bin` and so on) to use instead of running
        structure from motion. Requires `database`.
    database : path, optional
        COLMAP database from which that model was made.
    min_photos : int, default=3
        Drop points seen in fewer photographs.
    max_error : float, default=2.0
        Drop points with a larger mean reprojection error, in pixels.
    sheets : {"bmp", "png", "jpg"}, default="bmp"
        File format of the sheets. BMP is the format of the published data; it is memory-mapped.
    max_pixels : int, default=256_000_000
        Skip photographs with more pixels, which could fill the memory.
    random_state : int, default=0
        Seed for the jitter of added patches and for the lists of test pairs.
    n_jobs : int, optional
        Number of threads; by default all cores available to the process.
    verbose : bool, default=False
        Show progress on a terminal.

    Returns
    -------
    scene : Scene

    Raises
    ------
    ValueError
        If the photographs overlap too little, or fewer than three of them are readable.

    Examples
    --------
    >>> from kdiffhash.datasets import build_scene
    >>> scene = build_scene("PHOTOS", "SCENE")  # doctest: +SKIP
    """
    source, target = Path(photos), Path(out)
    if sheets not in ("bmp", "png", "jpg"):
        raise ValueError(f"sheets must be bmp, png or jpg, got {sheets!r}")
    if min_photos < 2 or not max_error > 0:
        raise ValueError(
            "min_photos must be at least 2 and max_error positive, got "
            f"min_photos={min_photos}, max_error={max_error}"
        )
    rng = np.random.default_rng(random_state)
    if target.resolve() == source.resolve():
        raise ValueError(
            f"{target} is the folder of the photographs; choose another folder for the scene"
        )
    if (target / "info.txt").exists() and read_meta(target).get("made_by") != MADE_BY:
        raise ValueError(
            f"{target} holds a scene that kdiffhash did not build; choose another folder"
        )
    if (model is None) != (database is None):
        raise ValueError("model and database must be given together, or neither of them")
    names: list[str] | None = None
    unreadable: dict[str, str] = {}
    if model is None or database is None:
        names, unreadable = _readable_photos(source, max_pixels)
        model, database = reconstruct(
            source, names, target / "colmap", n_jobs=n_jobs, verbose=verbose
        )
    reconstruction = read_sparse_model(
        Path(model), Path(database), min_photos=min_photos, max_error=max_error
    )
    if len(reconstruction.points) < 2 * _SURFACE_NEIGHBOURS:
        raise ValueError(
            f"only {len(reconstruction.points)} points were found in {min_photos} or more photos "
            f"with a reprojection error of at most {max_error} pixels; the photographs overlap too "
            "little or have too little texture"
        )
    added = _undetected_frames(reconstruction, rng)
    cut = []
    with progress(len(reconstruction.photos), "cutting patches", verbose) as advance:
        pairs = zip(reconstruction.photos, added, strict=True)
        for number, (photo, (more_points, more_frames)) in enumerate(pairs):
            image = _read_registered(source / photo.name, photo, max_pixels)
            points = np.concatenate([photo.points, more_points])
            frames = np.concatenate([photo.frames, more_frames])
            complete = np.flatnonzero(inside(corners(frames), image.shape).all(axis=1))
            is_added = complete >= len(photo.points)
            patches = cut_patches(image, frames[complete])
            numbers = np.full(len(complete), number)
            cut.append((points[complete], numbers, is_added, frames[complete], patches))
            advance(1)
    points, numbers, is_added, frames, patches = (
        np.concatenate(columns) for columns in zip(*cut, strict=True)
    )
    order = np.lexsort((numbers, points))
    order = order[np.bincount(points)[points[order]] >= 2]
    if not len(order):
        raise ValueError("no point has two patches that lie entirely inside photographs")
    points = np.unique(points[order], return_inverse=True)[1].astype(np.int64)
    write_scene(
        target,
        patches[order],
        points,
        numbers[order],
        descriptors=describe_patches(patches[order], n_jobs=n_jobs, verbose=verbose),
        frames=frames[order],
        meta={
            "photos": [photo.name for photo in reconstruction.photos],
            "photos_given": len(reconstruction.photos) if names is None else len(names),
            "points": int(points.max()) + 1,
            "patches": len(points),
            "share_added_by_projection": round(float(is_added[order].mean()), 3),
            "unreadable": unreadable,
        },
        sheets=sheets,
        random_state=random_state,
    )
    return read_scene(target)


def _readable_photos(folder: Path, max_pixels: int) -> tuple[list[str], dict[str, str]]:
    """Return the names of the readable photographs in a folder, and why others are not."""
    photos = list_photos(folder, recursive=False)
    names: list[str] = []
    unreadable: dict[str, str] = {}
    for path in photos:
        if path.suffix.lower() == ".webp":  # COLMAP does not read it
            continue
        try:
            read_grey(path, max_pixels=max_pixels)
        except (ValueError, OSError) as error:
            unreadable[path.name] = str(error)
        else:
            names.append(path.name)
    if len(names) < 3:
        why = "".join(f"; {message}" for message in unreadable.values())
        raise ValueError(
            f"{folder} has {len(names)} readable photographs (.jpg, .png, .tif or .bmp, not "
            "counting subfolders); at least 3 photographs of the same objects from different "
            f"viewpoints are needed{why}"
        )
    return names, unreadable


def _read_registered(path: Path, photo: RegisteredPhoto, max_pixels: int) -> Pixels:
    """Read a photograph; raise if its size is not that of its camera in the model."""
    pixels = read_grey(path, max_pixels=max_pixels)
    expected = (photo.camera.height, photo.camera.width)
    if pixels.shape != expected:
        raise ValueError(
            f"{path} has {pixels.shape[1]} x {pixels.shape[0]} pixels, but its camera in the model "
            f"has {expected[1]} x {expected[0]}; use the photographs from which the model was made"
        )
    return pixels


def _undetected_frames(
    model: SparseModel, rng: np.random.Generator
) -> list[tuple[NDArray[np.int64], Frames]]:
    """Return, for each photograph, the points visible but not detected in it, and their frames.

    A frame is transferred from that photograph in which the point was detected whose viewing
    direction is most similar. Detected keypoints deviate from such predictions. Deviations sampled
    from those of detected keypoints are added, so that detected and added patches look alike.
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
        jittered = frames[rows] + np.column_stack([x * sigma, y * sigma, turn, 0 * turn])
        jittered[:, 3] *= 2**growth
        out.append((rows, jittered))
    return out


def _find_surface(model: SparseModel) -> _Surface:
    """Estimate normals from nearby points, or as the mean viewing direction if not planar."""
    xyz = model.points
    near = nearest_neighbours(xyz, xyz, _SURFACE_NEIGHBOURS + 1)[1][:, 1:]
    sight = np.zeros_like(xyz)
    for photo in model.photos:
        sight[photo.points] += _unit(photo.centre - xyz[photo.points])
    sight = _unit(sight)
    spread = xyz[near] - xyz[near].mean(axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(np.einsum("nki,nkj->nij", spread, spread))
    normal = vectors[:, :, 0]
    along = np.einsum("ni,ni->n", normal, sight)
    normal = normal * np.sign(along)[:, None]
    flat = (values[:, 0] < 0.1 * values[:, 1]) & (np.abs(along) > 0.5)
    normal = np.where(flat[:, None], normal, sight)
    helper = np.eye(3)[np.abs(normal).argmin(axis=1)]
    first = _unit(np.cross(normal, helper))
    return _Surface(normal, np.stack([first, np.cross(normal, first)], axis=2), near)


def _predict(
    model: SparseModel, number: int, surface: _Surface
) -> tuple[Frames, NDArray[np.bool_]]:
    """Transfer frames from other photographs to one; return them and the visibility of points."""
    photo, xyz = model.photos[number], model.points
    reference, reference_frame, turn = _nearest_view(model, number)
    ahead = photo.depth(xyz) > 0
    usable = ahead & (reference >= 0)
    frames = np.full((len(xyz), 4), np.nan)
    here = np.flatnonzero(usable)
    step = np.zeros((len(xyz), 2, 2))
    step[here] = _projection_derivative(photo, xyz[here], surface.tangent[here])
    for other_number in np.unique(reference[here]).tolist():
        other = model.photos[other_number]
        mine = here[reference[here] == other_number]
        there = _projection_derivative(other, xyz[mine], surface.tangent[mine])
        good = np.abs(np.linalg.det(there)) > 1e-12
        usable[mine[~good]] = False
        mine, there = mine[good], there[good]
        jacobians = step[mine] @ np.linalg.inv(there)
        frames[mine] = move_frames(reference_frame[mine], photo.project(xyz[mine]), jacobians)
    here = np.flatnonzero(usable)
    visible = np.zeros(len(xyz), bool)
    visible[here] = _is_visible(model, number, surface, frames, here, turn)
    return frames, visible


def _nearest_view(
    model: SparseModel, number: int
) -> tuple[NDArray[np.int64], Frames, NDArray[np.float64]]:
    """Find the other photograph with the most similar viewing direction, for each point.

    Returns the index of that photograph (-1 if there is none), the frame in it and the angle
    between the viewing directions.
    """
    xyz, own = model.points, model.photos[number]
    sight = _unit(own.centre - xyz)
    reference = np.full(len(xyz), -1)
    frame = np.zeros((len(xyz), 4))
    best = np.full(len(xyz), np.inf)
    for other_number, other in enumerate(model.photos):
        if other_number == number:
            continue
        rows = other.points
        cosine = np.einsum("ni,ni->n", _unit(other.centre - xyz[rows]), sight[rows])
        angle = np.arccos(np.clip(cosine, -1, 1))
        closer = angle < best[rows]
        reference[rows[closer]] = other_number
        frame[rows[closer]] = other.frames[closer]
        best[rows[closer]] = angle[closer]
    return reference, frame, best


def _is_visible(
    model: SparseModel,
    number: int,
    surface: _Surface,
    frames: Frames,
    rows: NDArray[np.int64],
    turn: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Return which points face the camera, have detected neighbours and are not occluded."""
    photo, xyz = model.photos[number], model.points
    sight = _unit(photo.centre - xyz[rows])
    visible = np.einsum("ni,ni->n", sight, surface.normal[rows]) > np.cos(_MAX_INCIDENCE)
    visible &= turn[rows] < _MAX_VIEW_CHANGE
    size = frames[rows, 3]
    visible &= (size >= _MIN_SIGMA) & (size <= _MAX_SIGMA)
    shape = (photo.camera.height, photo.camera.width)
    visible &= inside(corners(frames[rows]), shape).all(axis=1)
    seen = np.zeros(len(xyz), bool)
    seen[photo.points] = True
    visible &= seen[surface.neighbours[rows]].sum(axis=1) >= _MIN_DETECTED_NEIGHBOURS
    if len(photo.points):
        _, near = nearest_neighbours(photo.frames[:, :2], np.nan_to_num(frames[rows, :2]), 6)
        around = photo.depth(xyz[photo.points])[near]
        in_front = around < _OCCLUDER_DEPTH * photo.depth(xyz[rows])[:, None]
        visible &= in_front.mean(axis=1) < 0.34
    return np.asarray(visible)


def _projection_derivative(
    photo: RegisteredPhoto, xyz: Vectors, tangent: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the derivative of pixel positions along the surface, shape (n, 2, 2)."""
    step = 1e-4 * np.abs(photo.depth(xyz))[:, None]
    offsets = [step * tangent[:, :, axis] for axis in (0, 1)]
    ends = [(photo.project(xyz + one), photo.project(xyz - one)) for one in offsets]
    return np.stack([(after - before) / 2 / step for after, before in ends], axis=2)


def _residuals(
    model: SparseModel, predictions: list[tuple[Frames, NDArray[np.bool_]]]
) -> NDArray[np.float64]:
    """Return the errors of predicted frames: offset in sigma, angle, scale in octaves."""
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


def _unit(vectors: Vectors) -> Vectors:
    """Scale vectors to length 1."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-300))
