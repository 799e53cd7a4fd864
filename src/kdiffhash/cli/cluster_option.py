"""The option `--cluster`, which runs a command on a Dask cluster."""

from __future__ import annotations

import logging
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


@contextmanager
def on_cluster(cluster: str) -> Iterator[Any]:
    """Connect to the cluster and print the address of its dashboard on standard error."""
    from ..engines.dask import connect

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors arrive as exceptions
    with connect(cluster) as client:
        with suppress(KeyError):  # the scheduler has no dashboard
            print(f"dashboard: {client.dashboard_link}", file=sys.stderr)
        yield client
