"""Progress bars and logs of steps on standard error, shown only on request.

Bars are drawn on a terminal only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_enabled = False  # whether bars are shown without `verbose`
_is_drawing = False  # whether a bar is on the terminal
_log_start: float | None = None  # when the log of steps started, if there is one


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
def logging_steps() -> Iterator[None]:
    """Write a line at the start of each step inside this context, with the time since its start."""
    global _log_start
    before, _log_start = _log_start, time.perf_counter()
    try:
        yield
        log("done")
    finally:
        _log_start = before


def log(text: str) -> None:
    """Write a line to the log of steps, if there is one."""
    if _log_start is not None:
        seconds = time.perf_counter() - _log_start
        print(f"[{seconds:7.2f} s] {text}", file=sys.stderr, flush=True)


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
    log(description)
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
