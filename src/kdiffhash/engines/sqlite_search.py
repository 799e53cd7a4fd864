"""Search in a table of codes in SQLite: in SQL with the extension sqlite-vec, and float vectors.

sqlite-vec also has virtual tables (vec0) that store vectors themselves. They are not used: they
return at most 4096 neighbours, choose among equal distances arbitrarily, and can only be written to
by programs that load the extension.
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

from ..codes import Codes
from ..search import checks
from ..search.segment import Ids
from .sqlite_table import Table
from .store_rows import StoreError

_DISTANCE = "vec_distance_hamming(vec_bit(code), vec_bit(?1))"


def find_nearest(
    table: Table, queries: Codes, k: int, allowed: Ids | None
) -> tuple[NDArray[np.int32], Ids]:
    """Return distances and ids of the k nearest codes, among the ids `allowed`."""
    among = "" if allowed is None else "WHERE id IN (SELECT value FROM json_each(?3))"
    values = () if allowed is None else (json.dumps(allowed.tolist()),)
    count = f"SELECT count(*) FROM (SELECT id FROM {{table}} {among} LIMIT ?2)"
    m = int(table.execute(count, None, k, *values).fetchone()[0])
    query = f"SELECT {_DISTANCE} AS d, id FROM {{table}} {among} ORDER BY d, id LIMIT ?2"
    distances = np.empty((len(queries), m), np.int32)
    ids = np.empty((len(queries), m), np.int64)
    for i, code in enumerate(queries if m else ()):
        distances[i], ids[i] = zip(*table.execute(query, code.tobytes(), k, *values))
    return distances, ids


def find_within(table: Table, queries: Codes, radius: int) -> tuple[Ids, NDArray[np.int32], Ids]:
    """Return lims, distances and ids of all codes up to a distance (range search)."""
    query = (
        f"SELECT found, found_id FROM (SELECT {_DISTANCE} AS found, id AS found_id FROM {{table}}) "
        "WHERE found <= ?2"
    )
    query_index: list[int] = []
    distances: list[int] = []
    ids: list[int] = []
    for i, code in enumerate(queries):
        for distance, id_ in table.execute(query, code.tobytes(), radius):
            query_index.append(i)
            distances.append(int(distance))
            ids.append(id_)
    arrays = np.array(query_index, np.int64), np.array(distances, np.int32), np.array(ids, np.int64)
    return checks.sort_by_query(*arrays, len(queries))


def vectors_of(table: Table, column: str, width: int, ids: Ids) -> NDArray[np.float32]:
    """Return the float32 vectors of ids in a column, shape (n, width); NaN for those without."""
    known = {row[1] for row in table.execute("SELECT * FROM pragma_table_info(?)", table.name)}
    if column not in known:
        raise StoreError(f"{table.where} has no column {column!r}; add it, or name another")
    blobs = table.values('"' + column.replace('"', '""') + '"', ids)
    vectors = np.full((len(ids), width), np.nan, np.float32)
    for row, i in enumerate(ids.tolist()):
        blob = blobs.get(i)
        if blob is None:
            continue
        if type(blob) is not bytes or len(blob) != 4 * width:
            raise StoreError(
                f"the column {column!r} of {table.where} must hold blobs of {4 * width} bytes, "
                f"{width} numbers of float32 as in rerank_vectors; id {i} does not"
            )
        vectors[row] = np.frombuffer(blob, "<f4")
    return vectors
