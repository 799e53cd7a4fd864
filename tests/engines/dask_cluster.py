"""A Dask scheduler and workers in separate processes, started with the commands of Dask."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager

DASK = [sys.executable, "-m", "dask"]


class Cluster:
    """Processes on this machine: ``processes[0]`` is the scheduler, the others are workers."""

    def __init__(self, folder, n_workers):
        self.folder, self.processes = folder, []
        self.file = folder / "scheduler.json"
        self._start("scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", self.file)
        deadline = time.monotonic() + 60
        while not (self.file.exists() and self.file.read_text().rstrip().endswith("}")):
            assert time.monotonic() < deadline, "the scheduler did not start"
            time.sleep(0.05)
        self.address = json.loads(self.file.read_text())["address"]
        self.add_workers(n_workers)

    @property
    def workers(self):
        """Worker processes that are still running."""
        return [process for process in self.processes[1:] if process.poll() is None]

    def add_workers(self, n):
        """Start n workers."""
        options = ("--nthreads", "1", "--no-dashboard", "--no-nanny")
        for _ in range(n):
            self._start("worker", self.address, *options)

    def kill_workers(self, n):
        """Kill n workers and wait until they have ended."""
        for process in self.workers[:n]:
            process.kill()
            process.wait()

    def _start(self, role, *options):
        command = [*DASK, role, "--host", "127.0.0.1", *map(str, options)]
        log = (self.folder / f"{role}-{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        self.processes.append(process)
        return process

    def stop(self):
        """Kill all processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


@contextmanager
def running(folder, n_workers):
    """Yield a running cluster, and stop it on exit."""
    cluster = Cluster(folder, n_workers)
    try:
        yield cluster
    finally:
        cluster.stop()
