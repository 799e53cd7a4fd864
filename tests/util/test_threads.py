"""Threads: results do not depend on their number, and limits and pools survive forks."""

import os
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from kdiffhash._util.threads import (
    n_threads,
    one_blas_thread,
    run_concurrently,
    run_tiles,
    sum_tiles,
)

FOLDERS = ("numpy.libs", "scipy.libs")


def blas_threads():
    """Return the thread counts of the BLAS libraries of NumPy and SciPy.

    Other packages, which another test may have loaded, have their own BLAS.
    """
    libraries = [info for info in threadpool_info() if info["user_api"] == "blas"]
    own = [info for info in libraries if Path(info["filepath"]).parent.name in FOLDERS]
    return {info["num_threads"] for info in own or libraries}


def test_every_row_is_processed_exactly_once():
    for n_rows in (0, 1, 9, 10, 101):
        counts = np.zeros(n_rows, int)

        def make_worker(counts=counts):
            def work(start, stop):
                counts[start:stop] += 1

            return work

        run_tiles(make_worker, n_rows, 10, 3)
        assert (counts == 1).all()


def test_exception_stops_all_threads_early():
    done = []

    def work(start, stop):
        if start == 0:
            raise ValueError("row 0")
        done.append(start)

    with pytest.raises(ValueError, match="row 0"):
        run_tiles(lambda: work, 10**7, 10, 2)
    assert len(done) < 10**6


def test_sums_do_not_depend_on_the_number_of_threads():
    values = np.random.default_rng(0).normal(size=(1000, 7))
    sums = [
        sum_tiles(lambda: lambda a, b: values[a:b].sum(axis=0), 1000, 10, (7,), n)
        for n in (1, 2, 5)
    ]
    assert (sums[0] == sums[1]).all()
    assert (sums[0] == sums[2]).all()
    np.testing.assert_allclose(sums[0], values.sum(axis=0))


def test_blas_limit_is_shared_by_threads_and_lifted_by_the_last_one():
    before = blas_threads()
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with one_blas_thread():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(10)
    with one_blas_thread():
        assert blas_threads() == {1}
        leave.set()
        thread.join()
        assert blas_threads() == {1}  # the thread that set the limit has ended; this one remains
    assert blas_threads() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_process_forked_while_blas_is_limited_can_limit_it_too():
    before = blas_threads()
    with one_blas_thread():
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            with one_blas_thread():
                inside = blas_threads()
            os.write(write, b"ok" if inside == {1} and blas_threads() == before else b"no")
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 2) == b"ok"
        os.close(read)
        os.close(write)
    assert blas_threads() == before


def test_number_of_threads_for_n_jobs():
    assert n_threads(3) == 3
    if hasattr(os, "sched_getaffinity") and "NUMBA_NUM_THREADS" not in os.environ:
        assert n_threads(None) == len(os.sched_getaffinity(0))
    assert n_threads(-1) == n_threads(None)
    assert n_threads(-2) == max(1, n_threads(None) - 1)
    assert n_threads(-1000) == 1
    with pytest.raises(ValueError, match="must not be 0"):
        n_threads(0)


def test_all_tasks_run_and_exceptions_are_raised():
    done = []
    run_concurrently([partial(done.append, i) for i in range(5)])
    assert sorted(done) == list(range(5))

    def fail() -> None:
        raise KeyError("here")

    for tasks in ([fail], [fail, partial(done.append, 5)], [partial(done.append, 6), fail]):
        with pytest.raises(KeyError, match="here"):
            run_concurrently(tasks)
    assert sorted(done) == list(range(7))


def test_tasks_run_while_the_pool_is_busy_with_other_callers():
    leave, waited, inside = threading.Event(), [], threading.Semaphore(0)

    def block() -> None:
        inside.release()
        waited.append(leave.wait(30))

    n = 2 * (os.cpu_count() or 1)
    others = [threading.Thread(target=run_concurrently, args=([block] * n,)) for _ in range(2)]
    for thread in others:
        thread.start()
    for _ in range(n):  # as many as the pool has threads, and more
        inside.acquire()
    done = []
    run_concurrently([partial(done.append, i) for i in range(3)])
    assert sorted(done) == [0, 1, 2]
    leave.set()
    for thread in others:
        thread.join()
    assert waited == [True] * 2 * n


def test_nested_tiles_do_not_deadlock():
    counts = np.zeros((6, 30), int)

    def work(start, stop):
        def inner(low, high):
            counts[start:stop, low:high] += 1

        run_tiles(lambda: inner, 30, 10, 3)

    run_tiles(lambda: work, 6, 1, 4)
    assert (counts == 1).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_tasks_run_in_a_forked_process():
    run_concurrently([lambda: None] * 3)
    child = os.fork()
    if not child:
        done = []
        run_concurrently([partial(done.append, i) for i in range(3)])
        os._exit(0 if len(done) == 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
