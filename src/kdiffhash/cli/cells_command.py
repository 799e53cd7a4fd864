"""`kdiffhash index cells`: group the codes of an index for approximate search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .options import Jobs, Json


def cells(
    path: Annotated[Path, typer.Argument(help="Index file.", metavar="INDEX")],
    n_cells: Annotated[
        int | None,
        typer.Option(min=2, help="Number of cells; by default, cells of about 256 codes."),
    ] = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Group the codes of an index, so that `index search --recall` can search a part of them.

    Codes that are added later are always searched, until `index compact` groups them, too. If
    grouping the codes would make no search faster, the index has no cells afterwards.
    """
    import warnings

    from .. import HammingIndex
    from .._util.progress import waiting
    from .output import show

    result: dict[str, Any] = {"index": str(path)}
    with HammingIndex.open(path, "a") as index:
        with waiting("grouping codes"), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            built = index.build_cells(n_cells, n_jobs=jobs)
        result |= {"codes": len(index), "cells": index.info().get("cells", 0)}
        if not built:
            result["reason"] = "; ".join(str(warning.message) for warning in caught)
        for recall in (0.9, 0.95, 0.99) if built else ():
            plan = index.explain(10, recall=recall)
            result[f"share_compared_for_recall_{recall:g}"] = round(
                plan["compared"] / len(index), 4
            )
    show(result, as_json)
