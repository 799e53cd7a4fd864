"""`kdiffhash pg`: store codes in PostgreSQL and search them there."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import App
from .options import Json, ModelOfCodes
from .store_commands import Bits, Codes, Ids, K, Out, Queries, Table, import_into, search_in

app = App(help="Store codes in PostgreSQL (with pgvector) and search them there.")

Dsn = Annotated[
    str,
    typer.Option(
        "--dsn", envvar="KDIFFHASH_PG_DSN", help="Database: postgresql://user@host/database."
    ),
]


@app.command("import")
def import_codes(
    codes: Codes,
    dsn: Dsn,
    table: Table = "codes",
    ids: Ids = None,
    bits: Bits = None,
    model: ModelOfCodes = None,
    as_json: Json = False,
) -> None:
    """Add codes to a table, and create the table if it does not exist.

    If the import is interrupted, run the command again to resume it.
    """
    from ..engines.postgres import PostgresStore

    import_into(lambda: PostgresStore(dsn, table), table, codes, ids, bits, model, as_json)


@app.command()
def search(
    queries: Queries,
    dsn: Dsn,
    table: Table = "codes",
    k: K = 10,
    ef_search: Annotated[
        int | None,
        typer.Option(
            help="Use the table's HNSW index (approximate search) with this many candidates; "
            "exact search by default."
        ),
    ] = None,
    model: ModelOfCodes = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Find the nearest codes of each query.

    The results are arrays ids and distances (.npz).
    """
    from ..engines.postgres import PostgresStore

    options = {"ef_search": ef_search}
    search_in(
        lambda: PostgresStore(dsn, table), table, queries, k, model, out, as_json, options=options
    )


@app.command()
def info(dsn: Dsn, table: Table = "codes", as_json: Json = False) -> None:
    """Summarise the contents of a table."""
    from ..engines.postgres import PostgresStore
    from .output import show

    with PostgresStore(dsn, table) as store:
        show(store.info(), as_json)
