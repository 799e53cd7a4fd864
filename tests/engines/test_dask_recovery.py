"""`ClusterIndex` when workers are lost or join, the scheduler is lost, or codes are replaced."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from kdiffhash import HammingIndex

pytest.importorskip("distributed")
from dask_cluster import running

from kdiffhash.engines.dask import ClusterError, ClusterIndex, cluster, connect

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture
def codes():
    return np.random.default_rng(0).integers(0, 256, (200_000, 8), dtype=np.uint8)


@pytest.fixture
def path(codes, tmp_path):
    np.save(tmp_path / "codes.npy", codes)
    return tmp_path / "codes.npy"


@pytest.fixture
def expected(codes):
    return HammingIndex(codes).search(codes[:500], 5)


def check(found, expected):
    for actual, desired in zip(found, expected, strict=True):
        np.testing.assert_array_equal(actual, desired)


def partitions_by_worker(index):
    """Return the number of partitions of each worker."""
    addresses = [slot[0] for slot in index._partitions._slots]
    return {address: addresses.count(address) for address in addresses}


@pytest.mark.parametrize("n", [1, 2])
def test_search_works_after_all_workers_are_killed_and_replaced(tmp_path, path, codes, expected, n):
    with running(tmp_path, n) as processes, connect(processes.address) as client:
        client.wait_for_workers(n, timeout=60)
        index = ClusterIndex(path, client=client)
        processes.kill_workers(n)
        processes.add_workers(n)
        check(index.search(codes[:500], 5), expected)


def test_search_gives_the_same_results_if_workers_are_replaced_meanwhile(tmp_path, path, codes):
    queries = np.tile(codes[:500], (20, 1))
    expected = HammingIndex(codes).search(queries, 5)
    with running(tmp_path, 2) as processes, connect(processes.address) as client:
        client.wait_for_workers(2, timeout=60)
        index = ClusterIndex(path, client=client)
        found = []
        thread = threading.Thread(target=lambda: found.append(index.search(queries, 5)))
        thread.start()
        time.sleep(0.1)
        processes.kill_workers(2)
        processes.add_workers(2)
        thread.join(60)
        assert not thread.is_alive(), "the search did not finish"
    check(found[0], expected)


def test_search_without_workers_fails_and_works_again_with_new_ones(
    tmp_path, path, codes, expected, monkeypatch
):
    monkeypatch.setattr(cluster, "_NO_WORKERS_TIMEOUT", 2)
    with running(tmp_path, 1) as processes, connect(processes.address) as client:
        index = ClusterIndex(path, client=client)
        processes.kill_workers(1)
        start = time.monotonic()
        with pytest.raises(ClusterError, match="no workers left; start some with `dask worker"):
            index.search(codes[:500], 5)
        assert time.monotonic() - start < 15
        processes.add_workers(1)
        client.wait_for_workers(1, timeout=60)
        check(index.search(codes[:500], 5), expected)


def test_lost_scheduler_is_reported_within_seconds(tmp_path, path, codes):
    with running(tmp_path, 1) as processes, connect(processes.address) as client:
        index = ClusterIndex(path, client=client)
        processes.processes[0].kill()
        start = time.monotonic()
        with pytest.raises(ClusterError, match="connection to the scheduler was lost"):
            index.search(codes[:500], 5)
        with pytest.raises(ClusterError, match="connection to the scheduler was lost"):
            ClusterIndex(path, client=client)
        assert time.monotonic() - start < 30


def test_worker_that_joins_takes_over_partitions(tmp_path, path, codes, expected):
    with running(tmp_path, 1) as processes, connect(processes.address) as client:
        index = ClusterIndex(path, client=client)
        assert list(partitions_by_worker(index).values()) == [4]
        processes.add_workers(1)
        client.wait_for_workers(2, timeout=60)
        check(index.search(codes[:500], 5), expected)
        assert sorted(partitions_by_worker(index).values()) == [2, 2]
        assert index.info()["workers"] == 2
        processes.kill_workers(1)
        check(index.search(codes[:500], 5), expected)
        assert list(partitions_by_worker(index).values()) == [4]


@pytest.mark.parametrize("kind", ["codes", "index"])
def test_codes_replaced_on_disk_are_detected_on_reloading(tmp_path, codes, kind):
    def write(path, codes):
        if kind == "codes":
            np.save(path, codes)
        else:
            path.unlink(missing_ok=True)
            HammingIndex(codes).save(path)

    path = tmp_path / ("codes.npy" if kind == "codes" else "x.index")
    write(path, codes)
    with running(tmp_path, 1) as processes, connect(processes.address) as client:
        index = ClusterIndex(path, client=client)
        write(path, codes[::-1])
        processes.kill_workers(1)
        processes.add_workers(1)
        with pytest.raises(ClusterError, match="has been changed since"):
            index.search(codes[:5], 5)
