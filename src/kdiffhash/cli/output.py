"""What the commands print: JSON, or a table; progress on a terminal only."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress


def show(result: dict[str, Any], as_json: bool) -> None:
    """Print a result: as JSON, or its values as a list and its `rows` as a table."""
    if as_json:
        print(json.dumps(_plain(result), indent=2, allow_nan=False))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    rows = result.get("rows")
    for name, value in result.items():
        if name != "rows":
            line = f"[bold]{name.replace('_', ' ')}[/]: {escape(_text(value))}"
            console.print(line, highlight=False, soft_wrap=True)
    if rows:
        table = Table(header_style="bold")
        for number, column in enumerate(rows[0]):
            table.add_column(column.replace("_", " "), no_wrap=number == 0)
        for row in rows:
            table.add_row(*[escape(_text(value)) for value in row.values()])
        console.print(table)


@contextmanager
def progress(total: int, what: str, quiet: bool) -> Iterator[Any]:
    """A progress bar on standard error; call the result with the number of steps done."""
    bar = _bar(quiet)
    if bar is None:
        yield lambda done: None  # noqa: ARG005
        return
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def waiting(what: str, quiet: bool) -> Iterator[None]:
    """A spinner on standard error while something of unknown length runs."""
    bar = _bar(quiet)
    if bar is None:
        yield
        return
    with bar:
        bar.add_task(what, total=None)
        yield


def _bar(quiet: bool) -> Progress | None:
    if quiet or not sys.stderr.isatty():
        return None
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        Remaining(),
        console=Console(stderr=True),
    )


def _plain(value: Any) -> Any:
    """The value with infinity, which JSON lacks, as text."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " to ".join(_text(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={_text(item)}" for key, item in value.items())
    return "-" if value is None else str(value)
