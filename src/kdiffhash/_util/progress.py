"""Progress bars on standard error, shown only on request and only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_enabled = False  # whether bars are shown without `verbose`
_is_drawing = False  # whether a bar is on the terminal


@contextmanager
def shown() -> Iterator[None]:
    """Show all progress bars inside this context, as the command line does."""
    global _enabled
    before, _enabled = _enabled, True
    try:
        yield
    finally:
        _enabled = before


@contextmanager
def progress(
    total: int | None, description: str, verbose: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error.

    It is shown if `verbose` is True or inside `shown`, but not inside another bar.

    Parameters
    ----------
    total : int or None
        Number of steps; None if it is unknown.
    description : str
        Text in front of the bar.
    verbose : bool, default=False
        Show the bar outside `shown` too.

    Yields
    ------
    advance : function
        Call it with the number of steps completed since the last call.
    """
    global _is_drawing
    if _is_drawing or not is_shown(verbose):
        yield lambda n_steps: None  # noqa: ARG005
        return
    with _make_bar() as bar:
        task = bar.add_task(description, total=total)
        _is_drawing = True
        try:
            yield lambda n_steps: bar.advance(task, n_steps)
        finally:
            _is_drawing = False


def waiting(description: str, verbose: bool = False) -> AbstractContextManager[object]:
    """Show a spinner on standard error during work of unknown length."""
    return progress(None, description, verbose)


def is_shown(verbose: bool = False) -> bool:
    """Return whether a progress bar would be shown now."""
    return (verbose or _enabled) and sys.stderr.isatty()


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
