"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .._util.progress import shown


def _show_progress(context: typer.Context, as_json: bool) -> bool:
    """Show the progress of a command, unless a program reads what it prints."""
    if not as_json:
        context.with_resource(shown())
    return as_json


Json = Annotated[
    bool,
    typer.Option("--json", callback=_show_progress, help="Print JSON, and no progress."),
]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Threads; all by default.")]
ModelOfCodes = Annotated[
    Path | None, typer.Option("--model", help="The model that made the codes, if not in a folder.")
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
