"""Where matplotlib keeps its fonts while a command draws."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from .._util.files import make_cache_folder


@contextmanager
def matplotlib_folder() -> Iterator[None]:
    """Let matplotlib write to the cache folder, or to a temporary one, instead of to HOME."""
    with ExitStack() as stack:
        if "MPLCONFIGDIR" not in os.environ:
            try:
                folder = str(make_cache_folder() / "matplotlib")
            except OSError:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
            os.environ["MPLCONFIGDIR"] = folder
            stack.callback(os.environ.pop, "MPLCONFIGDIR")
        yield
