"""`kdiffhash match` and `kdiffhash photos`: photographs that show the same."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Jobs, Json

if TYPE_CHECKING:
    from ..vision import HashedSIFT

app = typer.Typer(
    help="Keep the codes of many photographs, and find those that show what another one shows.",
    no_args_is_help=True,
)


class GeometryName(StrEnum):
    """What matches are to agree with."""

    fundamental = "fundamental"
    homography = "homography"
    none = "none"


Bits = Annotated[
    int | None,
    typer.Option("--bits", min=1, help="Length of the codes, up to 512, or that of your model."),
]
Features = Annotated[
    int, typer.Option("--features", min=0, help="Keypoints of a photograph at most; 0 for all.")
]
Model = Annotated[
    Path | None,
    typer.Option("--model", help="Your own model of SIFT; by default that of the package."),
]
Size = Annotated[
    int, typer.Option("--size", min=16, help="Pixels of the longer side; larger ones are reduced.")
]
Geometry = Annotated[
    GeometryName,
    typer.Option("--geometry", help="What matches are to agree with, found by MAGSAC."),
]
Tolerance = Annotated[
    float, typer.Option("--tolerance", min=0, help="Pixels that an inlier may be off.")
]
Index = Annotated[Path, typer.Option("--index", help="Folder of the index.")]


def match(
    a: Annotated[Path, typer.Argument(help="A photograph.", metavar="A.jpg")],
    b: Annotated[Path, typer.Argument(help="Another photograph.", metavar="B.jpg")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Draw the matches: .png or .jpg.")
    ] = None,
    bits: Bits = None,
    ratio: Annotated[
        float, typer.Option(min=0, max=1, help="Nearest to second nearest distance, below which.")
    ] = 0.74,
    geometry: Geometry = GeometryName.fundamental,
    tolerance: Tolerance = 2.0,
    features: Features = 8000,
    size: Size = 1600,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also match with SIFT and with ORB.")
    ] = False,
    model: Model = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Match two photographs: mutual nearest codes, ratio test, and one geometry for all."""
    from ..search.matching import match_codes
    from ..vision import draw_matches, read_photo
    from ..vision.drawing import check_image_name, stack_images, write_image
    from ..vision.opencv_baselines import NAMES, match_with
    from ..vision.photo_matching import verify_matches
    from .model_commands import check_writable
    from .output import show

    if out is not None:
        check_image_name(out)
        check_writable(out, a, b)
    extractor = features_of(model, bits, features, usual=256)
    left, right = photos = tuple(read_photo(path, extractor, size) for path in (a, b))
    for photo in photos:
        if not len(photo.codes):
            raise ValueError(f"{photo.name} has no keypoints: nothing in it stands out")
    chosen: Any = geometry.value
    n_bits = extractor.model.n_bits_
    start = time.perf_counter()
    pairs = match_codes(left.codes, right.codes, ratio=ratio, n_jobs=jobs).pairs
    seconds = time.perf_counter() - start
    found = verify_matches(left.points, right.points, pairs, chosen, tolerance)
    methods = [(f"kdiffhash, {n_bits} bits", [len(p.codes) for p in photos], found, seconds)]
    for name in NAMES if compare else ():
        peer = match_with(name, left.image, right.image, features, chosen, tolerance)
        methods.append((name, list(peer.n_features), peer.matches, peer.seconds))
    rows, pictures = [], []
    for name, sizes, matches, taken in methods:
        n, good = len(matches.pairs), int(matches.inliers.sum())
        rows.append(
            {
                "method": name,
                "features_a": sizes[0],
                "features_b": sizes[1],
                "matches": n,
                "inliers": good if chosen != "none" else None,
                "matching_ms": 1000 * taken,
            }
        )
        agree = f"{good:,} of {n:,} matches agree with one geometry"
        text = f"{name}: {agree if chosen != 'none' else f'{n:,} matches'}"
        pictures.append((matches, text))
    result: dict[str, Any] = {"a": str(a), "b": str(b), "geometry": chosen, "rows": rows}
    if out is not None:
        drawn = [draw_matches(left.image, right.image, matches, text) for matches, text in pictures]
        write_image(stack_images(drawn), out)
        result["written"] = str(out)
    show(result, as_json)


@app.command("index")
def build(
    folder: Annotated[Path, typer.Argument(help="Folder of photographs, with folders inside it.")],
    index: Index = Path("photos.index"),
    bits: Bits = None,
    features: Features = 2000,
    size: Size = 1600,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Take in a folder of photographs; what has not changed since then is left as it is."""
    from .._util.progress import progress
    from ..datasets.images import list_photos
    from ..vision import PhotoIndex
    from .output import show

    start = time.perf_counter()
    photos = PhotoIndex(index, features_of(model, bits, features, usual=128), size=size)
    with progress(len(list_photos(folder)), "photographs") as advance:
        done = photos.update(folder, advance=advance)
    show(
        {
            "index": str(index),
            "photographs": len(photos),
            "added": done.added,
            "unchanged": done.unchanged,
            "removed": done.removed,
            "seconds": round(time.perf_counter() - start, 1),
            "rows": [{"unreadable": path, "why": why} for path, why in done.unreadable.items()],
        },
        as_json,
    )


@app.command("search")
def search(
    query: Annotated[Path, typer.Argument(help="A photograph.", metavar="QUERY.jpg")],
    index: Index = Path("photos.index"),
    out: Annotated[Path, typer.Option("--out", "-o", help="Page of what is found.")] = Path(
        "photos.html"
    ),
    best: Annotated[int, typer.Option(min=1, help="Photographs to look at closely.")] = 10,
    geometry: Geometry = GeometryName.fundamental,
    tolerance: Tolerance = 2.0,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Find photographs that show what QUERY shows; writes a page with the matches drawn."""
    from ..vision import PhotoIndex, read_photo
    from ..vision.results_page import write_page
    from .model_commands import check_writable
    from .output import show

    check_writable(out, query)
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out: {out} is to be a page, .html")
    photos = PhotoIndex.open(index)
    photo = read_photo(query, photos.features, photos.size)
    start = time.perf_counter()
    chosen: Any = geometry.value
    found = photos.search(photo, best, geometry=chosen, tolerance=tolerance, n_jobs=jobs)
    seconds = time.perf_counter() - start
    write_page(out, photo, found, photos.size)
    rows = [
        {
            "photograph": str(one.path),
            "verified": "yes" if one.is_verified else "no",
            "inliers": one.n_inliers,
            "matches": len(one.matches.pairs),
            "votes": one.votes,
        }
        for one in found
    ]
    summary = {"query": str(query), "photographs": len(photos), "seconds": round(seconds, 2)}
    show({**summary, "page": str(out.resolve()), "rows": rows}, as_json)


def features_of(model: Path | None, bits: int | None, n_features: int, usual: int) -> HashedSIFT:
    """SIFT with codes, by the model of the package or by one's own."""
    from .. import BaseHasher
    from ..vision import HashedSIFT

    if model is None:
        return HashedSIFT(bits or usual, n_features)
    own = BaseHasher.load(model)
    return HashedSIFT(n_features=n_features, model=own if bits is None else own.truncate(bits))
