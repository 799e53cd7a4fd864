"""What all commands have in common: -h, --quiet, --verbose, and the layout of their help.

A new group of commands is an `App`; everything here then applies to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from .._util.progress import logging_steps, shown
from .help_page import command_page, group_page, usage_pieces


def _keep(context: typer.Context, parameter: typer.CallbackParam, value: bool) -> None:
    """Keep the value of an option for `Command.invoke`, instead of passing it to the command."""
    context.meta[f"kdiffhash.{parameter.name}"] = value


def _common(
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            callback=_keep,
            expose_value=False,
            help="Show neither progress nor warnings.",
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            callback=_keep,
            expose_value=False,
            help="Log each step with its duration; print the traceback of an error.",
        ),
    ] = False,
) -> None:
    """Declare the options that every command accepts."""


def _declared(function: Callable[..., None]) -> list[Any]:
    """Return the parameters of a function as parameters of a command."""
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return list(typer.main.get_command(app).params)


_COMMON = _declared(_common)
verbosity = {"quiet": False, "verbose": False}  # options of the command that runs


def _in_one_line(message: Warning | str, *_: Any, **__: Any) -> str:
    """Format a warning of Python like those of commands, without a place in the source."""
    return f"warning: {message}\n"


class Command(TyperCommand):
    """A command with the options that all commands accept."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's own parameters, then those of all commands."""
        *own, last = super().get_params(ctx)
        return [*own, *_COMMON, last]  # the last one is --help

    def invoke(self, ctx: Any) -> Any:
        """Run the command, showing as much as its options say."""
        verbosity.update({name: bool(ctx.meta.get(f"kdiffhash.{name}")) for name in verbosity})
        if all(verbosity.values()):
            raise ValueError("--quiet and --verbose exclude each other; give one of them")
        with ExitStack() as stack:
            stack.callback(setattr, warnings, "formatwarning", warnings.formatwarning)
            warnings.formatwarning = _in_one_line
            if verbosity["quiet"]:
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
            elif verbosity["verbose"]:
                stack.enter_context(logging_steps())
            elif not ctx.params.get("as_json"):
                stack.enter_context(shown())
            return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the command."""
        formatter.write(command_page(self, ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return what the usage line shows after the name of the command."""
        return usage_pieces(self)


class Group(TyperGroup):
    """A group of commands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the group."""
        formatter.write(group_page(self, ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return what the usage line shows after the name of the group."""
        return ["COMMAND", "..."]


class App(typer.Typer):
    """A group of commands with the conventions of this module."""

    def __init__(self, **options: Any) -> None:
        defaults: dict[str, Any] = {
            "cls": Group,
            "no_args_is_help": True,
            "add_completion": False,
            "pretty_exceptions_enable": False,
            "rich_markup_mode": None,
            "context_settings": {"help_option_names": ["-h", "--help"]},
        }
        super().__init__(**{**defaults, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Return a decorator that makes a function a command of this group."""
        settings = {"help_option_names": ["-h", "--help"]}
        return super().command(name, **{"cls": Command, "context_settings": settings, **options})
