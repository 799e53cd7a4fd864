"""`kdiffhash colmap` and `kdiffhash hloc`: match images for a 3D reconstruction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .._util.progress import progress, waiting
from .app import App
from .guard import check_writable
from .options import Jobs, Json, Seed
from .output import show

if TYPE_CHECKING:
    from ..hashers import BaseHasher

colmap = App(help="Match the images of a COLMAP database by their codes, or store codes in it.")
hloc = App(help="Encode and match the local features of hloc.")

Database = Annotated[Path, typer.Argument(help="COLMAP database.", metavar="DATABASE")]
FeaturesFile = Annotated[
    Path, typer.Argument(help="Features file of hloc (HDF5).", metavar="FEATURES")
]
Bits = Annotated[
    int | None,
    typer.Option(
        "--bits", min=1, help="Length of the codes; by default 256, or that of your model."
    ),
]
Model = Annotated[
    Path | None,
    typer.Option("--model", help="Your own model; by default the model for SIFT in the package."),
]
DescriptorName = Literal["rootsift", "sift"]
Descriptor = Annotated[
    DescriptorName,
    typer.Option(
        "--descriptor",
        help="Kind of the descriptors, for the model in the package; COLMAP writes rootsift.",
    ),
]
Pairs = Annotated[
    Path | None,
    typer.Option("--pairs", help="Text file with two image names per line; by default all pairs."),
]
Ratio = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Ratio test: largest ratio of the nearest to the second-nearest distance.",
    ),
]


@colmap.command("match")
def colmap_match(
    database: Database,
    pairs: Annotated[
        Path | None,
        typer.Option(
            "--pairs",
            help="Text file with two image names per line, or auto to choose likely pairs by votes "
            "of the keypoints; by default all pairs.",
        ),
    ] = None,
    neighbours: Annotated[
        int,
        typer.Option(min=1, help="Number of images that --pairs auto pairs each image with."),
    ] = 20,
    bits: Bits = None,
    model: Model = None,
    descriptor: Descriptor = "rootsift",
    ratio: Ratio = 0.74,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Verify each pair geometrically.")
    ] = True,
    backup: Annotated[
        Path | None, typer.Option("--backup", help="Copy the database to this file first.")
    ] = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Match the images of a COLMAP database and verify the matches.

    Matches and geometries are written in one transaction. Existing ones of the same image pairs are
    replaced, and everything else is left unchanged. COLMAP's mapper can then use the database.
    """
    from ..vision import colmap as engine
    from ..vision.image_pairs import image_pairs

    is_auto = str(pairs) == "auto"
    listed = None if is_auto else pairs
    if backup is not None:
        check_writable(backup, database, listed, model, option="--backup")
        if backup.exists():
            raise ValueError(f"--backup: {backup} already exists; name a new file, or remove it")
    seconds: dict[str, float] = {}
    with _timed(seconds, "encoding"), waiting("encoding"):
        images = engine.read_images(database, _load_model(model, bits, descriptor))
    if is_auto:
        with _timed(seconds, "choosing_pairs"), waiting("choosing pairs"):
            chosen = engine.likely_pairs(images, neighbours, n_jobs=jobs)
    else:
        chosen = image_pairs([image.name for image in images], listed)
    n_pairs = len(chosen)
    with _timed(seconds, "matching"), progress(n_pairs, "matching") as advance:
        matched = engine.match_images(images, chosen, ratio=ratio, n_jobs=jobs, advance=advance)
    if verify:
        with _timed(seconds, "verifying"), progress(n_pairs, "verifying") as advance:
            matched = engine.verify_pairs(matched, n_jobs=jobs, advance=advance)
    with _timed(seconds, "writing"):
        engine.write_matches(database, matched, keep=backup)
    result: dict[str, Any] = {
        "database": str(database),
        "images": len(images),
        "pairs": len(matched),
        "matches": sum(len(pair.matches) for pair in matched),
        "verified": sum(pair.n_verified for pair in matched) if verify else None,
        "verified_pairs": sum(pair.n_verified > 0 for pair in matched) if verify else None,
        "seconds": seconds,
    }
    show(result if backup is None else {**result, "copy": str(backup)}, as_json)


@colmap.command("train")
def colmap_train(
    database: Database,
    out: Annotated[Path, typer.Option("--out", "-o", help="Model file to write.")],
    bits: Annotated[int, typer.Option("--bits", min=1, help="Length of the codes.")] = 256,
    basis: Annotated[int, typer.Option(min=1, help="Number of basis rows.")] = 1000,
    refine: Annotated[
        int, typer.Option(min=0, help="Steps of gradient descent after the closed form.")
    ] = 1000,
    seed: Seed = 0,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Learn codes for the descriptors of a database from its own verified matches.

    Works for descriptors of any kind and width. Use the model for this and similar databases, with
    kdiffhash colmap match or shrink and --model.
    """
    from ..vision import colmap as engine

    check_writable(out, database)
    seconds: dict[str, float] = {}
    with _timed(seconds, "seconds"):
        with waiting("reading verified matches"):
            tracks = engine.read_tracks(database)
        options: dict[str, Any] = {"n_basis": basis, "refine": refine, "random_state": seed}
        model = engine.train_model(tracks, n_bits=bits, n_jobs=jobs, **options)
    model.save(out)
    show(
        {
            "model": str(out),
            "bits": model.n_bits_,
            "input_features": model.n_features_in_,
            "preprocess": model.preprocess,
            "tracks": int(tracks.labels.max()) + 1,
            "descriptors": len(tracks.rows),
            **seconds,
        },
        as_json,
    )


@colmap.command("shrink")
def colmap_shrink(
    database: Database,
    out: Annotated[Path, typer.Option("--out", "-o", help="Database to write.")],
    bits: Bits = None,
    model: Model = None,
    descriptor: Descriptor = "rootsift",
    as_json: Json = False,
) -> None:
    """Write a copy of a COLMAP database with codes in place of descriptors.

    Match the copy with kdiffhash colmap match, the same model and the same number of bits. COLMAP's
    mapper can then use it.
    """
    from ..vision.colmap import shrink_database

    check_writable(out, database, model)
    if out.exists():
        raise ValueError(f"--out: {out} already exists; name a new file, or remove it")
    hasher = _load_model(model, bits, descriptor)
    with waiting("encoding"):
        shrink_database(database, out, hasher)
    sizes = {"bytes_before": database.stat().st_size, "bytes": out.stat().st_size}
    show({"database": str(out), "bits": hasher.n_bits_, **sizes}, as_json)


@hloc.command("encode")
def hloc_encode(
    features: FeaturesFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="Features file to write.")],
    bits: Bits = None,
    model: Model = None,
    descriptor: Descriptor = "rootsift",
    as_json: Json = False,
) -> None:
    """Write a copy of a features file with codes in place of descriptors.

    The model in the package is for SIFT only. Pass your own with --model for other features.
    """
    from ..vision.hloc import encode_features

    check_writable(out, features, model)
    hasher = _load_model(model, bits, descriptor)
    with waiting("encoding"):
        n = encode_features(features, out, hasher)
    sizes = {"bytes_before": features.stat().st_size, "bytes": out.stat().st_size}
    show({"features": str(out), "images": n, "bits": hasher.n_bits_, **sizes}, as_json)


@hloc.command("match")
def hloc_match(
    features: FeaturesFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="Matches file to write.")],
    pairs: Pairs = None,
    bits: Bits = None,
    model: Model = None,
    descriptor: Descriptor = "rootsift",
    ratio: Ratio = 0.74,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Match images by the codes of their features and write a matches file for hloc."""
    from ..vision.hloc import match_features

    check_writable(out, features, pairs, model)
    seconds: dict[str, float] = {}
    with _timed(seconds, "seconds"), waiting("matching"):
        n_matches = match_features(
            features, out, _load_model(model, bits, descriptor), pairs, ratio=ratio, n_jobs=jobs
        )
    summary = {"written": str(out), "pairs": len(n_matches), "matches": sum(n_matches.values())}
    show({**summary, **seconds}, as_json)


def _load_model(path: Path | None, bits: int | None, descriptor: DescriptorName) -> BaseHasher:
    """Load a model file, or the model in the package for these descriptors."""
    from .. import BaseHasher, load_pretrained

    if path is None:
        return load_pretrained(descriptor, n_bits=bits or 256)
    hasher = BaseHasher.load(path)
    return hasher if bits is None else hasher.truncate(bits)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - start, 2)
