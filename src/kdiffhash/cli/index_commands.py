"""`kdiffhash index`: keep codes in a file and search them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from .cluster_option import Cluster, on_cluster
from .code_files import (
    bits_and_model,
    check_out,
    code_blocks,
    code_count,
    code_width,
    refuse_other_model,
    tell,
    tell_nearest,
)
from .options import Jobs, Json, ModelOfCodes

app = typer.Typer(
    help="Keep codes in an index file and search them exactly by Hamming distance.",
    no_args_is_help=True,
)

_BATCH = 2**20  # codes that are added at a time
_QUERIES = 2**14  # queries that are searched at a time

IndexArgument = Annotated[Path, typer.Argument(help="Index file.", metavar="INDEX")]
CodesArgument = Annotated[
    list[Path],
    typer.Argument(help="Codes: files of uint8 rows, or folders of them.", metavar="CODES..."),
]
QueriesArgument = Annotated[
    Path, typer.Argument(help="Codes to search for: a file of uint8 rows, or a folder.")
]
IdsOption = Annotated[
    list[Path] | None,
    typer.Option("--ids", help=".npy with an id for each code; one for each file of codes."),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Where to write what is found.")]
Radius = Annotated[int, typer.Option("--radius", "-r", min=0, help="Greatest distance.")]


@app.command()
def build(
    codes: CodesArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The index file to write.")],
    bits: Annotated[
        int | None, typer.Option("--bits", min=1, help="Length of the codes, if not whole bytes.")
    ] = None,
    ids: IdsOption = None,
    model: ModelOfCodes = None,
    as_json: Json = False,
) -> None:
    """Make an index file from codes; it appears when all of them are in it."""
    from .. import HammingIndex
    from .._util.files import replacing
    from ..search.index_file import changing, lock_path
    from .model_commands import check_writable
    from .output import show

    check_writable(out)
    if out.exists():
        raise ValueError(f"{out} is there already; use `kdiffhash index add`, or remove it first")
    start = time.perf_counter()
    n_bits, made_by = bits_and_model(codes, model, bits)
    with changing(out), replacing(out) as temporary:
        try:
            with HammingIndex.open(temporary, "a", n_bits=n_bits, model=made_by) as index:
                n = _add_all(index, codes, ids)
        finally:
            lock_path(temporary).unlink(missing_ok=True)
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
    """Add codes to an index, in batches that are there for good or not at all."""
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
    k: Annotated[int, typer.Option("-k", min=1, help="Neighbours of each query.")] = 10,
    out: Out = None,
    allowed: Annotated[
        Path | None, typer.Option(help=".npy with the ids among which to search.")
    ] = None,
    rerank_projections: Annotated[
        Path | None, typer.Option(help=".npy with the queries' real projections, to re-rank by.")
    ] = None,
    rerank_factor: Annotated[int, typer.Option(min=1, help="Re-rank so many times k.")] = 10,
    model: ModelOfCodes = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Find the nearest codes of each query: ids and distances, as .npz or on the terminal.

    On a cluster, INDEX may also be codes: a file or a folder.
    """
    from .._util.files import open_npy

    check_out(out)
    if cluster is not None and (allowed is not None or rerank_projections is not None):
        raise ValueError("--allowed and --rerank-projections do not go with --cluster")
    options: dict[str, Any] = {} if cluster is not None else {"n_jobs": jobs}
    if allowed is not None:
        options["allowed"] = open_npy(allowed)
    projections = None if rerank_projections is None else open_npy(rerank_projections)
    if projections is not None and len(projections) != (n := code_count(queries)):
        raise ValueError(f"{rerank_projections} must have one row for each of {n} queries")
    found: list[tuple[Any, Any]] = []
    done = 0
    with _opened(path, queries, model, cluster) as index:
        for block in code_blocks(queries, _QUERIES, "searching"):
            if projections is not None:
                some = projections[done : done + len(block)]
                options |= {"rerank_projections": some, "rerank_factor": rerank_factor}
            found.append(index.search(block, k, **options))
            done += len(block)
        summary = {"index": str(path), "codes": len(index)}
    tell_nearest(summary, found, queries, out, as_json)


@contextmanager
def _opened(
    path: Path, queries: Path, model: Path | None, cluster: str | None = None
) -> Iterator[Any]:
    """The index, in its file or on a cluster; queries of another model are refused."""
    with ExitStack() as stack:
        if cluster is not None:
            from ..engines.dask import ClusterIndex

            client = stack.enter_context(on_cluster(cluster))
            index: Any = stack.enter_context(ClusterIndex(path, client=client))
        elif path.is_dir():
            raise ValueError(
                f"{path} is a folder; make an index file of its codes (kdiffhash index build), or "
                "search them on a cluster (--cluster local)"
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
    """Find all codes within a distance of each query: lims, distances and ids, as .npz.

    On a cluster, INDEX may also be codes: a file or a folder.
    """
    import numpy as np

    check_out(out, (".npz",))
    options = {} if cluster is not None else {"n_jobs": jobs}
    lims: list[Any] = [np.zeros(1, np.int64)]
    distances: list[Any] = [np.empty(0, np.int32)]
    ids: list[Any] = [np.empty(0, np.int64)]
    with _opened(path, queries, model, cluster) as index:
        for block in code_blocks(queries, _QUERIES, "searching"):
            found = index.search_radius(block, radius, **options)
            lims.append(found[0][1:] + lims[-1][-1])
            distances.append(found[1])
            ids.append(found[2])
    edges = np.concatenate(lims)
    arrays: dict[str, Any] = {"ids": np.concatenate(ids), "distances": np.concatenate(distances)}

    def row(q: int) -> dict[str, Any]:
        some = slice(edges[q], edges[q + 1])
        return {"query": q, **{name: array[some].tolist() for name, array in arrays.items()}}

    n = len(edges) - 1
    summary = {"index": str(path), "radius": radius, "queries": n, "found": int(edges[-1])}
    tell(summary, {"lims": edges, **arrays}, row, n, out, as_json)


@app.command()
def duplicates(
    path: IndexArgument,
    radius: Radius = 0,
    out: Out = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Find all pairs of codes within a distance of each other."""
    from .. import HammingIndex
    from .._util.progress import waiting

    check_out(out)
    with HammingIndex.open(path) as index, waiting("comparing"):
        pairs, distances = index.duplicates(radius, n_jobs=jobs)
        n_codes = len(index)

    def row(i: int) -> dict[str, Any]:
        a, b = pairs[i].tolist()
        return {"a": a, "b": b, "distance": int(distances[i])}

    summary = {"index": str(path), "codes": n_codes, "radius": radius, "pairs": len(pairs)}
    arrays = {"pairs": pairs, "distances": distances}
    tell(summary, arrays, row, len(pairs), out, as_json)


@app.command()
def remove(
    path: IndexArgument,
    ids: Annotated[list[str], typer.Argument(help="Ids, or .npy files of ids.")],
    as_json: Json = False,
) -> None:
    """Remove codes by their ids; `compact` gives their room back."""
    import numpy as np

    from .. import HammingIndex
    from .._util.files import open_npy
    from .output import show

    chosen = []
    for value in ids:
        if value.endswith(".npy"):
            chosen.append(np.asarray(open_npy(Path(value))).astype(np.int64, casting="same_kind"))
        elif value.lstrip("-").isdigit():
            chosen.append(np.array([int(value)]))
        else:
            raise ValueError(f"{value} is neither an id (a whole number) nor an .npy file of ids")
    with HammingIndex.open(path, "a") as index:
        before = len(index)
        try:
            index.remove(np.concatenate(chosen))
        except KeyError as error:
            raise ValueError(error.args[0]) from None
        show({"index": str(path), "removed": before - len(index), "codes": len(index)}, as_json)


@app.command()
def compact(path: IndexArgument, as_json: Json = False) -> None:
    """Drop removed codes from the file and join small batches."""
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
    """Read every byte of the file; fails if something is damaged."""
    from .. import HammingIndex
    from .._util.progress import waiting
    from .output import show

    with waiting("reading"):
        found = HammingIndex.verify(path)
    show({"index": str(path), "damage": found if as_json else "; ".join(found) or "none"}, as_json)
    if found:
        raise typer.Exit(1)


@app.command()
def info(path: IndexArgument, as_json: Json = False) -> None:
    """Tell what an index file holds."""
    from .. import HammingIndex
    from .output import show

    with HammingIndex.open(path) as index:
        show({"index": str(path), **index.info()}, as_json)


def _add_all(index: Any, codes: list[Path], ids: list[Path] | None) -> int:
    from .._util.files import open_npy
    from ..codes import n_bytes

    for path in codes:
        if code_count(path) and code_width(path) != n_bytes(index.n_bits):
            raise ValueError(
                f"{path} has codes of {code_width(path)} bytes, but the index has codes of "
                f"{index.n_bits} bits"
            )
    if ids is not None and len(ids) != len(codes):
        raise ValueError(f"{len(codes)} files of codes came with {len(ids)} files of ids")
    total = 0
    for number, path in enumerate(codes):
        chosen = None if ids is None else open_npy(ids[number])
        if chosen is not None and len(chosen) != code_count(path):
            raise ValueError(
                f"{path} has {code_count(path)} codes, but there are {len(chosen)} ids for them"
            )
        done = 0
        for block in code_blocks(path, _BATCH, f"adding {path.name}"):
            some = None if chosen is None else chosen[done : done + len(block)]
            try:
                index.add(block, some)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
            done += len(block)
        total += done
    return total
