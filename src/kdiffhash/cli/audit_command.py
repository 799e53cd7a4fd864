"""`kdiffhash index audit`: recall of an approximate index of pgvector or FAISS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .code_files import code_chunks
from .options import Json

_QUERIES = 2**14


def audit(
    source: Annotated[
        str,
        typer.Argument(
            help="A file of a binary FAISS index, or a table of the database (--dsn).",
            metavar="TABLE|INDEX",
        ),
    ],
    queries: Annotated[
        Path | None,
        typer.Option(help="Codes to search for; by default some of the stored codes."),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of neighbours per query.")] = 10,
    ef_search: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Size of HNSW's candidate list; repeat to compare several."),
    ] = None,
    n_probe: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Lists that an IVF index searches; repeat to compare several."),
    ] = None,
    n_queries: Annotated[
        int, typer.Option(min=1, help="Number of stored codes to draw as queries.")
    ] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    min_recall: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Exit with status 1 if the confidence interval reaches below this."
        ),
    ] = None,
    dsn: Annotated[
        str | None,
        typer.Option(
            "--dsn", envvar="KDIFFHASH_PG_DSN", help="Database: postgresql://user@host/database."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the recall of an approximate index by exact search.

    The index is a HNSW or IVF index of FAISS, or of pgvector (bit_hamming_ops). Results at distance
    0 that it misses are counted and named.
    """
    import numpy as np

    from .._util.progress import waiting
    from .output import show

    if ef_search and n_probe:
        raise ValueError("--ef-search is for HNSW and --n-probe for IVF; give one of them")
    is_file = Path(source).is_file()
    if not is_file and dsn is None:
        raise ValueError(
            f"there is no file {source}; for a table of a database, give the database with --dsn"
        )
    chosen = None
    if queries is not None:
        chosen = np.concatenate(list(code_chunks(queries, _QUERIES, "reading")))
    options: dict[str, Any] = {
        "settings": tuple(ef_search or n_probe or [None]),
        "n_queries": n_queries,
        "random_state": seed,
    }
    from ..engines.audit import audit_faiss, audit_postgres

    with waiting("comparing"):
        if is_file:
            results = audit_faiss(source, chosen, k, **options)
        else:
            results = audit_postgres(dsn or "", source, chosen, k, **options)
    rows = [
        {
            "setting": setting,
            "recall": found.recall.value,
            "recall_low": found.recall.low,
            "recall_high": found.recall.high,
            "complete_queries": found.complete,
            "equal_code_stored": found.at_zero,
            "equal_code_missed": found.missed_at_zero,
        }
        for setting, found in results
    ]
    summary: dict[str, Any] = {"source": source, "k": k}
    summary["queries"] = n_queries if chosen is None else len(chosen)
    examples = [missed for _, found in results for missed in found.examples]
    if as_json:
        summary["missed"] = [{"query": m.query, "ids": m.ids} for m in examples]
    elif examples:
        names = dict.fromkeys(str(one) for missed in examples for one in missed.ids)
        summary["missed at distance 0"] = ", ".join(list(names)[:10])
    show({**summary, "rows": rows}, as_json)
    lowest = min(found.recall.low for _, found in results)
    if min_recall is not None and lowest < min_recall:
        raise typer.Exit(1)
