"""Memory of this process (Linux)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path


def anonymous_mb() -> float:
    """Return the anonymous memory of this process in MB."""
    return _resident_mb("RssAnon")


def resident_mb() -> float:
    """Return the resident memory of this process in MB, memory-mapped files included."""
    return _resident_mb("VmRSS")


def _resident_mb(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no line {name}: this benchmark needs Linux")


class MemoryMonitor(threading.Thread):
    """Record the peak of the anonymous, or of other memory until `done` is set."""

    def __init__(self, measure: Callable[[], float] = anonymous_mb) -> None:
        super().__init__(daemon=True)
        self.measure, self.peak, self.done = measure, 0.0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.02):
            self.peak = max(self.peak, self.measure())
