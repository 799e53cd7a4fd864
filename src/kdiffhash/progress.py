"""Progress of long work: shown on a terminal, nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

_shown = False  # whether a bar is on the terminal: there is room for one


@contextmanager
def progress(total: int, what: str, quiet: bool) -> Iterator[Any]:
    """A progress bar on standard error; call the result with the number of steps done."""
    bar = _bar(quiet)
    if bar is None:
        yield lambda done: None  # noqa: ARG005
        return
    with _alone(bar):
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def waiting(what: str, quiet: bool) -> Iterator[None]:
    """A spinner on standard error while something of unknown length runs."""
    bar = _bar(quiet)
    if bar is None:
        yield
        return
    with _alone(bar):
        bar.add_task(what, total=None)
        yield


@contextmanager
def _alone(bar: Progress) -> Iterator[None]:
    """Show a bar; what starts another one meanwhile stays silent."""
    global _shown
    _shown = True
    try:
        with bar:
            yield
    finally:
        _shown = False


def is_shown(quiet: bool) -> bool:
    """Whether progress would be seen."""
    return not quiet and sys.stderr.isatty()


def _bar(quiet: bool) -> Progress | None:
    if _shown or not is_shown(quiet):
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
