"""Kill Dask workers and schedulers during training, encoding, and loading and searching codes."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
from common import CRASHED, REFUSED, RIGHT, WRONG, attack, outcome_of
from sklearn.base import clone

from kdiffhash import HammingIndex, LDAHash
from kdiffhash.engines.dask import (
    ClusterIndex,
    cluster,
    connect,
    encode,
    encoding,
    fit,
    partitions,
    remote_rows,
    searching,
)
from kdiffhash.shards import open_shards

sys.path += [str(Path(__file__).parents[1] / name) for name in ("cli", "engines")]
from dask_cluster import running
from interrupting import PROGRAM

_ANSWER = 60  # seconds within which a call must end in a result or an error
_START = 60  # seconds within which workers must have started


@contextmanager
def _running(folder, n_workers):
    """A cluster, a client, and frequent checks that the workers are alive."""
    with ExitStack() as stack:
        for module in (cluster, partitions):
            stack.enter_context(mock.patch.object(module, "POLL", 0.05))
        stack.enter_context(mock.patch.object(cluster, "_NO_WORKERS_TIMEOUT", _START / 2))
        stack.callback(logging.disable, logging.NOTSET)
        logging.disable()  # errors arrive as exceptions
        processes = stack.enter_context(running(folder, n_workers))
        client = stack.enter_context(connect(processes.address, timeout=_START))
        client.wait_for_workers(n_workers, timeout=_START)
        yield processes, client


def _slow(function, folder, seconds):
    """The same function, which says when it has begun and takes its time before and after."""

    def slow(*arguments):
        (folder / f"begun-{uuid.uuid4().hex}").touch()
        time.sleep(seconds)
        result = function(*arguments)
        time.sleep(seconds)
        return result

    return slow


class Answer:
    """A call in a thread, which is not waited for longer than `_ANSWER` seconds."""

    def __init__(self, check):
        self.outcome = CRASHED, "no answer"
        self.thread = threading.Thread(target=self._work, args=(check,), daemon=True)
        self.thread.start()

    def _work(self, check):
        self.outcome = outcome_of(check)

    def get(self):
        self.thread.join(_ANSWER)
        return self.outcome


def _write_codes(folder, rng):
    codes = rng.integers(0, 256, (20_000, 8), dtype=np.uint8)
    np.save(folder / "codes.npy", codes)
    queries = codes[rng.integers(0, len(codes), 50)]
    return folder / "codes.npy", queries, HammingIndex(codes).search(queries, 5)


PHASES = {  # what runs on the workers meanwhile, and the seconds by which it is delayed
    "load": (searching, "_load_from_slices", 0.02),
    "search": (searching, "_nearest", 0.05),
    "train": (remote_rows, "take_rows", 0.02),
    "encode": (encoding, "write_shard", 0.02),
}


def _check_of(phase, folder, client, rng):
    """Return a function that runs a phase and compares its result with that of this process."""
    if phase in ("train", "encode"):
        return _check_of_rows(phase, folder, client)
    path, queries, expected = _write_codes(folder, rng)

    def check():
        with ClusterIndex(path, client=client) as index:
            found = index.search(queries, 5)
        return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))

    return check


def _check_of_rows(phase, folder, client):
    X, y = np.random.default_rng(0).normal(size=(2000, 16)).astype(np.float32), np.arange(2000) // 4
    hasher = LDAHash(16, n_positives=2000, n_negatives=3000, random_state=0)
    expected = hasher.fit(X, y).transform(X)
    rows, out = folder / "rows", folder / "out"
    rows.mkdir(exist_ok=True)
    for i in range(4):
        np.save(rows / f"{i}.npy", X[500 * i : 500 * i + 500])
        np.save(rows / f"{i}.labels.npy", y[500 * i : 500 * i + 500])

    def check():
        if phase == "train":
            found = fit(clone(hasher), rows, client=client).transform(X)
        else:
            shutil.rmtree(out, ignore_errors=True)
            encode(hasher, rows, out, client=client)
            found = np.asarray(open_shards(out))
            assert not list(out.glob(".*"))
        return np.array_equal(found, expected)

    return check


def _kill_during(phase, kill, check, folder, rng):
    """Run a phase, and call `kill` at a random moment of it; return the outcome."""
    module, name, seconds = PHASES[phase]
    for old in folder.glob("begun-*"):
        old.unlink()

    slow = _slow(getattr(module, name), folder, seconds)
    with mock.patch.object(module, name, slow):
        answer = Answer(check)
        while not list(folder.glob("begun-*")) and answer.thread.is_alive():
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 2 * seconds))
        kill()
        return answer.get()


def _kill_workers(n_killed, n_workers, phase, rng, tries, folder, tally):
    def kill():
        processes.kill_workers(n_killed)
        if n_killed == n_workers:  # all are gone for a moment
            time.sleep(rng.uniform(0, 0.3))
            processes.add_workers(n_killed)

    with _running(folder, n_workers) as (processes, client):
        check = _check_of(phase, folder, client, rng)
        for number in range(tries):
            outcome, note = _kill_during(phase, kill, check, folder, rng)
            right = outcome == RIGHT  # nothing to refuse: there are workers again
            tally.count(outcome if right or outcome == CRASHED else WRONG, f"{number}: {note}")
            processes.add_workers(n_workers - len(processes.workers))
            client.wait_for_workers(n_workers, timeout=_START)


def _kill_scheduler(phase, rng, tries, folder, tally):
    for number in range(tries):
        with _running(folder, 1) as (processes, client):
            check = _check_of(phase, folder, client, rng)
            outcome, note = _kill_during(phase, processes.kill_scheduler, check, folder, rng)
        tally.count(outcome, f"{number}: {note}")


for _phase in PHASES:
    for _killed, _of in ((1, 1), (2, 2), (1, 2)):
        attack(f"Dask: kill {_killed} of {_of} workers in {_phase}", 20)(
            partial(_kill_workers, _killed, _of, _phase)
        )
    attack(f"Dask: kill the scheduler in {_phase}", 20)(partial(_kill_scheduler, _phase))


@attack("Dask: replace codes, then kill a worker", 20)
def replace_codes(rng, tries, folder, tally):
    with _running(folder, 1) as (processes, client):
        for number in range(tries):
            path, queries, _ = _write_codes(folder, rng)
            index = ClusterIndex(path, client=client)
            _write_codes(folder, rng)
            if rng.random() < 0.5:  # a row more
                np.save(path, np.concatenate([np.load(path), queries[:1]]))
            processes.kill_workers(1)
            processes.add_workers(1)
            outcome, note = Answer(partial(index.search, queries, 5)).get()
            tally.count(outcome if outcome in (REFUSED, CRASHED) else WRONG, f"{number}: {note}")
            index.close()


@attack("Dask: late workers take over codes", 20)
def join(rng, tries, folder, tally):
    path, queries, expected = _write_codes(folder, rng)
    with _running(folder, 1) as (processes, client):
        for number in range(tries):
            with ClusterIndex(path, client=client) as index:
                n_new = int(rng.integers(1, 3))
                processes.add_workers(n_new)
                client.wait_for_workers(1 + n_new, timeout=_START)

                def check(index=index, n=1 + n_new):
                    found = index.search(queries, 5)
                    same = all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
                    return same and index.info()["workers"] == n

                outcome, note = Answer(check).get()
            tally.count(WRONG if outcome == REFUSED else outcome, f"{number}: {note}")
            processes.kill_workers(n_new)
            while len(client.nthreads()) > 1:
                time.sleep(0.01)


@attack("Dask: Ctrl-C while `--cluster local` starts or runs", 15)
def interrupt(rng, tries, folder, tally):
    _write_codes(folder, rng)
    np.save(folder / "queries.npy", np.load(folder / "codes.npy")[:10])
    command = [sys.executable, "-c", PROGRAM, "index", "search", "codes.npy", "queries.npy"]
    command += ["-o", "found.npz", "--cluster", "local"]
    for number in range(tries):
        with subprocess.Popen(
            command,
            cwd=folder,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            process.stdout.read(1)  # until kdiffhash is loaded
            time.sleep(rng.uniform(0, 3.5))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            try:
                output, _ = process.communicate(timeout=_ANSWER)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                tally.count(CRASHED, f"{number}: did not end")
                continue
        outcome = {0: RIGHT, 130: REFUSED}.get(process.returncode, WRONG)
        tally.count(WRONG if "Traceback" in output else outcome, f"{number}: {output[-1500:]}")
