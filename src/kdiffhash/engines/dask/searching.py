"""Searching codes that lie in the memory of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...codes import Codes, n_bytes
from ...errors import NotSupportedError
from ...extras import need
from ...rows import Array
from ...search import HammingIndex, checks
from ...search.index_format import MAX_BITS
from ...search.passes import merge_found
from ...search.segment import to_codes, words_by_id
from ...shards import Shard, is_shards
from ...shards.codes import read_record
from .blocks import Blocks
from .cluster import ClusterError, current_client, same, told

if TYPE_CHECKING:
    from ...search.checks import Model

_PORTION = 2**20  # codes that are put into an index at a time
_QUERIES = 2**14  # queries that are sent at a time
_SMALL = 2**16  # bytes that are sent along with each task
_INSTEAD = "change the index file or the codes that it was made from, and make it again"


class ClusterIndex:
    """Codes in the memory of a cluster's workers, searched exactly.

    It is a `CodeStore` that cannot be changed. Results are those of `HammingIndex` with all codes,
    ties included. If a worker is lost, others read its codes again.

    Parameters
    ----------
    source : path, Shards or dask array
        An index file; or codes in files, in a folder of files, or in a dask array, whose ids count
        from 0.
    n_bits : int, optional
        Length of the codes; by default what the folder says, or eight times their bytes.
    model : BaseHasher or str, optional
        The model that makes the codes and the queries, or its fingerprint. An index file, or a
        folder of codes, that is known to be of another model is refused.
    client : distributed.Client, optional
        By default the client that is in force.
    """

    def __init__(
        self,
        source: Any,
        *,
        n_bits: int | None = None,
        model: Model | None = None,
        client: Any = None,
    ) -> None:
        self._client = current_client(client)
        delayed = need("dask", "dask").delayed
        threads = self._client.nthreads()
        places = [worker for worker, n in threads.items() for _ in range(n)]
        if not places:
            raise ClusterError("the cluster has no workers to hold the codes; start some first")
        if isinstance(source, str | Path) and not is_shards(Path(source)):
            path = Path(source).absolute()
            with HammingIndex.open(path, n_bits=n_bits, model=model) as index:
                self.n_bits, self.model, state = index.n_bits, index.model, index._state
            load, n = delayed(_open_part, pure=False), len(places)
            jobs = [load(path, i, n, state) for i in range(n)]
        else:
            codes = Blocks.of(source, self._client)
            record = read_record(Path(source)) if isinstance(source, str | Path) else {}
            if n_bits is None:
                n_bits = record.get("bits", 8 * codes.width)
            self.n_bits, stored = checks.check_n_bits(n_bits, MAX_BITS), record.get("model")
            checks.check_model(stored, model, source)
            self.model = stored or checks.fingerprint_of(model, self.n_bits)
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

    @property
    def ids(self) -> NDArray[np.int64]:
        """All ids, rising."""
        return np.sort(np.concatenate(self._ask(attrgetter("ids"))))

    def info(self) -> dict[str, Any]:
        """What the index holds: number and length of codes, the model, and on how many workers."""
        workers = len(self._client.nthreads())
        return {"codes": len(self), "bits": self.n_bits, "model": self.model, "workers": workers}

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None) -> NDArray[np.int64]:  # noqa: ARG002
        """Codes cannot be added here."""
        raise NotSupportedError(f"codes cannot be added to a ClusterIndex; {_INSTEAD}")

    def remove(self, ids: ArrayLike) -> None:  # noqa: ARG002
        """Codes cannot be removed here."""
        raise NotSupportedError(f"codes cannot be removed from a ClusterIndex; {_INSTEAD}")

    def get(self, ids: ArrayLike) -> Codes:
        """Return codes by their ids; see `CodeStore.get`."""
        chosen = checks.check_ids(ids)
        codes = np.zeros((len(chosen), n_bytes(self.n_bits)), np.uint8)
        stored = np.zeros(len(chosen), bool)
        for here, some in self._ask(_codes, chosen):
            codes[here], stored = some, stored | here
        checks.refuse_missing(chosen[~stored])
        return codes if np.ndim(ids) else codes[0]

    def search(
        self, queries: ArrayLike, k: int = 10
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Find the k nearest codes of each query: distances and ids; see `CodeStore.search`."""
        codes, alone = checks.check_queries(queries, self.n_bits)
        k = checks.check_k(k)
        m = min(k, self._n)
        found = [(np.empty((0, m), np.int32), np.empty((0, m), np.int64))]
        for i in range(0, len(codes), _QUERIES):
            found.append(merge_found(self._ask(_nearest, codes[i : i + _QUERIES], k), k))
        distances, ids = (np.concatenate(column) for column in zip(*found))
        return (distances[0], ids[0]) if alone else (distances, ids)

    def search_radius(
        self, queries: ArrayLike, radius: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """Find all codes within a radius: lims, distances, ids; see `CodeStore.search_radius`."""
        codes, _ = checks.check_queries(queries, self.n_bits)
        radius = checks.check_radius(radius, self.n_bits)
        found = [(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64))]
        for i in range(0, len(codes), _QUERIES):
            some = codes[i : i + _QUERIES]
            for lims, distances, ids in self._ask(_within, some, radius):
                found.append((np.repeat(i + np.arange(len(some)), np.diff(lims)), distances, ids))
        query_index, distances, ids = (np.concatenate(column) for column in zip(*found))
        return checks.sort_by_query(query_index, distances, ids, len(codes))

    def close(self) -> None:
        """Give the workers' memory back."""
        self._parts = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, work: Callable[..., Any], *given: Any) -> list[Any]:
        """What a function returns for each part, there where the part is."""
        if not self._parts:
            raise ValueError("this ClusterIndex is closed; make it again")
        submit = partial(self._client.submit, pure=False)
        with told():
            sent = [submit(same, x) if getattr(x, "nbytes", 0) > _SMALL else x for x in given]
            return list(self._client.gather([submit(work, part, *sent) for part in self._parts]))


def _open_part(path: Path, number: int, of: int, state: Any) -> HammingIndex:
    """A part of an index file, in the memory of this worker."""
    with HammingIndex.open(path) as index:
        if index._state != state:
            raise ClusterError(f"{path} was changed while it was read; start the job again")
        return index._part(number, of)


def _load_part(blocks: list[tuple[Any, int, int]], first_id: int, n_bits: int) -> HammingIndex:
    """An index of some rows of some blocks."""
    index = HammingIndex(n_bits=n_bits)
    for block, start, stop in blocks:
        done = 0  # rows of the block
        for codes in block.blocks(_PORTION) if isinstance(block, Shard) else [np.asarray(block)]:
            some = codes[max(start - done, 0) : max(stop - done, 0)]
            index.add(some, np.arange(first_id, first_id + len(some)))
            first_id, done = first_id + len(some), done + len(codes)
            if done >= stop:
                break
    return index


def _nearest(part: HammingIndex, queries: Array, k: int) -> tuple[Any, Any]:
    return part.search(queries, k, n_jobs=1)


def _within(part: HammingIndex, queries: Array, radius: int) -> tuple[Any, Any, Any]:
    return part.search_radius(queries, radius, n_jobs=1)


def _codes(part: HammingIndex, ids: NDArray[np.int64]) -> tuple[NDArray[np.bool_], Codes]:
    """Which of some ids are in a part, and their codes."""
    words, here = words_by_id(part._segments, part.n_bits, ids)
    return here, to_codes(words[here], part.n_bits)


with suppress(ImportError):  # the scheduler keeps searches where the codes are
    from dask.sizeof import sizeof

    @sizeof.register(HammingIndex)  # type: ignore[no-untyped-call]
    def _size(index: HammingIndex) -> int:
        return index.nbytes
