"""What the commands of all databases share: options, import and search."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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

_BATCH = 50_000  # codes per transaction
_QUERIES = 1024  # queries sent at a time

Codes = Annotated[
    Path,
    typer.Argument(help="Codes: a file of uint8 rows, or a folder of such files.", metavar="CODES"),
]
Queries = Annotated[
    Path,
    typer.Argument(
        help="Codes to search for: a file of uint8 rows, or a folder of such files.",
        metavar="QUERIES",
    ),
]
Table = Annotated[str, typer.Option("--table", help="Name of the table.")]
Ids = Annotated[
    Path | None,
    typer.Option("--ids", help="A .npy file with the ids of the codes; by default 0, 1, ..."),
]
Bits = Annotated[
    int | None,
    typer.Option("--bits", min=1, help="Length of the codes, if not a multiple of 8."),
]
K = Annotated[int, typer.Option("-k", min=1, help="Number of neighbours per query.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="File for the results, instead of the terminal."),
]


def import_into(
    connect: Callable[[], Any],
    table: str,
    codes: Path,
    ids: Path | None,
    bits: int | None,
    model: Path | None,
    as_json: bool,
) -> None:
    """Add codes to the store that `connect` opens, batch by batch."""
    import numpy as np

    from .._util.files import open_npy
    from .output import show

    n_bits, made_by = bits_and_model([codes], model, bits)
    chosen = None if ids is None else open_npy(ids)
    if chosen is not None and chosen.shape != (code_count(codes),):
        raise ValueError(
            f"{ids} holds {chosen.size} ids of shape {chosen.shape} for {code_count(codes)} codes; "
            "pass one id per code"
        )
    start, done, added = time.perf_counter(), 0, 0
    with connect() as store:
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


def search_in(
    connect: Callable[[], Any],
    table: str,
    queries: Path,
    k: int,
    model: Path | None,
    out: Path | None,
    as_json: bool,
    *,
    inputs: Sequence[Path] = (),
    options: Mapping[str, Any] | None = None,
) -> None:
    """Search the store that `connect` opens; `out` may not be one of the further `inputs`."""
    check_out(out, queries, model, inputs)
    results: list[tuple[Any, Any]] = []
    with connect() as store:
        refuse_other_model(store, f"the table {table!r}", [queries], model)
        for batch in code_chunks(queries, _QUERIES, "searching"):
            results.append(store.search(batch, k, **(options or {})))
    output_neighbours({"table": table}, results, queries, out, as_json)
