"""Progress of long work: shown on a terminal, nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

_taken = False  # whether a bar is on the terminal, or somebody wants none there


@contextmanager
def progress(total: int, what: str, quiet: bool) -> Iterator[Any]:
    """A progress bar on standard error; call the result with the number of steps done.

    What shows progress inside, or inside of something quiet, stays silent.
    """
    with _bar(quiet) as bar:
        if bar is None:
            yield lambda done: None  # noqa: ARG005
            return
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def waiting(what: str, quiet: bool) -> Iterator[None]:
    """A spinner on standard error while something of unknown length runs."""
    with _bar(quiet) as bar:
        if bar is not None:
            bar.add_task(what, total=None)
        yield


def is_shown(quiet: bool) -> bool:
    """Whether progress would be seen."""
    return not quiet and sys.stderr.isatty()


@contextmanager
def _bar(quiet: bool) -> Iterator[Progress | None]:
    global _taken
    if _taken or not (quiet or is_shown(quiet)):
        yield None
        return
    _taken = True
    try:
        if quiet:
            yield None
        else:
            with _make_bar() as bar:
                yield bar
    finally:
        _taken = False


def _make_bar() -> Progress:
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
