"""`--cluster`: the same commands on a Dask cluster."""

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
        help="Work on a Dask cluster: the address of its scheduler, or local for a worker a core.",
    ),
]


@contextmanager
def on_cluster(cluster: str) -> Iterator[Any]:
    """A client of the cluster; the address of its dashboard goes to standard error."""
    from ..engines.dask import connect

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors come as exceptions
    with connect(cluster) as client:
        with suppress(KeyError):  # the scheduler has none
            print(f"dashboard: {client.dashboard_link}", file=sys.stderr)
        yield client
