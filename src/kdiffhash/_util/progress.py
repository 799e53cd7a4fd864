"""Progress of long work: drawn on a terminal where it is asked for, nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_wanted = False  # whether progress is shown without `verbose`
_drawn = False  # whether a bar is on the terminal


@contextmanager
def shown() -> Iterator[None]:
    """Show the progress of everything that runs inside, as the command line does."""
    global _wanted
    before, _wanted = _wanted, True
    try:
        yield
    finally:
        _wanted = before


@contextmanager
def progress(
    total: int | None, what: str, verbose: bool = False
) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error; call the result with the number of steps done.

    It is drawn if `verbose`, or inside of `shown`; inside of another bar it is not.
    """
    global _drawn
    if _drawn or not is_shown(verbose):
        yield lambda done: None  # noqa: ARG005
        return
    with _make_bar() as bar:
        task = bar.add_task(what, total=total)
        _drawn = True
        try:
            yield lambda done: bar.advance(task, done)
        finally:
            _drawn = False


def waiting(what: str, verbose: bool = False) -> AbstractContextManager[object]:
    """A spinner on standard error while something of unknown length runs."""
    return progress(None, what, verbose)


def is_shown(verbose: bool = False) -> bool:
    """Whether progress would be seen."""
    return (verbose or _wanted) and sys.stderr.isatty()


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
