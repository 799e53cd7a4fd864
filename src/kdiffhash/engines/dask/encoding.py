"""Encoding on the workers of a cluster."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..._util.extras import need
from ...codes import n_bytes
from ...hashers import BaseHasher
from ...learn.rows import Array
from ...shards.code_folder import shards_to_write, write_shard
from .cluster import current_client, gather, identity
from .remote_rows import absolute_shards


def encode(
    hasher: BaseHasher,
    X: Any,
    out: str | Path | None = None,
    *,
    client: Any = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Any:
    """Encode descriptors on the workers of a cluster.

    Parameters
    ----------
    hasher : BaseHasher
        A fitted hasher.
    X : path, Shards or dask array of shape (n, n_features)
        A file or folder of shards (see `kdiffhash.shards.open_shards`) that all machines see under
        the same path, or a dask array.
    out : path, default=None
        For shards: the folder to write the codes to, one file per shard. Shards whose codes were
        written before, with the same model, are skipped.
    client : distributed.Client, default=None
        None uses the client of `connect`, or else Dask's default client.
    advance : callable, optional
        Progress callback, called with the number of rows of each shard once it is encoded.

    Returns
    -------
    int or dask array of shape (n, n_bytes)
        For shards, the number of shards that were encoded; for a dask array, a lazy dask array of
        codes, dtype uint8.

    Raises
    ------
    ClusterError
        If the scheduler or all workers are lost. Calling `encode` again encodes the missing shards.

    Examples
    --------
    >>> import dask.array
    >>> import numpy as np
    >>> from kdiffhash import LDAHash
    >>> from kdiffhash.engines.dask import encode
    >>> X = np.random.default_rng(0).normal(size=(100, 8))
    >>> hasher = LDAHash(n_bits=8, random_state=0).fit(X, np.arange(100) // 4)
    >>> codes = encode(hasher, dask.array.from_array(X, chunks=(50, 8)))
    >>> codes.shape
    (100, 1)
    >>> bool((codes.compute(scheduler="sync") == hasher.transform(X)).all())
    True
    """
    check_is_fitted(hasher)
    single_threaded = copy.copy(hasher)
    single_threaded.n_jobs = 1
    if hasattr(X, "map_blocks"):
        if out is not None:
            raise ValueError(
                "out is accepted only for shards; omit it to get the codes of a dask array as one"
            )
        width = n_bytes(hasher.n_bits_)
        sent = need("dask", "dask").delayed(single_threaded, pure=False)
        return X.rechunk({1: -1}).map_blocks(
            _transform, hasher=sent, chunks=(X.chunks[0], (width,)), meta=np.empty((0, 0), np.uint8)
        )
    if out is None:
        raise ValueError("out is missing; pass the folder to write the codes to")
    client = current_client(client)
    missing = shards_to_write(hasher, absolute_shards(X), Path(out).absolute())
    sent = client.submit(identity, single_threaded, pure=False)
    tasks = [client.submit(write_shard, sent, *shard, pure=False) for shard in missing]
    gather(client, tasks, advance)
    for _, target in missing:  # delete temporary files of workers that were killed
        for temporary in target.parent.glob(f".{target.name}.*.part"):
            temporary.unlink(missing_ok=True)
    return len(missing)


def _transform(rows: Array, hasher: BaseHasher) -> Array:
    return hasher.transform(rows) if len(rows) else np.empty((0, n_bytes(hasher.n_bits_)), np.uint8)
