"""The embedded set: images from the scikit-image and scikit-learn wheels, warped to new viewpoints.

Each image is warped by random homographies; blur, changes of lighting and noise are added.
Keypoints are detected in every view, and those that correspond geometrically become patches of the
same point. Descriptors are not used for this. **These changes of viewpoint are synthetic**: images
are planar and nothing is occluded. The exception is the Middlebury motorcycle, a stereo pair with
ground-truth disparity.

Images with repetitive texture (stars, printed text, grass, bricks) are left out, because different
points of them look the same. Images with few keypoints are left out too.
"""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from .._util.extras import need
from .._util.files import cache_folder, make_cache_folder, sync_folder
from .._util.progress import progress
from .._util.threads import run
from .descriptors import describe_patches
from .frames import (
    Frames,
    angle_between,
    corners,
    cut_patches,
    detect_frames,
    inside,
    move_frames,
    nearest_neighbours,
)
from .images import read_grey
from .scene import Scene, read_scene, write_scene
from .sheets import Pixels

RECIPE_VERSION = 1  # part of the name of the cache folder
TRAIN = (
    "astronaut.png",
    "camera.png",
    "chelsea.png",
    "coffee.png",
    "gravel.png",
    "ihc.png",
    "retina.jpg",
)
TEST = ("china.jpg", "coins.png", "flower.jpg", "rocket.jpg", "motorcycle_left.png")

_N_VIEWS = 24
_MAX_POINTS = 1000  # per image
_MIN_PATCHES, _MAX_PATCHES = 2, 9  # per point
_MIN_SIGMA = 1.6  # smaller keypoints cover too few pixels


class Views(NamedTuple):
    """The two scenes of the embedded set; they share no image.

    Attributes
    ----------
    train : Scene
        Scene for training.
    test : Scene
        Scene for testing.

    Examples
    --------
    >>> from kdiffhash.datasets import Views
    >>> Views._fields
    ('train', 'test')
    """

    train: Scene
    test: Scene


class _Patches(NamedTuple):
    """Patches with the point, photo and frame of each."""

    patches: Pixels
    points: NDArray[np.int64]
    photos: NDArray[np.int64]
    frames: Frames


def load_views(*, n_jobs: int | None = None, verbose: bool = False) -> Views:
    """Load the embedded set: more than 20,000 patches of real images that need no download.

    The set is made on first use, which takes about half a minute, and stored in the cache folder
    (KDIFFHASH_CACHE). The changes of viewpoint are synthetic, except for the motorcycle, a stereo
    pair with ground-truth disparity.

    Parameters
    ----------
    n_jobs : int, optional
        Number of threads; by default all cores available to the process.
    verbose : bool, default=False
        Show a progress bar on a terminal.

    Returns
    -------
    train, test : Scene
        Two scenes that share no image. Each photo id stands for one view of one image.

    Examples
    --------
    >>> from kdiffhash import load_views
    >>> train, test = load_views()  # doctest: +SKIP
    >>> train.patches.shape[1:]  # doctest: +SKIP
    (64, 64)
    """
    folder = cache_folder() / f"views-{RECIPE_VERSION}"
    if not _is_complete(folder):  # a cache with the complete set may be read-only
        _make_views(folder, n_jobs, verbose)
    return Views(read_scene(folder / "views-train"), read_scene(folder / "views-test"))


def _make_views(folder: Path, n_jobs: int | None, verbose: bool) -> None:
    """Make the set in one process, while others wait for it."""
    make_cache_folder()
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not _is_complete(folder):
            unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
            try:
                with progress(
                    len(TRAIN) + len(TEST), "making the embedded set", verbose
                ) as advance:
                    _write_views_scene(unfinished / "views-train", TRAIN, n_jobs, advance)
                    _write_views_scene(unfinished / "views-test", TEST, n_jobs, advance)
                shutil.rmtree(folder, ignore_errors=True)
                unfinished.rename(folder)
                sync_folder(folder.parent)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)


def _is_complete(folder: Path) -> bool:
    """Return whether the set exists and is complete; an incomplete one is made again."""
    try:
        return all(len(read_scene(folder / f"views-{name}").patches) for name in ("train", "test"))
    except (OSError, ValueError):
        return False


def _write_views_scene(
    folder: Path, names: tuple[str, ...], n_jobs: int | None, advance: Callable[[int], None]
) -> None:
    """Write the scene made from some of the images."""
    made: dict[str, _Patches] = {}

    def make(name: str) -> None:
        made[name] = _views_of(
            name, np.random.default_rng([RECIPE_VERSION, zlib.crc32(name.encode())])
        )
        advance(1)

    run([partial(make, name) for name in names], n_jobs)
    images = [made[name] for name in names]
    n_points = np.cumsum([0, *(one.points.max() + 1 for one in images)])
    n_photos = _N_VIEWS * np.arange(len(images))
    patches = np.concatenate([one.patches for one in images])
    sources = [
        {
            "file": name,
            "source": _source_path(name).parent.parent.name,
            "photos": [i, i + _N_VIEWS - 1],
        }
        for name, i in zip(names, n_photos.tolist())
    ]
    write_scene(
        folder,
        patches,
        np.concatenate([one.points + n for one, n in zip(images, n_points)]),
        np.concatenate([one.photos + n for one, n in zip(images, n_photos)]),
        descriptors=describe_patches(patches, n_jobs=n_jobs),
        frames=np.concatenate([one.frames for one in images]),
        meta={"views": RECIPE_VERSION, "pictures": sources},
    )


def _source_path(name: str) -> Path:
    """Return the path of an image in the installed packages."""
    module = "sklearn.datasets" if name in ("china.jpg", "flower.jpg") else "skimage"
    root = Path(need(module, "vision").__file__).parent
    return root / ("images" if module == "sklearn.datasets" else "data") / name


def _read_source(name: str) -> Pixels:
    """Read a source image in grey."""
    image = read_grey(_source_path(name))
    # The retina image is oversampled by two.
    return need("cv2", "vision").pyrDown(image) if max(image.shape) > 1000 else image


def _views_of(name: str, rng: np.random.Generator) -> _Patches:
    """Make the patches of one image; its points are keypoints that are detected again in views."""
    original = _read_source(name)
    points = _distinct(detect_frames(original))
    sources = [(original, points, np.ones(len(points), bool))]
    if name == "motorcycle_left.png":
        sources.append((_read_source("motorcycle_right.png"), *_in_right_image(points)))
    seen = []
    for number in range(_N_VIEWS):
        source, expected, visible = sources[number % len(sources)]
        unchanged = number < len(sources)
        H = np.eye(3) if unchanged else _random_homography(source.shape, rng)
        image = source if unchanged else _render(source, H, rng)
        which, found = _find_points(
            expected, visible, detect_frames(image), H, source.shape, image.shape
        )
        seen.append((which, np.full(len(which), number), found, cut_patches(image, found)))
    point, photo, frame, patch = (np.concatenate(columns) for columns in zip(*seen, strict=True))
    keep = _sample_patches(point, rng)
    new_ids = np.unique(point[keep], return_inverse=True)[1].astype(np.int64)
    order = np.lexsort((photo[keep], new_ids))
    return _Patches(patch[keep][order], new_ids[order], photo[keep][order], frame[keep][order])


def _distinct(frames: Frames) -> Frames:
    """Drop keypoints whose patch largely overlaps that of a stronger one."""
    frames = frames[frames[:, 3] >= _MIN_SIGMA]
    gap, near = nearest_neighbours(frames[:, :2], frames[:, :2], min(40, len(frames)))
    covers = (gap < 2 * frames[:, 3:]) & (np.abs(np.log2(frames[near, 3] / frames[:, 3:])) < 1)
    is_distinct = np.ones(len(frames), bool)
    for i in range(len(frames)):
        if is_distinct[i]:
            covered = near[i, covers[i]]
            is_distinct[covered[covered > i]] = False
    return frames[is_distinct]


def _in_right_image(points: Frames) -> tuple[Frames, NDArray[np.bool_]]:
    """Map points of the left motorcycle image to the right one; return which are visible there."""
    with np.load(_source_path("motorcycle_disp.npz"), allow_pickle=False) as file:
        disparity = file["arr_0"].astype(np.float64)
    height, width = disparity.shape
    x, y = np.round(points[:, :2]).astype(int).T
    shift = disparity[y, x]
    known = np.isfinite(shift)
    moved = points.copy()
    moved[:, 0] -= np.where(known, shift, 0)
    # The nearest surface (largest disparity) at each pixel of the right image.
    rows, columns = np.nonzero(np.isfinite(disparity))
    values = disparity[rows, columns]
    target = np.round(columns - values).astype(int)
    reached = target >= 0
    surface = np.zeros((height, width))
    np.maximum.at(surface, (rows[reached], target[reached]), values[reached])
    column = np.clip(np.round(moved[:, 0]).astype(int), 0, width - 1)
    return moved, known & (moved[:, 0] >= 0) & (np.abs(surface[y, column] - shift) < 1)


def _random_homography(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the homography of a tilted plane seen by a rotated and translated camera."""
    from scipy.spatial.transform import Rotation

    height, width = shape
    f = 1.2 * max(height, width)
    tilt, azimuth = np.deg2rad(rng.uniform(30, 68)), rng.uniform(0, 2 * np.pi)
    turn, scale = np.deg2rad(rng.uniform(-40, 40)), 2 ** rng.uniform(-0.6, 0.4)
    about = Rotation.from_euler("ZXZ", [azimuth, tilt, turn - azimuth]).as_matrix()
    distance = f / scale
    to_camera = np.column_stack([about[:, 0], about[:, 1], [0, 0, distance]])
    K = np.array([[f, 0, width / 2], [0, f, height / 2], [0, 0, 1]])
    centre = np.array([[1, 0, -width / 2], [0, 1, -height / 2], [0, 0, 1]])
    H = K @ to_camera @ centre
    return np.asarray(H / H[2, 2])


def _render(source: Pixels, H: NDArray[np.float64], rng: np.random.Generator) -> Pixels:
    """Render a view: homography, blur, lighting and sensor noise."""
    cv2 = need("cv2", "vision")
    height, width = source.shape
    # Supersampled, to avoid aliasing where the view is reduced.
    double = np.array([[2, 0, 0.5], [0, 2, 0.5], [0, 0, 1]])
    large = cv2.warpPerspective(source, double @ H, (2 * width, 2 * height))
    image = cv2.resize(large, (width, height), interpolation=cv2.INTER_AREA) / np.float32(255)
    image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.3, 1.6))
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    direction = rng.uniform(0, 2 * np.pi)
    slope = 1 + rng.uniform(0, 0.5) * (x * np.cos(direction) + y * np.sin(direction))
    image = np.clip(image * slope, 0, None) ** (2 ** rng.uniform(-0.8, 0.8))
    image = image * rng.uniform(0.6, 1.2) + rng.uniform(-0.08, 0.08)
    image += rng.normal(size=image.shape) * rng.uniform(0, 0.05)
    return np.asarray(np.clip(image * 255, 0, 255).astype(np.uint8))


def _apply_homography(
    H: NDArray[np.float64], positions: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Map positions by a homography."""
    mapped = positions @ H[:, :2].T + H[:, 2]
    return np.asarray(mapped[..., :2] / mapped[..., 2:])


def _homography_derivative(
    H: NDArray[np.float64], positions: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the 2 x 2 derivatives of a homography at some positions."""
    w = (positions @ H[2, :2] + H[2, 2])[:, None, None]
    return np.asarray(
        (H[None, :2, :2] - _apply_homography(H, positions)[:, :, None] * H[None, None, 2, :2]) / w
    )


def _find_points(
    expected: Frames,
    visible: NDArray[np.bool_],
    detected: Frames,
    H: NDArray[np.float64],
    source_shape: tuple[int, ...],
    shape: tuple[int, ...],
) -> tuple[NDArray[np.int64], Frames]:
    """Find the expected points among the keypoints of a view; return their indices and frames."""
    back = np.asarray(np.linalg.inv(H), np.float64)
    outline = corners(detected)
    complete = inside(outline, shape).all(axis=1)
    complete &= inside(_apply_homography(back, outline), source_shape).all(axis=1)
    detected = detected[complete]
    positions = detected[:, :2]
    in_source = move_frames(
        detected, _apply_homography(back, positions), _homography_derivative(back, positions)
    )
    if not len(detected):
        return np.empty(0, np.int64), detected
    points = np.flatnonzero(visible)
    targets = expected[points, None]  # (n, 1, 4), against the ten nearest keypoints
    gap, near = nearest_neighbours(in_source[:, :2], targets[:, 0, :2], 10)
    nearby = in_source[near]
    fits = gap < np.maximum(1.5, 1.2 * targets[:, :, 3])
    fits &= np.abs(np.log2(nearby[:, :, 3] / targets[:, :, 3])) < 0.5
    fits &= np.abs(angle_between(targets[:, :, 2], nearby[:, :, 2])) < np.pi / 6
    matched = fits.any(axis=1)
    chosen = near[matched, fits[matched].argmax(axis=1)]
    return points[matched], detected[chosen]


def _sample_patches(point: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Sample points that have enough patches, and patches of each; return row indices."""
    shuffled = rng.permutation(len(point))
    order = shuffled[np.argsort(point[shuffled], kind="stable")]
    sizes = np.bincount(point)
    rank = np.arange(len(point)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    enough = np.flatnonzero(sizes >= _MIN_PATCHES)
    is_sampled = np.zeros(len(sizes), bool)
    is_sampled[rng.permutation(enough)[:_MAX_POINTS]] = True
    return order[is_sampled[point[order]] & (rank < _MAX_PATCHES)]
