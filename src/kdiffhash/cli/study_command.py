"""`kdiffhash study`: the paper's experiments in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .options import Json, Seed
from .output import show

_SEVERAL = ("--train", "--test", "--methods", "--bits")


def study(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the report.")] = Path("study"),
    train: Annotated[
        list[str] | None,
        typer.Option("--train", help="Scenes to learn from, one or several."),
    ] = None,
    test: Annotated[
        list[str] | None, typer.Option("--test", help="Scenes to test on, one or several.")
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--methods", help="Methods; all by default. Also your own, see the docs."),
    ] = None,
    bits: Annotated[
        list[int] | None, typer.Option("--bits", min=1, help="Code lengths; 32 to 512 by default.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A first look: fewer pairs.")] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Repeat the paper's experiments on scenes (or the embedded set) and write a report."""
    from ..study import run_study
    from ..study.plan import LENGTHS

    results = run_study(
        out,
        train_scenes=train or (),
        test_scenes=test or (),
        methods=methods or (),
        lengths=bits or LENGTHS,
        first_look=quick,
        seed=seed,
    )
    report = {
        "report": str((out / "index.html").resolve()),
        "figures": str((out / "figures").resolve()),
        "numbers": f"{(out / 'results.json').resolve()}, results.csv",
    }
    if as_json:
        show({**report, "claims": results.extras["claims"], "errors": results.errors}, True)
        return
    _show_tables(results)
    show(report, False)


def repeat_options(arguments: list[str]) -> list[str]:
    """``study --test A B`` as ``study --test A --test B``, which is what the parser knows."""
    if arguments[:1] != ["study"]:
        return arguments
    out: list[str] = []
    option = ""
    for argument in arguments:
        if argument.startswith("-"):
            option = argument if argument in _SEVERAL else ""
        elif option and out[-1] != option:
            out.append(option)
        out.append(argument)
    return out


def _show_tables(results: Any) -> None:
    from ..study.report import headline, summary

    for part in summary(results):
        rows = []
        for row in part["rows"]:
            cells = {n: f"{100 * cell['fnr'].value:.1f}" for n, cell in row["cells"].items()}
            shown = {str(n) if n else "floats": cells.get(n, "") for n in (0, *results.lengths)}
            rows.append({"FNR % at 0.1 % FPR": row["title"], **shown})
        show({"learned on": part["train"], "tested on": part["test"], "rows": rows}, False)
    rows = [
        {
            "verdict": claim["verdict"].removesuffix(" by this data"),
            "claim of the paper": claim["claim"],
            "found": claim["found"],
        }
        for claim in results.extras["claims"]
    ]
    show({"rows": rows}, False)
    print(headline(results))
