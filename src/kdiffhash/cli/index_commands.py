"""`kdiffhash index`: store codes in a file and search them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from .app import App
from .cells_command import cells
from .cluster_option import Cluster, on_cluster
from .code_files import (
    bits_and_model,
    check_out,
    code_chunks,
    code_count,
    code_width,
    output_neighbours,
    output_results,
    refuse_other_model,
)
from .guard import check_writable
from .id_files import IdFile, has_strings, read_ids, to_ids
from .options import Jobs, Json, ModelOfCodes

app = App(help="Store codes in an index file and search them by Hamming distance.")
app.command()(cells)

_BATCH = 2**20  # codes added at a time
_QUERIES = 2**14  # queries searched at a time

IndexArgument = Annotated[Path, typer.Argument(help="Index file.", metavar="INDEX")]
CodesArgument = Annotated[
    list[Path],
    typer.Argument(help="Codes: files of uint8 rows, or folders of such files.", metavar="CODES"),
]
QueriesArgument = Annotated[
    Path,
    typer.Argument(
        help="Codes to search for: a file of uint8 rows, or a folder of such files.",
        metavar="QUERIES",
    ),
]
IdsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--ids",
        help="Ids of the codes: a .npy file of integers or strings, or text with one id per line, "
        "which a new index takes as strings. Repeat for each file of codes.",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="File for the results, instead of the terminal.")
]
Radius = Annotated[
    int, typer.Option("--radius", "-r", min=0, help="Largest Hamming distance of a result.")
]


@app.command()
def build(
    codes: CodesArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="Index file to create.")],
    bits: Annotated[
        int | None,
        typer.Option("--bits", min=1, help="Length of the codes, if not a multiple of 8."),
    ] = None,
    ids: IdsOption = None,
    model: ModelOfCodes = None,
    as_json: Json = False,
) -> None:
    """Create an index file from codes.

    The file appears under its name once all codes are in it.
    """
    from .. import HammingIndex
    from ..search.index_lock import creating
    from .output import show

    check_writable(out, codes, ids, model)
    if out.exists():
        raise ValueError(
            f"{out} already exists; add to it with `kdiffhash index add`, or remove it first"
        )
    start = time.perf_counter()
    n_bits, made_by = bits_and_model(codes, model, bits)
    with (
        creating(out) as temporary,
        HammingIndex.open(temporary, "a", n_bits=n_bits, model=made_by) as index,
    ):
        n = _add_all(index, codes, ids)
    seconds = time.perf_counter() - start
    result = {"index": str(out), "codes": n, "bits": n_bits, "seconds": round(seconds, 2)}
    show(result, as_json)


@app.command()
def add(
    path: IndexArgument,
    codes: CodesArgument,
    ids: IdsOption = None,
    model: ModelOfCodes = None,
    as_json: Json = False,
) -> None:
    """Add codes to an index file.

    Codes are added in batches. Each batch is stored completely or not at all.
    """
    from .. import HammingIndex
    from .output import show

    with HammingIndex.open(path, "a") as index:
        refuse_other_model(index, path, codes, model)
        n = _add_all(index, codes, ids)
        show({"index": str(path), "added": n, "codes": len(index)}, as_json)


@app.command()
def search(
    path: IndexArgument,
    queries: QueriesArgument,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of neighbours per query.")] = 10,
    out: Out = None,
    recall: Annotated[
        float | None,
        typer.Option(
            help="Search approximately: find this share of the nearest codes on average, such as "
            "0.95. The index needs cells (`kdiffhash index cells`)."
        ),
    ] = None,
    allowed: Annotated[
        Path | None,
        typer.Option(help="Search only among these ids (.npy, or text with one id per line)."),
    ] = None,
    rerank_projections: Annotated[
        Path | None,
        typer.Option(help="A .npy file with the real projections of the queries; re-rank by them."),
    ] = None,
    rerank_factor: Annotated[
        int, typer.Option(min=1, help="Number of codes to re-rank, as a multiple of k.")
    ] = 10,
    model: ModelOfCodes = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Find the nearest codes of each query.

    The results are arrays ids and distances (.npz). With --cluster, INDEX may also be a file or
    folder of codes.
    """
    from .._util.files import open_npy

    check_out(out, path, queries, allowed, rerank_projections, model)
    if cluster is not None and (allowed is not None or rerank_projections is not None):
        raise ValueError("--allowed and --rerank-projections cannot be used with --cluster")
    options: dict[str, Any] = {} if cluster is not None else {"n_jobs": jobs}
    if recall is not None:
        options["recall"] = recall
    projections = None if rerank_projections is None else open_npy(rerank_projections)
    if projections is not None and len(projections) != (n := code_count(queries)):
        raise ValueError(
            f"{rerank_projections} has {len(projections)} rows; it must have one row for each of "
            f"the {n} queries"
        )
    results: list[tuple[Any, Any]] = []
    done = 0
    with _open_index(path, queries, model, cluster) as index:
        if allowed is not None:
            options["allowed"] = read_ids(allowed, index)
        for batch in code_chunks(queries, _QUERIES, "searching"):
            if projections is not None:
                options["rerank_projections"] = projections[done : done + len(batch)]
                options["rerank_factor"] = rerank_factor
            results.append(index.search(batch, k, **options))
            done += len(batch)
        summary = {"index": str(path), "codes": len(index)}
        if recall is not None:
            summary |= _plan(index, k, recall)
    output_neighbours(summary, results, queries, out, as_json)


def _plan(index: Any, k: int, recall: float) -> dict[str, Any]:
    """Return how many codes an approximate search compares a query with, or why it is exact."""
    plan = index.explain(k, recall=recall)
    return {"compared": plan["compared"]} | (
        {"exact": plan["reason"]}
        if plan["method"] == "exact"
        else {"cells_searched": plan["n_probe"]}
    )


@contextmanager
def _open_index(
    path: Path, queries: Path, model: Path | None, cluster: str | None = None
) -> Iterator[Any]:
    """Open an index, in its file or on a cluster, and refuse queries of another model."""
    with ExitStack() as stack:
        if cluster is not None:
            from ..engines.dask import ClusterIndex

            client = stack.enter_context(on_cluster(cluster))
            index: Any = stack.enter_context(ClusterIndex(path, client=client))
        elif path.is_dir():
            raise ValueError(
                f"{path} is a folder, not an index file; build an index from its codes (kdiffhash "
                "index build), or search them on a cluster (--cluster local)"
            )
        else:
            from .. import HammingIndex

            index = stack.enter_context(HammingIndex.open(path))
        refuse_other_model(index, path, [queries], model)
        yield index


@app.command()
def radius(
    path: IndexArgument,
    queries: QueriesArgument,
    radius: Radius,
    out: Out = None,
    model: ModelOfCodes = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Find all codes within a given distance of each query (range search).

    The results are arrays lims, distances and ids (.npz), laid out as in FAISS. With --cluster,
    INDEX may also be a file or folder of codes.
    """
    import numpy as np

    check_out(out, path, queries, model, suffixes=(".npz",))
    options = {} if cluster is not None else {"n_jobs": jobs}
    lims: list[Any] = [np.zeros(1, np.int64)]
    distances: list[Any] = [np.empty(0, np.int32)]
    ids: list[Any] = [np.empty(0, np.int64)]
    with _open_index(path, queries, model, cluster) as index:
        for batch in code_chunks(queries, _QUERIES, "searching"):
            batch_lims, batch_distances, batch_ids = index.search_radius(batch, radius, **options)
            lims.append(batch_lims[1:] + lims[-1][-1])
            distances.append(batch_distances)
            ids.append(batch_ids)
    all_lims = np.concatenate(lims)
    arrays: dict[str, Any] = {"ids": np.concatenate(ids), "distances": np.concatenate(distances)}

    def row(q: int) -> dict[str, Any]:
        own = slice(all_lims[q], all_lims[q + 1])
        return {"query": q, **{name: array[own].tolist() for name, array in arrays.items()}}

    n = len(all_lims) - 1
    summary = {"index": str(path), "radius": radius, "queries": n, "found": int(all_lims[-1])}
    output_results(summary, {"lims": all_lims, **arrays}, row, n, out, as_json)


@app.command()
def upsert(
    path: IndexArgument,
    codes: CodesArgument,
    ids: Annotated[
        list[Path],
        typer.Option(
            "--ids",
            help="Ids of the codes (.npy, or text with one id per line); repeat for each file of "
            "codes.",
        ),
    ],
    model: ModelOfCodes = None,
    as_json: Json = False,
) -> None:
    """Add codes to an index file, overwriting those with the same ids.

    Codes are written in batches. Each batch is stored completely or not at all.
    """
    from .. import HammingIndex
    from .output import show

    with HammingIndex.open(path, "a") as index:
        refuse_other_model(index, path, codes, model)
        before = len(index)
        n = _add_all(index, codes, ids, replace=True)
        added = len(index) - before
        result = {"index": str(path), "added": added, "replaced": n - added, "codes": len(index)}
        show(result, as_json)


@app.command()
def remove(
    path: IndexArgument,
    ids: Annotated[
        list[str] | None,
        typer.Argument(help="Ids; of an index with integer ids also .npy files.", metavar="IDS"),
    ] = None,
    id_file: Annotated[
        Path | None,
        typer.Option("--ids", help="File of ids: .npy, or text with one id per line."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Remove codes by id.

    Use kdiffhash index compact to free their space in the file.
    """
    import numpy as np

    from .. import HammingIndex
    from .output import show

    if not ids and id_file is None:
        raise ValueError("give the ids to remove, or a file of ids (--ids)")
    with HammingIndex.open(path, "a") as index:
        strings, before = has_strings(index), len(index)
        files = [] if strings else [Path(value) for value in ids or () if value.endswith(".npy")]
        values = [value for value in ids or () if strings or not value.endswith(".npy")]
        chosen = [to_ids(values, index)] if values else []
        chosen += [read_ids(file, index) for file in (*files, *([id_file] if id_file else []))]
        try:
            if len(chosen) > 1:
                chosen = [np.concatenate([np.asarray(one, object) for one in chosen]).tolist()]
            index.remove(chosen[0])
        except KeyError as error:
            raise ValueError(error.args[0]) from None
        show({"index": str(path), "removed": before - len(index), "codes": len(index)}, as_json)


@app.command()
def compact(path: IndexArgument, as_json: Json = False) -> None:
    """Rewrite the file without removed codes, and merge small batches."""
    from .. import HammingIndex
    from .._util.progress import waiting
    from .output import show

    before = path.stat().st_size
    with HammingIndex.open(path, "a") as index, waiting("writing"):
        index.compact()
        n = len(index)
    result = {"index": str(path), "codes": n, "bytes_before": before, "bytes": path.stat().st_size}
    show(result, as_json)


@app.command()
def verify(path: IndexArgument, as_json: Json = False) -> None:
    """Check every byte of the file; the exit status is 1 if it is damaged."""
    from .. import HammingIndex
    from .._util.progress import waiting
    from .output import show

    with waiting("reading"):
        damage = HammingIndex.verify(path)
    show({"index": str(path), "damage": damage}, as_json)
    if damage:
        raise typer.Exit(1)


@app.command()
def repair(
    path: IndexArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="Index file to create.")],
    as_json: Json = False,
) -> None:
    """Copy the whole batches of a damaged index file to a new one.

    The damaged file is not changed. If a batch of removals is lost, its codes are there again.
    """
    from .._util.progress import waiting
    from ..search.index_repair import repair as copy_batches
    from .output import show

    check_writable(out, path)
    with waiting("copying"):
        result = copy_batches(path, out)
    show({"index": str(out), **result}, as_json)


@app.command()
def info(path: IndexArgument, as_json: Json = False) -> None:
    """Summarise the contents of an index file."""
    from .. import HammingIndex
    from .output import show

    with HammingIndex.open(path) as index:
        show({"index": str(path), **index.info()}, as_json)


def _add_all(index: Any, codes: list[Path], ids: list[Path] | None, replace: bool = False) -> int:
    """Add or, with `replace`, upsert the codes of all files and return their number."""
    from ..codes import n_bytes

    for path in codes:
        if code_count(path) and code_width(path) != n_bytes(index.n_bits):
            raise ValueError(
                f"{path} has codes of {code_width(path)} bytes, but those of the index have "
                f"{index.n_bits} bits ({n_bytes(index.n_bits)} bytes)"
            )
    if ids is not None and len(ids) != len(codes):
        raise ValueError(
            f"got {len(codes)} files of codes but {len(ids)} files of ids; give --ids once for "
            "each file of codes"
        )
    total = 0
    for number, path in enumerate(codes):
        chosen = None
        if ids is not None:  # an empty index takes either kind
            chosen = IdFile(ids[number], strings=has_strings(index) or not len(index))
            if len(chosen) != code_count(path):
                raise ValueError(
                    f"{path} has {code_count(path)} codes, but there are {len(chosen)} ids for "
                    "them; give one id per code"
                )
        done = 0
        for batch in code_chunks(path, _BATCH, f"adding {path.name}"):
            batch_ids = None if chosen is None else chosen.take(len(batch))
            try:
                index.upsert(batch, batch_ids) if replace else index.add(batch, batch_ids)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
            done += len(batch)
        total += done
    return total
