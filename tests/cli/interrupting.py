"""Run a command and interrupt it; shared by the test of Ctrl-C and the soak test."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# Before the first line of kdiffhash runs, Ctrl-C is up to Python; the moments start after it.
PROGRAM = """
import os, signal, sys
from kdiffhash import cli
signal.signal(signal.SIGINT, signal.default_int_handler)
run = cli.run
def announced():
    os.write(1, b"#")
    run()
cli.run = announced
cli.main()
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    stderr: str
    seconds: float  # since the signal, or since the first line if there was no signal


def run_interrupted(arguments: list[object], folder: Path, delay: float | None) -> Ended:
    """Run a command in a folder; send SIGINT after `delay` seconds unless it is None."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.read(1)
    start = time.monotonic()
    if delay is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(delay)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
    try:
        _, stderr = process.communicate(timeout=600 if delay is None else 60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    return Ended(process.returncode, stderr.decode(), time.monotonic() - start)
