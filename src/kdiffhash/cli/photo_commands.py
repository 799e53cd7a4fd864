"""`kdiffhash match` and `kdiffhash photos`: match photographs and search for them."""

from __future__ import annotations

import time
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import App
from .guard import check_writable
from .options import Jobs, Json, MaxPixels

if TYPE_CHECKING:
    from ..hashers import BaseHasher
    from ..vision import HashedSIFT, Photo

app = App(
    help="Index a folder of photographs, and find those that show the same objects as a query."
)


class GeometryName(StrEnum):
    """Geometric models for the verification of matches."""

    fundamental = "fundamental"
    homography = "homography"
    none = "none"


Bits = Annotated[
    int | None,
    typer.Option(
        "--bits",
        min=1,
        help="Length of the codes, at most 512, or with --model at most that of your model.",
    ),
]
Features = Annotated[
    int,
    typer.Option(
        "--features", min=0, help="Largest number of keypoints per photograph; 0 for all."
    ),
]
Model = Annotated[
    Path | None,
    typer.Option("--model", help="Your own model for SIFT; by default the model in the package."),
]
Size = Annotated[
    int,
    typer.Option(
        "--size", min=16, help="Reduce larger photographs to this many pixels (longer side)."
    ),
]
Geometry = Annotated[
    GeometryName,
    typer.Option(
        "--geometry", help="Model for the geometric verification (MAGSAC); none skips it."
    ),
]
Tolerance = Annotated[
    float, typer.Option("--tolerance", min=0, help="Largest error of an inlier, in pixels.")
]
Index = Annotated[Path, typer.Option("--index", help="Folder of the index.")]


def match(
    a: Annotated[Path, typer.Argument(help="A photograph.", metavar="A.jpg")],
    b: Annotated[Path, typer.Argument(help="Another photograph.", metavar="B.jpg")],
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            help="File to write: an image of the matches (.png, .jpg), or their coordinates, "
            "distances and inlier flags (.npz, .csv, .json). May be given several times.",
        ),
    ] = None,
    bits: Bits = None,
    ratio: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Ratio test: largest ratio of the nearest to the second-nearest distance.",
        ),
    ] = 0.74,
    geometry: Geometry = GeometryName.fundamental,
    tolerance: Tolerance = 2.0,
    features: Features = 8000,
    size: Size = 1600,
    max_pixels: MaxPixels = 256_000_000,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also match with SIFT and ORB, for comparison.")
    ] = False,
    model: Model = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Match two photographs by the codes of their keypoints.

    Matches are mutual nearest neighbours that pass the ratio test. Inliers are the matches that
    also pass geometric verification.
    """
    from .._util.progress import waiting
    from ..search.matching import match_codes
    from ..vision.drawing import draw_matches, stack_images, write_image
    from ..vision.match_files import SUFFIXES, write_matches
    from ..vision.opencv_baselines import NAMES, match_by_baseline
    from ..vision.photo_matching import read_image, verify_matches
    from .output import show

    for path in out or ():
        _check_match_output(path)
        check_writable(path, a, b, model)
    with waiting("finding keypoints"):
        photos, n_bits = _encode_two(a, b, model, bits, features, size, max_pixels)
    left, right = photos
    for photo in photos:
        if not len(photo.codes):
            raise ValueError(f"{photo.name} has no keypoints: it shows too little texture")
    chosen: Any = geometry.value
    start = time.perf_counter()
    pairs, distances = match_codes(left.codes, right.codes, ratio=ratio, n_jobs=jobs)
    seconds = time.perf_counter() - start
    verified = verify_matches(left.points, right.points, pairs, chosen, tolerance)
    verified = replace(verified, distances=distances)
    methods = [(f"kdiffhash, {n_bits} bits", [len(p.codes) for p in photos], verified, seconds)]
    for name in NAMES if compare else ():
        baseline = match_by_baseline(name, left.image, right.image, features, chosen, tolerance)
        methods.append((name, list(baseline.n_features), baseline.matches, baseline.seconds))
    rows, captions = [], []
    for name, n_features, matches, seconds in methods:
        n, n_inliers = len(matches.pairs), int(matches.inliers.sum())
        rows.append(
            {
                "method": name,
                "features_a": n_features[0],
                "features_b": n_features[1],
                "matches": n,
                "inliers": n_inliers if chosen != "none" else None,
                "matching_ms": 1000 * seconds,
            }
        )
        inliers = "" if chosen == "none" else f", {n_inliers:,} inliers"
        captions.append((matches, f"{name}: {n:,} matches{inliers}"))
    result: dict[str, Any] = {"a": str(a), "b": str(b), "geometry": chosen, "rows": rows}
    for path in out or ():
        if path.suffix.lower() in SUFFIXES:
            write_matches(path, left, right, verified, chosen)
            continue
        seen_a, seen_b = (read_image(p, size, colour=True, max_pixels=max_pixels) for p in (a, b))
        names = (left.name, right.name)
        drawn = [draw_matches(seen_a, seen_b, m, text, names=names) for m, text in captions]
        write_image(stack_images(drawn), path)
    if out:
        result["written"] = [str(path) for path in out]
    show(result, as_json)


@app.command("index")
def build(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder of photographs; its subfolders are included.", metavar="FOLDER"
        ),
    ],
    index: Index = Path("photos.index"),
    bits: Bits = None,
    features: Features = 2000,
    size: Size = 1600,
    max_pixels: MaxPixels = 256_000_000,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Build or update the index of a folder of photographs.

    Unchanged photographs are not read again.
    """
    from .._util.progress import progress
    from ..datasets.images import list_photos
    from ..vision import PhotoIndex
    from .output import show

    start = time.perf_counter()
    extractor = _hashed_sift(model, bits, features, default_bits=128)
    photos = PhotoIndex(index, extractor, size=size, max_pixels=max_pixels)
    with progress(len(list_photos(folder)), "photographs") as advance:
        update = photos.update(folder, advance=advance)
    show(
        {
            "index": str(index),
            "photographs": len(photos),
            "added": update.added,
            "unchanged": update.unchanged,
            "removed": update.removed,
            "seconds": round(time.perf_counter() - start, 1),
            "rows": [{"unreadable": path, "why": why} for path, why in update.unreadable.items()],
        },
        as_json,
    )


@app.command("search")
def search(
    query: Annotated[Path, typer.Argument(help="Photograph to search for.", metavar="QUERY.jpg")],
    index: Index = Path("photos.index"),
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML page of results to write.")] = Path(
        "photos.html"
    ),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the page even if it is of another origin.")
    ] = False,
    best: Annotated[
        int, typer.Option(min=1, help="Number of photographs to verify geometrically.")
    ] = 10,
    geometry: Geometry = GeometryName.fundamental,
    tolerance: Tolerance = 2.0,
    max_pixels: MaxPixels = 256_000_000,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Find photographs that show the same objects as a query.

    Writes an HTML page with the best photographs and their matches. A file that is not such a page
    is only replaced with --overwrite.
    """
    from ..vision import PhotoIndex, read_photo
    from ..vision.results_page import check_is_page, write_page
    from .output import show

    check_writable(out, query, index)
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out must end in .html or .htm, got {out}")
    if not overwrite:
        check_is_page(out)
    photos = PhotoIndex.open(index)
    photo = read_photo(query, photos.features, photos.size, max_pixels=max_pixels)
    start = time.perf_counter()
    chosen: Any = geometry.value
    results = photos.search(photo, best, geometry=chosen, tolerance=tolerance, n_jobs=jobs)
    seconds = time.perf_counter() - start
    write_page(out, photo, results, photos.size)
    rows = [
        {
            "photograph": str(result.path),
            "verified": result.is_verified,
            "inliers": result.n_inliers,
            "matches": len(result.matches.pairs),
            "votes": result.votes,
        }
        for result in results
    ]
    summary = {"query": str(query), "photographs": len(photos), "seconds": round(seconds, 2)}
    show({**summary, "page": str(out.resolve()), "rows": rows}, as_json)


def _check_match_output(path: Path) -> None:
    """Raise if a file of this name can neither be an image nor hold matches."""
    from ..vision.match_files import SUFFIXES

    if path.suffix.lower() not in (".png", ".jpg", ".jpeg", *SUFFIXES):
        raise ValueError(
            f"--out: {path} must end in .png or .jpg for an image of the matches, or in "
            f"{', '.join(SUFFIXES)} for their coordinates"
        )


def _encode_two(
    a: Path,
    b: Path,
    model: Path | None,
    bits: int | None,
    n_features: int,
    size: int,
    max_pixels: int,
) -> tuple[tuple[Photo, Photo], int]:
    """Return two photographs with their codes, and the length of the codes.

    Keypoints are detected while the model is loaded, as most of that time goes into the import of
    scikit-learn.
    """
    from concurrent.futures import ThreadPoolExecutor

    from ..vision.detection import detect_sift, encode_detected

    with ThreadPoolExecutor(2) as pool:
        detected = [pool.submit(detect_sift, p, n_features, size, max_pixels) for p in (a, b)]
        hasher = _load_model(model, bits, default_bits=256)
        left, right = (future.result() for future in detected)
    return (encode_detected(left, hasher), encode_detected(right, hasher)), hasher.n_bits_


def _load_model(path: Path | None, bits: int | None, default_bits: int) -> BaseHasher:
    """Load the model in the package, or a model file."""
    from .. import BaseHasher, load_pretrained

    if path is None:
        return load_pretrained("sift", n_bits=bits or default_bits)
    hasher = BaseHasher.load(path)
    return hasher if bits is None else hasher.truncate(bits)


def _hashed_sift(
    model: Path | None, bits: int | None, n_features: int, default_bits: int
) -> HashedSIFT:
    """Return SIFT with codes, from the model in the package or from a model file."""
    from ..vision import HashedSIFT

    return HashedSIFT(n_features=n_features, model=_load_model(model, bits, default_bits))
