"""The option `--cluster`, which runs a command on a Dask cluster."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer

Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS|local",
        help="Run on a Dask cluster: address of its scheduler, or local for one worker per core.",
    ),
]


_IGNORED = "ignore::UserWarning:multiprocessing.resource_tracker"


@contextmanager
def on_cluster(cluster: str) -> Iterator[Any]:
    """Connect to the cluster and print the address of its dashboard on standard error."""
    from .._util.extras import need
    from ..engines.dask import connect

    need("distributed", "dask")  # which sets the levels of its loggers when it is imported
    for name in ("distributed", "distributed.client", "tornado.application", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # errors arrive as exceptions
    # After Ctrl-C, a helper of multiprocessing would warn about semaphores that it has cleaned up.
    warnings = [os.environ.get("PYTHONWARNINGS", ""), _IGNORED]
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, warnings))
    with connect(cluster) as client:
        with suppress(KeyError):  # the scheduler has no dashboard
            print(f"dashboard: {client.dashboard_link}", file=sys.stderr)
        yield client
