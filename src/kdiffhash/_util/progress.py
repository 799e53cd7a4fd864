"""Progress bars and logs of steps on standard error, shown only on request.

Bars are drawn on a terminal only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_enabled = False  # whether bars are shown without `verbose`
_is_drawing = False  # whether a bar is on the terminal
_steps: _Steps | None = None  # the steps of the bar on the terminal
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
) -> Iterator[Callable[[float], None]]:
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


@contextmanager
def steps(shares: Mapping[str, float], description: str, verbose: bool = False) -> Iterator[None]:
    """Show one progress bar for steps of different lengths.

    Parameters
    ----------
    shares : mapping of str to float
        The expected time of each step, in any unit. `next_step` begins a step, and `report` tells
        what is done of it.
    description : str
        Text in front of the bar.
    verbose : bool, default=False
        Show the bar outside `shown` too.
    """
    global _steps
    if _steps is not None:
        yield
        return
    total = sum(shares.values())
    with progress(100, description, verbose) as advance:
        _steps = _Steps({name: 100 * share / total for name, share in shares.items()}, advance)
        try:
            yield
            _steps.finish()
        finally:
            _steps = None


def next_step(name: str, part: float = 1.0, n_passes: int = 1) -> None:
    """Begin a step of the bar of `steps`, if there is one.

    The step may be begun several times, for a `part` of it each. What is reported until the next
    step is divided by the number of passes.
    """
    if _steps is not None:
        _steps.begin(name, part, n_passes)


def report(fraction: float) -> None:
    """Report that a fraction of the current step is done, if there is one."""
    if _steps is not None:
        _steps.report(fraction)


class _Steps:
    """The steps of a bar, with their shares of it."""

    def __init__(self, shares: Mapping[str, float], advance: Callable[[float], None]) -> None:
        self.shares, self.advance = shares, advance
        self.share = self.left = 0.0  # of the current step: of one pass, and what is left

    def begin(self, name: str, part: float, n_passes: int) -> None:
        self.finish()
        log(name)
        self.left = part * self.shares[name]
        self.share = self.left / n_passes

    def report(self, fraction: float) -> None:
        done = min(self.left, fraction * self.share)
        self.left -= done
        self.advance(done)

    def finish(self) -> None:
        self.advance(self.left)
        self.left = 0.0


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
