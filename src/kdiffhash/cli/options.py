"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Threads; all by default.")]
ModelOfCodes = Annotated[
    Path | None, typer.Option("--model", help="The model that made the codes, if not in a folder.")
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
