"""Encoding rows that lie on a cluster."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ...codes import n_bytes
from ...extras import need
from ...hashers import BaseHasher
from ...rows import Array
from ...shards.codes import shards_to_write, write_shard
from .blocks import absolute_shards
from .cluster import current_client, same, told


def encode(
    hasher: BaseHasher,
    X: Any,
    out: str | Path | None = None,
    *,
    client: Any = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Any:
    """Encode rows where they lie.

    Parameters
    ----------
    hasher : fitted hasher
    X : path, Shards or dask array of shape (n, d)
    out : path
        Of shards: the folder for the codes, a file for each shard. Shards whose codes are there
        already, from the same model, are left out.
    client : distributed.Client, optional
        By default the client that is in force.
    advance : callable
        Told how many more rows are done.

    Returns
    -------
    codes
        Of shards, how many were encoded; of a dask array, a dask array of codes, yet to be
        computed.
    """
    check_is_fitted(hasher)
    worker = copy.copy(hasher)
    worker.n_jobs = 1
    if hasattr(X, "map_blocks"):
        if out is not None:
            raise ValueError("codes of a dask array are a dask array, and go to no folder")
        width = n_bytes(hasher.n_bits_)
        sent = need("dask", "dask").delayed(worker, pure=False)
        return X.rechunk({1: -1}).map_blocks(
            _transform, hasher=sent, chunks=(X.chunks[0], (width,)), meta=np.empty((0, 0), np.uint8)
        )
    if out is None:
        raise ValueError("out is missing: the folder that the codes go to")
    client = current_client(client)
    todo = shards_to_write(hasher, absolute_shards(X), Path(out).absolute())
    with told():
        sent = client.submit(same, worker, pure=False)
        tasks = [client.submit(write_shard, sent, *one, pure=False) for one in todo]
        try:
            for task in need("distributed", "dask").as_completed(tasks, loop=client.loop):
                advance(task.result())
        except BaseException:
            client.cancel(tasks)
            raise
    for _, target in todo:  # what a worker that was lost has left
        for unfinished in target.parent.glob(f".{target.name}.*.part"):
            unfinished.unlink(missing_ok=True)
    return len(todo)


def _transform(rows: Array, hasher: BaseHasher) -> Array:
    return hasher.transform(rows) if len(rows) else np.empty((0, n_bytes(hasher.n_bits_)), np.uint8)
