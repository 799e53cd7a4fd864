"""Ctrl-C: end with exit code 130 in less than a second, without a traceback or half-written files.

The main thread gets a `KeyboardInterrupt`, and `finally` clauses remove what is unfinished.
Compiled loops and libraries may delay or swallow that exception. A thread therefore waits for the
signal as well, and ends the process if it is still there after half a second. This is safe because
every file is written under a temporary name or in transactions.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

EXIT_CODE = 130  # 128 + SIGINT, as shells report it
_GRACE = 0.5  # seconds for clean-up

_stderr: int | None = None  # a copy of standard error, once the process has been interrupted


@contextmanager
def exiting_on_interrupt() -> Iterator[None]:
    """End the process on Ctrl-C; after the context, while Python shuts down, Ctrl-C is ignored.

    Nothing is changed if Ctrl-C is ignored already, as in a background job, or handled otherwise.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    reading, writing = os.pipe()
    if os.name == "posix":
        os.set_blocking(writing, False)
    # The interpreter writes the number of each signal there, even during a compiled loop.
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _interrupt)
    threading.Thread(target=_watch, args=(reading,), name="interrupt", daemon=True).start()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if _stderr is not None:
            _exit()


def _interrupt(*_: Any) -> None:
    """Raise `KeyboardInterrupt` once, and silence what libraries print about it."""
    global _stderr
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the clean-up is not interrupted again
    _stderr = -1
    with suppress(OSError):  # standard error is closed
        _stderr = os.dup(2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    raise KeyboardInterrupt


def _watch(reading: int) -> None:
    """End the process half a second after the signal."""
    while signal.SIGINT not in os.read(reading, 64):
        pass
    time.sleep(_GRACE)
    _exit()


def _exit() -> None:
    """Remove temporary files and end the process without waiting for threads."""
    files = sys.modules.get("kdiffhash._util.files")
    if files is not None:
        files.remove_unfinished()
    stderr = 2 if _stderr is None else _stderr
    with suppress(OSError):
        # On a terminal, clear the line of a progress bar and show the cursor again.
        reset = b"\r\x1b[K\x1b[?25h" if os.isatty(stderr) else b""
        os.write(stderr, reset + b"interrupted\n")
    os._exit(EXIT_CODE)
