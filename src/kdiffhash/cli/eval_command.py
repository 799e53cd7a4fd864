"""`kdiffhash eval`: error rates on pairs, or with `--retrieval` the quality of searches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .model_commands import Descriptor, Labels
from .options import Jobs, Json, Seed


def evaluate(
    model: Annotated[
        Path,
        typer.Argument(
            help="Model file written by [bold]kdiffhash train[/]. With --retrieval it may be left "
            "out if DATA and --queries are codes.",
            metavar="MODEL",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Rows: a .npy, .npz, .parquet or .h5 file, a folder of such files, or a scene. "
            "With --retrieval, the documents to search.",
            metavar="DATA",
        ),
    ] = None,
    labels: Labels = None,
    bits: Annotated[
        list[int] | None,
        typer.Option(
            "--bits", min=1, help="Also evaluate the prefix of this length; may be repeated."
        ),
    ] = None,
    positives: Annotated[int, typer.Option(min=1, help="Positive pairs to draw.")] = 50_000,
    negatives: Annotated[
        int,
        typer.Option(min=1, help="Negative pairs to draw; an FPR of 0.01 % needs a million."),
    ] = 100_000,
    drawn: Annotated[
        bool,
        typer.Option(
            "--drawn", help="Draw the positive pairs of a scene instead of using its test list."
        ),
    ] = False,
    retrieval: Annotated[
        bool,
        typer.Option(
            "--retrieval", help="Search DATA for --queries, and measure recall, nDCG and MRR."
        ),
    ] = False,
    queries: Annotated[
        Path | None,
        typer.Option("--queries", help="Rows of the queries, in a form like DATA (--retrieval)."),
    ] = None,
    relevant: Annotated[
        Path | None,
        typer.Option(
            "--relevant",
            help="Relevant documents by row numbers (--retrieval): a .csv file with lines "
            "query,document or query,document,gain, or a .npy file with one document per query or "
            "with such pairs. By default, documents with the label of the query; without labels, "
            "row i of DATA is relevant to query i.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="File (.svg, .png or .pdf) for a plot of the share of the floats' quality that "
            "codes keep, by length (--retrieval).",
        ),
    ] = None,
    resamples: Annotated[
        int,
        typer.Option(
            min=0, help="Bootstrap resamples for the 95 % confidence intervals; 0 for no intervals."
        ),
    ] = 200,
    descriptor: Descriptor = "sift",
    seed: Seed = 0,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Measure the error rates of a hash on test pairs, or the quality of searches.

    The original rows are measured in the same way for comparison: by Euclidean distance on the same
    pairs, or by cosine similarity (--retrieval). Use data that the hash was not trained on.
    """
    from .output import show

    if retrieval:
        if queries is None:
            raise ValueError("--retrieval needs --queries FILE, the rows to search for")
        if labels is not None:
            raise ValueError("--labels is for pairs; name relevant documents by --relevant")
        # Without MODEL, the only argument is a file of codes.
        files = (
            (None, model, queries, relevant) if data is None else (model, data, queries, relevant)
        )
        result = _by_searches(files, bits or [], plot, resamples, descriptor, seed, jobs)
        from .retrieval_evaluation import readable
    else:
        if data is None:
            raise ValueError("DATA is missing: give the rows to evaluate the model on")
        if queries or relevant or plot:
            raise ValueError("--queries, --relevant and --plot belong to --retrieval; add it")
        pairs = {"n_positives": positives, "n_negatives": negatives, "drawn": drawn}
        options = {"bits": bits or [], **pairs, "n_resamples": resamples, "seed": seed}
        result = _by_pairs(model, data, labels, descriptor, jobs, options)
        from .evaluation import readable
    _warn(result)
    show(result if as_json else readable(result), as_json)


def _by_searches(
    files: tuple[Path | None, Path, Path, Path | None],
    bits: list[int],
    plot: Path | None,
    n_resamples: int,
    descriptor: str,
    seed: int,
    jobs: int | None,
) -> dict[str, Any]:
    from .._util.progress import waiting

    with waiting("measuring"):
        from .retrieval_evaluation import evaluate_retrieval

        return evaluate_retrieval(*files, bits, plot, n_resamples, descriptor, seed, jobs)


def _by_pairs(
    model: Path,
    data: Path,
    labels: Path | None,
    descriptor: str,
    jobs: int | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    from .._util.progress import waiting

    with waiting("reading"):
        from .. import BaseHasher
        from .evaluation import evaluate_model
        from .inputs import read_data
        from .training_labels import was_trained_on

        hasher = BaseHasher.load(model)
        hasher.n_jobs = jobs
        source = read_data(data, labels, descriptor)
    result = evaluate_model(hasher, source, **options)
    is_training_data = was_trained_on(model, source.labels)
    return {"model": str(model), "data": str(data), "training_data": is_training_data, **result}


def _warn(result: dict[str, Any]) -> None:
    """Warn if the rows are training rows or far from them, or too few to measure a rate."""
    from .output import warn

    if result.get("training_data"):
        warn(
            "the model was trained on this data, so that its error rates are too low; measure them "
            "on data with other labels"
        )
    unknown = [
        float(name.removeprefix("fnr_at_"))
        for name, value in result["rows"][0].items()
        if name.startswith("fnr_at_") and value is None
    ]
    if unknown:
        warn(
            f"{result['negatives']:,} negative pairs are too few to measure the FNR at an FPR of "
            f"{100 * min(unknown):g} %; it takes at least --negatives {round(3 / min(unknown))}"
        )
    far = [name for name, shift in result.get("domain_shift", {}).items() if shift["is_far"]]
    if far:
        warn(
            f"the {' and the '.join(far)} are far from the rows that the model was "
            "trained on; learned codes belong to the domain they were learned on, so learn them "
            "again from pairs of this one, or compare them with sign bits"
        )
