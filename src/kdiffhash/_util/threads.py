"""Threads whose number never changes a result.

BLAS rounds differently for other thread counts and matrix heights. So rows are multiplied with
`product.multiply`, sums over pairs are made by one BLAS thread on tiles of pairs and taken in an
order that depends on the data alone, and threads work on different tiles.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tile = tuple[int, int]


def n_threads(n_jobs: int | None) -> int:
    """Threads to use: all that this process may use for None, counted from the top below zero."""
    if n_jobs is not None and not isinstance(n_jobs, int | np.integer):
        raise ValueError(f"n_jobs must be a whole number or None, got {n_jobs!r}")
    if n_jobs is None or n_jobs < 0:
        affinity = getattr(os, "sched_getaffinity", None)  # Linux: what a container leaves us
        everything = len(affinity(0)) if affinity else os.cpu_count() or 1
        return everything if n_jobs is None else max(1, everything + 1 + n_jobs)
    if n_jobs == 0:
        raise ValueError("n_jobs must not be 0; use None for all cores")
    return n_jobs


_blas_lock = threading.Lock()
_blas_users = 0
_blas_limit: Any = None


def _forget_other_threads() -> None:
    """In a forked child: the threads that held the limit are not there to lift it."""
    global _blas_lock, _blas_users
    _blas_lock = threading.Lock()
    if _blas_users:
        _blas_users = 0
        _take_control()
        _blas_limit.restore_original_limits()
        _take_control()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS at one thread; nested and concurrent uses share one limit."""
    global _blas_users, _blas_limit
    with _blas_lock:
        if _blas_users == 0:
            _take_control()
            _blas_limit = _controller().limit(limits=1, user_api="blas")
        _blas_users += 1
    try:
        yield
    finally:
        with _blas_lock:
            _blas_users -= 1
            if _blas_users == 0:
                _take_control()
                _blas_limit.restore_original_limits()
                _take_control()


@cache
def _controller() -> Any:
    """The loaded numeric libraries; finding them takes milliseconds, so it is done once."""
    import scipy.linalg  # noqa: F401  (its BLAS is another one than NumPy's)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _take_control() -> None:
    """Make a change of the limit effective, or leave it to others afterwards.

    From version 3.8 on, threadpoolctl ignores all threads but the first that set a limit for
    OpenBLAS, even if the one that lifts it is another; here a lock keeps them apart.
    """
    import threadpoolctl

    openblas = getattr(threadpoolctl, "OpenBLASController", None)
    clear = getattr(openblas, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


_pool: ThreadPoolExecutor | None = None
_pool_size = 0
_pool_lock = threading.Lock()
_this_thread = threading.local()


def _forget_pool() -> None:
    """In a forked child: the threads of the pool are not there."""
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def _mark_thread(is_one_of_several: bool) -> None:
    _this_thread.is_one_of_several = is_one_of_several


def run_plain(tasks: Sequence[Callable[[], None]]) -> None:
    """Call tasks, each on a thread of its own, from one pool that is kept.

    BLAS is left as it is. Tasks of a task are called one after the other.
    """
    global _pool, _pool_size
    if len(tasks) == 1 or getattr(_this_thread, "is_one_of_several", False):
        for task in tasks:
            task()
        return
    with _pool_lock:
        if _pool is None or _pool_size < len(tasks) - 1:
            _pool_size = max(len(tasks) - 1, os.cpu_count() or 1)
            _pool = ThreadPoolExecutor(_pool_size, "kdiffhash", _mark_thread, (True,))
        futures = [_pool.submit(task) for task in tasks[1:]]
    try:
        _mark_thread(True)
        tasks[0]()
        for task, future in zip(tasks[1:], futures):
            if future.cancel():  # all threads of the pool are busy with other callers' tasks
                task()
    finally:
        _mark_thread(False)
        started = [future for future in futures if not future.cancelled()]
        wait(started)
    for future in started:
        future.result()


def run_tiles(
    make_worker: Callable[[], Callable[[int, int], None]],
    n_rows: int,
    tile: int,
    n_jobs: int | None,
    stop: threading.Event | None = None,
    blas: bool = True,
) -> None:
    """Call a worker for each tile of rows; every thread makes its own worker, with its buffers.

    An error or Ctrl-C on one thread sets `stop`, so that the others take no further tile. BLAS is
    held at one thread, unless the caller says that workers do not use it.
    """
    n_tiles = -(-n_rows // tile)
    n_workers = max(1, min(n_threads(n_jobs), n_tiles))
    turn, lock, stop = iter(range(n_tiles)), threading.Lock(), stop or threading.Event()

    def work() -> None:
        try:
            worker = make_worker()
            while not stop.is_set():
                with lock:
                    index = next(turn, None)
                if index is None:
                    return
                worker(index * tile, min((index + 1) * tile, n_rows))
        except BaseException:
            stop.set()
            raise

    with one_blas_thread() if blas else nullcontext():
        run_plain([work] * n_workers)


def run(
    tasks: Sequence[Callable[[], None]],
    n_jobs: int | None,
    stop: threading.Event | None = None,
    blas: bool = True,
) -> None:
    """Call every task, on at most `n_jobs` threads at a time; see `run_tiles`."""
    run_tiles(lambda: lambda i, _: tasks[i](), len(tasks), 1, n_jobs, stop, blas)


def sum_tiles(
    make_term: Callable[[], Callable[[int, int], NDArray[np.float64]]],
    n_rows: int,
    tile: int,
    shape: tuple[int, ...],
    n_jobs: int | None,
) -> NDArray[np.float64]:
    """Sum of ``term(start, stop)`` over tiles of rows, the same for any number of threads.

    Each lane makes a term function of its own, which may use its buffers again from tile to tile.
    Tile number t is added to lane t modulo the number of lanes, which follows from the shape alone
    and keeps all lanes together within 128 MB; the lanes are added up at the end, in order.
    """
    n_tiles = -(-n_rows // tile)
    n_lanes = max(2, min(16, 2**27 // max(8 * int(np.prod(shape)), 1)))
    lanes: list[NDArray[np.float64]] = []
    stop = threading.Event()

    def fill(lane: int, total: NDArray[np.float64]) -> None:
        term = make_term()
        for index in range(lane, n_tiles, n_lanes):
            if stop.is_set():
                return
            total += term(index * tile, min((index + 1) * tile, n_rows))

    tasks = []
    for lane in range(min(n_lanes, n_tiles)):
        lanes.append(np.zeros(shape))
        tasks.append(partial(fill, lane, lanes[lane]))
    run(tasks, n_jobs, stop)
    total = np.zeros(shape)
    for lane_total in lanes:
        total += lane_total
    return total
