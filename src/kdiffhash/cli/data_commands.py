"""`kdiffhash data`: get, make and look at scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .options import Jobs, Json, Seed
from .output import show

app = typer.Typer(
    help="Scenes to learn from: the published ones, or from your own photographs.",
    no_args_is_help=True,
)

SceneArgument = Annotated[Path, typer.Argument(help="A scene: folder or name.", metavar="SCENE")]


@app.command()
def fetch(
    name: Annotated[
        str,
        typer.Argument(help="trevi, notredame-2007, halfdome, liberty, notredame or yosemite."),
    ],
    archive: Annotated[
        Path | None, typer.Option("--from", help="A copy of the archive (.zip) you have already.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Another place to download from.")] = None,
    md5: Annotated[str | None, typer.Option(help="Its MD5 sum, if you know it.")] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Cache folder; else KDIFFHASH_CACHE, or the user's.")
    ] = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Get a published scene and compute its SIFT descriptors; goes on after a break."""
    from ..datasets import fetch_scene

    scene = fetch_scene(name, archive=archive, url=url, md5=md5, cache=cache, n_jobs=jobs)
    show(_describe(scene), as_json)


@app.command()
def build(
    photos: Annotated[Path, typer.Argument(help="Folder of photographs of the same objects.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the scene.")],
    model: Annotated[
        Path | None, typer.Option(help="An existing COLMAP model (folder), with --database.")
    ] = None,
    database: Annotated[Path | None, typer.Option(help="The model's database.")] = None,
    min_photos: Annotated[
        int, typer.Option(min=2, help="Leave out points seen in fewer photographs.")
    ] = 3,
    max_error: Annotated[
        float, typer.Option(help="Leave out points with a larger reprojection error (pixels).")
    ] = 2.0,
    sheets: Annotated[
        Literal["bmp", "png", "jpg"], typer.Option(help="Kind of the sheets.")
    ] = "bmp",
    seed: Seed = 0,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Make a scene from your own photographs by structure from motion (COLMAP)."""
    from ..datasets import build_scene

    scene = build_scene(
        photos,
        out,
        model=model,
        database=database,
        min_photos=min_photos,
        max_error=max_error,
        sheets=sheets,
        random_state=seed,
        n_jobs=jobs,
    )
    show(_describe(scene), as_json)


@app.command()
def describe(
    scene: SceneArgument,
    kind: Annotated[Literal["sift", "hog"], typer.Option(help="Which.")] = "sift",
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Compute a descriptor of each patch and keep it in the scene's folder."""
    from ..datasets import describe_scene

    show(_describe(describe_scene(scene, kind, n_jobs=jobs)), as_json)


@app.command()
def info(scene: SceneArgument, as_json: Json = False) -> None:
    """Tell what a scene holds."""
    from ..datasets import load_scene

    show(_describe(load_scene(scene)), as_json)


def _describe(scene: Any) -> dict[str, Any]:
    import numpy as np

    from ..datasets.scene import MADE_BY, read_meta
    from ..datasets.sheets import find_sheets

    descriptors = sorted(path.stem for path in scene.path.glob("*.npy") if path.is_file())
    result = {
        "scene": str(scene.path),
        "patches": len(scene),
        "points": len(np.unique(scene.points)),
        "photos": "unknown" if scene.photos is None else len(np.unique(scene.photos)),
        "sheets": len(find_sheets(scene.path)),
        "descriptors": ", ".join(descriptors) or "none",
        "test_lists": ", ".join(sorted(path.name for path in scene.path.glob("m50_*.txt"))),
    }
    meta = read_meta(scene.path)
    if meta.get("made_by") == MADE_BY and "photos_given" in meta:
        result["photos_placed"] = f"{len(meta['photos'])} of {meta['photos_given']}"
        result["share_added_by_projection"] = meta["share_added_by_projection"]
    return result
