"""Learning, encoding and searching on a Dask cluster.

Rows stay where they lie. What travels, for a fit:

- the ids of all rows, to whoever calls `fit`, who draws the pairs;
- the rows of the basis, and rows lent to pairs whose other member lies in another shard;
- sums: two l x l matrices for the directions, counts in bins for the thresholds.

For a search the codes lie in the workers' memory, and only queries and what was found travel.
"""

from __future__ import annotations

import copy
import operator
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from queue import Empty, Queue
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from ..codes import n_bytes
from ..extras import need
from ..hashers import BaseHasher
from ..hashers.closed_form import ClosedFormHasher
from ..moments import PairMoments
from ..pairs import Pairs, Similar, check_both_kinds, check_pairs, draw_pairs
from ..parallel import n_threads
from ..search import HammingIndex
from ..search.passes import merge_found
from ..shards import Shard, Shards, is_shards, open_shards
from ..shards.codes import shards_to_write, write_shard
from ..shards.shard import check_finite, row_numbers
from ..step_counts import Grid, StepCounts, Steps, solve

Array = NDArray[Any]
Numbers = NDArray[np.int64]
Hasher = TypeVar("Hasher", bound=ClosedFormHasher)

_PATIENCE = 5  # seconds in which a scheduler must answer and have a worker
_IMPORTING = 60  # seconds in which all workers must have loaded what they need
_PART_BYTES = 2**29  # features or projections of a part of the pairs, on a worker
_ROUND_BYTES = 2**29  # rows of pairs that the workers hold together
_GRID_ROWS = 4096  # rows whose projections say where the bins lie
_PORTION = 2**20  # codes that are put into an index at a time
_QUERIES = 2**14  # queries that are sent at a time
_SMALL = 2**16  # bytes that are sent along with each task


class ClusterError(ValueError):
    """A cluster does not answer, has no workers, or lost them too often."""


# -- the cluster ----------------------------------------------------------------------------------


@contextmanager
def connect(cluster: str = "local", *, timeout: float = _PATIENCE) -> Iterator[Any]:
    """A client of a cluster, for a ``with`` statement.

    Parameters
    ----------
    cluster : str
        Address of a scheduler, as ``dask scheduler`` prints it (``tcp://host:8786``); or
        ``"local"``: a worker for each core of this machine, for as long as the statement lasts.
    timeout : float
        Seconds in which the scheduler must answer and have a worker.

    Yields
    ------
    client : distributed.Client
    """
    distributed = need("distributed", "dask")
    local = None
    if cluster == "local":
        local = distributed.LocalCluster(
            n_workers=n_threads(None),
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
        )
    try:
        try:
            client = distributed.Client(cluster if local is None else local, timeout=timeout)
        except (OSError, ValueError, ImportError) as error:
            raise ClusterError(
                f"no Dask scheduler answers at {cluster} ({error}); start one with `dask "
                "scheduler` and workers with `dask worker ADDRESS`, or use `local`"
            ) from error
        with client:
            _check(client, cluster, timeout)
            yield client
    finally:
        if local is not None:
            local.close()


def _check(client: Any, cluster: str, timeout: float) -> None:
    """Refuse a cluster that has no workers, or workers with another kdiffhash."""
    from .. import __version__

    try:
        client.wait_for_workers(1, timeout=timeout)
    except TimeoutError as error:
        raise ClusterError(
            f"the scheduler at {cluster} has no workers; start some: dask worker {cluster}"
        ) from error
    try:
        versions = set(_within(_IMPORTING, client.run, _version).values())
    except Empty:
        raise ClusterError(
            f"a worker at {cluster} does not answer; restart the workers that hang"
        ) from None
    except Exception as error:  # what a worker cannot unpickle comes as a bare Exception
        raise ClusterError(
            f"the workers at {cluster} cannot run kdiffhash; is it installed there? ({error})"
        ) from error
    if versions != {__version__}:
        raise ClusterError(
            f"workers at {cluster} have kdiffhash {', '.join(sorted(versions))}, but this is "
            f"{__version__}; install the same version everywhere"
        )


def _within(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns or raises; `queue.Empty` if it takes longer."""
    answers: Queue[Future[Any]] = Queue()

    def work() -> None:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)
        answers.put(future)

    threading.Thread(target=work, daemon=True).start()
    return answers.get(timeout=seconds).result()


def _version() -> str:
    from .. import __version__

    return __version__


@contextmanager
def _told() -> Iterator[None]:
    """Say in our words what went wrong on a cluster."""
    distributed = need("distributed", "dask")
    try:
        yield
    except FileNotFoundError as error:
        raise ClusterError(
            f"a worker does not see {error.filename or error}; shards and results must lie in a "
            "folder that all machines of the cluster have under the same name"
        ) from error
    except distributed.KilledWorker as error:
        raise ClusterError(
            f"a task was lost with its worker several times ({error}); maybe workers have too "
            "little memory"
        ) from error
    except CancelledError as error:
        raise ClusterError(
            "the connection to the scheduler was lost; start the job again"
        ) from error


def _client(client: Any) -> Any:
    """The given client, or the one in force."""
    if client is not None:
        return client
    distributed = need("distributed", "dask")
    try:
        return distributed.default_client()
    except ValueError as error:
        raise ClusterError(
            "there is no Dask client; make one: with kdiffhash.engines.dask.connect(ADDRESS)"
        ) from error


def _n_threads(client: Any) -> int:
    return max(1, sum(map(int, client.nthreads().values())))


# -- rows, where they lie -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Blocks:
    """Rows in blocks: files, or chunks of a dask array. It can be indexed like an array."""

    blocks: list[Any]
    sizes: list[int]
    width: int
    dtype: np.dtype[Any]
    client: Any

    @classmethod
    def of(cls, X: Any, client: Any) -> _Blocks:
        """Blocks of a path, of shards, or of a dask array."""
        if not hasattr(X, "to_delayed"):
            X = _shards(X)
            files = list(X.files)
            return cls(files, [len(file) for file in files], X.shape[1], X.dtype, client)
        if X.ndim != 2 or np.isnan(X.shape).any():
            raise ValueError(
                f"X must be rows of known number, shape (n, d), got shape {X.shape}; "
                "compute_chunk_sizes() finds unknown sizes"
            )
        X = X.rechunk({1: -1})
        return cls(list(X.to_delayed().ravel()), list(X.chunks[0]), X.shape[1], X.dtype, client)

    @cached_property
    def starts(self) -> Numbers:
        """Number of the first row of each block, and after them the number of all rows."""
        return np.cumsum([0, *self.sizes])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and width."""
        return int(self.starts[-1]), self.width

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, wanted: slice | Numbers) -> Array:
        rising, place = row_numbers(wanted, len(self))
        found = self.client.gather(list(self.take(rising).values()))
        rows = np.concatenate([np.empty((0, self.width), self.dtype), *found])
        return rows if place is None else rows[place]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or self.dtype, copy=False)

    def between(self, first: int, last: int) -> list[tuple[Any, int, int]]:
        """The blocks that rows from `first` to before `last` lie in, and their numbers there."""
        return [
            (block, max(first - start, 0), min(last - start, size))
            for block, start, size in zip(self.blocks, self.starts.tolist(), self.sizes)
            if first < start + size and start < last
        ]

    def take(self, numbers: Numbers) -> dict[int, Any]:
        """Futures of the rows with these numbers, which rise, for each block that has some."""
        delayed = need("dask", "dask").delayed(_take, pure=False)
        edges = np.searchsorted(numbers, self.starts)
        wanted = {
            i: delayed(block, numbers[edges[i] : edges[i + 1]] - start, start)
            for i, (block, start) in enumerate(zip(self.blocks, self.starts.tolist()))
            if edges[i] < edges[i + 1]
        }
        return dict(zip(wanted, self.client.compute(list(wanted.values()))))


def _shards(X: Any) -> Shards:
    """Shards by names that are good on all machines."""
    if isinstance(X, str | Path):
        X = open_shards(X)
    if not isinstance(X, Shards):
        raise ValueError(
            f"X must be a path, shards or a dask array, got {type(X).__name__}; "
            "dask.array.from_array makes one of a NumPy array"
        )
    return Shards(tuple(replace(file, path=file.path.absolute()) for file in X.files))


def _take(block: Any, numbers: Numbers, start: int) -> Array:
    """Some rows of a block whose first row has the number `start` among all rows."""
    if isinstance(block, Shard):
        return check_finite(block.take(numbers), numbers, str(block.path))
    return check_finite(np.asarray(block)[numbers], start + numbers, "X")


# -- learning -------------------------------------------------------------------------------------


def fit(hasher: Hasher, X: Any, y: Any = None, *, groups: Any = None, client: Any = None) -> Hasher:
    """Learn from labelled rows that lie on a cluster, as `hasher.fit` does on one machine.

    The same pairs are drawn from the same labels, also pairs across shards, and the same basis, so
    that the hasher is the same.

    Parameters
    ----------
    hasher : DiffHash, LDAHash, KernelDiffHash or KernelLDAHash
        It is fitted in place.
    X : path, Shards or dask array of shape (n, d)
        A folder of shards (see `kdiffhash.shards.open_shards`), or a dask array.
    y : array or dask array of shape (n,), optional
        Which thing each row shows. Shards may have labels of their own.
    groups : array or dask array of shape (n,), optional
        Draw pairs across groups only.
    client : distributed.Client, optional
        By default the client that is in force.

    Returns
    -------
    hasher
    """
    client = _client(client)
    if not hasattr(X, "to_delayed"):
        X = _shards(X)
        y = X.labels() if y is None else y
    if y is None:
        raise ValueError("y is missing, and the rows have no labels of their own: see open_shards")
    y, groups = (value.compute() if hasattr(value, "compute") else value for value in (y, groups))
    if len(y) != len(X):
        raise ValueError(f"X has {len(X)} rows, but y has {len(y)} labels")
    pairs, similar = draw_pairs(
        y,
        hasher.n_positives,
        hasher.n_negatives,
        groups=groups,
        random_state=hasher._rng("pairs"),
    )
    return fit_pairs(hasher, X, pairs, similar, client=client)


def fit_pairs(
    hasher: Hasher, X: Any, pairs: ArrayLike, similar: ArrayLike, *, client: Any = None
) -> Hasher:
    """Learn from explicit pairs of rows that lie on a cluster, as `hasher.fit_pairs` does.

    Parameters
    ----------
    hasher, X, client
        As in `fit`.
    pairs : int array of shape (p, 2)
        Row numbers, counted through all shards.
    similar : bool array of shape (p,)

    Returns
    -------
    hasher
    """
    if not isinstance(hasher, ClosedFormHasher):
        raise ValueError(
            f"{type(hasher).__name__} sees all rows at once; fit it on one machine, on a sample"
        )
    client = _client(client)
    rows = _Blocks.of(X, client)
    checked, flags = check_pairs(pairs, similar, len(rows))
    check_both_kinds(int(flags.sum()), int((~flags).sum()))
    try:
        with _told():
            _learn(hasher, rows, checked, flags)
    except BaseException:
        hasher._forget()
        raise
    return hasher


def _learn(hasher: ClosedFormHasher, rows: _Blocks, pairs: Pairs, similar: Similar) -> None:
    hasher._forget()
    hasher.n_features_in_ = rows.width
    hasher._start(rows)  # type: ignore[arg-type]
    order = np.argsort(pairs[:, 0], kind="stable")  # by the shard of the first member
    width = max(hasher._feature_map().width, hasher.n_bits or 0)
    job = _Job(rows, pairs[order], similar[order], width)
    stream = hasher._current_stream()
    stream.positive, stream.negative = job.total(_moments, hasher).sums
    hasher._solve()
    sample = np.unique(pairs[:: -(-len(pairs) // _GRID_ROWS)])
    grid = Grid.over(hasher._columns(rows[sample]))
    counts = job.total(_counts, hasher, grid)
    chosen = counts.candidates(hasher.threshold_weight)
    steps = job.total(_steps, hasher, grid, chosen)
    hasher._take_bit_rates(solve(grid, counts, steps, hasher.threshold_weight))
    hasher._stream = None


@dataclass(frozen=True)
class _Moments:
    """Moments of similar and of dissimilar pairs, which add up."""

    sums: tuple[PairMoments, PairMoments]

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments((self.sums[0] + other.sums[0], self.sums[1] + other.sums[1]))


class _Job:
    """Pairs in parts: each part is one task, which has its members' rows and gives a sum.

    The first members of a part lie in a run of blocks, its home; rows of other blocks are lent to
    it. Parts go in rounds, so that the workers hold a bounded number of rows.
    """

    def __init__(self, rows: _Blocks, pairs: Pairs, similar: Similar, width: int) -> None:
        self.rows, self.pairs, self.similar = rows, pairs, similar
        n, in_a_part = len(pairs), _PART_BYTES // (2 * 4 * width)
        size = max(1, min(in_a_part, -(-n // (2 * _n_threads(rows.client)))))
        parts = [slice(i, min(i + size, n)) for i in range(0, n, size)]
        in_a_round = max(1, _ROUND_BYTES // (2 * size * rows.width * rows.dtype.itemsize))
        self.rounds = [parts[i : i + in_a_round] for i in range(0, len(parts), in_a_round)]
        self.members, self.first_use = np.unique(pairs, return_index=True)
        self.first_use //= 2
        self.kept: list[tuple[Any, ...]] = []

    def total(self, work: Callable[..., Any], hasher: ClosedFormHasher, *more: Any) -> Any:
        """The sum of ``work(hasher, *more, rows, pairs, similar, new)`` over all parts."""
        client = self.rows.client
        learner = copy.copy(hasher)
        learner._stream, learner.n_jobs = None, 1
        sent = client.submit(_same, (learner, *more), pure=False)
        sums: list[Any] = []
        for some in self.rounds:
            inputs = self.kept or list(self._inputs(some))
            if len(self.rounds) == 1:
                self.kept = inputs  # the rows stay on the workers for the next sum
            sums += [client.submit(_run, work, sent, *one, pure=False) for one in inputs]
            while len(sums) > 1:
                two_by_two = zip(sums[::2], sums[1::2])
                odd = sums[len(sums) - len(sums) % 2 :]
                sums = [client.submit(operator.add, *two, pure=False) for two in two_by_two] + odd
            need("distributed", "dask").wait(sums)
        return sums[0].result()

    def _inputs(self, parts: list[slice]) -> Iterator[tuple[Any, ...]]:
        """For each part: its rows as futures and how to order them, pairs, flags, new rows."""
        starts = self.rows.starts
        needed = [np.unique(self.pairs[part]) for part in parts]
        firsts = [self.pairs[part][[0, -1], 0] for part in parts]
        homes = [np.searchsorted(starts, rows, side="right") - [1, 0] for rows in firsts]
        own, lent = [], []
        for rows, home in zip(needed, homes):
            low, high = np.searchsorted(rows, starts[home])
            own.append(rows[low:high])
            lent += [rows[:low], rows[high:]]
        own_rows, lent_rows = (np.unique(np.concatenate(rows)) for rows in (own, lent))
        own_at, lent_at = self.rows.take(own_rows), self.rows.take(lent_rows)
        for part, rows, home in zip(parts, needed, homes):
            here = range(*home)
            blocks = {i: f for i, f in lent_at.items() if i not in here}
            blocks |= {i: f for i, f in own_at.items() if i in here}
            low, high = np.searchsorted(lent_rows, starts[home])
            mine = own_rows[slice(*np.searchsorted(own_rows, starts[home]))]
            numbers = np.concatenate([lent_rows[:low], mine, lent_rows[high:]])
            use = self.first_use[np.searchsorted(self.members, rows)]
            yield (
                [blocks[i] for i in sorted(blocks)],
                np.searchsorted(numbers, rows).astype(np.int32),
                np.searchsorted(rows, self.pairs[part]).astype(np.int32),
                self.similar[part],
                (use >= part.start) & (use < part.stop),
            )


def _same(value: Any) -> Any:
    """What is sent to the workers, as a task, so that it can be sent again if a worker is lost."""
    return value


def _run(
    work: Callable[..., Any],
    sent: tuple[Any, ...],
    blocks: list[Array],
    order: NDArray[np.int32],
    pairs: NDArray[np.int32],
    similar: Similar,
    new: NDArray[np.bool_],
) -> Any:
    """Put the rows of a part together, and work on them."""
    return work(*sent, np.concatenate(blocks)[order], pairs.astype(np.int64), similar, new)


def _moments(hasher: ClosedFormHasher, rows: Array, pairs: Pairs, similar: Similar, _: Any) -> Any:
    return _Moments(hasher._moments(rows, pairs, similar))


def _counts(hasher: ClosedFormHasher, grid: Grid, rows: Array, *pairs: Any) -> StepCounts:
    return StepCounts.of(grid, hasher._columns(rows), *pairs)


def _steps(hasher: ClosedFormHasher, grid: Grid, chosen: Any, rows: Array, *pairs: Any) -> Steps:
    return Steps.of(grid, chosen, hasher._columns(rows), *pairs)


# -- encoding -------------------------------------------------------------------------------------


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
    client = _client(client)
    todo = shards_to_write(hasher, _shards(X), Path(out).absolute())
    with _told():
        sent = client.submit(_same, worker, pure=False)
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
    return hasher.transform(rows)


# -- searching ------------------------------------------------------------------------------------


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
        self._client = _client(client)
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
            codes = _Blocks.of(source, self._client)
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
        with _told():
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
        sent = queries if queries.nbytes <= _SMALL else client.submit(_same, queries, pure=False)
        with _told():
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
            codes = _take(block, np.arange(i, min(i + _PORTION, stop)), first_id)
            index.add(codes, np.arange(first_id, first_id + len(codes)))
            first_id += len(codes)
    return index


def _nearest(part: HammingIndex, queries: Array, k: int) -> tuple[Any, Any]:
    return part.search(queries, k, threads=1)


with suppress(ImportError):  # the scheduler keeps searches where the codes are
    from dask.sizeof import sizeof

    @sizeof.register(HammingIndex)  # type: ignore[no-untyped-call]
    def _size(index: HammingIndex) -> int:
        return index.nbytes
