"""Connecting to a cluster: errors, what stays as it was, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from kdiffhash import LDAHash, __version__

pytest.importorskip("distributed")
import dask
import dask.array as da
import distributed
from dask_cluster import running

from kdiffhash.engines.dask import ClusterError, ClusterIndex, connect, fit
from kdiffhash.engines.dask.cluster import _check_workers, current_client

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with running(tmp_path_factory.mktemp("dask"), 1) as cluster:
        yield cluster.address


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Wait as long as it takes on a busy machine until the worker has started."""
    monkeypatch.setitem(connect.__wrapped__.__kwdefaults__, "timeout", 60)


def compute_with_plain_dask():
    """Compute with Dask's default scheduler; fails if it looks for a client that is gone."""
    return int(da.ones(4, chunks=2).sum().compute())


def test_configuration_of_dask_is_unchanged_if_lifetimes_of_clients_overlap(address):
    before = dask.config.get("scheduler", None)
    first, second = connect(address), connect(address)
    first.__enter__()
    try:
        client = second.__enter__()
    finally:
        first.__exit__(None, None, None)
    try:
        assert current_client(None) is client
        assert dask.config.get("scheduler", None) == before
    finally:
        second.__exit__(None, None, None)
    assert dask.config.get("scheduler", None) == before
    assert compute_with_plain_dask() == 4


def test_client_of_the_user_stays_the_default_of_dask(address):
    with distributed.Client(processes=False, dashboard_address="127.0.0.1:0") as own:
        with connect(address) as client:
            assert distributed.default_client() is own
            assert current_client(None) is client
        assert distributed.default_client() is current_client(None) is own
        assert dask.config.get("scheduler") == "dask.distributed"
        assert compute_with_plain_dask() == 4


def test_labels_in_a_dask_array_are_computed_on_the_cluster(address):
    pid = os.getpid()

    def label(block):
        assert os.getpid() != pid, "computed in the process of the client"
        return block // 4

    X = np.random.default_rng(0).normal(size=(100, 8))
    y = da.arange(100, chunks=50).map_blocks(label, dtype=np.int64)
    with connect(address):
        found = fit(LDAHash(n_bits=8, random_state=0), da.from_array(X, chunks=(50, 8)), y)
    expected = LDAHash(n_bits=8, random_state=0).fit(X, np.arange(100) // 4)
    np.testing.assert_array_equal(found.transform(X), expected.transform(X))


def test_environment_is_unchanged_by_a_local_cluster(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = dict(os.environ)
    with connect("local") as client:
        assert set(client.run(lambda: os.environ["OMP_NUM_THREADS"]).values()) == {"1"}
    assert dict(os.environ) == before


def test_missing_scheduler_workers_or_client_is_reported(tmp_path):
    with pytest.raises(ClusterError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        connect("tcp://127.0.0.1:9", timeout=2).__enter__()
    with pytest.raises(ClusterError, match="no Dask scheduler answers at nonsense"):
        connect("nonsense://x", timeout=2).__enter__()
    with running(tmp_path, 0) as cluster, pytest.raises(ClusterError, match="has no workers"):
        connect(cluster.address, timeout=2).__enter__()
    with pytest.raises(ClusterError, match="no Dask client; create one"):
        ClusterIndex(tmp_path)


class FakeClient:
    """A client whose workers give these answers when asked for their version."""

    def __init__(self, *answers):
        self.answers = answers

    def wait_for_workers(self, n, timeout):
        pass

    def run(self, function, on_error):
        assert on_error == "return"
        return dict(enumerate(self.answers))


def test_workers_lost_while_connecting_are_not_mistaken_for_workers_without_kdiffhash():
    _check_workers(FakeClient(OSError("connection closed"), __version__), "x", 1)
    with pytest.raises(ClusterError, match=r"cannot import kdiffhash \(No module"):
        _check_workers(FakeClient(ImportError("No module"), __version__), "x", 1)
    with pytest.raises(ClusterError, match=r"have kdiffhash 0\.0\.1, .*, but this is"):
        _check_workers(FakeClient("0.0.1", __version__), "x", 1)


def processes_of(session):
    """Return the command lines of the live processes of a session, by process id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def start_search(folder, cluster):
    """Start a search of some seconds with the command line, in a session of its own."""
    np.save(folder / "codes.npy", np.zeros((50_000, 8), np.uint8))
    # A background job ignores SIGINT, and its children inherit that.
    script = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    script += "from kdiffhash.cli import main; main()"
    command = [sys.executable, "-c", script, "index", "search", "codes.npy", "codes.npy"]
    return subprocess.Popen(
        [*command, "-o", "found.npz", "--cluster", cluster],
        cwd=folder,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("moment", ["first worker starts", "cluster runs"])
def test_interrupted_local_cluster_prints_no_traceback_and_leaves_no_process(tmp_path, moment):
    with ExitStack() as stack:
        process = stack.enter_context(start_search(tmp_path, "local"))
        stack.callback(kill_session, process.pid)
        if moment == "cluster runs":
            assert process.stderr.readline().startswith("dashboard:")
        while not any("spawn_main" in line for line in processes_of(process.pid).values()):
            assert process.poll() is None, "the command ended before it was interrupted"
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
        deadline = time.monotonic() + 60
        while processes_of(process.pid):
            assert time.monotonic() < deadline, processes_of(process.pid)
            time.sleep(0.05)
    assert process.returncode == 130
    assert out == ""
    assert err == "interrupted\n"
    assert not (tmp_path / "found.npz").exists()


@pytest.mark.slow
def test_command_reports_a_lost_scheduler_in_one_sentence(tmp_path):
    def n_tasks(dask_scheduler):
        return len(dask_scheduler.tasks)

    with (
        running(tmp_path, 1) as cluster,
        connect(cluster.address) as client,
        start_search(tmp_path, cluster.address) as process,
    ):
        while not client.run_on_scheduler(n_tasks):
            assert process.poll() is None, "the command ended before the scheduler was killed"
            time.sleep(0.005)
        cluster.kill_scheduler()
        out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert out == ""
    (line,) = (line for line in err.splitlines() if not line.startswith("dashboard:"))
    assert line.startswith("error: the connection to the scheduler was lost")
    assert not (tmp_path / "found.npz").exists()


def kill_session(session):
    for pid in processes_of(session):
        os.kill(pid, signal.SIGKILL)
