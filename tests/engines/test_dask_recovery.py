"""`ClusterIndex` when workers are lost or join, the scheduler is lost, or codes are replaced."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from kdiffhash import HammingIndex

pytest.importorskip("distributed")
from dask_cluster import Gate, running

from kdiffhash.engines.dask import (
    ClusterError,
    ClusterIndex,
    cluster,
    connect,
    partitions,
    searching,
)

pytestmark = [pytest.mark.network, pytest.mark.slow]

LOST = "connection to the scheduler was lost"
STEPS = {"load": "_load_from_slices", "search": "_nearest"}  # functions that run on the workers


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Wait as long as it takes on a busy machine until new workers have started."""
    monkeypatch.setattr(cluster, "_NO_WORKERS_TIMEOUT", 120)


@pytest.fixture
def codes():
    return np.random.default_rng(0).integers(0, 256, (20_000, 8), dtype=np.uint8)


@pytest.fixture
def path(codes, tmp_path):
    np.save(tmp_path / "codes.npy", codes)
    return tmp_path / "codes.npy"


@pytest.fixture
def expected(codes):
    return HammingIndex(codes).search(codes[:500], 5)


@pytest.fixture
def start(tmp_path):
    """Start a cluster of n workers, and return its processes and a client."""
    opened = []

    def start(n):
        opened.append(running(tmp_path, n))
        processes = opened[-1].__enter__()
        opened.append(connect(processes.address, timeout=120))
        client = opened[-1].__enter__()
        client.wait_for_workers(n, timeout=120)
        return processes, client

    yield start
    while opened:
        opened.pop().__exit__(None, None, None)


class Call:
    """A call in a thread; `result` fails if it hangs."""

    def __init__(self, function, *arguments):
        self.results, self.errors = [], []
        self.thread = threading.Thread(target=self._run, args=(function, *arguments), daemon=True)
        self.thread.start()

    def _run(self, function, *arguments):
        try:
            self.results.append(function(*arguments))
        except BaseException as error:
            self.errors.append(error)

    def result(self):
        self.thread.join(120)
        assert not self.thread.is_alive(), "the call hangs"
        if self.errors:
            raise self.errors[0]
        return self.results[0]


def check(found, expected):
    for actual, desired in zip(found, expected, strict=True):
        np.testing.assert_array_equal(actual, desired)


def partitions_by_worker(index):
    """Return the number of partitions of each worker."""
    addresses = [slot[0] for slot in index._partitions._slots]
    return {address: addresses.count(address) for address in addresses}


def load_and_search(path, client, queries):
    with ClusterIndex(path, client=client) as index:
        return index.search(queries, 5)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("killed", "of"), [(1, 1), (2, 2), (1, 2)])
def test_results_are_right_if_workers_are_killed_meanwhile(
    tmp_path, path, codes, expected, start, monkeypatch, step, killed, of
):
    processes, client = start(of)
    gate = Gate(tmp_path)
    monkeypatch.setattr(searching, STEPS[step], gate.hold(getattr(searching, STEPS[step])))
    call = Call(load_and_search, path, client, codes[:500])
    gate.wait(of)
    processes.kill_workers(killed)
    if killed == of:
        processes.add_workers(of)
    gate.open()
    check(call.result(), expected)


@pytest.mark.parametrize("n", [1, 2])
def test_search_works_after_all_workers_are_killed_and_replaced(path, codes, expected, start, n):
    processes, client = start(n)
    index = ClusterIndex(path, client=client)
    for _ in range(3):
        processes.kill_workers(n)
        processes.add_workers(n)
        check(Call(index.search, codes[:500], 5).result(), expected)


def test_worker_that_comes_back_at_the_same_address_loads_its_codes_again(
    path, codes, expected, start
):
    processes, client = start(1)
    index = ClusterIndex(path, client=client)
    (address,) = client.nthreads()
    for _ in range(3):
        processes.kill_workers(1)
        processes.add_workers(1, port=int(address.rsplit(":", 1)[1]))
        check(Call(index.search, codes[:500], 5).result(), expected)
        assert list(client.nthreads()) == [address]


def test_losing_many_workers_once_is_not_an_error(
    tmp_path, path, codes, expected, start, monkeypatch
):
    monkeypatch.setattr(partitions, "_MAX_LOSSES", 1)
    processes, client = start(2)
    index = ClusterIndex(path, client=client)
    gate = Gate(tmp_path)
    monkeypatch.setattr(searching, "_nearest", gate.hold(searching._nearest))
    call = Call(index.search, codes[:500], 5)
    gate.wait(2)
    processes.kill_workers(2)
    processes.add_workers(2)
    gate.open()
    check(call.result(), expected)


def test_losing_the_same_codes_again_and_again_is_reported(
    tmp_path, path, codes, start, monkeypatch
):
    monkeypatch.setattr(partitions, "_MAX_LOSSES", 1)
    processes, client = start(1)
    index = ClusterIndex(path, client=client)
    gate = Gate(tmp_path)
    monkeypatch.setattr(searching, "_nearest", gate.hold(searching._nearest))
    call = Call(index.search, codes[:500], 5)
    for n in (1, 2):
        gate.wait(n)
        processes.kill_workers(1)
        processes.add_workers(1)
    with pytest.raises(ClusterError, match=r"the same codes were lost with their workers 2 times"):
        call.result()


def test_search_without_workers_fails_and_works_again_with_new_ones(
    path, codes, expected, start, monkeypatch
):
    processes, client = start(1)
    index = ClusterIndex(path, client=client)
    processes.kill_workers(1)
    monkeypatch.setattr(cluster, "_NO_WORKERS_TIMEOUT", 1)
    with pytest.raises(ClusterError, match="no workers left; start some with `dask worker"):
        Call(index.search, codes[:500], 5).result()
    processes.add_workers(1)
    client.wait_for_workers(1, timeout=120)
    check(index.search(codes[:500], 5), expected)


@pytest.mark.parametrize("step", STEPS)
def test_scheduler_killed_meanwhile_is_reported(tmp_path, path, codes, start, monkeypatch, step):
    processes, client = start(1)
    gate = Gate(tmp_path)
    monkeypatch.setattr(searching, STEPS[step], gate.hold(getattr(searching, STEPS[step])))
    call = Call(load_and_search, path, client, codes[:500])
    gate.wait(1)
    processes.kill_scheduler()
    with pytest.raises(ClusterError, match=LOST):
        call.result()
    with pytest.raises(ClusterError, match=LOST):
        ClusterIndex(path, client=client)


def test_scheduler_that_does_not_answer_is_reported(path, codes, start, monkeypatch):
    processes, client = start(1)
    index = ClusterIndex(path, client=client)
    monkeypatch.setattr(cluster, "_TIMEOUT", 1)
    os.kill(processes.processes[0].pid, signal.SIGSTOP)
    with pytest.raises(ClusterError, match=LOST):
        Call(index.search, codes[:500], 5).result()


def test_index_works_again_after_the_scheduler_is_restarted(path, codes, expected, start):
    processes, client = start(1)
    index = ClusterIndex(path, client=client)
    processes.kill_scheduler()
    with pytest.raises(ClusterError, match=LOST):
        Call(index.search, codes[:500], 5).result()
    processes.restart_scheduler()
    processes.add_workers(1)
    deadline = time.monotonic() + 120
    while client.status != "running":
        assert time.monotonic() < deadline, "the client does not connect again"
        time.sleep(0.1)
    check(Call(index.search, codes[:500], 5).result(), expected)


def test_worker_that_joins_takes_over_partitions(path, codes, expected, start):
    processes, client = start(1)
    index = ClusterIndex(path, client=client)
    assert list(partitions_by_worker(index).values()) == [4]
    processes.add_workers(1)
    client.wait_for_workers(2, timeout=120)
    check(index.search(codes[:500], 5), expected)
    assert sorted(partitions_by_worker(index).values()) == [2, 2]
    assert index.info()["workers"] == 2
    processes.kill_workers(1)
    check(Call(index.search, codes[:500], 5).result(), expected)
    assert list(partitions_by_worker(index).values()) == [4]


def test_codes_of_a_worker_that_dask_has_paused_are_moved(path, codes, expected, start):
    def pause(dask_worker):
        for callback in dask_worker.periodic_callbacks.values():  # the one that would resume it
            callback.stop()
        dask_worker.status = type(dask_worker.status).paused

    _, client = start(2)
    index = ClusterIndex(path, client=client)
    paused, other = sorted(client.nthreads())
    client.run(pause, workers=[paused])
    check(Call(index.search, codes[:500], 5).result(), expected)
    assert partitions_by_worker(index) == {other: 8}


def write_index(path, codes):
    path.unlink(missing_ok=True)
    HammingIndex(codes).save(path)


@pytest.mark.parametrize(
    ("name", "write", "change"),
    [
        ("codes.npy", np.save, lambda codes: codes[::-1]),
        ("codes.npy", np.save, lambda codes: codes[:-1]),
        ("codes.npy", np.save, lambda codes: np.concatenate([codes, codes[:1]])),
        ("codes.npy", np.save, lambda codes: codes[:, :4]),
        ("x.index", write_index, lambda codes: codes[::-1]),
    ],
)
def test_codes_replaced_on_disk_are_detected_on_reloading(
    tmp_path, codes, start, name, write, change
):
    path = tmp_path / name
    write(path, codes)
    processes, client = start(1)
    index = ClusterIndex(path, client=client)
    write(path, change(codes))
    processes.kill_workers(1)
    processes.add_workers(1)
    for _ in range(2):
        with pytest.raises(ClusterError, match="has been changed since"):
            Call(index.search, codes[:5], 5).result()


def test_codes_replaced_while_they_are_loaded_are_detected(
    tmp_path, path, codes, start, monkeypatch
):
    _, client = start(1)
    gate = Gate(tmp_path)
    monkeypatch.setattr(searching, "_load_from_slices", gate.hold(searching._load_from_slices))
    call = Call(lambda: ClusterIndex(path, client=client))
    gate.wait(1)
    np.save(tmp_path / "new.npy", codes[::-1])
    (tmp_path / "new.npy").replace(path)
    gate.open()
    with pytest.raises(ClusterError, match="has been changed since it was opened"):
        call.result()


def test_closing_an_index_during_a_search_is_reported(tmp_path, path, codes, start, monkeypatch):
    processes, client = start(1)
    index = ClusterIndex(path, client=client)
    gate = Gate(tmp_path)
    monkeypatch.setattr(searching, "_nearest", gate.hold(searching._nearest))
    call = Call(index.search, codes[:500], 5)
    gate.wait(1)
    index.close()
    processes.kill_workers(1)
    processes.add_workers(1)
    gate.open()
    with pytest.raises(ValueError, match="this ClusterIndex is closed"):
        call.result()
