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
from .app import App
from .audit_command import audit
from .calibrate_command import calibrate
from .duplicates_command import duplicates
from .eval_command import evaluate
from .help_page import PANELS
from .info_command import info
from .study_command import study

_LEARN, _SEARCH, _PHOTOS, _RESEARCH, _ = PANELS

app = App(
    name="kdiffhash",
    help="Learn compact binary codes from pairs that should match and pairs that should not.",
    epilog="""\
First steps:
  kdiffhash match A.jpg B.jpg -o matches.jpg            two photographs
  kdiffhash train rows.npy --labels y.npy -o model      your own rows and labels
  kdiffhash COMMAND -h                                  describes a command""",
    add_completion=True,
)
app.command("train", rich_help_panel=_LEARN)(commands.train)
app.command("encode", rich_help_panel=_LEARN)(commands.encode)
app.command("eval", rich_help_panel=_LEARN)(evaluate)
app.command("calibrate", rich_help_panel=_LEARN)(calibrate)
app.command("info", rich_help_panel=_LEARN)(info)
app.command("export", rich_help_panel=_LEARN)(commands.export)
index.app.command("duplicates")(duplicates)
index.app.command("audit")(audit)
app.add_typer(index.app, name="index", rich_help_panel=_SEARCH)
app.add_typer(sqlite.app, name="sqlite", rich_help_panel=_SEARCH)
app.add_typer(pg.app, name="pg", rich_help_panel=_SEARCH)
app.command("match", rich_help_panel=_PHOTOS)(photos.match)
app.add_typer(photos.app, name="photos", rich_help_panel=_PHOTOS)
app.add_typer(reconstruction.colmap, name="colmap", rich_help_panel=_PHOTOS)
app.add_typer(reconstruction.hloc, name="hloc", rich_help_panel=_PHOTOS)
app.add_typer(data.app, name="data", rich_help_panel=_RESEARCH)
app.command("study", rich_help_panel=_RESEARCH)(study)


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
