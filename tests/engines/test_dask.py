"""The Dask engine, with real scheduler and worker processes, some of which are killed."""

import os
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kdiffhash import (
    BoostedHash,
    DiffHash,
    HammingIndex,
    ITQHash,
    KernelDiffHash,
    KernelLDAHash,
    LDAHash,
)
from kdiffhash._util.errors import NotSupportedError
from kdiffhash.hashers.fingerprint import fingerprint
from kdiffhash.shards import open_shards

pytest.importorskip("distributed")
import dask.array as da
from contract import StoreContract
from dask_cluster import running

from kdiffhash.engines.dask import (
    ClusterError,
    ClusterIndex,
    connect,
    encode,
    fit,
    fit_pairs,
)

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running(tmp_path_factory.mktemp("dask"), 2) as cluster, connect(cluster.address) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


@pytest.fixture(scope="module")
def data():
    """24,000 descriptors of 128 bytes, and their labels; each label is in several shards."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3_000, 24_000)
    centres = rng.gamma(1.0, 30.0, (3_000, 128))
    rows = centres[labels] * rng.uniform(0.6, 1.4, (24_000, 128))
    return np.clip(rows, 0, 255).astype(np.uint8), labels


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    """The same data as a folder of five shards."""
    X, y = data
    folder = tmp_path_factory.mktemp("rows")
    for number, (a, b) in enumerate(pairwise([0, 5_000, 5_001, 12_000, 17_000, 24_000])):
        np.save(folder / f"part-{number}.npy", X[a:b])
        np.save(folder / f"part-{number}.labels.npy", y[a:b])
    return folder


def small(hasher, **options):
    """Return a hasher that is fast to fit; an option that is None is left out."""
    defaults = {"n_bits": 64, "random_state": 3, "n_positives": 20_000, "n_negatives": 30_000}
    options = defaults | options
    return hasher(**{name: value for name, value in options.items() if value is not None})


@pytest.mark.parametrize(
    ("hasher", "options"),
    [
        (KernelLDAHash, {"n_basis": 300, "preprocess": "hellinger"}),
        (KernelLDAHash, {"n_basis": 100, "basis": "kmeans", "kernel": "mahalanobis"}),
        (KernelDiffHash, {"n_basis": 300, "moment": "cross", "threshold_weight": 2.0}),
        (KernelLDAHash, {"n_basis": 100, "refine": 20}),
        (LDAHash, {}),
        (DiffHash, {"preprocess": "hellinger"}),
        (BoostedHash, {"n_bits": 8}),
        (ITQHash, {"n_positives": None, "n_negatives": None}),
    ],
)
def test_fitted_model_equals_that_of_a_single_machine(
    cluster, data, folder, tmp_path, hasher, options
):
    X, y = data
    small(hasher, **options).fit(X, y).save(tmp_path / "local")
    fit(small(hasher, **options), folder, client=cluster).save(tmp_path / "cluster")
    assert (tmp_path / "local").read_bytes() == (tmp_path / "cluster").read_bytes()


def test_dask_arrays_can_be_fitted_encoded_and_searched(cluster, data):
    X, y = data
    rows, labels = da.from_array(X, chunks=(7_000, 50)), da.from_array(y, chunks=7_000)
    expected_codes = small(KernelLDAHash, n_basis=200).fit(X, y).transform(X)
    hasher = fit(small(KernelLDAHash, n_basis=200), rows, labels, client=cluster)
    codes = encode(hasher, rows)
    assert codes.shape == (24_000, 8)
    np.testing.assert_array_equal(cluster.compute(codes).result(), expected_codes)
    index = ClusterIndex(codes, client=cluster)
    expected = HammingIndex(expected_codes).search(expected_codes[:50], 7)
    check(index.search(expected_codes[:50], 7), expected)


def check(found, expected):
    for actual, desired in zip(found, expected, strict=True):
        np.testing.assert_array_equal(actual, desired)


class TestContract(StoreContract):
    @pytest.fixture
    def make(self, cluster, tmp_path):
        def write(codes, ids, n_bits):
            assert ids.tolist() == list(range(len(codes)))
            np.save(tmp_path / "codes.npy", codes)
            return ClusterIndex(tmp_path / "codes.npy", n_bits=n_bits, client=cluster)

        return write

    def test_changes_are_refused(self, store):
        for call in (lambda: store.add(np.zeros((1, 3), np.uint8)), lambda: store.remove([0])):
            with pytest.raises(NotSupportedError, match="ClusterIndex; change the index file"):
                call()
        assert len(store) == 200
        store.close()
        with pytest.raises(ValueError, match="closed"):
            store.search(np.zeros(3, np.uint8))


class TestContractOfAnIndexFile(StoreContract):
    """An index file whose ids are in random order, with gaps."""

    @pytest.fixture
    def ids(self):
        return np.random.default_rng(2).permutation(1000)[:200] - 50

    @pytest.fixture
    def make(self, cluster, tmp_path):
        def write(codes, ids, n_bits):
            HammingIndex(codes, ids, n_bits=n_bits).save(tmp_path / "x.index")
            return ClusterIndex(tmp_path / "x.index", client=cluster)

        return write


def test_encoding_and_search_equal_those_of_a_single_machine(cluster, data, folder, tmp_path):
    X, y = data
    hasher = small(KernelLDAHash, n_basis=100, n_bits=16).fit(X, y)  # short codes: many ties
    hasher.save(tmp_path / "model")
    out = tmp_path / "codes"
    assert encode(hasher, folder, out, client=cluster) == 5
    assert encode(hasher, folder, out, client=cluster) == 0
    (out / "part-3.npy").unlink()
    assert encode(hasher, folder, out, client=cluster) == 1
    codes = hasher.transform(X)
    np.testing.assert_array_equal(np.asarray(open_shards(out)), codes)

    local = HammingIndex(codes)
    local.remove(np.arange(100, 5_000, 3))
    local.save(tmp_path / "x.index")
    for source, expected in ((out, HammingIndex(codes)), (tmp_path / "x.index", local)):
        index = ClusterIndex(source, client=cluster)
        assert len(index) == len(expected)
        for k in (1, 40):
            check(index.search(codes[:300], k), expected.search(codes[:300], k))
    other = small(LDAHash, n_bits=16).fit(X, y)
    with ClusterIndex(out, model=hasher, client=cluster) as index:
        assert index.model == index.info()["model"] == fingerprint(hasher)
    with pytest.raises(ValueError, match="codes of another model"):
        ClusterIndex(out, model=other, client=cluster)
    np.save(tmp_path / "three.npy", codes[:3])
    distances, ids = ClusterIndex(tmp_path / "three.npy", client=cluster).search(codes[:1], 10)
    assert ids.shape == (1, 3)
    assert distances[0, 0] == 0
    index = ClusterIndex(tmp_path / "x.index", client=cluster)
    assert index.search(codes[:0], 3)[0].shape == (0, 3)
    assert index.search(codes[:1], 10**12)[1].shape == (1, len(local))
    queries = np.tile(codes[:100], (200, 1))  # more than one batch
    check(index.search(queries, 2), local.search(queries, 2))


@pytest.mark.slow
def test_commands_run_on_a_cluster(cluster, data, folder, tmp_path, command, monkeypatch):
    X, _ = data
    address = cluster.scheduler.address
    monkeypatch.chdir(tmp_path)
    train = ["train", folder, "--basis", 100, "--bits", 32, "--positives", 9000]
    command(*train, "-o", "local", "--json")
    output = command(*train, "-o", "cluster", "--cluster", address, "--json")
    assert (tmp_path / "local").read_bytes() == (tmp_path / "cluster").read_bytes()
    assert output["positive_pairs"] == 9000

    encode = ["encode", "cluster", folder, "-o", "codes", "--cluster", address]
    assert command(*encode, "--json")["already_encoded"] == 0
    assert command(*encode, "--json")["already_encoded"] == 5
    codes = KernelLDAHash.load(tmp_path / "local").transform(X)
    np.testing.assert_array_equal(np.asarray(open_shards(tmp_path / "codes")), codes)

    np.save(tmp_path / "queries.npy", codes[:40])
    search = ["index", "search", "codes", "queries.npy", "-k", 6, "-o", "found.npz"]
    assert command(*search, "--cluster", address, "--json")["codes"] == len(X)
    expected = HammingIndex(codes).search(codes[:40], 6)
    found = np.load(tmp_path / "found.npz")
    np.testing.assert_array_equal(found["distances"], expected[0])
    np.testing.assert_array_equal(found["ids"], expected[1])

    radius = ["index", "radius", "codes", "queries.npy", "-r", 3, "-o", "radius.npz"]
    command(*radius, "--cluster", address, "--json")
    found = np.load(tmp_path / "radius.npz")
    for name, array in zip(
        ("lims", "distances", "ids"), HammingIndex(codes).search_radius(codes[:40], 3)
    ):
        np.testing.assert_array_equal(found[name], array)
    small(LDAHash, n_bits=32).fit(X, data[1]).save(tmp_path / "other")
    error = command(*radius, "--cluster", address, "--model", "other", fail=True)
    assert "codes holds codes of another model" in error

    unreachable = ("--cluster", "tcp://127.0.0.1:9")
    assert "no Dask scheduler" in command(*search, *unreachable, fail=True)
    to_file = ["encode", "cluster", folder, "-o", "codes.npy", "--cluster", address]
    assert "one file per shard" in command(*to_file, fail=True)
    refined = [*train, "--method", "lda", "--refine", 5]
    command(*refined, "-o", "local", "--json")
    command(*refined, "-o", "cluster", "--cluster", address, "--json")
    assert (tmp_path / "local").read_bytes() == (tmp_path / "cluster").read_bytes()


def test_local_cluster_is_closed_at_the_end_of_the_with_statement(data):
    X, y = data
    with connect("local") as client:
        assert client.dashboard_link.startswith("http://127.0.0.1:")
        rows = da.from_array(X[:4000], chunks=(1000, 128))
        hasher = fit(small(LDAHash, n_bits=16), rows, y[:4000], client=client)
    expected = small(LDAHash, n_bits=16).fit(X[:4000], y[:4000])
    np.testing.assert_array_equal(hasher.transform(X), expected.transform(X))
    assert client.status == "closed"


def kill_worker_running(client, task):
    """Kill the first worker that runs a task of this name."""

    def address_of_worker(dask_scheduler):
        for state in dask_scheduler.workers.values():
            if any(task in ts.key for ts in state.processing):
                return state.address
        return None

    deadline = time.monotonic() + 60
    while (address := client.run_on_scheduler(address_of_worker)) is None:
        assert time.monotonic() < deadline, f"no worker runs {task}"
        time.sleep(0.01)
    pid = client.run(os.getpid, workers=[address])[address]
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("task", ["fit", "encode", "search"])
@pytest.mark.slow
def test_results_are_the_same_after_a_worker_is_killed(data, folder, tmp_path, task):
    X, y = data
    hasher = small(KernelLDAHash, n_basis=500, n_bits=128).fit(X, y)
    codes = hasher.transform(X)
    path = tmp_path / "codes.npy"
    np.save(path, np.tile(codes, (40, 1)))

    with running(tmp_path, 2) as cluster, connect(cluster.address) as client:
        client.wait_for_workers(2, timeout=60)
        results = {}

        def work():
            if task == "fit":
                new = small(KernelLDAHash, n_basis=500, n_bits=128)
                results["codes"] = fit(new, folder, client=client).transform(X)
            elif task == "encode":
                results["n"] = encode(hasher, folder, tmp_path / "out", client=client)
                results["codes"] = np.asarray(open_shards(tmp_path / "out"))
            else:
                results["found"] = index.search(codes[:3000], 5)

        if task == "search":
            index = ClusterIndex(path, client=client)
        thread = threading.Thread(target=work)
        thread.start()
        name = {"fit": "take_rows", "encode": "write_shard", "search": "_apply"}[task]
        kill_worker_running(client, name)
        thread.join()
        assert len(client.scheduler_info()["workers"]) == 1
    if task == "search":
        check(results["found"], HammingIndex(np.load(path)).search(codes[:3000], 5))
        return
    np.testing.assert_array_equal(results["codes"], codes)
    if task == "encode":
        assert results["n"] == 5
        assert not list((tmp_path / "out").glob(".*"))


def test_scheduler_lost_while_encoding_is_reported(data, tmp_path):
    X, y = data
    hasher = small(KernelLDAHash, n_basis=500, n_bits=128, n_jobs=1).fit(X, y)
    rows = tmp_path / "rows"
    rows.mkdir()
    np.save(rows / "a.npy", np.tile(X, (200, 1)))
    with running(tmp_path, 1) as cluster, connect(cluster.address) as client:

        def kill_while_encoding():
            while not any(client.processing().values()):
                time.sleep(0.001)
            cluster.kill_scheduler()

        threading.Thread(target=kill_while_encoding).start()
        with pytest.raises(ClusterError, match="connection to the scheduler was lost"):
            encode(hasher, rows, tmp_path / "codes", client=client)
    assert not (tmp_path / "codes" / "a.npy").exists()


def test_invalid_input_is_refused(cluster, data, folder, tmp_path):
    X, y = data
    with pytest.raises(ValueError, match="from_array"):
        fit(small(LDAHash), X, y, client=cluster)
    np.save(tmp_path / "rows.npy", X)
    with pytest.raises(ValueError, match="requires y"):
        fit(small(LDAHash), tmp_path / "rows.npy", client=cluster)
    with pytest.raises(ValueError, match="one class"):
        fit(small(LDAHash), tmp_path / "rows.npy", np.zeros(len(X)), client=cluster)
    with pytest.raises(ValueError, match="rows 0 to"):
        fit_pairs(small(LDAHash), folder, [[0, 99_999]], [True], client=cluster)
    with_nan = X.astype(np.float32)
    with_nan[:, 3] = np.nan
    np.save(tmp_path / "nan.npy", with_nan)
    with pytest.raises(ValueError, match=r"nan.npy: row \d+ contains NaN"):
        fit(small(LDAHash), tmp_path / "nan.npy", y, client=cluster)
    with pytest.raises(ValueError, match="uint8 rows of 16 bytes"):
        ClusterIndex(tmp_path / "nan.npy", n_bits=128, client=cluster)
    index = ClusterIndex(tmp_path / "rows.npy", client=cluster)
    with pytest.raises(ValueError, match="k must be"):
        index.search(X[:1], 0)
    with pytest.raises(ValueError, match="1024 bits"):
        index.search(X[:1, :5])
    deleted = tmp_path / "deleted.npy"
    np.save(deleted, X[:10])
    shards = open_shards(deleted)
    deleted.unlink()
    with pytest.raises(ClusterError, match="cannot see"):
        fit_pairs(small(LDAHash), shards, [[0, 1], [1, 2]], [True, False], client=cluster)


def test_memory_of_workers_does_not_depend_on_the_number_of_shards(cluster, data, tmp_path):
    X, y = data
    hasher = small(LDAHash).fit(X, y)

    def reset_peak():
        Path("/proc/self/clear_refs").write_text("5")

    def read_peak():
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])

    def peak(n_shards):
        folder = tmp_path / str(n_shards)
        folder.mkdir()
        for number in range(n_shards):
            np.save(folder / f"{number}.npy", X)
        cluster.run(reset_peak)
        encode(hasher, folder, tmp_path / f"{n_shards}-codes", client=cluster)
        return max(cluster.run(read_peak).values())

    peak(2)
    peak_of_4, peak_of_40 = peak(4), peak(40)
    assert peak_of_40 < peak_of_4 + 30e6, (peak_of_4, peak_of_40)


def test_an_index_file_with_string_ids(cluster, tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "x.index"
    codes = rng.integers(0, 4, (500, 1), dtype=np.uint8)  # many ties
    names = [f"{i:03d}.jpg" for i in rng.permutation(500)]
    with HammingIndex.open(path, "a", n_bits=8) as index:
        index.add(codes, names)
        index.upsert(codes[:50] ^ np.uint8(1), names[:50])
        index.remove(names[60:70])
        with ClusterIndex(path, client=cluster) as store:
            assert store.ids.tolist() == index.ids.tolist()
            for found, expected in zip(store.search(codes[:9], 20), index.search(codes[:9], 20)):
                assert found.tolist() == expected.tolist()
            for found, expected in zip(
                store.search_radius(codes[:3], 1), index.search_radius(codes[:3], 1)
            ):
                assert found.tolist() == expected.tolist()
            np.testing.assert_array_equal(store.get(names[:60]), index.get(names[:60]))
            np.testing.assert_array_equal(store.get(names[3]), index.get(names[3]))
            with pytest.raises(KeyError, match=f"1 of the ids are not stored, for .* {names[60]}"):
                store.get([names[0], names[60]])
            with pytest.raises(ValueError, match="all strings"):
                store.get([5])
            with pytest.raises(NotSupportedError, match="cannot be changed"):
                store.upsert(codes[:1], names[:1])


@pytest.mark.parametrize("source", ["index with cells", "codes"])
def test_recall_of_a_cluster_with_cells(cluster, tmp_path, source):
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 256, (300, 8), dtype=np.uint8)
    noise = np.packbits(rng.random((170_100, 64)) < 0.06, axis=1)
    codes = centres[rng.integers(0, 300, 170_100)] ^ noise
    codes, queries = codes[:170_000], codes[170_000:]
    local = HammingIndex(codes)
    np.save(tmp_path / "codes.npy", codes)
    path, options = tmp_path / "codes.npy", {"cells": True}
    if source == "index with cells":  # then the index on the cluster has cells, too
        assert local.build_cells()
        path, options = tmp_path / "codes.index", {}
        local.save(path)
    expected = local.search(queries, 10)
    with ClusterIndex(path, client=cluster, **options) as index:
        check(index.search(queries, 10), expected)
        distances, ids = index.search(queries, 10, recall=0.9)
        assert np.mean(distances <= expected[0][:, -1:]) >= 0.9
        stored = np.bitwise_count(codes[ids] ^ queries[:, None]).sum(axis=2)
        np.testing.assert_array_equal(distances, stored)
        plan = index.explain(recall=0.9)
        assert plan["method"] == "cells"
        assert plan["compared"] < 170_000 / 2
        assert index.explain()["compared"] == 170_000
        with pytest.raises(ValueError, match="recall must be a number between 0 and 1"):
            index.search(queries, 10, recall=1)
    with ClusterIndex(path, client=cluster, cells=False) as index:
        check(index.search(queries, 10, recall=0.9), expected)
        assert index.explain(recall=0.9)["reason"] == "the index has no cells"
