"""Learning from pairs of rows that lie on a cluster.

The workers read the rows that learning needs, a sample; the caller gathers them and learns.
"""

from __future__ import annotations

from typing import Any, TypeVar

from numpy.typing import ArrayLike

from ...hashers import BaseHasher
from .blocks import Blocks
from .cluster import current_client

Hasher = TypeVar("Hasher", bound=BaseHasher)


def fit(hasher: Hasher, X: Any, y: Any = None, *, groups: Any = None, client: Any = None) -> Hasher:
    """Learn from labelled rows that lie on a cluster, as `hasher.fit` does on one machine.

    The same pairs and samples are drawn, also across shards, so that the hasher is the same.

    Parameters
    ----------
    hasher : BaseHasher
        It is fitted in place.
    X : path, Shards or dask array of shape (n, d)
        A folder of shards (see `kdiffhash.shards.open_shards`), or a dask array.
    y : array or dask array of shape (n,), optional
        Which object each row belongs to. Shards may have labels of their own.
    groups : array or dask array of shape (n,), optional
        Draw pairs across groups only.
    client : distributed.Client, optional
        By default the client that is in force.

    Returns
    -------
    hasher
    """
    rows = Blocks.of(X, current_client(client))
    return hasher.fit(rows, y, groups)


def fit_pairs(
    hasher: Hasher,
    X: Any,
    pairs: ArrayLike,
    similar: ArrayLike,
    y: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    *,
    client: Any = None,
) -> Hasher:
    """Learn from explicit pairs of rows that lie on a cluster, as `hasher.fit_pairs` does.

    Parameters
    ----------
    hasher, X, client
        As in `fit`.
    pairs : int array of shape (p, 2)
        Row numbers, counted through all shards.
    similar : bool array of shape (p,)
    y, groups : arrays of shape (n,), optional
        As in `hasher.fit_pairs`.

    Returns
    -------
    hasher
    """
    rows = Blocks.of(X, current_client(client))
    return hasher.fit_pairs(rows, pairs, similar, y, groups)
