"""`kdiffhash sqlite`: store codes in an SQLite file and search them there."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .app import App
from .options import Json, ModelOfCodes
from .store_commands import Bits, Codes, Ids, K, Out, Queries, Table, import_into, search_in

app = App(help="Store codes in an SQLite file and search them there.")


def _check_database(path: Path) -> Path:
    """Refuse a database that would be gone when the command ends."""
    if str(path) == ":memory:":
        raise ValueError("--database: a database in memory would be lost; give the path of a file")
    return path


Database = Annotated[
    Path,
    typer.Option(
        "--database",
        envvar="KDIFFHASH_SQLITE",
        help="The SQLite file.",
        callback=_check_database,
    ),
]


class SearchMethod(StrEnum):
    """Values of `--method`."""

    scan = "scan"
    sqlite_vec = "sqlite-vec"


@app.command("import")
def import_codes(
    codes: Codes,
    database: Database,
    table: Table = "codes",
    ids: Ids = None,
    bits: Bits = None,
    model: ModelOfCodes = None,
    as_json: Json = False,
) -> None:
    """Add codes to a table, and create the file and the table if they do not exist.

    If the import is interrupted, run the command again to resume it.
    """
    from ..engines.sqlite import SQLiteStore

    import_into(lambda: SQLiteStore(database, table), table, codes, ids, bits, model, as_json)


@app.command()
def search(
    queries: Queries,
    database: Database,
    table: Table = "codes",
    k: K = 10,
    method: Annotated[
        SearchMethod,
        typer.Option(
            help="scan reads all codes into memory; sqlite-vec compares them in SQL with the "
            "extension of this name. The results are the same."
        ),
    ] = SearchMethod.scan,
    model: ModelOfCodes = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Find the nearest codes of each query.

    The results are arrays ids and distances (.npz).
    """
    from ..engines.sqlite import SQLiteStore

    search_in(
        lambda: SQLiteStore(database, table, method=method.value),
        *(table, queries, k, model, out, as_json),
        inputs=[database],
    )


@app.command()
def info(database: Database, table: Table = "codes", as_json: Json = False) -> None:
    """Summarise the contents of a table."""
    from ..engines.sqlite import SQLiteStore
    from .output import show

    with SQLiteStore(database, table) as store:
        show(store.info(), as_json)
