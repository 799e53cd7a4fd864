"""`kdiffhash colmap` and `kdiffhash hloc`: matching for reconstructions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .._util.progress import progress, waiting
from .model_commands import check_writable
from .options import Jobs, Json
from .output import show

if TYPE_CHECKING:
    from ..hashers import BaseHasher

colmap = typer.Typer(
    help="Match the images of a COLMAP database by codes, or keep codes in it.",
    no_args_is_help=True,
)
hloc = typer.Typer(help="Encode and match hloc's local features.", no_args_is_help=True)


Database = Annotated[Path, typer.Argument(help="A COLMAP database.", metavar="DATABASE")]
FeaturesFile = Annotated[
    Path, typer.Argument(help="Local features as hloc keeps them (HDF5).", metavar="FEATURES")
]
Bits = Annotated[
    int | None, typer.Option("--bits", min=1, help="Length of the codes; 256 by default.")
]
Model = Annotated[
    Path | None,
    typer.Option("--model", help="Your own model; by default that of the package, for SIFT."),
]
DescriptorName = Literal["rootsift", "sift"]
Descriptors = Annotated[
    DescriptorName,
    typer.Option("--descriptors", help="What the package's model is to take; COLMAP: rootsift."),
]
Pairs = Annotated[
    Path | None,
    typer.Option("--pairs", help="File with two image names in each line; all pairs by default."),
]
Ratio = Annotated[
    float, typer.Option(min=0, max=1, help="Nearest to second nearest distance, below which.")
]


@colmap.command("match")
def colmap_match(
    database: Database,
    pairs: Pairs = None,
    bits: Bits = None,
    model: Model = None,
    descriptors: Descriptors = "rootsift",
    ratio: Ratio = 0.74,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Find the geometry of each pair.")
    ] = True,
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Copy the database there first.")
    ] = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Match the images of a COLMAP database, and verify the matches; the mapper goes on from it.

    Matches and geometries of these pairs are replaced, all at once; nothing else is touched.
    """
    from ..vision import colmap as engine
    from ..vision.image_pairs import image_pairs

    if keep is not None:
        check_writable(keep, database, option="--keep")
        if keep.exists():
            raise ValueError(f"--keep: {keep} is there already; name a new file, or remove it")
    seconds: dict[str, float] = {}
    with _timed(seconds, "encoding"), waiting("encoding"):
        pictures = engine.read_images(database, _model(model, bits, descriptors))
    n_pairs = len(image_pairs([picture.name for picture in pictures], pairs))
    with _timed(seconds, "matching"), progress(n_pairs, "matching") as advance:
        found = engine.match_images(pictures, pairs, ratio=ratio, n_jobs=jobs, advance=advance)
    if verify:
        with _timed(seconds, "verifying"), progress(n_pairs, "verifying") as advance:
            found = engine.verify_pairs(found, n_jobs=jobs, advance=advance)
    with _timed(seconds, "writing"):
        engine.write_matches(database, found, keep=keep)
    result: dict[str, Any] = {
        "database": str(database),
        "images": len(pictures),
        "pairs": len(found),
        "matches": sum(len(pair.matches) for pair in found),
        "verified": sum(pair.n_verified for pair in found) if verify else None,
        "verified_pairs": sum(pair.n_verified > 0 for pair in found) if verify else None,
        "seconds": seconds,
    }
    show(result if keep is None else {**result, "copy": str(keep)}, as_json)


@colmap.command("shrink")
def colmap_shrink(
    database: Database,
    out: Annotated[Path, typer.Option("--out", "-o", help="The new database.")],
    bits: Bits = None,
    model: Model = None,
    descriptors: Descriptors = "rootsift",
    as_json: Json = False,
) -> None:
    """Write a copy of a COLMAP database with codes in place of descriptors.

    `kdiffhash colmap match` takes it with the same model and bits, and then COLMAP's mapper.
    """
    from ..vision.colmap import shrink_database

    check_writable(out)
    if out.exists():
        raise ValueError(f"{out} is there already; name a new database, or remove it first")
    hasher = _model(model, bits, descriptors)
    with waiting("encoding"):
        shrink_database(database, out, hasher)
    sizes = {"bytes_before": database.stat().st_size, "bytes": out.stat().st_size}
    show({"database": str(out), "bits": hasher.n_bits_, **sizes}, as_json)


@hloc.command("encode")
def hloc_encode(
    features: FeaturesFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="The new features file.")],
    bits: Bits = None,
    model: Model = None,
    descriptors: Descriptors = "rootsift",
    as_json: Json = False,
) -> None:
    """Write a copy of a features file with codes in place of descriptors."""
    from ..vision.hloc import encode_features

    check_writable(out, features)
    hasher = _model(model, bits, descriptors)
    with waiting("encoding"):
        n = encode_features(features, out, hasher)
    sizes = {"bytes_before": features.stat().st_size, "bytes": out.stat().st_size}
    show({"features": str(out), "images": n, "bits": hasher.n_bits_, **sizes}, as_json)


@hloc.command("match")
def hloc_match(
    features: FeaturesFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="The matches file to write.")],
    pairs: Pairs = None,
    bits: Bits = None,
    model: Model = None,
    descriptors: Descriptors = "rootsift",
    ratio: Ratio = 0.74,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Match local features by codes, into a matches file as hloc's `match_features` writes it."""
    from ..vision.hloc import match_features

    check_writable(out, features)
    seconds: dict[str, float] = {}
    with _timed(seconds, "seconds"), waiting("matching"):
        found = match_features(
            features, out, _model(model, bits, descriptors), pairs, ratio=ratio, n_jobs=jobs
        )
    summary = {"written": str(out), "pairs": len(found), "matches": sum(found.values())}
    show({**summary, **seconds}, as_json)


def _model(path: Path | None, bits: int | None, descriptors: DescriptorName) -> BaseHasher:
    """One's own model, or the package's for these descriptors."""
    from .. import BaseHasher, load_pretrained

    if path is None:
        return load_pretrained(descriptors, n_bits=bits or 256)
    hasher = BaseHasher.load(path)
    return hasher if bits is None else hasher.truncate(bits)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - start, 2)
