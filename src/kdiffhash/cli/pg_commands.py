"""`kdiffhash pg`: keep codes in PostgreSQL and search them there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .code_files import bits_and_model, check_out, code_blocks, refuse_other_model, tell_nearest
from .options import Json, ModelOfCodes

app = typer.Typer(
    help="Keep codes in PostgreSQL (with pgvector) and search them there.", no_args_is_help=True
)

_BATCH = 50_000  # codes of a transaction
_QUERIES = 1024  # queries that are sent at a time

Dsn = Annotated[
    str,
    typer.Option(
        "--dsn", envvar="KDIFFHASH_PG_DSN", help="The server: postgresql://user@host/database."
    ),
]
Table = Annotated[str, typer.Option("--table", help="Name of the table.")]


@app.command("import")
def import_codes(
    codes: Annotated[Path, typer.Argument(help="Codes: a file of uint8 rows, or a folder.")],
    dsn: Dsn,
    table: Table = "codes",
    ids: Annotated[
        Path | None, typer.Option("--ids", help=".npy with an id for each code; else 0, 1, ...")
    ] = None,
    bits: Annotated[
        int | None, typer.Option("--bits", min=1, help="Length of the codes, if not whole bytes.")
    ] = None,
    model: ModelOfCodes = None,
    as_json: Json = False,
) -> None:
    """Add codes to a table, which is made if need be; started again, it goes on."""
    import numpy as np

    from .._util.files import open_npy
    from ..engines.postgres import PostgresStore
    from .output import show

    n_bits, made_by = bits_and_model([codes], model, bits)
    chosen = None if ids is None else open_npy(ids)
    start, done, added = time.perf_counter(), 0, 0
    with PostgresStore(dsn, table) as store:
        store.create(n_bits, made_by)
        for block in code_blocks(codes, _BATCH, "importing"):
            numbers = np.arange(done, done + len(block))
            if chosen is not None:
                numbers = np.asarray(chosen[done : done + len(block)])
            added += store.import_codes(block, numbers).added
            done += len(block)
    seconds = time.perf_counter() - start
    result = {"table": table, "added": added, "there_before": done - added}
    show({**result, "seconds": round(seconds, 2)}, as_json)


@app.command()
def search(
    queries: Annotated[
        Path, typer.Argument(help="Codes to search for: a file of uint8 rows, or a folder.")
    ],
    dsn: Dsn,
    table: Table = "codes",
    k: Annotated[int, typer.Option("-k", min=1, help="Neighbours of each query.")] = 10,
    ef_search: Annotated[
        int | None,
        typer.Option(help="Approximate, by the table's HNSW index, with so many candidates."),
    ] = None,
    model: ModelOfCodes = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write what is found.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the nearest codes of each query: ids and distances, as .npz or on the terminal."""
    from ..engines.postgres import PostgresStore

    check_out(out)
    found: list[tuple[Any, Any]] = []
    with PostgresStore(dsn, table) as store:
        refuse_other_model(store, f"the table {table!r}", [queries], model)
        for block in code_blocks(queries, _QUERIES, "searching"):
            found.append(store.search(block, k, ef_search=ef_search))
    tell_nearest({"table": table}, found, queries, out, as_json)


@app.command()
def info(dsn: Dsn, table: Table = "codes", as_json: Json = False) -> None:
    """Tell what a table holds."""
    from ..engines.postgres import PostgresStore
    from .output import show

    with PostgresStore(dsn, table) as store:
        show(store.info(), as_json)
