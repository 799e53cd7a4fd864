"""Search in a table of codes in PostgreSQL, with the operators of pgvector."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import Codes
from ..search import checks
from ..search.segment import Ids
from .float_rerank import Floats
from .postgres_table import Table
from .store_rows import StoreError

_QUERIES = 256  # queries per statement
_OPERATORS = {"cosine": "<=>", "euclidean": "<->", "inner_product": "<#>"}

Found = tuple[Ids, NDArray[np.float64], Ids]  # query index, distance and id of each result


def find_nearest(
    table: Table, cursor: Any, queries: Codes, n_bits: int, k: int, ef_search: int | None
) -> tuple[NDArray[np.int32], Ids]:
    """Return distances and ids of the k nearest codes; with `ef_search`, from the HNSW index."""
    tail = f"{_nearest(cursor, ef_search)}) AS nearest"
    found = _run_queries(table, cursor, "SELECT stored.id, ", tail, queries, n_bits, k=k)
    distances, ids = _in_rows(found, len(queries), _count(table, cursor, k))
    return distances.astype(np.int32), ids


def find_nearest_vectors(
    table: Table,
    cursor: Any,
    queries: Codes,
    n_bits: int,
    k: int,
    ef_search: int | None,
    vectors: Floats,
    column: str,
    metric: str,
    factor: int,
) -> tuple[Floats, Ids]:
    """Return the k nearest by a column of vectors among the `factor` * k nearest codes."""
    _check_vectors(table, cursor, column, vectors.shape[1])
    # Codes without a vector come last, and so do zero vectors, whose cosine is not a number.
    distance = f"nearest.vector::vector {_OPERATORS[metric]} query.query_vector"
    head = (
        f"SELECT nearest.id, COALESCE(NULLIF({distance}, 'NaN'::float8), 'Infinity'::float8) AS d "
        "FROM (SELECT stored.id, stored.{column} AS vector, "
    )
    tail = f"{_nearest(cursor, ef_search)}) AS nearest ORDER BY d, nearest.id LIMIT {{m}}) AS best"
    parts = {"k": min(factor * k, 2**62), "m": k, "column": table.identifier(column)}
    found = _run_queries(table, cursor, head, tail, queries, n_bits, vectors, **parts)
    distances, ids = _in_rows(found, len(queries), _count(table, cursor, k))
    return distances.astype(np.float32), ids


def find_within(
    table: Table, cursor: Any, queries: Codes, n_bits: int, radius: int
) -> tuple[Ids, NDArray[np.int32], Ids]:
    """Return lims, distances and ids of all codes up to a distance (range search)."""
    tail = ") AS codes WHERE d <= {radius}"
    found = _run_queries(table, cursor, "SELECT stored.id, ", tail, queries, n_bits, radius=radius)
    query_index, distances, ids = found
    return checks.sort_by_query(query_index, distances.astype(np.int32), ids, len(queries))


def _nearest(cursor: Any, ef_search: int | None) -> str:
    """Return the order and limit of a statement for the k nearest codes."""
    if ef_search is None:
        return "ORDER BY d, stored.id LIMIT {k}"
    cursor.execute("SELECT set_config('hnsw.ef_search', %s, true)", [str(ef_search)])
    cursor.execute("SET LOCAL enable_seqscan = off")
    return "ORDER BY stored.code <~> query.query_code LIMIT {k}"


def _count(table: Table, cursor: Any, k: int) -> int:
    """Return the number of codes, but at most k."""
    count = "SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT {k}) AS counted"
    return int(table.execute(cursor, count, k=k).fetchone()[0])


def _check_vectors(table: Table, cursor: Any, column: str, width: int) -> None:
    """Raise unless the table has such a column of vectors; not all state their width."""
    query = (
        "SELECT typname, atttypmod FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid "
        "WHERE attrelid = %s::regclass AND attname = %s AND attnum > 0 AND NOT attisdropped"
    )
    found = cursor.execute(query, [table.quoted_name(cursor), column]).fetchone()
    if found is None or found[0] not in ("vector", "halfvec"):
        problem = "no such column" if found is None else f"one of type {found[0]}"
        raise StoreError(
            f"rerank_column must be a column of type vector or halfvec; the table {table.name!r} "
            f"has {problem}, {column!r}"
        )
    if found[1] not in (-1, width):
        raise StoreError(
            f"the column {column!r} holds vectors of {found[1]} numbers, rerank_vectors has {width}"
        )


def _run_queries(
    table: Table,
    cursor: Any,
    head: str,
    tail: str,
    queries: Codes,
    n_bits: int,
    vectors: Floats | None = None,
    **parts: Any,
) -> Found:
    """Return results for queries; `head` and `tail` complete the SQL statement."""
    # Names are qualified, because the table may have further columns of any name.
    statement = (
        "SELECT number, d, id FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY "
        "AS batch(text, vector_text, number), LATERAL (SELECT batch.text::bit({n}) AS query_code, "
        "batch.vector_text::vector AS query_vector) AS query, "
        f"LATERAL ({head}(stored.code <~> query.query_code)::int AS d FROM {{table}} AS stored "
        f"{tail}"
    )
    results: list[tuple[int, float, int]] = []
    for start in range(0, len(queries), _QUERIES):
        bits = np.unpackbits(queries[start : start + _QUERIES], axis=1, count=n_bits)
        texts = [(row + ord("0")).tobytes().decode() for row in bits]
        floats: list[str | None] = [None] * len(texts)
        if vectors is not None:
            floats = [str(row.tolist()) for row in vectors[start : start + _QUERIES]]
        rows = table.execute(cursor, statement, texts, floats, n=n_bits, **parts).fetchall()
        # PostgreSQL numbers the queries of a statement from 1.
        results += [(start + number - 1, d, id_) for number, d, id_ in rows]
    query_index, distances, ids = zip(*results) if results else ((), (), ())
    return np.array(query_index, np.int64), np.array(distances, float), np.array(ids, np.int64)


def _in_rows(found: Found, n: int, m: int) -> tuple[NDArray[np.float64], Ids]:
    """Return distances and ids of shape (n, m); -1 where the HNSW index gave fewer than m."""
    query_index, flat, flat_ids = found
    order = np.lexsort((flat_ids, flat, query_index))
    sizes = np.bincount(query_index, minlength=n)
    distances, ids = np.full((n, m), -1.0), np.full((n, m), -1, np.int64)
    is_found = np.arange(m) < sizes[:, None]
    distances[is_found], ids[is_found] = flat[order], flat_ids[order]
    return distances, ids
