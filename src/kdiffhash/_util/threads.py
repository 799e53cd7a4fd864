"""Multithreading whose results do not depend on the number of threads.

The rounding of BLAS depends on its number of threads and on the height of matrices. Rows are
therefore multiplied with `product.multiply`, and sums over pairs are computed by one BLAS thread
per tile of pairs and added in an order that depends only on the data. Different threads work on
different tiles.
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
    """Return the number of threads for `n_jobs`.

    None and -1 mean all cores available to this process, -2 all but one, and so on.
    """
    if n_jobs is not None and not isinstance(n_jobs, int | np.integer):
        raise ValueError(f"n_jobs must be an integer or None, got {n_jobs!r}")
    if n_jobs is None or n_jobs < 0:
        affinity = getattr(os, "sched_getaffinity", None)  # Linux: respects limits of containers
        n_cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        return n_cores if n_jobs is None else max(1, n_cores + 1 + n_jobs)
    if n_jobs == 0:
        raise ValueError("n_jobs must not be 0; use None for all cores")
    return n_jobs


_blas_lock = threading.Lock()
_blas_users = 0
_blas_limit: Any = None


def _reset_limit_after_fork() -> None:
    """Lift the limit in a forked child, where the threads that held it do not exist."""
    global _blas_lock, _blas_users
    _blas_lock = threading.Lock()
    if _blas_users:
        _blas_users = 0
        _take_control()
        _blas_limit.restore_original_limits()
        _take_control()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_limit_after_fork)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread; nested and concurrent uses share the limit."""
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
    """Return the controller of the loaded libraries; finding them takes milliseconds."""
    import scipy.linalg  # noqa: F401  (has its own BLAS, separate from NumPy's)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _take_control() -> None:
    """Let this thread change the limit of OpenBLAS, or release it for other threads.

    From version 3.8 on, threadpoolctl lets only the first thread that set a limit for OpenBLAS
    change it, but here another thread may lift the limit; `_blas_lock` serialises the changes.
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


def _drop_pool_after_fork() -> None:
    """Drop the pool in a forked child, where its threads do not exist."""
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_pool_after_fork)


def _mark_thread(is_worker: bool) -> None:
    _this_thread.is_worker = is_worker


def run_concurrently(tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks concurrently, one thread per task, on a shared pool.

    The number of BLAS threads is not changed. Inside a task, tasks run one after another.
    """
    global _pool, _pool_size
    if len(tasks) == 1 or getattr(_this_thread, "is_worker", False):
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
            if future.cancel():  # not started: the pool is busy with tasks of other callers
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
    """Call a worker for each tile of rows.

    Parameters
    ----------
    make_worker : function
        Called once per thread; returns a function of the first row and the end of a tile.
    n_rows : int
        Number of rows.
    tile : int
        Number of rows per tile.
    n_jobs : int or None
        Number of threads; None uses all cores.
    stop : threading.Event or None, default=None
        Set after an exception or Ctrl-C on one thread, so that the others take no further tile.
    blas : bool, default=True
        Limit BLAS to one thread. False saves this if workers do not use BLAS.
    """
    n_tiles = -(-n_rows // tile)
    n_workers = max(1, min(n_threads(n_jobs), n_tiles))
    remaining, lock, stop = iter(range(n_tiles)), threading.Lock(), stop or threading.Event()

    def work() -> None:
        try:
            worker = make_worker()
            while not stop.is_set():
                with lock:
                    index = next(remaining, None)
                if index is None:
                    return
                worker(index * tile, min((index + 1) * tile, n_rows))
        except BaseException:
            stop.set()
            raise

    with one_blas_thread() if blas else nullcontext():
        run_concurrently([work] * n_workers)


def run(
    tasks: Sequence[Callable[[], None]],
    n_jobs: int | None,
    stop: threading.Event | None = None,
    blas: bool = True,
) -> None:
    """Run all tasks on at most `n_jobs` threads; see `run_tiles` for the parameters."""
    run_tiles(lambda: lambda i, _: tasks[i](), len(tasks), 1, n_jobs, stop, blas)


def sum_tiles(
    make_term: Callable[[], Callable[[int, int], NDArray[np.float64]]],
    n_rows: int,
    tile: int,
    shape: tuple[int, ...],
    n_jobs: int | None,
) -> NDArray[np.float64]:
    """Sum ``term(start, stop)`` over tiles of rows, with the same result on any number of threads.

    Tile number t is added to partial sum t modulo the number of partial sums. That number depends
    only on the shape and keeps all of them within 128 MB (there are at least two). They are added
    in order at the end.

    Parameters
    ----------
    make_term : function
        Called once per partial sum; returns the function ``term``, which may reuse its buffers.
    n_rows : int
        Number of rows.
    tile : int
        Number of rows per tile.
    shape : tuple of int
        Shape of a term.
    n_jobs : int or None
        Number of threads; None uses all cores.

    Returns
    -------
    total : float64 array of shape `shape`
    """
    n_tiles = -(-n_rows // tile)
    n_sums = max(2, min(16, 2**27 // max(8 * int(np.prod(shape)), 1)))
    sums: list[NDArray[np.float64]] = []
    stop = threading.Event()

    def add_up(first_tile: int, out: NDArray[np.float64]) -> None:
        term = make_term()
        for index in range(first_tile, n_tiles, n_sums):
            if stop.is_set():
                return
            out += term(index * tile, min((index + 1) * tile, n_rows))

    tasks = []
    for first_tile in range(min(n_sums, n_tiles)):
        sums.append(np.zeros(shape))
        tasks.append(partial(add_up, first_tile, sums[first_tile]))
    run(tasks, n_jobs, stop)
    total = np.zeros(shape)
    for partial_sum in sums:
        total += partial_sum
    return total
