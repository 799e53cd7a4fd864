"""Learning on a cluster: the workers read a sample of the rows, and the client learns from it."""

from __future__ import annotations

from typing import Any, TypeVar

from numpy.typing import ArrayLike

from ...hashers import BaseHasher
from .cluster import current_client, gather
from .remote_rows import RemoteRows

Hasher = TypeVar("Hasher", bound=BaseHasher)


def fit(hasher: Hasher, X: Any, y: Any = None, *, groups: Any = None, client: Any = None) -> Hasher:
    """Fit a hasher to labelled descriptors on a cluster.

    The same pairs and samples are drawn, across all shards, as by `hasher.fit` on a single machine,
    so the fitted hasher is the same.

    Parameters
    ----------
    hasher : BaseHasher
        The hasher to fit, in place.
    X : path, Shards or dask array of shape (n, n_features)
        A file or folder of shards (see `kdiffhash.shards.open_shards`) that all machines see under
        the same path, or a dask array.
    y : array or dask array of shape (n,), default=None
        Label of each row. None uses the labels stored with the shards.
    groups : array or dask array of shape (n,), default=None
        Draw pairs only between rows of different groups.
    client : distributed.Client, default=None
        None uses the client of `connect`, or else Dask's default client.

    Returns
    -------
    hasher : BaseHasher
        The fitted hasher.

    Examples
    --------
    >>> import dask.array
    >>> import distributed
    >>> import numpy as np
    >>> from kdiffhash import LDAHash
    >>> from kdiffhash.engines.dask import fit
    >>> X = dask.array.from_array(np.random.default_rng(0).normal(size=(100, 8)), chunks=(50, 8))
    >>> with distributed.Client(processes=False, dashboard_address=None) as client:
    ...     hasher = fit(LDAHash(n_bits=8, random_state=0), X, np.arange(100) // 4, client=client)
    >>> hasher.n_bits_
    8
    """
    client = current_client(client)
    y, groups = _computed(y, client), _computed(groups, client)
    return hasher.fit(RemoteRows.of(X, client), y, groups)


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
    """Fit a hasher to given pairs of descriptors on a cluster.

    Parameters
    ----------
    hasher : BaseHasher
        The hasher to fit, in place.
    X : path, Shards or dask array of shape (n, n_features)
        A file or folder of shards (see `kdiffhash.shards.open_shards`) that all machines see under
        the same path, or a dask array.
    pairs : int array of shape (n_pairs, 2)
        Row numbers, counted through all shards.
    similar : bool array of shape (n_pairs,)
        True for positive pairs, False for negative pairs.
    y : array of shape (n,), default=None
        Label of each row, as `hasher.fit_pairs` uses it.
    groups : array of shape (n,), default=None
        Group of each row, as `hasher.fit_pairs` uses it.
    client : distributed.Client, default=None
        None uses the client of `connect`, or else Dask's default client.

    Returns
    -------
    hasher : BaseHasher
        The fitted hasher.

    Examples
    --------
    >>> import dask.array
    >>> import distributed
    >>> import numpy as np
    >>> from kdiffhash import LDAHash, draw_pairs
    >>> from kdiffhash.engines.dask import fit_pairs
    >>> X = dask.array.from_array(np.random.default_rng(0).normal(size=(100, 8)), chunks=(50, 8))
    >>> pairs, similar = draw_pairs(np.arange(100) // 4, 100, 100, random_state=0)
    >>> with distributed.Client(processes=False, dashboard_address=None) as client:
    ...     hasher = fit_pairs(LDAHash(n_bits=8, random_state=0), X, pairs, similar, client=client)
    >>> hasher.n_bits_
    8
    """
    rows = RemoteRows.of(X, current_client(client))
    return hasher.fit_pairs(rows, pairs, similar, y, groups)


def _computed(values: Any, client: Any) -> Any:
    """Return labels or groups that are a dask array as a NumPy array, computed on the cluster."""
    if not hasattr(values, "dask"):
        return values
    return gather(client, [client.compute(values)])[0]
