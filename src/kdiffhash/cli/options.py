"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[
    bool,
    typer.Option("--json", help="Print the result as JSON and show no progress."),
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
MaxPixels = Annotated[
    int, typer.Option("--max-pixels", min=1, help="Refuse photographs with more pixels than this.")
]
