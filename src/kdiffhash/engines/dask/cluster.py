"""Reaching a cluster, and saying in our words what went wrong there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Any

from ...errors import KdiffhashError
from ...extras import need
from ...parallel import n_threads

_PATIENCE = 5  # seconds in which a scheduler must answer and have a worker
_IMPORTING = 60  # seconds in which all workers must have loaded what they need


class ClusterError(KdiffhashError, ValueError):
    """A cluster does not answer, has no workers, or lost them too often."""


@contextmanager
def connect(cluster: str = "local", *, timeout: float = _PATIENCE) -> Iterator[Any]:
    """A client of a cluster, for a ``with`` statement.

    Parameters
    ----------
    cluster : str
        Address of a scheduler, as ``dask scheduler`` prints it (``tcp://host:8786``); or
        ``"local"``: a worker for each core of this machine, for as long as the statement lasts.
    timeout : float
        Seconds in which the scheduler must answer and have a worker.

    Yields
    ------
    client : distributed.Client
    """
    distributed = need("distributed", "dask")
    local = None
    if cluster == "local":
        local = distributed.LocalCluster(
            n_workers=n_threads(None),
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
        )
    try:
        try:
            client = distributed.Client(cluster if local is None else local, timeout=timeout)
        except (OSError, ValueError, ImportError) as error:
            raise ClusterError(
                f"no Dask scheduler answers at {cluster} ({error}); start one with `dask "
                "scheduler` and workers with `dask worker ADDRESS`, or use `local`"
            ) from error
        with client:
            _check(client, cluster, timeout)
            yield client
    finally:
        if local is not None:
            local.close()


def _check(client: Any, cluster: str, timeout: float) -> None:
    """Refuse a cluster that has no workers, or workers with another kdiffhash."""
    from ... import __version__

    try:
        client.wait_for_workers(1, timeout=timeout)
    except TimeoutError as error:
        raise ClusterError(
            f"the scheduler at {cluster} has no workers; start some: dask worker {cluster}"
        ) from error
    try:
        versions = set(_within(_IMPORTING, client.run, _version).values())
    except Empty:
        raise ClusterError(
            f"a worker at {cluster} does not answer; restart the workers that hang"
        ) from None
    except Exception as error:  # what a worker cannot unpickle comes as a bare Exception
        raise ClusterError(
            f"the workers at {cluster} cannot run kdiffhash; is it installed there? ({error})"
        ) from error
    if versions != {__version__}:
        raise ClusterError(
            f"workers at {cluster} have kdiffhash {', '.join(sorted(versions))}, but this is "
            f"{__version__}; install the same version everywhere"
        )


def _within(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns or raises; `queue.Empty` if it takes longer."""
    answers: Queue[Future[Any]] = Queue()

    def work() -> None:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)
        answers.put(future)

    threading.Thread(target=work, daemon=True).start()
    return answers.get(timeout=seconds).result()


def _version() -> str:
    from ... import __version__

    return __version__


@contextmanager
def told() -> Iterator[None]:
    """Say in our words what went wrong on a cluster."""
    distributed = need("distributed", "dask")
    try:
        yield
    except FileNotFoundError as error:
        raise ClusterError(
            f"a worker does not see {error.filename or error}; shards and results must lie in a "
            "folder that all machines of the cluster have under the same name"
        ) from error
    except distributed.KilledWorker as error:
        raise ClusterError(
            f"a task was lost with its worker several times ({error}); maybe workers have too "
            "little memory"
        ) from error
    except CancelledError as error:
        raise ClusterError(
            "the connection to the scheduler was lost; start the job again"
        ) from error


def current_client(client: Any) -> Any:
    """The given client, or the one in force."""
    if client is not None:
        return client
    distributed = need("distributed", "dask")
    try:
        return distributed.default_client()
    except ValueError as error:
        raise ClusterError(
            "there is no Dask client; make one: with kdiffhash.engines.dask.connect(ADDRESS)"
        ) from error


def same(value: Any) -> Any:
    """What is sent to the workers, as a task, so that it can be sent again if a worker is lost."""
    return value
