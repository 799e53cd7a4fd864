"""Anonymous memory of this process (Linux)."""

from __future__ import annotations

import threading
from pathlib import Path


def anonymous_mb() -> float:
    """Return the anonymous memory of this process in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no line RssAnon: this benchmark needs Linux")


class MemoryMonitor(threading.Thread):
    """Record the peak of the anonymous memory until `done` is set."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.done = 0.0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.02):
            self.peak = max(self.peak, anonymous_mb())
