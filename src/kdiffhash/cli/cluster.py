"""`--cluster`: the same commands on a Dask cluster."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..shards import Shards

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


def shards_of(paths: list[Path], descriptor: str) -> Shards:
    """Inputs of the command line as files that workers can read."""
    from ..datasets.scene import find_scene
    from ..shards import Shards, open_shards
    from .inputs import is_scene

    files = [find_scene(path) / f"{descriptor}.npy" if is_scene(path) else path for path in paths]
    return Shards(tuple(shard for file in files for shard in open_shards(file.resolve()).files))
