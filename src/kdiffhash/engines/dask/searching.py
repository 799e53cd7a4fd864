"""Search among codes that are distributed over the workers of a cluster."""

from __future__ import annotations

import warnings
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..._util.errors import NotSupportedError
from ...codes import Codes, n_bytes
from ...learn.rows import Array
from ...search import HammingIndex, Upserted, checks, probe
from ...search.index_format import MAX_BITS
from ...search.scan import merge_results
from ...search.segment import to_codes, words_by_id
from ...search.string_ids import StringIds
from ...shards import Shard, Shards, is_shards
from ...shards.code_folder import read_record
from .cluster import ClusterError, current_client, translate_errors, wait_for_workers
from .partitions import PER_THREAD, Partition, Partitions
from .remote_rows import RemoteRows

if TYPE_CHECKING:
    from ...search.checks import Model

_CHUNK = 2**20  # codes added to an index at a time
_QUERIES = 2**14  # queries per call
_CHANGED = "{} has been changed since it was opened; create the ClusterIndex again"
_INSTEAD = "change the index file or the codes it was created from, and create it again"


class ClusterIndex:
    """Codes in the memory of the workers of a cluster, searched by Hamming distance.

    Searches are exact, unless `search` is asked for a recall. A `CodeStore` that cannot be changed.
    Exact searches return the same results as a `HammingIndex` with the same codes, ties included.
    If workers are lost, the remaining ones reload their codes; workers that join later take over
    some codes at the next call. If the cluster has no workers for ten seconds, a `ClusterError` is
    raised.

    Parameters
    ----------
    source : path, Shards or dask array of shape (n, n_bytes)
        An index file; or codes in a file, in a folder of files, or in a dask array, which are
        numbered from 0. Files must be visible to all machines under the same path, and must not
        change while the `ClusterIndex` is in use; a change is detected when codes are reloaded.
    n_bits : int, default=None
        Length of the codes. None takes the length recorded in the folder or index file, or else 8
        bits per byte.
    model : BaseHasher or str, default=None
        The model that produces the codes and the queries, or its fingerprint. An index file or
        folder with codes of another model is refused.
    client : distributed.Client, default=None
        None uses the client of `connect`, or else Dask's default client.
    cells : bool, default=None
        Whether workers group their codes by similarity (see `HammingIndex.build_cells`), so that
        `search` can be asked for a recall. None does so if the source is an index file with cells.
        There are four partitions per thread, each with its own cells; one with fewer than 20,000
        codes has none.

    Examples
    --------
    >>> import dask.array
    >>> import distributed
    >>> import numpy as np
    >>> from kdiffhash.engines.dask import ClusterIndex
    >>> codes = np.random.default_rng(0).integers(0, 256, (1000, 16), dtype=np.uint8)
    >>> with distributed.Client(processes=False, dashboard_address=None) as client:
    ...     with ClusterIndex(dask.array.from_array(codes), client=client) as index:
    ...         distances, ids = index.search(codes[:3], k=1)
    >>> ids.ravel().tolist()
    [0, 1, 2]
    """

    def __init__(
        self,
        source: Any,
        *,
        n_bits: int | None = None,
        model: Model | None = None,
        client: Any = None,
        cells: bool | None = None,
    ) -> None:
        self._cells = bool(cells)
        self._client = current_client(client)
        self._shards: Shards | None = None
        self._strings: StringIds | None = None
        n_partitions = PER_THREAD * sum(wait_for_workers(self._client).values())
        if isinstance(source, str | Path) and not is_shards(Path(source)):
            loaders = self._index_loaders(
                Path(source).absolute(), n_partitions, n_bits, model, cells
            )
        else:
            loaders = self._code_loaders(source, n_partitions, n_bits, model)
        name = source if isinstance(source, str | Path) else "the source"
        stamps = self._stamps()
        self._partitions = Partitions(self._client, loaders, name)
        self._n: int = sum(self._partitions.call(_count))
        if self._stamps() != stamps:  # some partitions may have been loaded before, some after
            raise ClusterError(_CHANGED.format(name))

    def _index_loaders(
        self,
        path: Path,
        n: int,
        n_bits: int | None,
        model: Model | None,
        cells: bool | None,
    ) -> list[Any]:
        """Return functions that submit tasks to load partitions from an index file."""
        with HammingIndex.open(path, n_bits=n_bits, model=model) as index:
            self._cells = "cells" in index.info() if cells is None else cells
            self.n_bits, self.model, state = index.n_bits, index.model, index._state
            self._strings = index._snapshot.strings  # partitions know ids by their numbers
        submit = partial(self._client.submit, _load_from_index, path, pure=False)
        return [partial(submit, i, n, state, self._cells) for i in range(n)]

    def _code_loaders(
        self, source: Any, n: int, n_bits: int | None, model: Model | None
    ) -> list[Any]:
        """Return functions that submit tasks to load partitions from shards or a dask array."""
        with translate_errors():
            codes = RemoteRows.of(source, self._client)
        self._shards = codes.shards
        record = read_record(Path(source)) if isinstance(source, str | Path) else {}
        if n_bits is None:
            n_bits = record.get("bits", 8 * codes.width)
        self.n_bits, stored = checks.check_n_bits(n_bits, MAX_BITS), record.get("model")
        checks.check_model(stored, model, source)
        self.model = stored or checks.fingerprint_of(model, self.n_bits)
        if codes.dtype != np.uint8 or n_bytes(self.n_bits) != codes.width:
            raise ValueError(
                f"codes of {self.n_bits} bits must be uint8 rows of {n_bytes(self.n_bits)} bytes, "
                f"got {codes.dtype} rows of {codes.width} values"
            )
        edges = [len(codes) * i // n for i in range(n + 1)]
        return [partial(self._load, codes.slices(a, b), a) for a, b in pairwise(edges)]

    def _stamps(self) -> list[tuple[int, ...]]:
        """Return what changes if one of the shards is replaced."""
        files = [] if self._shards is None else [file.path.stat() for file in self._shards.files]
        return [(file.st_ino, file.st_size, file.st_mtime_ns) for file in files]

    def _load(self, slices: list[tuple[Any, int, int]], first_id: int, workers: list[str]) -> Any:
        """Submit a task that loads slices of sources; only that task is pinned to the workers."""
        loaded = [
            (source if isinstance(source, Shard) else self._client.compute(source), start, stop)
            for source, start, stop in slices
        ]
        return self._client.submit(
            *(_load_from_slices, loaded, first_id, self.n_bits, self._cells),
            pure=False,
            workers=workers,
        )

    def __len__(self) -> int:
        """Return the number of codes."""
        return self._n

    @property
    def ids(self) -> NDArray[Any]:
        """All ids: int64, ascending; or strings (dtype object), in the order of adding."""
        return self._public(np.sort(np.concatenate(self._partitions.call(_ids))))

    def _public(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        return ids if self._strings is None else self._strings.strings(ids)

    def info(self) -> dict[str, Any]:
        """Return the number and length of the codes, the model, and the number of workers.

        Returns
        -------
        dict
            ``codes``, ``bits``, ``model`` (its fingerprint or None) and ``workers``, the number of
            workers that hold codes.
        """
        workers = len(self._partitions.workers())
        return {"codes": len(self), "bits": self.n_bits, "model": self.model, "workers": workers}

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> NDArray[np.int64]:  # noqa: ARG002
        """Raise `NotSupportedError`: codes cannot be added.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
        ids : int array of shape (n,), default=None
        """
        raise NotSupportedError(f"codes cannot be added to a ClusterIndex; {_INSTEAD}")

    def upsert(self, codes: ArrayLike, ids: ArrayLike) -> Upserted:  # noqa: ARG002
        """Raise `NotSupportedError`: codes cannot be changed.

        Parameters
        ----------
        codes : uint8 array of shape (n, n_bytes)
        ids : int array of shape (n,)
        """
        raise NotSupportedError(f"codes of a ClusterIndex cannot be changed; {_INSTEAD}")

    def remove(self, ids: ArrayLike) -> None:  # noqa: ARG002
        """Raise `NotSupportedError`: codes cannot be removed.

        Parameters
        ----------
        ids : int or int array of shape (n,)
        """
        raise NotSupportedError(f"codes cannot be removed from a ClusterIndex; {_INSTEAD}")

    def get(self, ids: ArrayLike) -> Codes:
        """Return codes by id.

        Parameters
        ----------
        ids : array of shape (n,), or one id

        Returns
        -------
        uint8 array of shape (n, n_bytes), or (n_bytes,) for a single id

        Raises
        ------
        KeyError
            If an id is not stored.
        """
        given: NDArray[Any]
        if self._strings is None:
            given = chosen = checks.check_ids(ids)
            rows = np.arange(len(chosen))
        else:
            texts = checks.check_strings(ids)
            given, (rows, chosen) = np.array(texts, object), self._strings.find(texts)
        codes = np.zeros((len(given), n_bytes(self.n_bits)), np.uint8)
        stored = np.zeros(len(given), bool)
        for here, found in self._partitions.call(_codes, chosen):
            codes[rows[here]], stored[rows[here]] = found, True
        checks.refuse_missing(given[~stored])
        return codes[0] if checks.is_single(ids) else codes

    def explain(self, k: int = 10, *, recall: float | None = None) -> dict[str, Any]:
        """Say what a search with these arguments compares a query with.

        Parameters
        ----------
        k : int, default=10
            Number of neighbours.
        recall : float, default=None
            See `search`.

        Returns
        -------
        dict
            ``method`` ("cells" if any worker searches cells, or "exact"), ``compared``, the number
            of codes that a query is compared with, and ``n_probe``, the number of cells searched,
            or the ``reason`` for an exact search.
        """
        plans = [plan for own in self._partitions.call(_plans, k, recall) for plan in own]
        compared = sum(plan["compared"] for plan in plans)
        if all(plan["method"] == "exact" for plan in plans):
            reason = plans[0]["reason"] if plans else "there are no codes"
            return {"method": "exact", "reason": reason, "compared": compared}
        n_probe = sum(plan.get("n_probe", 0) for plan in plans)
        return {"method": "cells", "n_probe": n_probe, "compared": compared}

    def search(
        self, queries: ArrayLike, k: int = 10, *, recall: float | None = None
    ) -> tuple[NDArray[np.int32], NDArray[Any]]:
        """Return the k nearest codes of each query.

        Parameters
        ----------
        queries : uint8 array of shape (n_queries, n_bytes) or (n_bytes,)
            Several codes, or a single one.
        k : int, default=10
            Number of neighbours.
        recall : float, default=None
            Search approximately, as `HammingIndex.search` does; each worker searches as many of its
            cells as it takes for this recall. Searches are exact without cells (see the parameter
            `cells`).

        Returns
        -------
        distances : int32 array of shape (n_queries, min(k, n))
        ids : array of shape (n_queries, min(k, n))
            Nearest first; at equal distance the lower id comes first. For a single query of shape
            (n_bytes,), both arrays have one dimension.

        Raises
        ------
        ClusterError
            If the scheduler or all workers are lost, or the codes on disk have changed.
        """
        codes, single = checks.check_queries(queries, self.n_bits)
        k = checks.check_k(k)
        probe.check(recall, None)
        m = min(k, self._n)
        found = [(np.empty((0, m), np.int32), np.empty((0, m), np.int64))]
        for i in range(0, len(codes), _QUERIES):
            results = self._partitions.call(_nearest, codes[i : i + _QUERIES], k, recall)
            found.append(merge_results(results, k))
        distances, ids = (np.concatenate(column) for column in zip(*found))
        ids = self._public(ids)
        return (distances[0], ids[0]) if single else (distances, ids)

    def search_radius(
        self, queries: ArrayLike, radius: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[Any]]:
        """Return all codes within a radius of each query (range search).

        Parameters
        ----------
        queries : uint8 array of shape (n_queries, n_bytes) or (n_bytes,)
        radius : int
            Codes up to and including this distance are returned.

        Returns
        -------
        lims : int64 array of shape (n_queries + 1,)
            The results of query i are at ``lims[i]:lims[i + 1]``, as in FAISS.
        distances : int32 array of shape (lims[-1],)
        ids : array of shape (lims[-1],)
            Ordered by distance and id within each query.

        Raises
        ------
        ClusterError
            If the scheduler or all workers are lost, or the codes on disk have changed.
        """
        codes, _ = checks.check_queries(queries, self.n_bits)
        radius = checks.check_radius(radius, self.n_bits)
        found = [(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64))]
        for i in range(0, len(codes), _QUERIES):
            batch = codes[i : i + _QUERIES]
            for results in self._partitions.call(_in_radius, batch, radius):
                for lims, distances, ids in results:
                    query_index = np.repeat(i + np.arange(len(batch)), np.diff(lims))
                    found.append((query_index, distances, ids))
        query_index, distances, ids = (np.concatenate(column) for column in zip(*found))
        lims, distances, ids = checks.sort_by_query(query_index, distances, ids, len(codes))
        return lims, distances, self._public(ids)

    def close(self) -> None:
        """Release the memory of the workers."""
        self._partitions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# Functions that run on the workers.


def _load_from_index(path: Path, number: int, of: int, state: Any, cells: bool) -> Partition:
    """Load partition `number` of `of` from an index file."""
    with HammingIndex.open(path) as index:
        if index._state != state:
            raise ClusterError(_CHANGED.format(path))
        return _partition(index._chunk(number, of), cells)


def _partition(index: HammingIndex, cells: bool) -> Partition:
    """Return an index as a partition, with cells if they are wanted and help."""
    if cells:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            index.build_cells(n_jobs=1)
    return Partition.of(index)


def _load_from_slices(
    slices: list[tuple[Any, int, int]], first_id: int, n_bits: int, cells: bool
) -> Partition:
    """Load a partition from slices of sources: source, start, stop."""
    index = HammingIndex(n_bits=n_bits)
    for source, start, stop in slices:
        if isinstance(source, Shard) and type(source).open(source.path) != source:
            raise ClusterError(_CHANGED.format(source.path))
        n_read = 0  # rows of the source
        for codes in source.chunks(_CHUNK) if isinstance(source, Shard) else [np.asarray(source)]:
            chosen = codes[max(start - n_read, 0) : max(stop - n_read, 0)]
            index.add(chosen, np.arange(first_id, first_id + len(chosen)))
            first_id, n_read = first_id + len(chosen), n_read + len(codes)
            if n_read >= stop:
                break
    return _partition(index, cells)


def _count(indexes: list[HammingIndex]) -> int:
    return sum(map(len, indexes))


def _ids(indexes: list[HammingIndex]) -> NDArray[np.int64]:
    return np.concatenate([index.ids for index in indexes])


def _nearest(indexes: list[HammingIndex], queries: Array, k: int, recall: float | None) -> Any:
    found = [index.search(queries, k, recall=recall, n_jobs=1) for index in indexes]
    return merge_results(found, k)


def _plans(indexes: list[HammingIndex], k: int, recall: float | None) -> list[dict[str, Any]]:
    return [index.explain(k, recall=recall) for index in indexes]


def _in_radius(indexes: list[HammingIndex], queries: Array, radius: int) -> list[Any]:
    return [index.search_radius(queries, radius, n_jobs=1) for index in indexes]


def _codes(indexes: list[HammingIndex], ids: NDArray[np.int64]) -> tuple[NDArray[np.bool_], Codes]:
    """Return which of the ids are stored in the indexes, and their codes."""
    segments = [segment for index in indexes for segment in index._segments]
    words, here = words_by_id(segments, indexes[0].n_bits, ids)
    return here, to_codes(words[here], indexes[0].n_bits)
