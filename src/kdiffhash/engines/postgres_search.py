"""Search in a table of codes in PostgreSQL, with the operators of pgvector."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import Codes
from ..search import checks
from ..search.segment import Ids
from .postgres_table import Table

_QUERIES = 256  # queries per statement


def find_nearest(
    table: Table, cursor: Any, queries: Codes, n_bits: int, k: int, ef_search: int | None
) -> tuple[NDArray[np.int32], Ids]:
    """Return distances and ids of the k nearest codes; with `ef_search`, from the HNSW index."""
    count = "SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT {k}) AS counted"
    m = int(table.execute(cursor, count, k=k).fetchone()[0])
    if ef_search is not None:
        cursor.execute("SELECT set_config('hnsw.ef_search', %s, true)", [str(ef_search)])
        cursor.execute("SET LOCAL enable_seqscan = off")
    order = "d, stored.id" if ef_search is None else "stored.code <~> query.query_code"
    tail = f"ORDER BY {order} LIMIT {{k}}) AS nearest"
    lims, found, found_ids = _run_queries(table, cursor, tail, queries, n_bits, k=k)
    distances = np.full((len(queries), m), -1, np.int32)
    ids = np.full((len(queries), m), -1, np.int64)
    is_found = np.arange(m) < np.diff(lims)[:, None]  # the HNSW index may give fewer than m
    distances[is_found], ids[is_found] = found, found_ids
    return distances, ids


def find_within(
    table: Table, cursor: Any, queries: Codes, n_bits: int, radius: int
) -> tuple[Ids, NDArray[np.int32], Ids]:
    """Return lims, distances and ids of all codes up to a distance (range search)."""
    tail = ") AS codes WHERE d <= {radius}"
    return _run_queries(table, cursor, tail, queries, n_bits, radius=radius)


def _run_queries(
    table: Table, cursor: Any, tail: str, queries: Codes, n_bits: int, **literals: int
) -> tuple[Ids, NDArray[np.int32], Ids]:
    """Return lims, distances and ids for queries; `tail` completes the SQL statement."""
    # Names are qualified, because the table may have further columns of any name.
    distance = "(stored.code <~> query.query_code)::int AS d"
    statement = (
        "SELECT number, d, id FROM unnest(%s::text[]) WITH ORDINALITY AS batch(text, number), "
        "LATERAL (SELECT batch.text::bit({n}) AS query_code) AS query, "
        f"LATERAL (SELECT stored.id, {distance} FROM {{table}} AS stored {tail}"
    )
    results = [np.empty((0, 3), np.int64)]
    for start in range(0, len(queries), _QUERIES):
        bits = np.unpackbits(queries[start : start + _QUERIES], axis=1, count=n_bits)
        texts = [(row + ord("0")).tobytes().decode() for row in bits]
        rows = table.execute(cursor, statement, texts, n=n_bits, **literals).fetchall()
        # PostgreSQL numbers the queries of a statement from 1.
        results.append(np.array(rows, np.int64).reshape(-1, 3) + np.array([start - 1, 0, 0]))
    query_index, distances, ids = np.concatenate(results).T
    return checks.sort_by_query(query_index, distances.astype(np.int32), ids, len(queries))
