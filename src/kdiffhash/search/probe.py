"""Approximate search: the nearest cells of each query, and all codes that are in no cell."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _core
from .._util.threads import n_threads, run_tiles
from . import scan
from .cells import Cells
from .checks import check_count
from .scan import CodeQueries, Distances, QuerySet, RowRange
from .segment import Ids, Segment, Words

_BATCH = 256  # queries that share the cells that are fetched into the cache
_MIN_BATCH = 16  # queries that justify waking another thread


def with_cells(segments: list[Segment]) -> Segment | None:
    """Return the segment that has cells."""
    for segment in segments:
        if segment.cells is not None:
            return segment
    return None


def cells_of(segments: list[Segment]) -> Cells | None:
    """Return the cells of an index."""
    segment = with_cells(segments)
    return None if segment is None else segment.cells


def nearest(
    segments: list[Segment], queries: Words, k: int, n_probe: int, n_jobs: int | None
) -> tuple[Distances, Ids, Ids]:
    """Search the nearest cells of each query, and the codes that are in no cell.

    There must be a segment with cells, and at least k kept rows.

    Returns
    -------
    distances, ids : arrays of shape (n, k)
        Ordered by distance, then id.
    compared : int64 array of shape (n,)
        Number of codes that each query was compared with.
    """
    n, own = len(queries), with_cells(segments)
    if own is None:
        raise ValueError("there are no cells to search")
    tail = [RowRange(segment, 0, segment.n_rows) for segment in segments if segment is not own]
    distances, ids = np.zeros((n, k), np.int32), np.zeros((n, k), np.int64)
    compared, lacking = np.empty(n, np.int64), []

    def search(start: int, stop: int) -> None:
        """Search for some of the queries."""
        batch, best = queries[start:stop], (distances[start:stop], ids[start:stop])
        sizes = _nearest_in(own, tail, batch, n_probe, *best, compared[start:stop])
        if sizes is not None:
            lacking.append(start + np.flatnonzero(sizes < k))

    if n <= _MIN_BATCH:
        sizes = _nearest_in(own, tail, queries, n_probe, distances, ids, compared)
        if sizes is not None:
            lacking.append(np.flatnonzero(sizes < k))
    else:
        workers = min(n_threads(n_jobs), n // _MIN_BATCH)
        size = min(_BATCH, -(-n // workers), max(1, CodeQueries(queries).max_batch(k)))
        run_tiles(lambda: search, n, size, workers, blas=False)
    for rows in lacking:  # too few codes in the cells of these queries
        distances[rows], ids[rows] = scan.nearest(segments, CodeQueries(queries[rows]), k, n_jobs)
        compared[rows] = sum(segment.n_rows for segment in segments)
    return distances, ids, compared


def _nearest_in(
    segment: Segment,
    tail: list[RowRange],
    queries: Words,
    n_probe: int,
    distances: Distances,
    ids: Ids,
    compared: Ids,
) -> Ids | None:
    """Write the nearest rows; return their numbers unless there are k for each query."""
    cells: Cells | None = segment.cells
    assert cells is not None
    k, sizes = ids.shape[1], np.empty(len(queries), np.int64)
    searched = (cells.searchable(segment.flat), segment.kept, cells.groups_for(n_probe), n_probe)
    n_short, highest = _core.nearest_in_cells(*searched, queries, distances, ids, sizes, compared)
    cells.check(highest)
    own_ids = segment.id_map
    if not own_ids.are_positions:
        ids[:] = own_ids.at(ids)
    if tail:
        best = scan.nearest_in(tail, CodeQueries(queries), k, (distances, ids, sizes))
        distances[:], ids[:], sizes = best
        compared += sum(rows.segment.n_rows for rows in tail)
    return sizes if n_short else None


def search(
    segments: list[Segment],
    queries: QuerySet,
    k: int,
    recall: float | None,
    n_probe: int | None,
    n_jobs: int | None,
) -> tuple[Distances, Ids]:
    """Search approximately if a recall or a number of cells is given, and cells help."""
    if (recall is None and n_probe is None) or not isinstance(queries, CodeQueries):
        return scan.nearest(segments, queries, k, n_jobs)
    cells_to_search, _ = plan(segments, k, recall, n_probe)
    if cells_to_search is None or not len(queries) or not k:
        return scan.nearest(segments, queries, k, n_jobs)
    return nearest(segments, queries.words, k, cells_to_search, n_jobs)[:2]


def check(recall: float | None, n_probe: int | None) -> None:
    """Check the arguments of an approximate search."""
    if recall is None and n_probe is None:
        return
    if recall is not None and n_probe is not None:
        raise ValueError("pass either recall or n_probe, not both")
    if recall is not None and not (isinstance(recall, int | float) and 0 < recall < 1):
        raise ValueError(
            f"recall must be a number between 0 and 1, got {recall!r}; leave it out to search "
            "exactly"
        )
    if n_probe is not None:
        check_count(n_probe, "n_probe")


def plan(
    segments: list[Segment], k: int, recall: float | None, n_probe: int | None
) -> tuple[int | None, str]:
    """Return how many cells to search, or None and the reason for an exact search."""
    if recall is None and n_probe is None:
        return None, "neither recall nor n_probe was given"
    cells = cells_of(segments)
    if cells is None:
        if n_probe is not None:
            raise ValueError("the index has no cells, so n_probe has no meaning; call build_cells")
        return None, "the index has no cells"
    if recall is not None:
        n_probe = cells.calibration.choose(k, recall)
        if n_probe is None:
            return None, f"an exact search is as fast for k={k} and recall {recall:g}"
    if n_probe is None or n_probe >= cells.n_used:
        return None, "all cells are searched"
    return n_probe, ""


def explain(
    segments: list[Segment], k: int, recall: float | None, n_probe: int | None
) -> dict[str, Any]:
    """Return what a search compares a query with; see `HammingIndex.explain`."""
    n_cells, reason = plan(segments, k, recall, n_probe)
    segment = with_cells(segments)
    if n_cells is None or segment is None or segment.cells is None:
        n_rows = sum(segment.n_kept for segment in segments)
        return {"method": "exact", "reason": reason, "compared": n_rows}
    measured = segment.cells.calibration
    outside = sum(other.n_kept for other in segments if other is not segment)
    expected = measured.expected(k, n_cells)
    return {
        "method": "cells",
        "n_probe": n_cells,
        "cells": segment.cells.n_used,
        "outside_cells": outside,
        "compared": round(float(np.interp(n_cells, measured.n_probe, measured.compared))) + outside,
        "recall": expected and expected[0],
        "interval": expected and expected[1:],
        "n_queries": measured.n_queries,
    }


def describe(segments: list[Segment]) -> dict[str, Any]:
    """Return the number of cells, and of the codes that are in none."""
    segment = with_cells(segments)
    if segment is None or segment.cells is None:
        return {}
    outside = sum(other.n_kept for other in segments if other is not segment)
    return {"cells": segment.cells.n_used, "outside_cells": outside}
