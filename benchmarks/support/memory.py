"""Anonymous memory of this process (Linux)."""

from __future__ import annotations

import threading
from pathlib import Path


def anonymous_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this benchmark reads /proc/self/status")


class Watch(threading.Thread):
    """The highest anonymous memory while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.done = 0.0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.02):
            self.peak = max(self.peak, anonymous_mb())
