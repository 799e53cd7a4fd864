"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .._util.progress import shown


def _show_progress(context: typer.Context, as_json: bool) -> bool:
    """Show the progress of a command, unless its output is JSON."""
    if not as_json:
        context.with_resource(shown())
    return as_json


Json = Annotated[
    bool,
    typer.Option(
        "--json", callback=_show_progress, help="Print the result as JSON and show no progress."
    ),
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Number of threads; by default one per core.")
]
ModelOfCodes = Annotated[
    Path | None,
    typer.Option(
        "--model",
        help="Model that produced the codes. Not needed for a folder written by "
        "[bold]kdiffhash encode[/], which records it.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the random numbers.")]
