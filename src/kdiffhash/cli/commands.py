"""The application: all commands under their names."""

from __future__ import annotations

import typer

from . import data_commands as data
from . import index_commands as index
from . import model_commands as commands
from . import pg_commands as pg
from . import photo_commands as photos
from . import reconstruction_commands as reconstruction
from . import sqlite_commands as sqlite
from .calibrate_command import calibrate
from .duplicates_command import duplicates
from .eval_command import evaluate
from .info_command import info
from .study_command import study

app = typer.Typer(
    name="kdiffhash",
    help="Learn compact binary codes from pairs that should match and pairs that should not.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("train")(commands.train)
app.command("encode")(commands.encode)
app.command("eval")(evaluate)
app.command("calibrate")(calibrate)
app.command("info")(info)
app.command("export")(commands.export)
index.app.command("duplicates")(duplicates)
app.add_typer(index.app, name="index")
app.command("match")(photos.match)
app.add_typer(photos.app, name="photos")
app.add_typer(reconstruction.colmap, name="colmap")
app.add_typer(reconstruction.hloc, name="hloc")
app.add_typer(pg.app, name="pg")
app.add_typer(sqlite.app, name="sqlite")
app.add_typer(data.app, name="data")
app.command("study")(study)


def _print_version(requested: bool) -> None:
    if requested:
        from .. import __version__

        print(f"kdiffhash {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: bool = typer.Option(
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
) -> None:
    pass
