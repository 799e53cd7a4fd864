"""`kdiffhash study`: the paper's experiments in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .options import Json, Seed

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
    from .output import show

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
    from rich.console import Console
    from rich.table import Table

    from ..study.report import headline, summary

    console = Console()
    for part in summary(results):
        table = Table(
            title=f"FNR % at 0.1 % FPR, learned on {part['train']}, tested on {part['test']}",
            header_style="bold",
            title_justify="left",
        )
        table.add_column("method, bits", no_wrap=True)
        for name in ["floats", *map(str, results.lengths)]:
            table.add_column(name, justify="right", no_wrap=True)
        for row in part["rows"]:
            cells = [row["cells"].get(n if row["learned"] else -1) for n in results.lengths]
            table.add_row(row["title"], _cell(row["cells"].get(0)), *map(_cell, cells))
        console.print(table)
    claims = Table(title="The paper's claims", header_style="bold", title_justify="left")
    for name in ("verdict", "claim", "found"):
        claims.add_column(name, no_wrap=name == "verdict")
    for claim in results.extras["claims"]:
        claims.add_row(
            claim["verdict"].removesuffix(" by this data"), claim["claim"], claim["found"]
        )
    console.print(claims)
    console.print(headline(results), highlight=False)


def _cell(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{100 * cell['fnr'].value:.1f}"
