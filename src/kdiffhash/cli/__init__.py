"""The command line.

Nothing is imported before Ctrl-C is handled, and commands import what they need inside their
functions, so that `--help` is fast.
"""

from __future__ import annotations

import os
import re
import sys

from .interrupt import exiting_on_interrupt


def main() -> None:
    """Run the command line as a program: Ctrl-C ends it at once, with exit code 130."""
    with exiting_on_interrupt():
        run()


def run() -> None:
    """Run the command line; an error is printed as one sentence, without a traceback."""
    try:
        from .commands import app
        from .study_command import repeat_options

        app(repeat_options(sys.argv[1:]), prog_name="kdiffhash")
    except (ValueError, OSError, MemoryError, ImportError) as error:
        if _is_verbose():
            raise
        print(f"error: {named_by_user(_error_message(error))}", file=sys.stderr)
        sys.exit(1)


def _is_verbose() -> bool:
    """Return whether the command that runs was started with `--verbose`."""
    from .app import verbosity

    return bool(verbosity["verbose"] or os.environ.get("KDIFFHASH_TRACEBACK"))


def named_by_user(message: str) -> str:
    """Return a message with the names of outputs in place of those of temporary and lock files."""
    message = re.sub(r"\.([^/\\\s]+)\.[0-9a-f]{8}\.part\b", r"\1", message)
    return re.sub(r"\.?([^/\\\s.][^/\\\s]*)\.lock\b", r"\1", message)


def _error_message(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        if error.strerror.startswith("No usable temporary directory"):
            return f"{error.strerror}; set TMPDIR to a folder that can be written to"
        name = error.filename or error.filename2
        return f"{error.strerror}: {name}" if name else error.strerror
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}"
    return str(error) or type(error).__name__
