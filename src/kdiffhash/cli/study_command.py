"""`kdiffhash study`: run the paper's experiments and write a report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from .guard import refuse_inputs
from .matplotlib_folder import matplotlib_folder
from .options import Json, Seed
from .output import show

_MULTIPLE = ("--train", "--test", "--methods", "--bits")  # options that take several values


def study(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report.")] = Path(
        "study"
    ),
    train: Annotated[
        list[str] | None,
        typer.Option("--train", help="One or more scenes to train on."),
    ] = None,
    test: Annotated[
        list[str] | None, typer.Option("--test", help="One or more scenes to test on.")
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            help="Methods to compare; by default all. docs/study.md explains how to add your own.",
        ),
    ] = None,
    bits: Annotated[
        list[int] | None,
        typer.Option("--bits", min=1, help="Code lengths; by default 32, 64, 128, 256 and 512."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Faster but less accurate: fewer pairs and basis rows."),
    ] = False,
    paper: Annotated[
        str | None,
        typer.Option(
            "--paper",
            metavar="[FOLDER]",
            help="The paper's own runs: on the published archives, which are fetched or taken from "
            "FOLDER, or on the scenes at hand with --paper notredame-2007.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, help="Training seeds; by default 5, or 1 with --quick."),
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Run the paper's experiments and write a report.

    Without --train, --test and --paper, they run on the embedded data set.
    """
    from ..study import run_paper_study, run_study
    from ..study.plan import LENGTHS

    options: dict[str, Any] = {
        "lengths": bits or LENGTHS,
        "n_seeds": seeds,
        "quick": quick,
        "seed": seed,
        "verbose": True,
        **({"methods": methods} if methods else {}),
    }
    refuse_inputs(out, train, test, paper)
    with matplotlib_folder():
        if paper is None:
            results = run_study(out, train_scenes=train or (), test_scenes=test or (), **options)
        elif train or test:
            raise ValueError("--paper brings its own scenes; leave out --train and --test")
        else:
            results = run_paper_study(out, paper, **options)
    report = {
        "report": str((out / "index.html").resolve()),
        "figures": str((out / "figures").resolve()),
        "numbers": [str((out / f"results.{kind}").resolve()) for kind in ("json", "csv")],
    }
    if as_json:
        claims = [asdict(claim) for claim in results.extras["claims"]]
        show({**report, "claims": claims, "errors": results.errors}, True)
        return
    _show_tables(results)
    show(report, False)


def repeat_options(arguments: list[str]) -> list[str]:
    """Rewrite ``study --test A B`` as ``study --test A --test B``, which the parser accepts.

    ``--paper`` without a folder becomes ``--paper published``.
    """
    if arguments[:1] != ["study"]:
        return arguments
    out: list[str] = []
    option = ""
    for argument in arguments:
        if argument.startswith("-"):
            option = argument if argument in _MULTIPLE else ""
        elif option and out[-1] != option:
            out.append(option)
        out.append(argument)
    for i in range(len(out) - 1, -1, -1):
        if out[i] == "--paper" and (i + 1 == len(out) or out[i + 1].startswith("-")):
            out.insert(i + 1, "published")
    return out


def _show_tables(results: Any) -> None:
    from ..study.report import headline, summary
    from ..study.verdicts import main_finding

    for table in summary(results):
        rows = []
        for row in table["rows"]:
            cells = {n: f"{100 * cell['fnr'].value:.1f}" for n, cell in row["cells"].items()}
            shown = {str(n) if n else "floats": cells.get(n, "") for n in (0, *results.lengths)}
            rows.append({"FNR % at 0.1 % FPR": row["title"], **shown})
        show({"trained on": table["train"], "tested on": table["test"], "rows": rows}, False)
    for is_ours, title in ((False, "claim of the paper"), (True, "our own rule")):
        rows = [
            {
                "paper's method": main_finding(claim.paper).verdict,
                "recommended": main_finding(claim.recommended).verdict,
                title: claim.claim,
            }
            for claim in results.extras["claims"]
            if claim.is_ours == is_ours
        ]
        show({"rows": rows}, False)
    for note in results.notes:
        print(note)
    print(headline(results))
