"""Audit approximate indexes of others: a FAISS file, and a table with an index of pgvector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._util.extras import need
from ..codes import Codes
from ..search import HammingIndex, checks
from ..search.search_audit import Audit, audit
from .faiss import from_faiss
from .postgres_connection import Connection
from .store_rows import StoreError

_ROWS = 50_000  # rows that are read from a table at a time


def audit_faiss(
    index: Any,
    queries: Codes | None = None,
    k: int = 10,
    *,
    settings: tuple[int | None, ...] = (None,),
    n_queries: int = 1000,
    random_state: int = 0,
) -> list[tuple[str, Audit]]:
    """Compare the results of a binary FAISS index with exact search.

    Parameters
    ----------
    index : faiss.IndexBinary or path
        A HNSW, IVF, MultiHash or flat index, or its file.
    queries : uint8 array of shape (n, n_bytes) or None, default=None
        Codes to search for. None draws from the stored codes.
    k : int, default=10
        Number of neighbours.
    settings : tuple of int or None, default=(None,)
        Values of ``efSearch`` (HNSW) or ``nprobe`` (IVF) to measure; None leaves it as it is.
    n_queries : int, default=1000
        Number of stored codes to draw as queries.
    random_state : int, default=0
        Seed of the draw.

    Returns
    -------
    results : list of (str, Audit)
        The setting, and what it finds.

    Examples
    --------
    >>> import faiss
    >>> import numpy as np
    >>> from kdiffhash.engines.audit import audit_faiss
    >>> graph = faiss.IndexBinaryHNSW(64, 16)
    >>> graph.add(np.random.default_rng(0).integers(0, 256, (500, 8), dtype=np.uint8))
    >>> ((setting, result),) = audit_faiss(graph, n_queries=50)
    >>> setting, result.at_zero
    ('efSearch=16', 50)
    """
    faiss = need("faiss", "faiss")
    if isinstance(index, str | Path):
        try:
            index = faiss.read_index_binary(str(index))
        except RuntimeError as error:
            raise ValueError(
                f"{index} is not a binary FAISS index: {str(error).splitlines()[-1]}"
            ) from None
    exact = from_faiss(index)
    chosen = _queries(exact, queries, n_queries, random_state)
    inner = faiss.downcast_IndexBinary(index)
    while isinstance(inner, faiss.IndexBinaryIDMap):
        inner = faiss.downcast_IndexBinary(inner.index)
    owner, name = inner, None
    if isinstance(inner, faiss.IndexBinaryHNSW):
        owner, name = inner.hnsw, "efSearch"
    elif isinstance(inner, faiss.IndexBinaryIVF):
        name = "nprobe"
    results = []
    for value in settings:
        if value is not None and name is None:
            raise ValueError(f"a {type(inner).__name__} has no efSearch or nprobe to set")
        if value is not None:
            setattr(owner, name or "", value)
        _, ids = index.search(np.ascontiguousarray(chosen), checks.check_k(k))
        setting = "" if name is None else f"{name}={getattr(owner, name)}"
        results.append((setting, audit(exact, chosen, list(ids), k)))
    return results


def audit_postgres(
    dsn: str,
    table: str,
    queries: Codes | None = None,
    k: int = 10,
    *,
    settings: tuple[int | None, ...] = (None,),
    n_queries: int = 1000,
    random_state: int = 0,
) -> list[tuple[str, Audit]]:
    """Compare the results of pgvector's index on a column of bits with exact search.

    All codes are read into memory. The table need not have been created by kdiffhash: it needs an
    index ``USING hnsw`` or ``ivfflat`` with ``bit_hamming_ops``, on a column or an expression.

    Parameters
    ----------
    dsn : str
        Connection string, such as ``postgresql://user@host/database``.
    table : str
        Name of the table.
    queries : uint8 array of shape (n, n_bytes) or None, default=None
        Codes to search for. None draws from the stored codes.
    k : int, default=10
        Number of neighbours.
    settings : tuple of int or None, default=(None,)
        Values of ``hnsw.ef_search`` or ``ivfflat.probes`` to measure; None takes that of the
        session.
    n_queries : int, default=1000
        Number of stored codes to draw as queries.
    random_state : int, default=0
        Seed of the draw.

    Returns
    -------
    results : list of (str, Audit)
        The setting, and what it finds. Ids are those of the primary key as text, or PostgreSQL's
        ``ctid`` if the table has no primary key of one column.

    Examples
    --------
    >>> from kdiffhash.engines.audit import audit_postgres
    >>> results = audit_postgres(  # doctest: +SKIP
    ...     "postgresql://user@host/database", "photos", settings=(40, 200)
    ... )
    >>> [(setting, result.recall.low) for setting, result in results]  # doctest: +SKIP
    [('hnsw.ef_search=40', 0.951), ('hnsw.ef_search=200', 0.993)]
    """
    k, connection = checks.check_k(k), Connection(dsn, 0)

    def work(cursor: Any) -> list[tuple[str, Audit]]:
        source = _find_index(cursor, table)
        exact = _read_codes(cursor, source)
        chosen = _queries(exact, queries, n_queries, random_state)
        results = []
        for value in settings:
            if value is not None:
                cursor.execute("SELECT set_config(%s, %s, true)", [source.setting, str(value)])
            found = _search(cursor, source, chosen, exact.n_bits, k)
            (used,) = cursor.execute(
                "SELECT current_setting(%s, true)", [source.setting]
            ).fetchone()
            results.append((f"{source.setting}={used}", audit(exact, chosen, found, k)))
        return results

    try:
        return connection.read(work)
    finally:
        connection.close()


def _queries(exact: HammingIndex, queries: Codes | None, n: int, seed: int) -> Codes:
    """Return queries, drawn from the stored codes unless they are given."""
    if queries is not None:
        return checks.check_queries(queries, exact.n_bits)[0]
    if not len(exact) or n < 1:
        raise ValueError("there are no codes to draw queries from; add codes, or pass queries")
    ids = exact.ids
    drawn = np.random.default_rng(seed).choice(len(ids), min(n, len(ids)), replace=False)
    return exact.get(ids[np.sort(drawn)])


class _Source(NamedTuple):
    """A table and its index, as pieces of SQL that PostgreSQL itself has quoted."""

    table: str
    id: str
    code: str
    index_name: str
    setting: str
    condition: str


def _find_index(cursor: Any, table: str) -> _Source:
    """Find the index of a table for Hamming distances, and what identifies its rows."""
    (quoted,) = cursor.execute("SELECT to_regclass(quote_ident(%s))::text", [table]).fetchone()
    if quoted is None and "." in table:  # a name with its schema
        (quoted,) = cursor.execute("SELECT to_regclass(%s)::text", [table]).fetchone()
    if quoted is None:
        raise StoreError(f"there is no table {table!r}")
    query = """
        SELECT i.indexrelid::regclass::text, am.amname, pg_get_indexdef(i.indexrelid, 1, true),
               COALESCE(pg_get_expr(i.indpred, i.indrelid), 'true')
        FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
        JOIN pg_am AS am ON am.oid = c.relam JOIN pg_opclass AS o ON o.oid = i.indclass[0]
        WHERE i.indrelid = %s::regclass AND i.indisvalid AND o.opcname = 'bit_hamming_ops'
        ORDER BY 1"""
    found = cursor.execute(query, [quoted]).fetchone()
    if found is None:
        raise StoreError(
            f"the table {table!r} has no index with bit_hamming_ops; create one with CREATE INDEX "
            f"ON {quoted} USING hnsw (code bit_hamming_ops)"
        )
    name, method, code, condition = found
    key = cursor.execute(
        "SELECT quote_ident(a.attname) FROM pg_index AS i JOIN pg_attribute AS a "
        "ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
        "WHERE i.indrelid = %s::regclass AND i.indisprimary AND i.indnkeyatts = 1",
        [quoted],
    ).fetchone()
    setting = "hnsw.ef_search" if method == "hnsw" else "ivfflat.probes"
    return _Source(quoted, key[0] if key else "ctid", code, name, setting, condition)


def _read_codes(cursor: Any, source: _Source) -> HammingIndex:
    """Read all codes that the index covers."""
    where = f"FROM {source.table} WHERE ({source.condition}) AND ({source.code}) IS NOT NULL"
    row = cursor.execute(f"SELECT length({source.code}) {where} LIMIT 1").fetchone()
    if row is None:
        raise StoreError(f"the table {source.table} has no codes to search for")
    index = HammingIndex(n_bits=int(row[0]))
    cursor.execute(
        f"DECLARE kdiffhash_audit NO SCROLL CURSOR FOR SELECT {source.id}::text, "
        f"({source.code})::text {where}"
    )
    for ids, texts in _batches(cursor):
        bits = np.frombuffer("".join(texts).encode(), np.uint8).reshape(len(texts), -1)
        index.add(np.packbits(bits == ord("1"), axis=1), ids)
    return index


def _batches(cursor: Any) -> Iterator[tuple[list[str], list[str]]]:
    while rows := cursor.execute(f"FETCH {_ROWS} FROM kdiffhash_audit").fetchall():
        ids, texts = zip(*rows)
        yield list(ids), list(texts)
    cursor.execute("CLOSE kdiffhash_audit")


def _search(
    cursor: Any, source: _Source, queries: Codes, n_bits: int, k: int
) -> list[NDArray[Any]]:
    """Return the ids that the index finds for each query, after checking that it is used."""
    statement = (
        f"SELECT {source.id}::text FROM {source.table} WHERE {source.condition} "
        f"ORDER BY {source.code} <~> "
    ).replace("%", "%%") + f"%s::text::bit({n_bits}) LIMIT {k}"
    cursor.execute("SET LOCAL enable_seqscan = off")
    cursor.execute("SET LOCAL enable_sort = off")
    bits = np.unpackbits(queries, axis=1, count=n_bits)
    texts = [(row + ord("0")).tobytes().decode() for row in bits]
    plan = "\n".join(row[0] for row in cursor.execute("EXPLAIN " + statement, [texts[0]]))
    if source.index_name.split(".")[-1].strip('"') not in plan:
        raise StoreError(
            f"PostgreSQL does not use the index {source.index_name} for nearest neighbours: "
            + plan.splitlines()[0]
        )
    found = []
    for text in texts:
        rows = cursor.execute(statement, [text]).fetchall()
        found.append(np.array([row[0] for row in rows], object))
    return found
