"""Searching codes that lie in the memory of a cluster."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...codes import n_bytes
from ...extras import need
from ...rows import Array
from ...search import HammingIndex
from ...search.passes import merge_found
from ...shards import is_shards
from .blocks import Blocks, take_rows
from .cluster import ClusterError, current_client, same, told

_PORTION = 2**20  # codes that are put into an index at a time
_QUERIES = 2**14  # queries that are sent at a time
_SMALL = 2**16  # bytes that are sent along with each task


class ClusterIndex:
    """Codes in the memory of a cluster's workers, searched exactly.

    Results are those of `HammingIndex` with all codes, ties included. If a worker is lost, others
    read its codes again.

    Parameters
    ----------
    source : path, Shards or dask array
        An index file; or codes in files, in a folder of files, or in a dask array, whose ids count
        from 0.
    n_bits : int, optional
        Length of the codes, by default eight times their bytes.
    client : distributed.Client, optional
        By default the client that is in force.
    """

    def __init__(self, source: Any, *, n_bits: int | None = None, client: Any = None) -> None:
        self._client = current_client(client)
        delayed = need("dask", "dask").delayed
        threads = self._client.nthreads()
        places = [worker for worker, n in threads.items() for _ in range(n)]
        if isinstance(source, str | Path) and not is_shards(Path(source)):
            path = Path(source).absolute()
            with HammingIndex.open(path) as index:
                self.n_bits, state = index.n_bits, index.sequence
            load, n = delayed(_open_part, pure=False), len(places)
            jobs = [load(path, i, n, state) for i in range(n)]
        else:
            codes = Blocks.of(source, self._client)
            self.n_bits = 8 * codes.width if n_bits is None else n_bits
            HammingIndex(n_bits=self.n_bits)  # refuses a length that makes no sense
            if codes.dtype != np.uint8 or n_bytes(self.n_bits) != codes.width:
                raise ValueError(
                    f"codes of {self.n_bits} bits are uint8 rows of {n_bytes(self.n_bits)} bytes, "
                    f"but these are {codes.dtype} rows of {codes.width}"
                )
            edges = [len(codes) * i // len(places) for i in range(len(places) + 1)]
            jobs = [
                delayed(_load_part, pure=False)(codes.between(a, b), a, self.n_bits)
                for a, b in pairwise(edges)
            ]
        with told():
            self._parts = [
                self._client.compute(job, workers=[place], allow_other_workers=True)
                for job, place in zip(jobs, places)
            ]
            sizes = [self._client.submit(len, part, pure=False) for part in self._parts]
            self._n = sum(map(int, self._client.gather(sizes)))

    def __len__(self) -> int:
        """Number of codes."""
        return self._n

    def search(
        self, queries: ArrayLike, k: int = 10
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Find the k nearest codes of each query, as `HammingIndex.search` does.

        Parameters
        ----------
        queries : uint8 array of shape (n, n_bytes)
        k : int

        Returns
        -------
        distances : int32 array of shape (n, m)
            m is k, or the number of codes if that is less.
        ids : int64 array of shape (n, m)
        """
        wanted = HammingIndex(n_bits=self.n_bits)
        codes = wanted._check_codes(queries)
        wanted.search(codes[:0], k)  # refuses a k that makes no sense
        found = [self._search(codes[i : i + _QUERIES], k) for i in range(0, len(codes), _QUERIES)]
        if not found:
            m = min(k, self._n)
            return np.empty((0, m), np.int32), np.empty((0, m), np.int64)
        return (
            np.concatenate([distances for distances, _ in found]),
            np.concatenate([ids for _, ids in found]),
        )

    def _search(self, queries: Array, k: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        client = self._client
        sent = queries if queries.nbytes <= _SMALL else client.submit(same, queries, pure=False)
        with told():
            tasks = [client.submit(_nearest, part, sent, k, pure=False) for part in self._parts]
            return merge_found(client.gather(tasks), k)


def _open_part(path: Path, number: int, of: int, state: int) -> HammingIndex:
    """A part of an index file, in the memory of this worker."""
    with HammingIndex.open(path) as index:
        if index.sequence != state:
            raise ClusterError(f"{path} was changed while it was read; start the job again")
        return index.part(number, of)


def _load_part(blocks: list[tuple[Any, int, int]], first_id: int, n_bits: int) -> HammingIndex:
    """An index of some rows of some blocks."""
    index = HammingIndex(n_bits=n_bits)
    for block, start, stop in blocks:
        for i in range(start, stop, _PORTION):
            codes = take_rows(block, np.arange(i, min(i + _PORTION, stop)), first_id)
            index.add(codes, np.arange(first_id, first_id + len(codes)))
            first_id += len(codes)
    return index


def _nearest(part: HammingIndex, queries: Array, k: int) -> tuple[Any, Any]:
    return part.search(queries, k, n_jobs=1)


with suppress(ImportError):  # the scheduler keeps searches where the codes are
    from dask.sizeof import sizeof

    @sizeof.register(HammingIndex)  # type: ignore[no-untyped-call]
    def _size(index: HammingIndex) -> int:
        return index.nbytes
