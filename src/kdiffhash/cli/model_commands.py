"""`kdiffhash train`, `encode` and `export`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cluster_option import Cluster, on_cluster
from .guard import check_writable
from .options import Jobs, Json, Seed

if TYPE_CHECKING:
    from .inputs import Data


class Method(StrEnum):
    """Names of the hashers on the command line."""

    kernel_lda = "kernel-lda"
    kernel_diff = "kernel-diff"
    lda = "lda"
    diff = "diff"
    boosted = "boosted"
    itq = "itq"


class Preprocessing(StrEnum):
    """Values of `--preprocess`."""

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

ModelFile = Annotated[
    Path,
    typer.Argument(help="Model file written by [bold]kdiffhash train[/].", metavar="MODEL"),
]
DataFile = Annotated[
    Path,
    typer.Argument(
        help="Rows: a .npy, .npz, .parquet or .h5 file, a folder of such files, or a scene.",
        metavar="DATA",
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option("--labels", help="A .npy file with the label of each row: the object it shows."),
]
Descriptor = Annotated[
    str,
    typer.Option("--descriptor", help="Descriptors of a scene to use, for example sift or hog."),
]


def train(
    data: Annotated[
        list[Path],
        typer.Argument(
            help="Rows with labels: scenes, .npz, .parquet or .h5 files (X and y), or folders of "
            "such files. NAME.npy needs --labels or a file NAME.labels.npy.",
            metavar="DATA",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Model file to write.")],
    labels: Labels = None,
    method: Annotated[Method, typer.Option(help="Learning method.")] = Method.kernel_lda,
    bits: Annotated[
        int | None,
        typer.Option(
            "--bits",
            min=1,
            help="Length of the codes; by default 128, or the number of features if smaller.",
        ),
    ] = None,
    basis: Annotated[
        int, typer.Option("--basis", min=1, help="Number of basis rows of the kernel methods.")
    ] = 1000,
    refine: Annotated[
        int,
        typer.Option(
            "--refine",
            min=0,
            help="Steps of gradient descent after the closed form; 1000 suffice, 0 for none.",
        ),
    ] = 0,
    preprocess: Annotated[
        Preprocessing,
        typer.Option(
            help="Preprocessing of each row. auto: hellinger for SIFT descriptors of scenes, none "
            "for other rows."
        ),
    ] = Preprocessing.auto,
    positives: Annotated[int, typer.Option(min=1, help="Positive pairs to draw.")] = 100_000,
    negatives: Annotated[int, typer.Option(min=1, help="Negative pairs to draw.")] = 200_000,
    across_groups: Annotated[
        bool,
        typer.Option(
            "--across-groups",
            help="Draw only pairs whose members come from different groups (photographs).",
        ),
    ] = False,
    descriptor: Descriptor = "sift",
    seed: Seed = 0,
    jobs: Jobs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Learn a hash from labelled rows or from explicit pairs."""
    from .._util.progress import waiting

    with waiting("reading"):
        import kdiffhash

        from .inputs import is_scene, pairs_of, paths_of, read_all, read_data
        from .output import show

        check_writable(out, paths_of(data), labels)
        source = read_all(data, labels, descriptor)
        learner = getattr(kdiffhash, _CLASSES[method])  # imports scikit-learn
    kind: str | None = preprocess.value
    if preprocess is Preprocessing.auto:
        from_scenes = all(is_scene(path) for path in data)
        kind = "hellinger" if from_scenes and descriptor == "sift" else None
    elif preprocess is Preprocessing.none:
        kind = None
    params: dict[str, Any] = {"preprocess": kind, "random_state": seed, "n_jobs": jobs}
    if method is not Method.itq:
        params |= {"n_positives": positives, "n_negatives": negatives}
    if method in (Method.kernel_lda, Method.kernel_diff):
        params["n_basis"] = basis
    if refine:
        if method is Method.boosted:
            raise ValueError(f"--refine does not work with {method.value}; leave it out")
        params["refine"] = refine
    hasher = learner(n_bits=bits, **params)
    start = time.perf_counter()
    # The other methods show their own progress bars.
    is_silent = method in (Method.boosted, Method.itq)
    with waiting(f"learning ({method.value})") if is_silent else nullcontext():
        n_pairs: dict[str, int] = {}
        with _rows_of(source, data, descriptor, cluster) as rows:
            if method is Method.itq:
                hasher.fit(rows)
            else:
                # Drawn as `fit` draws them, so that both give the same model.
                rng = hasher._rng("pairs")
                with waiting("drawing pairs"):
                    pairs, similar = pairs_of(source, positives, negatives, across_groups, rng)
                n_pairs["positive_pairs"] = int(similar.sum())
                n_pairs["negative_pairs"] = int((~similar).sum())
                groups = source.groups if across_groups else None
                hasher.fit_pairs(rows, pairs, similar, source.labels, groups)
    hasher.save(out)
    _record_and_warn(out, hasher, source, [read_data(path, labels, descriptor) for path in data])
    show(
        {
            "model": str(out),
            **_describe(hasher),
            "trained_on_rows": len(source.rows),
            "trained_on_pairs": sum(n_pairs.values()),
            **n_pairs,
            "seconds": round(time.perf_counter() - start, 2),
        },
        as_json,
    )


def _record_and_warn(out: Path, hasher: Any, source: Data, inputs: list[Data]) -> None:
    """Record the labels in the model file, and warn if there are too few for the bits."""
    import numpy as np

    from .output import warn
    from .training_labels import record_labels

    labels = [data.labels for data in inputs if data.labels is not None]
    if labels:
        record_labels(out, labels)
    if source.labels is None or not type(hasher).__name__.endswith("LDAHash"):
        return
    n_classes = len(np.unique(np.asarray(source.labels)))
    if hasher.n_bits_ >= n_classes:
        warn(
            f"{hasher.n_bits_} bits were learned from {n_classes} classes, which carry "
            f"{n_classes - 1} directions; the bits after these add little: use --bits "
            f"{n_classes - 1}, or more classes"
        )


@contextmanager
def _rows_of(
    source: Data, paths: list[Path], descriptor: str, cluster: str | None
) -> Iterator[Any]:
    """Return the training rows, read by this process or by the workers of a cluster."""
    from .inputs import shards_of

    if cluster is None:
        yield source.rows
        return
    from ..engines.dask.remote_rows import RemoteRows

    with on_cluster(cluster) as client:
        yield RemoteRows.of(shards_of(paths, descriptor), client)


def encode(
    model: ModelFile,
    data: DataFile,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Where to write the codes: a .npy file or a folder."),
    ],
    bits: Annotated[
        int | None,
        typer.Option("--bits", min=1, help="Number of leading bits to keep; by default all."),
    ] = None,
    descriptor: Descriptor = "sift",
    jobs: Jobs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Encode rows into binary codes, in bounded memory.

    If --out is a folder, it gets one file of codes per input file (shard). Shards that already have
    up-to-date codes are skipped.
    """
    from .. import BaseHasher
    from ..codes import n_bytes
    from .inputs import paths_of
    from .output import show

    check_writable(out, model, paths_of([data]), folder=out.suffix == "")
    hasher = BaseHasher.load(model)
    hasher.n_jobs = jobs
    if bits is not None:
        hasher = hasher.truncate(bits)
    start = time.perf_counter()
    if out.suffix == ".npy":
        if cluster is not None:
            raise ValueError(
                f"--cluster writes one file per shard, got --out {out}; give --out FOLDER"
            )
        result = _encode_to_file(hasher, data, out, descriptor)
    elif out.suffix == "":
        result = _encode_to_folder(hasher, data, out, descriptor, cluster)
    else:
        raise ValueError(f"--out must end in .npy or be a folder (without a suffix), got {out}")
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
    from ..shards.code_folder import CHUNK, write_codes
    from .inputs import shards_of

    rows = shards_of([data], descriptor)
    with progress(len(rows), "encoding") as advance:
        write_codes(hasher, rows.chunks(CHUNK), len(rows), out, str(data), advance)
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
    shards = {"shards": len(rows.files), "already_encoded": len(rows.files) - len(todo)}
    return {"rows": len(rows), "encoded": n_todo, **shards}


def export(
    model: ModelFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="ONNX file to write.")],
    bits: Annotated[
        int | None,
        typer.Option("--bits", min=1, help="Number of leading bits to export; by default all."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Export a model as an ONNX graph that maps rows to packed codes."""
    from .. import BaseHasher
    from ..engines.onnx import export as write
    from .output import show

    check_writable(out, model)
    hasher = BaseHasher.load(model)
    if bits is not None:
        hasher = hasher.truncate(bits)
    write(hasher, out)
    result = {"onnx": str(out), **_describe(hasher), "bytes_on_disk": out.stat().st_size}
    show(result, as_json)


def _describe(hasher: Any) -> dict[str, Any]:
    return {
        "class": type(hasher).__name__,
        "bits": hasher.n_bits_,
        "bytes_per_code": -(-hasher.n_bits_ // 8),
        "input_features": hasher.n_features_in_,
        "preprocess": hasher.preprocess,
    }
