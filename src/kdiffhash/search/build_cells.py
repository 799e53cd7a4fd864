"""Building the cells of an index: training, assignment and calibration, in one stream of codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._util.threads import run_tiles
from . import recall_curves, scan
from .cells import Cells, cell_sizes, order_rows
from .centres import Centres, Numbers, TwoLevels, add_bits, train
from .recall_curves import N_QUERIES, Calibration
from .segment import (
    BLOCK,
    IdRuns,
    Ids,
    Segment,
    SegmentIds,
    Words,
    aligned_zeros,
    all_ids,
    words_by_id,
)

MIN_CODES = 20_000  # an exact scan of fewer codes is as fast
CODES_PER_CELL = 160
_TRAINED_ON = 64  # codes per cell
_CHUNK = 2**18  # codes read at a time
_SCORES = 2**22  # scores of centres computed at a time during calibration
_SCANNED = 2**22  # codes that are scanned for neighbours at a time
_TILE = N_QUERIES // 4  # queries that a thread scans with
_WINDOW_BYTES = 2**28  # blocks that are arranged in memory at a time when a file is written


class CellsDoNotHelpError(ValueError):
    """Error raised if searching cells would be no faster than an exact scan."""


class Layout(NamedTuple):
    """Everything about a segment with cells but its codes."""

    cells: Cells
    rows: Numbers  # the row of each position
    ids: SegmentIds


@dataclass(frozen=True)
class Source:
    """The codes of segments in ascending order of their ids; the position of a code is its rank."""

    segments: list[Segment]
    n_bits: int

    def __len__(self) -> int:
        return sum(segment.n_kept for segment in self.segments)

    def chunks(self) -> Iterator[tuple[Words, Ids]]:
        """Yield codes and their ids."""
        segments = sorted(self.segments, key=lambda segment: segment.first_id)
        if any(a.last_id >= b.first_id for a, b in pairwise(segments)):
            ids = all_ids(segments)
            for start in range(0, len(ids), _CHUNK):
                own = ids[start : start + _CHUNK]
                yield words_by_id(segments, self.n_bits, own)[0], own
            return
        for segment in segments:
            for start in range(0, segment.n_rows, _CHUNK):
                rows = segment.kept_in_order(start, min(start + _CHUNK, segment.n_rows))
                if len(rows):
                    yield segment.words_of(rows), segment.ids_of(rows)
                segment.release_pages()

    def words_at(self, positions: Ids) -> Words:
        """Return the codes at ascending positions."""
        found, start = [], 0
        for words, _ in self.chunks():
            first, end = np.searchsorted(positions, [start, start + len(words)])
            found.append(words[positions[first:end] - start])
            start += len(words)
        return np.concatenate(found)


def lay_out(source: Source, n_cells: int | None, n_jobs: int | None) -> Layout:
    """Learn cells and order the codes by them.

    Raises
    ------
    CellsDoNotHelpError
        If cells would make no search faster.
    """
    n = len(source)
    if n < MIN_CODES:
        raise CellsDoNotHelpError(
            f"cells help from about {MIN_CODES:,} codes on, and the index has {n:,}"
        )
    wanted = n_cells or max(BLOCK, n // CODES_PER_CELL)
    if not 2 <= wanted <= n // BLOCK:
        raise ValueError(
            f"n_cells must be from 2 to {n // BLOCK}, an eighth of the codes, got {wanted}"
        )
    rng = np.random.default_rng(0)
    sample, held_out = _draw(n, min(n - N_QUERIES, wanted * _TRAINED_ON), rng)
    levels = train(source.words_at(sample), wanted, rng, n_jobs)
    queries = source.words_at(held_out)
    levels, cell_of, ids = _assign(source, levels, n_jobs)
    neighbours = _neighbours(source, queries, held_out, ids, n_jobs)
    measured = _calibrate(levels, cell_of, queries, *neighbours)
    if measured.choose(10, 0.9) is None:
        raise CellsDoNotHelpError(
            "cells do not help with these codes: to find 90 % of the 10 nearest neighbours, so "
            "many of them would have to be searched that an exact scan is as fast (codes without "
            "clusters, such as uniform random ones, are like that)"
        )
    order = order_rows(cell_of, len(levels.cells))
    return Layout(Cells(levels, *order, measured, n_cells_asked=n_cells), cell_of, ids)


def layout_of(source: Source, n_jobs: int | None) -> Layout:
    """Return the cells that the source has, or new ones if they lack or exceed its codes."""
    cells = next((own.cells for own in source.segments if own.cells is not None), None)
    if cells is not None and len(source.segments) == 1 and len(source) == len(cells.low):
        return Layout(cells, cells.all_rows, source.segments[0].id_map)
    return lay_out(source, None if cells is None else cells.n_cells_for(len(source)), n_jobs)


def in_memory(source: Source, layout: Layout) -> Segment:
    """Return a segment in memory with the codes of the source, ordered by cell."""
    n = len(layout.rows)
    (blocks,) = windows(source, layout.rows, -(-n // BLOCK) * BLOCK)
    first, listed, runs = layout.ids
    return Segment(blocks, n, first, listed, runs=runs, cells=layout.cells)


def windows(source: Source, rows: Numbers, size: int | None = None) -> Iterator[Words]:
    """Yield the blocks of the codes in the order of their rows, `size` rows at a time."""
    width = -(-source.n_bits // 64)
    size = size or max(BLOCK, _WINDOW_BYTES // (64 * width) * BLOCK)
    for start in range(0, len(rows), size):
        n = min(size, len(rows) - start)
        blocks = aligned_zeros(-(-n // BLOCK), width, BLOCK)
        at = 0
        for words, _ in source.chunks():
            _core.scatter(words, rows[at : at + len(words)], start, blocks)
            at += len(words)
        yield blocks


def _draw(n: int, n_sample: int, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Return ascending positions of codes to learn from, and of others to calibrate with."""
    total = n_sample + N_QUERIES
    edges = np.arange(total + 1) * n // total
    drawn = edges[:-1] + (rng.random(total) * np.diff(edges)).astype(np.int64)
    held_out = np.zeros(total, bool)
    held_out[rng.choice(total, N_QUERIES, replace=False)] = True
    return drawn[~held_out], drawn[held_out]


def _assign(
    source: Source, levels: TwoLevels, n_jobs: int | None
) -> tuple[TwoLevels, Numbers, SegmentIds]:
    """Assign all codes to cells, and move the centres to the means of their codes."""
    cell_of = np.empty(len(source), np.uint32)
    sums = np.zeros((len(levels.cells), 64 * levels.cells.planes.shape[1]), np.int32)
    runs, at = [], 0
    for words, ids in source.chunks():
        own = levels.assign(words, n_jobs)
        add_bits(words, own, sums)
        cell_of[at : at + len(own)] = own
        runs.append(IdRuns.of(ids))
        at += len(own)
    sizes = cell_sizes(cell_of, len(sums))
    step = 4096  # centres
    starts = range(0, len(sums), step)
    parts = [Centres.of(sums[i : i + step], sizes[i : i + step]) for i in starts]
    centres = Centres.joined(parts)
    return TwoLevels(levels.groups, centres, levels.firsts), cell_of, SegmentIds.joined(runs)


def _neighbours(
    source: Source, queries: Words, own: Ids, ids: SegmentIds, n_jobs: int | None
) -> tuple[scan.Distances, Ids]:
    """Return distances and positions of the neighbours of stored codes, other than themselves."""
    k = recall_curves.N_NEIGHBOURS
    distances = np.empty((len(queries), k + 1), np.int32)
    found = np.empty((len(queries), k + 1), np.int64)

    def search(start: int, stop: int) -> None:
        best, batch = None, scan.CodeQueries(queries[start:stop])
        for segment in source.segments:
            for first in range(0, segment.n_rows, _SCANNED):
                rows = scan.RowRange(segment, first, min(first + _SCANNED, segment.n_rows))
                best = scan.nearest_in([rows], batch, k + 1, best)
                segment.release_pages()
        assert best is not None
        distances[start:stop], found[start:stop] = best[:2]

    run_tiles(lambda: search, len(queries), _TILE, n_jobs, blas=False)
    positions = ids.positions(found, len(source))
    others = positions != own[:, None]
    others[np.all(others, axis=1), -1] = False  # more than k + 1 equal codes: drop one of them
    return distances[others].reshape(-1, k), positions[others].reshape(-1, k)


def _calibrate(
    levels: TwoLevels,
    cell_of: Numbers,
    queries: Words,
    distances: scan.Distances,
    neighbours: Ids,
) -> Calibration:
    """Measure recall for queries with known neighbours."""
    sizes = cell_sizes(cell_of, len(levels.cells))
    n_cells, n_groups = int(np.count_nonzero(sizes)), int(np.count_nonzero(np.diff(levels.firsts)))
    group_of_cell = np.repeat(np.arange(len(levels.groups)), np.diff(levels.firsts))
    steps = recall_curves.grid(n_cells)
    needed, compared = [], np.zeros(len(steps))
    step = max(1, _SCORES // len(levels.cells))
    for start in range(0, len(queries), step):
        own, cells = queries[start : start + step], cell_of[neighbours[start : start + step]]
        cell_order, cell_ranks = _ranks(levels.cells, own, cells)
        _, group_ranks = _ranks(levels.groups, own, group_of_cell[cells])
        needed.append(recall_curves.needed(cell_ranks, group_ranks, n_cells, n_groups))
        compared += np.cumsum(sizes[cell_order], axis=1)[:, steps - 1].sum(axis=0)
    curves = recall_curves.recall_curves(np.concatenate(needed), distances, len(steps))
    return Calibration(
        len(cell_of), n_cells, n_groups, len(queries), steps, compared / len(queries), *curves
    )


def _ranks(centres: Centres, queries: Words, chosen: NDArray[np.integer]) -> tuple[Ids, Ids]:
    """Return the order of the centres for each query, and the ranks of the chosen ones."""
    scores = np.empty((len(queries), len(centres)), np.uint16)
    _core.score_centres(*centres.arguments, queries, scores)
    order = np.argsort(scores, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(len(centres)), order.shape), axis=1)
    return order, np.take_along_axis(ranks, np.asarray(chosen, np.int64), axis=1)
