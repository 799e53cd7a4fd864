"""The protocol that every code store implements: in memory, in a file, a database, a cluster."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import Codes


class Upserted(NamedTuple):
    """The result of `upsert`.

    Attributes
    ----------
    added : int
        Number of codes whose ids were not stored.
    replaced : int
        Number of codes whose ids were stored.

    Examples
    --------
    >>> from kdiffhash.search import Upserted
    >>> added, replaced = Upserted(added=2, replaced=8)
    >>> replaced
    8
    """

    added: int
    replaced: int


@runtime_checkable
class CodeStore(Protocol):
    """A store of codes with ids, searched by Hamming distance.

    `HammingIndex`, `PostgresStore` and `ClusterIndex` implement it. For the same codes they return
    the same results, ties included (the lower id comes first), and they raise the same errors:

    - `ValueError` for arrays of the wrong shape, type or length, for ids that are duplicated,
      already stored or outside the signed 64-bit range, and for codes of another model;
    - `KeyError` for ids that are not stored; the store is left unchanged;
    - `NotSupportedError`, a `ValueError`, for operations that the store does not have.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import HammingIndex
    >>> from kdiffhash.search import CodeStore
    >>> index = HammingIndex(np.zeros((3, 8), np.uint8))
    >>> isinstance(index, CodeStore)
    True
    """

    @property
    def n_bits(self) -> int:
        """Length of the codes in bits."""

    @property
    def model(self) -> str | None:
        """Fingerprint of the model that produced the codes; None if unknown."""

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, ascending."""

    def __len__(self) -> int:
        """Number of codes."""

    def info(self) -> dict[str, Any]:
        """Return at least ``codes`` (their number), ``bits`` and ``model``."""

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> NDArray[np.int64]:
        """Add codes: all of them, or none if an error is raised.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
            Packed codes.
        ids : int array of shape (n,) or None, default=None
            None of them may be stored yet. None assigns consecutive ids above the highest one.

        Returns
        -------
        ids : int64 array of shape (n,)
            The ids of the new codes.
        """

    def upsert(self, codes: ArrayLike, ids: ArrayLike) -> Upserted:
        """Add codes, overwriting those with the same ids: all of them, or none on an error.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
            Packed codes.
        ids : array of shape (n,)
            All different.

        Returns
        -------
        added : int
            Number of codes whose ids were not stored.
        replaced : int
            Number of codes whose ids were stored.
        """

    def remove(self, ids: ArrayLike) -> None:
        """Remove codes by id.

        Parameters
        ----------
        ids : int array of shape (n,), or one int
            All of them must be stored.
        """

    def get(self, ids: ArrayLike) -> Codes:
        """Return codes by id.

        Parameters
        ----------
        ids : int array of shape (n,), or one int
            All of them must be stored.

        Returns
        -------
        codes : uint8 array of shape (n, n_bytes), or (n_bytes,) for one id
            Packed codes, in the order of `ids`.
        """

    def search(self, queries: ArrayLike, k: int = 10) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the k nearest codes of each query.

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes) or (n_bytes,)
            Several codes, or a single one.
        k : int, default=10
            Number of neighbours.

        Returns
        -------
        distances : int32 array of shape (n, m), or (m,) for one code
            Ascending; m is the smaller of k and the number of codes.
        ids : int64 array of the same shape
            Ids of these codes; at equal distance the lower id comes first.
        """

    def search_radius(
        self, queries: ArrayLike, radius: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """Return all codes within a radius of each query (range search).

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes) or (n_bytes,)
            Several codes, or a single one.
        radius : int
            Codes up to and including this distance are returned.

        Returns
        -------
        lims : int64 array of shape (n + 1,), or (2,) for one code
            The results of query i are entries ``lims[i]`` to ``lims[i + 1]`` of the arrays below,
            nearest first, as in FAISS.
        distances : int32 array of shape (lims[-1],)
            Hamming distances.
        ids : int64 array of shape (lims[-1],)
            Ids of these codes.
        """

    def close(self) -> None:
        """Release files, connections or remote memory; a ``with`` statement does so on exit."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...
