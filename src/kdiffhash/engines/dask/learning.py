"""Learning from pairs of rows that lie on a cluster."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...extras import need
from ...hashers.closed_form import ClosedFormHasher
from ...moments import PairMoments
from ...pairs import Pairs, Similar, check_both_kinds, check_pairs, draw_pairs
from ...step_counts import Grid, StepCounts, Steps, solve
from .blocks import Array, Blocks, absolute_shards
from .cluster import current_client, same, told, total_threads

Hasher = TypeVar("Hasher", bound=ClosedFormHasher)

_PART_BYTES = 2**29  # features or projections of a part of the pairs, on a worker
_ROUND_BYTES = 2**29  # rows of pairs that the workers hold together
_GRID_ROWS = 4096  # rows whose projections say where the bins lie


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
    client = current_client(client)
    if not hasattr(X, "to_delayed"):
        X = absolute_shards(X)
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
    if hasher.refine:
        raise ValueError("refine needs all pairs on one machine; set refine=0, or fit on a sample")
    client = current_client(client)
    rows = Blocks.of(X, client)
    checked, flags = check_pairs(pairs, similar, len(rows))
    check_both_kinds(int(flags.sum()), int((~flags).sum()))
    try:
        with told():
            _learn(hasher, rows, checked, flags)
    except BaseException:
        hasher._forget()
        raise
    return hasher


def _learn(hasher: ClosedFormHasher, rows: Blocks, pairs: Pairs, similar: Similar) -> None:
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

    def __init__(self, rows: Blocks, pairs: Pairs, similar: Similar, width: int) -> None:
        self.rows, self.pairs, self.similar = rows, pairs, similar
        n, in_a_part = len(pairs), _PART_BYTES // (2 * 4 * width)
        size = max(1, min(in_a_part, -(-n // (2 * total_threads(rows.client)))))
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
        sent = client.submit(same, (learner, *more), pure=False)
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
