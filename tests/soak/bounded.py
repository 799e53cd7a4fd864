"""A limit on the memory of a worker process, so that a file that asks for too much is noticed."""

from __future__ import annotations

import functools
import os
import resource
from pathlib import Path


@functools.cache
def limit_memory(n_bytes: int = 3 << 30) -> None:
    """Allow this process so many bytes of address space in addition to what it has."""
    if "asan" in os.environ.get("LD_PRELOAD", ""):  # AddressSanitizer reserves terabytes
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + n_bytes, used + n_bytes))
