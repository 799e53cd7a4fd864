"""Options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Threads; all by default.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
