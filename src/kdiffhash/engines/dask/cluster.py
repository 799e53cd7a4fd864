"""Connecting to a cluster, waiting for results, and reporting failures."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import active_children, resource_tracker
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ..._util.errors import KdiffhashError
from ..._util.extras import need
from ..._util.threads import n_threads

POLL = 0.5  # seconds between checks that the workers are alive
_TIMEOUT = 5  # seconds within which the scheduler must answer
_IMPORT_TIMEOUT = 60  # seconds within which all workers must have imported kdiffhash
_NO_WORKERS_TIMEOUT = 10  # seconds that a cluster may be without workers
_LOST = "the connection to the scheduler was lost; check that it is running, and connect again"

T = TypeVar("T")

_clients: list[Any] = []  # of the `connect` statements that are open; the last one is the default


class ClusterError(KdiffhashError, ValueError):
    """The cluster does not answer, has no workers, or loses them too often.

    Examples
    --------
    >>> from kdiffhash.engines.dask import ClusterError, connect
    >>> try:
    ...     with connect("tcp://127.0.0.1:9", timeout=0.1):
    ...         pass
    ... except ClusterError as error:
    ...     print(str(error)[:42])
    no Dask scheduler answers at tcp://127.0.0
    """


@contextmanager
def connect(cluster: str = "local", *, timeout: float = _TIMEOUT) -> Iterator[Any]:
    """Connect to a cluster for the duration of a ``with`` statement.

    The functions of this module use the client until then. Dask's own default client and scheduler
    stay as they are: to compute a dask array on the cluster, use ``client.compute(array)``.

    Parameters
    ----------
    cluster : str, default="local"
        Address of a scheduler, as printed by ``dask scheduler`` (``tcp://host:8786``), or
        ``"local"`` to start one worker per core on this machine until the statement ends.
    timeout : float, default=5
        Seconds within which the scheduler must answer and have at least one worker.

    Yields
    ------
    client : distributed.Client
        The client.

    Raises
    ------
    ClusterError
        If no scheduler answers, it has no workers, or a worker runs another version of kdiffhash.

    Examples
    --------
    >>> from kdiffhash.engines.dask import connect
    >>> with connect("tcp://scheduler:8786") as client:  # doctest: +SKIP
    ...     print(client.dashboard_link)
    """
    distributed = need("distributed", "dask")
    local = _start_local_cluster() if cluster == "local" else None
    try:
        try:
            client = distributed.Client(
                cluster if local is None else local, timeout=timeout, set_as_default=False
            )
        except (OSError, ValueError, ImportError) as error:
            raise ClusterError(
                f"no Dask scheduler answers at {cluster} ({error}); start one with `dask "
                "scheduler` and workers with `dask worker ADDRESS`, or use `local`"
            ) from error
        with client:
            _check_workers(client, cluster, timeout)
            _clients.append(client)
            try:
                yield client
            finally:
                _clients.remove(client)
    finally:
        if local is not None:
            local.close()


def _start_local_cluster() -> Any:
    """Start one worker per core; Ctrl-C interrupts this process, and leaves closing them to it."""
    start = partial(
        need("distributed", "dask").LocalCluster,
        n_workers=n_threads(None),
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
    )
    outcomes: SimpleQueue[Future[Any]] = SimpleQueue()
    environment, others = dict(os.environ), set(active_children())
    with _blocked_interrupts():
        call_in_thread(start, done=outcomes.put)
    try:
        return outcomes.get().result()
    except KeyboardInterrupt:
        _abandon(outcomes, others)
        raise
    finally:  # undo what Dask set for the workers to inherit
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)


def _abandon(outcomes: SimpleQueue[Future[Any]], others: set[Any]) -> None:
    """Kill the workers of a cluster that is starting, until the start fails for lack of them."""
    while True:
        for child in set(active_children()) - others:
            child.kill()
        with suppress(Empty):
            outcome = outcomes.get(timeout=0.02)
            if outcome.exception() is None:
                outcome.result().close()
            return


@contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Block Ctrl-C in the threads started meanwhile, and in all their threads and processes."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # starting it later would unblock Ctrl-C in that thread
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_workers(client: Any, cluster: str, timeout: float) -> None:
    """Raise if the cluster has no workers, or workers that run another version of kdiffhash."""
    from ... import __version__

    try:
        client.wait_for_workers(1, timeout=timeout)
        run = partial(client.run, _version, on_error="return")
        answers = list(call_with_timeout(_IMPORT_TIMEOUT, run).values())
    except TimeoutError as error:
        raise ClusterError(
            f"the scheduler at {cluster} has no workers; start one with `dask worker {cluster}`"
        ) from error
    except Empty:
        raise ClusterError(
            f"a worker at {cluster} does not answer; restart the workers that hang"
        ) from None
    except (OSError, CancelledError) as error:
        raise ClusterError(_LOST) from error
    for answer in answers:
        if isinstance(answer, Exception) and not isinstance(answer, OSError):
            raise ClusterError(
                f"the workers at {cluster} cannot import kdiffhash ({answer}); install it there"
            ) from answer
    versions = {answer for answer in answers if isinstance(answer, str)}  # others: lost meanwhile
    if versions - {__version__}:
        raise ClusterError(
            f"workers at {cluster} have kdiffhash {', '.join(sorted(versions))}, but this is "
            f"{__version__}; install the same version everywhere"
        )


def _version() -> str:
    from ... import __version__

    return __version__


def call_in_thread(
    function: Callable[..., T], *arguments: Any, done: Callable[[Future[T]], Any]
) -> None:
    """Call a function in a daemon thread, and pass a future with its outcome to `done`."""

    def work() -> None:
        future: Future[T] = Future()
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)
        done(future)

    threading.Thread(target=work, daemon=True).start()


def call_with_timeout(seconds: float, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function and return its result, or raise `queue.Empty` after a timeout."""
    outcomes: SimpleQueue[Future[T]] = SimpleQueue()
    call_in_thread(function, *arguments, done=outcomes.put)
    return outcomes.get(timeout=seconds).result()


def worker_threads(client: Any, *, paused: bool = False) -> dict[str, int]:
    """Return the number of threads of each running worker, by address; empty if there are none.

    Dask pauses a worker whose memory is almost full: it finishes its tasks but starts no others.
    """
    if client.status != "running":
        raise ClusterError(_LOST)
    try:
        found = call_with_timeout(_TIMEOUT, lambda: client.sync(client.scheduler.identity))
    except (Empty, OSError, CancelledError, AttributeError) as error:
        raise ClusterError(_LOST) from error  # AttributeError: the client is closing
    return {
        address: worker["nthreads"]
        for address, worker in found["workers"].items()
        if paused or worker["status"] == "running"
    }


def wait_for_workers(client: Any, *, paused: bool = False) -> dict[str, int]:
    """Return `worker_threads` once there is a worker; raise `ClusterError` after ten seconds."""
    deadline = time.monotonic() + _NO_WORKERS_TIMEOUT
    while not (threads := worker_threads(client, paused=paused)):
        if time.monotonic() > deadline:
            n = len(worker_threads(client, paused=True))
            raise ClusterError(
                f"the cluster has no workers left{f' but {n} without free memory' if n else ''}; "
                f"start some with `dask worker {client.scheduler.address}` and try again"
            )
        time.sleep(POLL)
    return threads


def gather(client: Any, futures: list[Any], advance: Callable[[Any], None] | None = None) -> Any:
    """Return the results of futures; raise `ClusterError` if the cluster stays without workers.

    If `advance` is given, it is called with each result as it arrives, and None is returned. If
    anything fails, all futures are cancelled.
    """
    outcomes: SimpleQueue[Future[Any]] = SimpleQueue()
    with translate_errors():
        try:
            if advance is None:
                call_in_thread(client.gather, futures, done=outcomes.put)
            else:
                call_in_thread(_gather_each, client, futures, advance, done=outcomes.put)
            while True:
                try:
                    return outcomes.get(timeout=POLL).result()
                except Empty:
                    wait_for_workers(client, paused=True)
        except BaseException:
            if client.status == "running":
                client.cancel(futures)
            raise


def _gather_each(client: Any, futures: list[Any], advance: Callable[[Any], None]) -> None:
    for future in need("distributed", "dask").as_completed(futures, loop=client.loop):
        advance(future.result())


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate exceptions of Dask to a `ClusterError` that says what to do."""
    distributed = need("distributed", "dask")
    try:
        yield
    except FileNotFoundError as error:
        raise ClusterError(
            f"a worker cannot see {error.filename or error}; shards and results must be in a "
            "folder that every machine of the cluster mounts under the same path"
        ) from error
    except distributed.KilledWorker as error:
        raise ClusterError(
            f"several workers died while running the same task ({error}); check that they have "
            "enough memory"
        ) from error
    except (CancelledError, distributed.comm.CommClosedError) as error:
        raise ClusterError(_LOST) from error


def current_client(client: Any) -> Any:
    """Return the given client, or else that of the last `connect`, or else Dask's default."""
    if client is not None:
        return client
    if _clients:
        return _clients[-1]
    distributed = need("distributed", "dask")
    try:
        return distributed.default_client()
    except ValueError as error:
        raise ClusterError(
            "there is no Dask client; create one with kdiffhash.engines.dask.connect(ADDRESS)"
        ) from error


def identity(value: T) -> T:
    """Return the argument; as a task, send a value that Dask can send again if a worker is lost."""
    return value
