"""The protocol of all places where codes live: in memory, in a file, a database or a cluster."""

from __future__ import annotations

from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import Codes


@runtime_checkable
class CodeStore(Protocol):
    """A place for codes: each has an id, and they are searched by Hamming distance.

    `HammingIndex`, `PostgresStore` and `ClusterIndex` are such places. They return the same for the
    same codes, ties included: equal distances are ordered by the lower id. They also fail in the
    same way:

    - `ValueError` for arrays of the wrong shape, type or length, for ids that come twice, are
      stored already or do not fit into 64 bits with sign, and for codes of another model;
    - `KeyError` for ids that are not stored; then nothing was done;
    - `NotSupportedError`, a `ValueError`, for what the place cannot do.
    """

    @property
    def n_bits(self) -> int:
        """Length of the codes."""

    @property
    def model(self) -> str | None:
        """Fingerprint of the model that made the codes; None where it is not known."""

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, rising."""

    def __len__(self) -> int:
        """Number of codes."""

    def info(self) -> dict[str, Any]:
        """What the place holds: at least ``codes`` (their number), ``bits`` and ``model``."""

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> NDArray[np.int64]:
        """Add codes, all or none.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
        ids : int array of shape (n,), optional
            None of them may be stored yet. By default they follow the highest.

        Returns
        -------
        ids : int64 array of shape (n,)
        """

    def remove(self, ids: ArrayLike) -> None:
        """Remove codes by their ids (or one id), all of which must be stored."""

    def get(self, ids: ArrayLike) -> Codes:
        """Return codes by their ids, all of which must be stored.

        Parameters
        ----------
        ids : int array of shape (n,), or one int

        Returns
        -------
        codes : uint8 array of shape (n, n_bytes); (n_bytes,) for one id alone
        """

    def search(self, queries: ArrayLike, k: int = 10) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Find the k nearest codes of each query.

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes), or one code of shape (n_bytes,)
        k : int

        Returns
        -------
        distances : int32 array of shape (n, m); (m,) for one code alone
            m is k, or the number of codes if that is less. The nearest come first.
        ids : int64 array of the same shape
        """

    def search_radius(
        self, queries: ArrayLike, radius: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """Find all codes within a distance of each query (range search).

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes), or one code of shape (n_bytes,)
        radius : int
            The greatest distance that counts.

        Returns
        -------
        lims : int64 array of shape (n + 1,); (2,) for one code alone
            Query i has the entries ``lims[i]`` to ``lims[i + 1]`` of the arrays below, nearest
            first, as in FAISS.
        distances : int32 array
        ids : int64 array
        """

    def close(self) -> None:
        """Let go of files, connections or memory elsewhere. A ``with`` statement does it, too."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...
