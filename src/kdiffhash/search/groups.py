"""Groups of near duplicates, each with a representative.

Equal codes are collapsed first, so a group of a million equal codes costs no more than one code.
Pairs of distinct codes within the radius are streamed and never stored. The distinct codes are put
into the user's order of priority, so that the lower row of a pair is the one with the priority.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks, lookup_tables
from .scan import RowRange, scan_radius
from .segment import Ids, Segment, Words, make_segment
from .string_ids import StringIds

Method = Literal["connected", "greedy"]

_BATCH = 2048  # codes that the greedy method decides at a time; compared with each other in full
_WINDOW = 2**16  # rows among which the next batch is looked for
_EDGES = 2**22  # pairs of different components that are collected before they are joined
_CHUNK = 2**20  # codes of which distances are computed at a time


@dataclass(frozen=True)
class Groups:
    """Near duplicates in groups; returned by `HammingIndex.groups`.

    Iterating yields the ids of each group with at least two codes, the representative first. Its
    length is the number of these groups.

    Attributes
    ----------
    representative_rows : int64 array of shape (n,)
        For each code, where the representative of its group is in `ids`.
    distances : int32 array of shape (n,)
        Hamming distance of each code to the representative of its group.
    ids : array of shape (n,)
        Ids of all codes of the index, in order of priority: int64, or strings (dtype object).

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import HammingIndex
    >>> codes = np.array([[0b11110000], [0b11111111], [0b11110001], [0b11111111]], np.uint8)
    >>> groups = HammingIndex(codes).groups(radius=1)
    >>> [group.tolist() for group in groups]
    [[0, 2], [1, 3]]
    >>> groups.keep.tolist(), groups.drop.tolist()
    ([0, 1], [2, 3])
    """

    representative_rows: Ids
    distances: NDArray[np.int32]
    _ids: Ids
    _strings: StringIds | None = None  # that `_ids` stand for; decoded only where they are needed

    @property
    def ids(self) -> NDArray[Any]:
        """Ids of all codes of the index, in order of priority."""
        return self._public(self._ids)

    @property
    def representatives(self) -> NDArray[Any]:
        """Id of the representative of each code, shape (n,)."""
        return self._public(self._ids[self.representative_rows])

    @property
    def keep(self) -> NDArray[Any]:
        """Ids of the representatives, and of codes that are in no group with another one."""
        return self._public(self._ids[self._is_representative()])

    @property
    def drop(self) -> NDArray[Any]:
        """Ids of all codes that are represented by another one."""
        return self._public(self._ids[~self._is_representative()])

    def _public(self, ids: Ids) -> NDArray[Any]:
        return ids if self._strings is None else self._strings.strings(ids)

    def _is_representative(self) -> NDArray[np.bool_]:
        return np.equal(self.representative_rows, np.arange(len(self.ids)))

    def __len__(self) -> int:
        """Number of groups with at least two codes."""
        return int(np.count_nonzero(np.bincount(self.representative_rows, minlength=1) > 1))

    def __iter__(self) -> Iterator[NDArray[Any]]:
        for rows in self.rows():
            yield self._public(self._ids[rows])

    def rows(self) -> Iterator[Ids]:
        """Yield where the codes of each group of at least two are in `ids`, in order of priority.

        Yields
        ------
        rows : int64 array
            Rows of one group, the representative first.
        """
        counts = np.bincount(self.representative_rows, minlength=1)
        shared = np.flatnonzero(counts[self.representative_rows] > 1)
        order = shared[np.argsort(self.representative_rows[shared], kind="stable")]
        start = 0
        for count in counts[counts > 1].tolist():
            yield order[start : start + count]
            start += count


def find_groups(
    segments: list[Segment],
    radius: int,
    n_bits: int,
    method: str,
    priority: ArrayLike | None,
    n_jobs: int | None,
) -> Groups:
    """Return the groups of all kept rows; see `HammingIndex.groups`."""
    if method not in ("connected", "greedy"):
        raise ValueError(f"method must be 'connected' or 'greedy', got {method!r}")
    words, ids = _by_priority(segments, priority)
    if not len(ids):
        return Groups(np.empty(0, np.int64), np.empty(0, np.int32), ids)
    distinct, number = _collapse(words)
    segment = make_segment(words[distinct], np.arange(len(distinct)))
    find = _connected if method == "connected" else _greedy
    chosen = find(segment, radius, n_bits, n_jobs)
    distances = np.empty(len(distinct), np.int32)
    for start in range(0, len(distinct), _CHUNK):
        own, other = distinct[start : start + _CHUNK], distinct[chosen[start : start + _CHUNK]]
        differing = np.bitwise_count(words[own] ^ words[other])
        distances[start : start + _CHUNK] = differing.sum(axis=1, dtype=np.int32)
    return Groups(distinct[chosen][number], distances[number], ids)


def _by_priority(segments: list[Segment], priority: ArrayLike | None) -> tuple[Words, Ids]:
    """Return the codes and ids of all kept rows: those in `priority` first, then by id."""
    rows = [segment.kept_rows() for segment in segments]
    if not rows:
        checks.refuse_missing(checks.check_ids([] if priority is None else priority))
        return np.empty((0, 1), np.uint64), np.empty(0, np.int64)
    words = np.concatenate([segment.words_of(own) for segment, own in zip(segments, rows)])
    ids = np.concatenate([segment.ids_of(own) for segment, own in zip(segments, rows)])
    order = np.argsort(ids)
    if priority is not None:
        first = checks.check_ids(priority)
        at = np.minimum(np.searchsorted(ids, first, sorter=order), len(ids) - 1)
        checks.refuse_missing(first[ids[order[at]] != first])
        if len(np.unique(first)) < len(first):
            raise ValueError("priority contains an id twice; list each id once")
        rest = np.ones(len(ids), bool)
        rest[at] = False
        order = np.concatenate([order[at], order[rest]])
    elif np.all(ids[1:] > ids[:-1]):
        return words, ids
    return words[order], ids[order]


class Distinct(NamedTuple):
    """Distinct codes: the first row with each, ascending, and the number of each row's code."""

    rows: Ids
    number: Ids


def _collapse(words: Words) -> Distinct:
    """Find the distinct codes, in the order in which they first appear."""
    order = np.lexsort(words.T)  # stable: equal codes stay in order
    begins = np.empty(len(words), bool)
    begins[0] = True
    begins[1:] = False
    for word in words.T:
        values = word[order]
        begins[1:] |= values[1:] != values[:-1]
    firsts = order[begins]
    by_row = np.argsort(firsts)
    position = np.empty_like(by_row)
    position[by_row] = np.arange(len(by_row))
    number = np.empty(len(words), np.int64)
    number[order] = position[np.cumsum(begins) - 1]
    return Distinct(firsts[by_row], number)


def _connected(segment: Segment, radius: int, n_bits: int, n_jobs: int | None) -> Ids:
    """Return the first row of the connected component of each row."""
    components = _Components(segment.n_rows)
    if radius:  # distinct codes have a distance of at least 1
        for a, b, _ in lookup_tables.duplicates([segment], radius, n_bits, n_jobs):
            components.join(a, b)
    return components.finish()


class _Components:
    """Connected components of a graph whose edges are streamed."""

    def __init__(self, n: int) -> None:
        self._first = np.arange(n)  # first row of the component of each row, as far as known
        self._edges: list[tuple[Ids, Ids]] = []
        self._n_edges = 0

    def join(self, a: Ids, b: Ids) -> None:
        """Add edges between rows."""
        a, b = self._first[a], self._first[b]
        new = a != b
        if np.any(new):
            self._edges.append((a[new], b[new]))
            self._n_edges += int(np.count_nonzero(new))
            if self._n_edges >= _EDGES:
                self.finish()

    def finish(self) -> Ids:
        """Join what is connected, and return the first row of the component of each row."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        if self._edges:
            n = len(self._first)
            a, b = (np.concatenate(ends) for ends in zip(*self._edges))
            graph = coo_array((np.ones(len(a), np.int8), (a, b)), shape=(n, n)).tocsr()
            n_components, labels = connected_components(graph, directed=False)
            first = np.empty(n_components, np.int64)
            first[labels[::-1]] = np.arange(n)[::-1]  # of several assignments the last one counts
            self._first = first[labels[self._first]]
            self._edges, self._n_edges = [], 0
        return self._first


def _greedy(segment: Segment, radius: int, n_bits: int, n_jobs: int | None) -> Ids:
    """Return the first kept row within the radius of each row, itself if the row is kept.

    A row is kept if no kept row before it is within the radius.
    """
    n = segment.n_rows
    if not radius:
        return np.arange(n)
    chosen = np.full(n, n)
    lookup_tables.prepare_tables([segment], 0, radius, n_bits, n_jobs)
    start = 0
    while start < n:
        free = np.flatnonzero(chosen[start : start + _WINDOW] == n)[:_BATCH] + start
        start = int(free[-1]) + 1 if len(free) == _BATCH else start + _WINDOW
        kept = free[_kept_in_order(segment.words_of(free), radius, n_jobs)]
        chosen[kept] = kept
        for first, second, _ in lookup_tables.later_neighbours(
            [segment], 0, kept, radius, n_bits, n_jobs
        ):
            np.minimum.at(chosen, second, first)
    return chosen


def _kept_in_order(words: Words, radius: int, n_jobs: int | None) -> NDArray[np.bool_]:
    """Return which of a batch of free rows are kept."""
    n = len(words)
    kept = np.ones(n, bool)
    if n < 2:
        return kept
    batch = make_segment(words, np.arange(n))
    near = np.zeros((n, n), bool)  # 4 MB at most
    for query_index, row, _ in scan_radius(RowRange(batch, 0, n), words, radius, n_jobs):
        near[query_index, row] = True
    np.fill_diagonal(near, False)
    for i in np.flatnonzero(near.any(axis=1)).tolist():
        if kept[i]:
            kept[i + 1 :] &= ~near[i, i + 1 :]
    return kept
