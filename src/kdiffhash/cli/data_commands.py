"""`kdiffhash data`: download, build and inspect scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .app import App
from .guard import refuse_inputs
from .options import Jobs, Json, MaxPixels, Seed
from .output import show

app = App(help="Download the published scenes, or build one from your own photographs.")

SceneArgument = Annotated[Path, typer.Argument(help="Folder or name of a scene.", metavar="SCENE")]


@app.command()
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            help="One of trevi, notredame-2007, halfdome, liberty, notredame and yosemite. "
            "With --from or --url, any name.",
            metavar="NAME",
        ),
    ],
    archive: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Unpack this copy of the archive (.zip) instead of downloading it."
        ),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Download from this address instead.")] = None,
    md5: Annotated[str | None, typer.Option(help="Expected MD5 checksum of the archive.")] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="Cache folder. By default KDIFFHASH_CACHE, or the user's cache folder."),
    ] = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Download a published scene and compute its SIFT descriptors.

    If the download is interrupted, run the command again to resume it.
    """
    from ..datasets import fetch_scene

    scene = fetch_scene(name, archive=archive, url=url, md5=md5, cache=cache, n_jobs=jobs)
    show(_describe(scene), as_json)


@app.command()
def build(
    photos: Annotated[
        Path, typer.Argument(help="Folder of photographs of the same objects.", metavar="PHOTOS")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write the scene to.")],
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of an existing COLMAP model. Requires --database."),
    ] = None,
    database: Annotated[Path | None, typer.Option(help="COLMAP database of that model.")] = None,
    min_photos: Annotated[
        int, typer.Option(min=2, help="Drop points seen in fewer photographs.")
    ] = 3,
    max_error: Annotated[
        float, typer.Option(help="Drop points with a larger mean reprojection error, in pixels.")
    ] = 2.0,
    sheets: Annotated[
        Literal["bmp", "png", "jpg"], typer.Option(help="File format of the sheets of patches.")
    ] = "bmp",
    max_pixels: MaxPixels = 256_000_000,
    seed: Seed = 0,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Build a scene from your own photographs by structure from motion (COLMAP).

    Photographs that cannot be read are skipped and listed.
    """
    from ..datasets import build_scene

    refuse_inputs(out, photos, model, database)
    scene = build_scene(
        photos,
        out,
        model=model,
        database=database,
        min_photos=min_photos,
        max_error=max_error,
        sheets=sheets,
        max_pixels=max_pixels,
        random_state=seed,
        n_jobs=jobs,
    )
    show(_describe(scene), as_json)


@app.command()
def describe(
    scene: SceneArgument,
    descriptor: Annotated[
        Literal["sift", "hog"], typer.Option(help="Descriptor to compute.")
    ] = "sift",
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Compute a descriptor of each patch and store the result in the scene's folder."""
    from ..datasets import describe_scene

    show(_describe(describe_scene(scene, descriptor, n_jobs=jobs)), as_json)


@app.command()
def info(scene: SceneArgument, as_json: Json = False) -> None:
    """Summarise the contents of a scene."""
    from ..datasets import load_scene

    show(_describe(load_scene(scene)), as_json)


def _describe(scene: Any) -> dict[str, Any]:
    import numpy as np

    from ..datasets.scene import MADE_BY, read_meta
    from ..datasets.sheets import find_sheets

    descriptors = sorted(path.stem for path in scene.path.glob("*.npy") if path.stem != "confident")
    result = {
        "scene": str(scene.path),
        "patches": len(scene),
        "points": len(np.unique(scene.points)),
        "photos": None if scene.photos is None else len(np.unique(scene.photos)),
        "sheets": len(find_sheets(scene.path)),
        "descriptors": descriptors,
        "test_lists": sorted(path.name for path in scene.path.glob("m50_*.txt")),
    }
    meta = read_meta(scene.path)
    if meta.get("made_by") == MADE_BY and "photos_given" in meta:
        result["photos_placed"] = len(meta["photos"])
        result["photos_given"] = meta["photos_given"]
        result["share_added_by_projection"] = meta["share_added_by_projection"]
        unreadable = meta.get("unreadable") or {}
        if unreadable:
            result["rows"] = [{"unreadable": name, "why": why} for name, why in unreadable.items()]
    return result
