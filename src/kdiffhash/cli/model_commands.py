"""The commands; each calls a function or two of the library."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cluster_option import Cluster, on_cluster
from .options import Jobs, Json, Seed

if TYPE_CHECKING:
    from .inputs import Data


class Method(StrEnum):
    """Hashers by their names on the command line."""

    kernel_lda = "kernel-lda"
    kernel_diff = "kernel-diff"
    lda = "lda"
    diff = "diff"
    boosted = "boosted"
    itq = "itq"


class InputKind(StrEnum):
    """What is done to each row first."""

    auto = "auto"
    none = "none"
    unit = "unit"
    hellinger = "hellinger"


_CLASSES = {
    Method.kernel_lda: "KernelLDAHash",
    Method.kernel_diff: "KernelDiffHash",
    Method.lda: "LDAHash",
    Method.diff: "DiffHash",
    Method.boosted: "BoostedHash",
    Method.itq: "ITQHash",
}

ModelFile = Annotated[Path, typer.Argument(help="Model file written by [bold]train[/].")]
DataFile = Annotated[
    Path,
    typer.Argument(help="Rows: .npy, .npz, .parquet, .h5, a folder of such files, or a scene."),
]
Labels = Annotated[
    Path | None, typer.Option("--labels", help=".npy with the id of the object each row shows.")
]
Descriptor = Annotated[
    str, typer.Option("--descriptor", help="Of a scene: which descriptors (sift, hog).")
]


def train(
    data: Annotated[
        list[Path],
        typer.Argument(help="Rows with ids: scenes, .npz, .parquet or .h5 (X and y), folders."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the model.")],
    labels: Labels = None,
    method: Annotated[Method, typer.Option(help="How to learn.")] = Method.kernel_lda,
    bits: Annotated[int | None, typer.Option("--bits", min=1, help="Length of the codes.")] = None,
    basis: Annotated[int, typer.Option("--basis", min=1, help="Basis rows of a kernel.")] = 1000,
    refine: Annotated[
        int, typer.Option("--refine", min=0, help="Steps of descent after the closed form.")
    ] = 0,
    preprocess: Annotated[
        InputKind, typer.Option(help="auto: hellinger for SIFT of scenes, else none.")
    ] = InputKind.auto,
    positives: Annotated[int, typer.Option(min=1, help="Similar pairs to draw.")] = 100_000,
    negatives: Annotated[int, typer.Option(min=1, help="Dissimilar pairs to draw.")] = 200_000,
    across_groups: Annotated[
        bool, typer.Option("--across-groups", help="Draw pairs across photos or groups only.")
    ] = False,
    descriptor: Descriptor = "sift",
    seed: Seed = 0,
    jobs: Jobs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Learn a hash from rows and the ids of the objects they show."""
    import kdiffhash

    from .._util.progress import waiting
    from .inputs import is_scene, pairs_of, read_all
    from .output import show

    check_writable(out)
    source = read_all(data, labels, descriptor)
    kind: str | None = preprocess.value
    if preprocess is InputKind.auto:
        from_scenes = all(is_scene(path) for path in data)
        kind = "hellinger" if from_scenes and descriptor == "sift" else None
    elif preprocess is InputKind.none:
        kind = None
    params: dict[str, Any] = {"preprocess": kind, "random_state": seed, "n_jobs": jobs}
    if method is not Method.itq:
        params |= {"n_positives": positives, "n_negatives": negatives}
    if method in (Method.kernel_lda, Method.kernel_diff):
        params["n_basis"] = basis
    if refine:
        if method not in (Method.kernel_lda, Method.kernel_diff, Method.lda, Method.diff):
            raise ValueError(f"--refine goes on from a closed form; {method.value} is none")
        params["refine"] = refine
    hasher = getattr(kdiffhash, _CLASSES[method])(n_bits=bits, **params)
    start = time.perf_counter()
    # Refinement has a bar of its own.
    with nullcontext() if refine else waiting(f"learning ({method.value})"):
        drawn: dict[str, int] = {}
        with _rows_of(source, data, descriptor, cluster) as rows:
            if method is Method.itq:
                hasher.fit(rows)
            else:
                # As `fit` draws them, so that both learn the same.
                rng = hasher._rng("pairs")
                pairs, similar = pairs_of(source, positives, negatives, across_groups, rng)
                drawn = {"similar_pairs": int(similar.sum()), "other_pairs": int((~similar).sum())}
                groups = source.groups if across_groups else None
                hasher.fit_pairs(rows, pairs, similar, source.labels, groups)
    hasher.save(out)
    show(
        {
            "model": str(out),
            **_describe(hasher),
            "trained_on_rows": len(source.rows),
            "trained_on_pairs": sum(
                drawn.get(name, 0) for name in ("similar_pairs", "other_pairs")
            ),
            **drawn,
            "seconds": round(time.perf_counter() - start, 2),
        },
        as_json,
    )


@contextmanager
def _rows_of(
    source: Data, paths: list[Path], descriptor: str, cluster: str | None
) -> Iterator[Any]:
    """The rows to learn from, read here or by the workers of a cluster."""
    from .inputs import shards_of

    if cluster is None:
        yield source.rows
        return
    from ..engines.dask.blocks import Blocks

    with on_cluster(cluster) as client:
        yield Blocks.of(shards_of(paths, descriptor), client)


def encode(
    model: ModelFile,
    data: DataFile,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where to write the codes: FILE.npy, or a folder.")
    ],
    bits: Annotated[int | None, typer.Option("--bits", min=1, help="Only the first bits.")] = None,
    descriptor: Descriptor = "sift",
    jobs: Jobs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Encode rows from a file to a file, or shard by shard to a folder, in bounded memory.

    In a folder, shards whose codes are there already are left out.
    """
    from .. import BaseHasher
    from ..codes import n_bytes
    from .output import show

    check_writable(out, folder=out.suffix == "")
    hasher = BaseHasher.load(model)
    hasher.n_jobs = jobs
    if bits is not None:
        hasher = hasher.truncate(bits)
    start = time.perf_counter()
    if out.suffix == ".npy":
        if cluster is not None:
            raise ValueError("with --cluster, codes go to a folder, a file a shard: --out FOLDER")
        result = _encode_to_file(hasher, data, out, descriptor)
    elif out.suffix == "":
        result = _encode_to_folder(hasher, data, out, descriptor, cluster)
    else:
        raise ValueError(f"--out must end in .npy, or be a folder (no ending): {out}")
    seconds = time.perf_counter() - start
    n_rows, n_done = result.pop("rows"), result.pop("encoded")
    width = n_bytes(hasher.n_bits_)
    show(
        {
            "codes": str(out),
            "shape": [n_rows, width] if as_json else f"{n_rows} x {width} bytes",
            "bits": hasher.n_bits_,
            **result,
            "seconds": round(seconds, 2),
            "rows_per_second": round(n_done / seconds) if seconds else None,
        },
        as_json,
    )


def _encode_to_file(hasher: Any, data: Path, out: Path, descriptor: str) -> dict[str, Any]:
    from .._util.progress import progress
    from ..shards.code_folder import BLOCK, write_codes
    from .inputs import shards_of

    rows = shards_of([data], descriptor)
    with progress(len(rows), "encoding") as advance:
        write_codes(hasher, rows.blocks(BLOCK), len(rows), out, str(data), advance)
    return {"rows": len(rows), "encoded": len(rows)}


def _encode_to_folder(
    hasher: Any, data: Path, out: Path, descriptor: str, cluster: str | None
) -> dict[str, Any]:
    from .._util.progress import progress
    from ..shards.code_folder import shards_to_write, write_shard
    from .inputs import shards_of

    rows = shards_of([data], descriptor)
    todo = shards_to_write(hasher, rows, out)
    n_todo = sum(len(shard) for shard, _ in todo)
    with progress(n_todo, "encoding") as advance:
        if cluster is None:
            for shard, target in todo:
                advance(write_shard(hasher, shard, target))
        elif todo:
            from ..engines.dask import encode

            with on_cluster(cluster) as client:
                encode(hasher, rows, out, client=client, advance=advance)
    shards = {"shards": len(rows.files), "there_before": len(rows.files) - len(todo)}
    return {"rows": len(rows), "encoded": n_todo, **shards}


def evaluate(
    model: ModelFile,
    data: DataFile,
    labels: Labels = None,
    bits: Annotated[
        list[int] | None,
        typer.Option("--bits", min=1, help="Also these prefixes; repeatable."),
    ] = None,
    positives: Annotated[int, typer.Option(min=1, help="Similar pairs to draw.")] = 50_000,
    negatives: Annotated[
        int, typer.Option(min=1, help="Dissimilar pairs to draw; 0.01 % FPR wants a million.")
    ] = 100_000,
    drawn: Annotated[
        bool, typer.Option("--drawn", help="Draw pairs from a scene instead of its test list.")
    ] = False,
    resamples: Annotated[
        int, typer.Option(min=0, help="Resamples of the 95 % intervals; 0 for none.")
    ] = 200,
    descriptor: Descriptor = "sift",
    seed: Seed = 0,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Measure a hash on pairs it was not trained on, beside the distance of the plain rows."""
    from .. import BaseHasher
    from .._util.progress import waiting
    from .evaluation import evaluate_model, readable
    from .inputs import read_data
    from .output import show

    hasher = BaseHasher.load(model)
    hasher.n_jobs = jobs
    with waiting("measuring"):
        result = evaluate_model(
            hasher,
            read_data(data, labels, descriptor),
            bits or [],
            positives,
            negatives,
            drawn,
            resamples,
            seed,
        )
    result = {"model": str(model), "data": str(data), **result}
    show(result if as_json else readable(result), as_json)


def export(
    model: ModelFile,
    onnx: Annotated[Path, typer.Option("--onnx", help="Where to write the ONNX graph.")],
    bits: Annotated[
        int | None, typer.Option("--bits", min=1, help="Export the first bits only.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a model as an ONNX graph, from rows to packed codes."""
    from .. import BaseHasher
    from ..engines.onnx import export as write
    from .output import show

    check_writable(onnx, model, option="--onnx")
    hasher = BaseHasher.load(model)
    if bits is not None:
        hasher = hasher.truncate(bits)
    write(hasher, onnx)
    result = {"onnx": str(onnx), **_describe(hasher), "bytes_on_disk": onnx.stat().st_size}
    show(result, as_json)


def _describe(hasher: Any) -> dict[str, Any]:
    return {
        "class": type(hasher).__name__,
        "bits": hasher.n_bits_,
        "bytes_per_code": -(-hasher.n_bits_ // 8),
        "input_features": hasher.n_features_in_,
        "preprocess": hasher.preprocess,
    }


def check_writable(out: Path, *inputs: Path, folder: bool = False, option: str = "--out") -> None:
    """Say before hours of work that the result could not be written, or would replace an input."""
    if not out.parent.is_dir():
        raise ValueError(f"{option}: the folder {out.parent} does not exist")
    if out.is_dir() and not folder:
        raise ValueError(f"{option}: {out} is a folder")
    if not os.access(out.parent, os.W_OK):
        raise ValueError(f"{option}: the folder {out.parent} cannot be written to")
    if out.resolve() in [path.resolve() for path in inputs]:
        raise ValueError(f"{option}: {out} is read from, and would be replaced; name another file")
