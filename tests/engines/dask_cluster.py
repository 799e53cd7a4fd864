"""A Dask scheduler and workers in separate processes, some of which are killed.

They are forked from a process that has imported Dask already, so a new worker is there within a
fraction of a second.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
import uuid
from contextlib import contextmanager

_CONTEXT = multiprocessing.get_context("forkserver")


class Cluster:
    """Processes on this machine: ``processes[0]`` is the scheduler, the others are workers."""

    def __init__(self, folder, n_workers):
        self.folder, self.processes = folder, []
        _CONTEXT.set_forkserver_preload(["distributed", "kdiffhash.engines.dask.searching"])
        self.address = self._start_scheduler(0)
        self.add_workers(n_workers)

    @property
    def workers(self):
        """Worker processes that are still running."""
        return [process for process in self.processes[1:] if process.is_alive()]

    def add_workers(self, n, **options):
        """Start n workers of one thread."""
        for _ in range(n):
            self.processes.append(self._start("Worker", self.address, nthreads=1, **options))

    def kill_workers(self, n):
        """Kill n workers and wait until they have ended."""
        for process in self.workers[:n]:
            process.kill()
            process.join()

    def kill_scheduler(self):
        """Kill the scheduler and wait until it has ended."""
        self.processes[0].kill()
        self.processes[0].join()

    def restart_scheduler(self):
        """Start a scheduler at the address of the one that was killed."""
        self._start_scheduler(int(self.address.rsplit(":", 1)[1]))

    def _start_scheduler(self, port):
        process = self._start("Scheduler", port=port)
        self.processes[:1] = [process]
        path = self.folder / f"Scheduler-{process.pid}"
        while not (path.exists() and path.read_text()):
            assert process.is_alive(), "the scheduler did not start"
            time.sleep(0.01)
        return path.read_text()

    def _start(self, server, *arguments, **options):
        target = (server, self.folder, arguments, options)
        process = _CONTEXT.Process(target=_run, args=target, daemon=True)
        process.start()
        return process

    def stop(self):
        """Kill all processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


def _run(server, folder, arguments, options):
    """Run a scheduler or worker until it is killed, and write its address to the folder."""
    import distributed

    log = os.open(folder / f"{server}-{os.getpid()}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)

    async def main():
        local = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "dashboard": False}
        async with getattr(distributed, server)(*arguments, **local, **options) as running:
            (folder / f"{server}-{os.getpid()}").write_text(running.address)
            await running.finished()

    asyncio.run(main())


@contextmanager
def running(folder, n_workers):
    """Yield a running cluster, and stop it on exit."""
    cluster = Cluster(folder, n_workers)
    try:
        yield cluster
    finally:
        cluster.stop()


class Gate:
    """Holds up a function that runs on workers, so that they can be killed meanwhile."""

    def __init__(self, folder):
        self.folder = folder / f"gate-{uuid.uuid4().hex}"
        self.folder.mkdir()

    def hold(self, function):
        """Return the function, delayed until the gate is opened."""
        folder = self.folder

        def held(*arguments):
            (folder / f"begun-{os.getpid()}").touch()
            while not (folder / "open").exists():
                time.sleep(0.01)
            return function(*arguments)

        return held

    def wait(self, n):
        """Wait until n processes have begun to run the function."""
        deadline = time.monotonic() + 120
        while len(list(self.folder.glob("begun-*"))) < n:
            assert time.monotonic() < deadline, "the function was not called"
            time.sleep(0.01)

    def open(self):
        """Let the function run."""
        (self.folder / "open").touch()
