"""`kdiffhash pg`: store codes in PostgreSQL and search them there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .code_files import (
    bits_and_model,
    check_out,
    code_chunks,
    code_count,
    output_neighbours,
    refuse_other_model,
)
from .options import Json, ModelOfCodes

app = typer.Typer(
    help="Store codes in PostgreSQL (with pgvector) and search them there.", no_args_is_help=True
)

_BATCH = 50_000  # codes per transaction
_QUERIES = 1024  # queries sent at a time

Dsn = Annotated[
    str,
    typer.Option(
        "--dsn", envvar="KDIFFHASH_PG_DSN", help="Database: postgresql://user@host/database."
    ),
]
Table = Annotated[str, typer.Option("--table", help="Name of the table.")]


@app.command("import")
def import_codes(
    codes: Annotated[
        Path,
        typer.Argument(
            help="Codes: a file of uint8 rows, or a folder of such files.", metavar="CODES"
        ),
    ],
    dsn: Dsn,
    table: Table = "codes",
    ids: Annotated[
        Path | None,
        typer.Option("--ids", help="A .npy file with the ids of the codes; by default 0, 1, ..."),
    ] = None,
    bits: Annotated[
        int | None,
        typer.Option("--bits", min=1, help="Length of the codes, if not a multiple of 8."),
    ] = None,
    model: ModelOfCodes = None,
    as_json: Json = False,
) -> None:
    """Add codes to a table, and create the table if it does not exist.

    If the import is interrupted, run the command again to resume it.
    """
    import numpy as np

    from .._util.files import open_npy
    from ..engines.postgres import PostgresStore
    from .output import show

    n_bits, made_by = bits_and_model([codes], model, bits)
    chosen = None if ids is None else open_npy(ids)
    if chosen is not None and chosen.shape != (code_count(codes),):
        raise ValueError(
            f"{ids} holds {chosen.size} ids of shape {chosen.shape} for {code_count(codes)} codes; "
            "pass one id per code"
        )
    start, done, added = time.perf_counter(), 0, 0
    with PostgresStore(dsn, table) as store:
        store.create(n_bits, made_by)
        for batch in code_chunks(codes, _BATCH, "importing"):
            batch_ids = np.arange(done, done + len(batch))
            if chosen is not None:
                batch_ids = np.asarray(chosen[done : done + len(batch)])
            added += store.import_codes(batch, batch_ids).added
            done += len(batch)
    seconds = time.perf_counter() - start
    result = {"table": table, "added": added, "already_stored": done - added}
    show({**result, "seconds": round(seconds, 2)}, as_json)


@app.command()
def search(
    queries: Annotated[
        Path,
        typer.Argument(
            help="Codes to search for: a file of uint8 rows, or a folder of such files.",
            metavar="QUERIES",
        ),
    ],
    dsn: Dsn,
    table: Table = "codes",
    k: Annotated[int, typer.Option("-k", min=1, help="Number of neighbours per query.")] = 10,
    ef_search: Annotated[
        int | None,
        typer.Option(
            help="Use the table's HNSW index (approximate search) with this many candidates; "
            "exact search by default."
        ),
    ] = None,
    model: ModelOfCodes = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File for the results, instead of the terminal."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the nearest codes of each query.

    The results are arrays ids and distances (.npz).
    """
    from ..engines.postgres import PostgresStore

    check_out(out, queries, model)
    results: list[tuple[Any, Any]] = []
    with PostgresStore(dsn, table) as store:
        refuse_other_model(store, f"the table {table!r}", [queries], model)
        for batch in code_chunks(queries, _QUERIES, "searching"):
            results.append(store.search(batch, k, ef_search=ef_search))
    output_neighbours({"table": table}, results, queries, out, as_json)


@app.command()
def info(dsn: Dsn, table: Table = "codes", as_json: Json = False) -> None:
    """Summarise the contents of a table."""
    from ..engines.postgres import PostgresStore
    from .output import show

    with PostgresStore(dsn, table) as store:
        show(store.info(), as_json)
