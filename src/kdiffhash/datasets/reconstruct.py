"""Structure from motion with COLMAP: cameras, 3D points and keypoints from photographs.

Every step stores its result in the working folder and is skipped if the result exists, so that an
interrupted run can be resumed.
"""

from __future__ import annotations

import copy
import json
import shutil
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.extras import need
from .._util.files import replacing, sync_files, sync_folder
from .._util.progress import waiting
from .._util.threads import n_threads
from .frames import Frames

Vectors = NDArray[np.float64]


@dataclass(frozen=True)
class RegisteredPhoto:
    """A photograph with its camera and the keypoints that belong to 3D points of the model."""

    name: str
    camera: Any
    rotation: Vectors  # world to camera
    translation: Vectors
    frames: Frames
    points: NDArray[np.int64]  # index into SparseModel.points for each frame

    @property
    def centre(self) -> Vectors:
        """Camera centre in world coordinates."""
        return np.asarray(-self.rotation.T @ self.translation)

    def depth(self, xyz: Vectors) -> Vectors:
        """Return the depth of points along the viewing direction; negative behind the camera."""
        return np.asarray(xyz @ self.rotation[2] + self.translation[2])

    def project(self, xyz: Vectors) -> Vectors:
        """Project points to pixels; (0, 0) is the centre of the first pixel."""
        in_camera = xyz.reshape(-1, 3) @ self.rotation.T + self.translation
        pixels = self.camera.img_from_cam(in_camera) - 0.5
        return np.asarray(pixels).reshape(*xyz.shape[:-1], 2)


@dataclass(frozen=True)
class SparseModel:
    """The reliable 3D points of a COLMAP model, and its registered photographs."""

    photos: list[RegisteredPhoto]
    points: Vectors


def reconstruct(
    photos: Path, names: list[str], work: Path, *, n_jobs: int | None, verbose: bool
) -> tuple[Path, Path]:
    """Run structure from motion; return the folder of the largest model and its database."""
    pycolmap = need("pycolmap", "colmap")
    work.mkdir(parents=True, exist_ok=True)
    database, sparse = work / "database.db", work / "sparse"
    _check_same_photos(photos, names, work)
    threads = n_threads(n_jobs)
    if not sparse.is_dir():
        unfinished = work / "sparse.part"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        options = pycolmap.IncrementalPipelineOptions()
        options.num_threads, options.random_seed = threads, 0
        options.min_model_size = 3
        try:
            with _quiet_log(pycolmap):
                _extract_and_match(pycolmap, photos, names, database, threads, verbose)
                with waiting("registering photographs", verbose):
                    pycolmap.incremental_mapping(database, photos, unfinished, options)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(
                f"COLMAP failed: {error}. Remove {work} to start again from the photographs"
            ) from error
        sync_files(unfinished)
        unfinished.rename(sparse)
        sync_folder(sparse.parent)
    models = sorted(path for path in sparse.iterdir() if path.is_dir())
    if not models:
        raise ValueError(
            f"the photographs in {photos} do not overlap enough: COLMAP could not register three "
            "of them. Take more photographs of the same objects, from viewpoints closer together"
        )
    sizes = {path: _open_model(path).num_reg_images() for path in models}
    return max(models, key=lambda path: (sizes[path], path.name)), database


def _open_model(model: Path) -> Any:
    """Open a COLMAP model."""
    pycolmap = need("pycolmap", "colmap")
    if not model.is_dir():
        raise FileNotFoundError(f"{model} is not a folder with a COLMAP model")
    _check_points(model / "points3D.bin")
    with _quiet_log(pycolmap):
        try:
            return pycolmap.Reconstruction(model)
        except (ValueError, RuntimeError, IndexError, MemoryError) as error:
            raise ValueError(f"{model} is not a complete COLMAP model: {error}") from error


def _check_points(path: Path) -> None:
    """Raise if the file of points is truncated, in which case COLMAP would loop forever."""
    if not path.is_file():
        return  # a model may be stored as text files
    content = path.read_bytes()
    try:
        (n_points,) = struct.unpack_from("<Q", content)
        end = 8
        for _ in range(n_points):
            (length,) = struct.unpack_from("<Q", content, end + 43)
            end += 51 + 8 * length
    except struct.error:
        end = len(content) + 1
    if end > len(content):
        raise ValueError(f"{path} is truncated")


def read_sparse_model(
    model: Path, database: Path, *, min_photos: int, max_error: float
) -> SparseModel:
    """Read a COLMAP model, without points that have few observations or a large error."""
    if not database.is_file():
        raise FileNotFoundError(f"{database} is not a COLMAP database: no such file")
    reconstruction = _open_model(model)
    positions: list[Vectors] = []
    observations: dict[int, list[tuple[int, int]]] = {}
    for _, point in sorted(reconstruction.points3D.items(), key=lambda item: int(item[0])):
        track = [(e.image_id, e.point2D_idx) for e in point.track.elements]
        if point.error <= max_error and len(dict(track)) >= min_photos:
            for image_id, keypoint in track:
                observations.setdefault(image_id, []).append((len(positions), keypoint))
            positions.append(np.array(point.xyz))
    xyz, photos = np.array(positions).reshape(-1, 3), []
    images = [reconstruction.images[i] for i in reconstruction.reg_image_ids()]
    for image in sorted(images, key=lambda image: image.name):
        rows, keypoints = np.array(observations.get(image.image_id, []), np.int64).reshape(-1, 2).T
        pose = image.cam_from_world()
        photo = RegisteredPhoto(
            image.name,
            copy.deepcopy(image.camera),  # the original is freed with the reconstruction
            np.asarray(pose.rotation.matrix()),
            np.asarray(pose.translation),
            _read_frames(database, image.name, keypoints),
            rows,
        )
        photos.append(_one_frame_per_point(photo, xyz))
    return SparseModel(photos, xyz)


def _one_frame_per_point(photo: RegisteredPhoto, xyz: Vectors) -> RegisteredPhoto:
    """Keep one keypoint per point and photograph, the one nearest to its projection."""
    if not len(photo.points):
        return photo
    gap = np.linalg.norm(photo.project(xyz[photo.points]) - photo.frames[:, :2], axis=1)
    order = np.lexsort((gap, photo.points))
    keep = order[np.unique(photo.points[order], return_index=True)[1]]
    return replace(photo, frames=photo.frames[keep], points=photo.points[keep])


def _read_frames(database: Path, name: str, keypoints: NDArray[np.int64]) -> Frames:
    """Compute the frames of some keypoints from their positions and affine shapes in a database."""
    try:
        uri = f"{database.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            row = connection.execute(
                "SELECT k.rows, k.cols, k.data FROM keypoints k JOIN images i USING (image_id) "
                "WHERE i.name = ?",
                (name,),
            ).fetchone()
    except sqlite3.Error as error:
        raise ValueError(f"{database} is not a COLMAP database: {error}") from error
    if row is None:
        raise ValueError(f"{database} has no keypoints of {name}; it does not belong to the model")
    n_rows, n_columns, content = row
    if len(content) != 4 * n_rows * n_columns or (len(keypoints) and keypoints.max() >= n_rows):
        raise ValueError(f"{database}: the keypoints of {name} do not match the model")
    if n_columns not in (4, 6):
        raise ValueError(
            f"{database}: the keypoints of {name} have no scale and orientation ({n_columns} "
            "columns), so patches cannot be cut; extract them with COLMAP's SIFT"
        )
    table = np.frombuffer(content, np.float32).reshape(n_rows, n_columns)[keypoints]
    table = table.astype(np.float64)
    position = table[:, :2] - 0.5  # COLMAP's origin is the corner of the first pixel
    if n_columns == 4:
        return np.column_stack([position, table[:, 3], table[:, 2]])
    a11, a12, a21, a22 = table[:, 2:].T
    size = np.sqrt(np.abs(a11 * a22 - a12 * a21))
    return np.column_stack([position, np.arctan2(a21, a11), size])


def _extract_and_match(
    pycolmap: Any, photos: Path, names: list[str], database: Path, threads: int, verbose: bool
) -> None:
    """Detect keypoints and match all pairs of photographs, on the CPU."""
    extraction = pycolmap.FeatureExtractionOptions()
    matching = pycolmap.FeatureMatchingOptions()
    extraction.num_threads = matching.num_threads = threads
    extraction.use_gpu = matching.use_gpu = False
    mode = pycolmap.CameraMode.SINGLE if _one_camera(photos, names) else pycolmap.CameraMode.AUTO
    pycolmap.set_random_seed(0)
    with waiting(f"detecting keypoints in {len(names)} photographs", verbose):
        pycolmap.extract_features(
            database, photos, names, camera_mode=mode, extraction_options=extraction
        )
    n_pairs = len(names) * (len(names) - 1) // 2
    with waiting(f"matching {n_pairs} pairs of photographs", verbose):
        pycolmap.match_exhaustive(database, matching)


def _one_camera(photos: Path, names: list[str]) -> bool:
    """Return whether all photographs have the same size and EXIF camera and focal length."""
    image_module = need("PIL.Image", "vision")
    kinds = set()
    for name in names:
        with image_module.open(photos / name) as image:
            exif = image.getexif()
            detail = exif.get_ifd(0x8769)
            kinds.add((image.size, exif.get(271), exif.get(272), str(detail.get(37386))))
    return len(kinds) == 1


def _check_same_photos(photos: Path, names: list[str], work: Path) -> None:
    """Raise if the working folder was made from other photographs."""
    sizes = {name: (photos / name).stat().st_size for name in names}
    record = work / "photos.json"
    if not record.exists():
        with replacing(record) as temporary:
            temporary.write_text(json.dumps(sizes, indent=1) + "\n")
        return
    try:
        known = json.loads(record.read_text())
    except ValueError as error:
        raise ValueError(f"{record} is damaged ({error}); remove {work} to start again") from error
    if known != sizes:
        raise ValueError(
            f"{work} was made from other photographs than those in {photos}; choose another output "
            "folder, or remove this one"
        )


@contextmanager
def _quiet_log(pycolmap: Any) -> Iterator[None]:
    """Suppress COLMAP's log on the terminal."""
    before = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = pycolmap.logging.Level.FATAL.value
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = before
