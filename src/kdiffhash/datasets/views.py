"""The embedded set: pictures from the scikit-image and scikit-learn wheels, seen anew.

Each picture is seen through random homographies, blur, noise and lighting. Keypoints are detected
again in every view, and those that fall together by geometry show one point; descriptors take no
part in it. **These changes of viewpoint are synthetic**: flat pictures, no occlusion. One picture
is more than that, the Middlebury motorcycle: a stereo pair whose true disparity tells which places
belong together.

Left out are pictures whose parts look alike (stars, printed text, grass, bricks), since different
points would then be falsely told to be different things, and pictures with next to no keypoints.
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

from ..extras import need
from ..parallel import run
from ..progress import progress
from .descriptors import describe_patches
from .frames import (
    Frames,
    angle_between,
    corners,
    cut_patches,
    detect_frames,
    inside,
    move_frames,
    nearest,
)
from .pictures import read_grey
from .scene import Scene, cache_folder, load_scene, write_scene
from .sheets import Pixels

VERSION = 1  # of the recipe; another one is kept in another folder
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
_MAX_POINTS = 1000  # of one picture
_MIN_SEEN, _MAX_SEEN = 2, 9  # patches of one point
_SMALLEST = 1.6  # sigma; smaller keypoints have patches of very few pixels


class Views(NamedTuple):
    """The two halves of the embedded set; they share no picture."""

    train: Scene
    test: Scene


class _Patches(NamedTuple):
    patches: Pixels
    points: NDArray[np.int64]
    photos: NDArray[np.int64]
    frames: Frames


def load_views(*, n_jobs: int | None = None, verbose: bool = False) -> Views:
    """The embedded set: real pictures in new views, more than 20,000 patches, no download.

    It is made when it is first asked for, which takes about half a minute, and kept in the cache
    folder (set KDIFFHASH_CACHE to choose it). Except for the motorcycle, a stereo pair with true
    disparity, the changes of viewpoint are synthetic; see `kdiffhash.datasets.views`.

    Returns
    -------
    train, test : Scene
        Scenes that share no picture; a `photo` of theirs is one view of one picture.
    """
    folder = cache_folder() / f"views-{VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):  # others wait and then find it made
        if not _is_whole(folder):
            unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
            try:
                with progress(
                    len(TRAIN) + len(TEST), "making the embedded set", verbose
                ) as advance:
                    _write_part(unfinished / "views-train", TRAIN, n_jobs, advance)
                    _write_part(unfinished / "views-test", TEST, n_jobs, advance)
                shutil.rmtree(folder, ignore_errors=True)
                unfinished.rename(folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return Views(load_scene(folder / "views-train"), load_scene(folder / "views-test"))


def _is_whole(folder: Path) -> bool:
    """Whether the set is there; one that was damaged is made again."""
    try:
        return all(len(load_scene(folder / f"views-{part}").patches) for part in ("train", "test"))
    except (OSError, ValueError):
        return False


def _write_part(
    folder: Path, names: tuple[str, ...], n_jobs: int | None, advance: Callable[[int], None]
) -> None:
    made: dict[str, _Patches] = {}

    def make(name: str) -> None:
        made[name] = _views_of(name, np.random.default_rng([VERSION, zlib.crc32(name.encode())]))
        advance(1)

    run([partial(make, name) for name in names], n_jobs)
    parts = [made[name] for name in names]
    n_points = np.cumsum([0, *(part.points.max() + 1 for part in parts)])
    n_photos = _N_VIEWS * np.arange(len(parts))
    patches = np.concatenate([part.patches for part in parts])
    pictures = [
        {"file": name, "source": _source(name).parent.parent.name, "photos": [i, i + _N_VIEWS - 1]}
        for name, i in zip(names, n_photos.tolist())
    ]
    write_scene(
        folder,
        patches,
        np.concatenate([part.points + n for part, n in zip(parts, n_points)]),
        np.concatenate([part.photos + n for part, n in zip(parts, n_photos)]),
        descriptors=describe_patches(patches, n_jobs=n_jobs),
        frames=np.concatenate([part.frames for part in parts]),
        meta={"views": VERSION, "pictures": pictures},
    )


def _source(name: str) -> Path:
    module = "sklearn.datasets" if name in ("china.jpg", "flower.jpg") else "skimage"
    root = Path(need(module, "vision").__file__).parent
    return root / ("images" if module == "sklearn.datasets" else "data") / name


def _read(name: str) -> Pixels:
    picture = read_grey(_source(name))
    # The retina's picture is twice as large as its details.
    return need("cv2", "vision").pyrDown(picture) if max(picture.shape) > 1000 else picture


def _views_of(name: str, rng: np.random.Generator) -> _Patches:
    """The patches of one picture: points are keypoints of the picture that views show again."""
    picture = _read(name)
    points = _distinct(detect_frames(picture))
    sources = [(picture, points, np.ones(len(points), bool))]
    if name == "motorcycle_left.png":
        sources.append((_read("motorcycle_right.png"), *_in_right_picture(points)))
    seen = []
    for number in range(_N_VIEWS):
        source, expected, visible = sources[number % len(sources)]
        as_it_is = number < len(sources)
        H = np.eye(3) if as_it_is else _random_homography(source.shape, rng)
        image = source if as_it_is else _look(source, H, rng)
        which, found = _match(expected, visible, detect_frames(image), H, source.shape, image.shape)
        seen.append((which, np.full(len(which), number), found, cut_patches(image, found)))
    point, photo, frame, patch = (np.concatenate(parts) for parts in zip(*seen, strict=True))
    keep = _choose(point, rng)
    new_ids = np.unique(point[keep], return_inverse=True)[1].astype(np.int64)
    order = np.lexsort((photo[keep], new_ids))
    return _Patches(patch[keep][order], new_ids[order], photo[keep][order], frame[keep][order])


def _distinct(frames: Frames) -> Frames:
    """Keypoints, strongest first, without those whose patch overlaps largely with a kept one's."""
    frames = frames[frames[:, 3] >= _SMALLEST]
    gap, near = nearest(frames[:, :2], frames[:, :2], min(40, len(frames)))
    covers = (gap < 2 * frames[:, 3:]) & (np.abs(np.log2(frames[near, 3] / frames[:, 3:])) < 1)
    kept = np.ones(len(frames), bool)
    for i in range(len(frames)):
        if kept[i]:
            others = near[i, covers[i]]
            kept[others[others > i]] = False
    return frames[kept]


def _in_right_picture(points: Frames) -> tuple[Frames, NDArray[np.bool_]]:
    """Where the points of the motorcycle's left picture lie in the right one, and are visible."""
    with np.load(_source("motorcycle_disp.npz"), allow_pickle=False) as file:
        disparity = file["arr_0"].astype(np.float64)
    height, width = disparity.shape
    x, y = np.round(points[:, :2]).astype(int).T
    shift = disparity[y, x]
    known = np.isfinite(shift)
    moved = points.copy()
    moved[:, 0] -= np.where(known, shift, 0)
    # The nearest surface (largest disparity) that reaches each pixel of the right picture.
    rows, columns = np.nonzero(np.isfinite(disparity))
    values = disparity[rows, columns]
    target = np.round(columns - values).astype(int)
    reached = target >= 0
    surface = np.zeros((height, width))
    np.maximum.at(surface, (rows[reached], target[reached]), values[reached])
    column = np.clip(np.round(moved[:, 0]).astype(int), 0, width - 1)
    return moved, known & (moved[:, 0] >= 0) & (np.abs(surface[y, column] - shift) < 1)


def _random_homography(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float64]:
    """A tilted plane seen by a turned and moved camera."""
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


def _look(source: Pixels, H: NDArray[np.float64], rng: np.random.Generator) -> Pixels:
    """The picture through a homography, a lens, another light and a sensor."""
    cv2 = need("cv2", "vision")
    height, width = source.shape
    # Twice as large and then halved, so that what is far away is averaged and does not flicker.
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


def _apply(H: NDArray[np.float64], places: NDArray[np.float64]) -> NDArray[np.float64]:
    mapped = places @ H[:, :2].T + H[:, 2]
    return np.asarray(mapped[..., :2] / mapped[..., 2:])


def _derivative(H: NDArray[np.float64], places: NDArray[np.float64]) -> NDArray[np.float64]:
    """The 2 x 2 derivatives of a homography at places."""
    w = (places @ H[2, :2] + H[2, 2])[:, None, None]
    return np.asarray((H[None, :2, :2] - _apply(H, places)[:, :, None] * H[None, None, 2, :2]) / w)


def _match(
    expected: Frames,
    visible: NDArray[np.bool_],
    found: Frames,
    H: NDArray[np.float64],
    source_shape: tuple[int, ...],
    shape: tuple[int, ...],
) -> tuple[NDArray[np.int64], Frames]:
    """Numbers of the points that a view shows, and the frames it shows them in."""
    back = np.asarray(np.linalg.inv(H), np.float64)
    edge = corners(found)
    whole = inside(edge, shape).all(axis=1)
    whole &= inside(_apply(back, edge), source_shape).all(axis=1)
    found = found[whole]
    in_source = move_frames(found, _apply(back, found[:, :2]), _derivative(back, found[:, :2]))
    if not len(found):
        return np.empty(0, np.int64), found
    points = np.flatnonzero(visible)
    wanted = expected[points, None]  # (n, 1, 4), against up to ten keypoints nearby, nearest first
    gap, near = nearest(in_source[:, :2], wanted[:, 0, :2], 10)
    nearby = in_source[near]
    fits = gap < np.maximum(1.5, 1.2 * wanted[:, :, 3])
    fits &= np.abs(np.log2(nearby[:, :, 3] / wanted[:, :, 3])) < 0.5
    fits &= np.abs(angle_between(wanted[:, :, 2], nearby[:, :, 2])) < np.pi / 6
    matched = fits.any(axis=1)
    chosen = near[matched, fits[matched].argmax(axis=1)]
    return points[matched], found[chosen]


def _choose(point: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows to keep: points seen often enough, not too many of them, not too often each."""
    shuffled = rng.permutation(len(point))
    order = shuffled[np.argsort(point[shuffled], kind="stable")]
    sizes = np.bincount(point)
    rank = np.arange(len(point)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    enough = np.flatnonzero(sizes >= _MIN_SEEN)
    taken = np.zeros(len(sizes), bool)
    taken[rng.permutation(enough)[:_MAX_POINTS]] = True
    return order[taken[point[order]] & (rank < _MAX_SEEN)]
