"""Lay out the help of commands and groups of commands in plain text.

What the options accept is taken from the type hints of a command's function.
"""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

PANELS = (
    *("Learn and encode", "Store and search codes"),
    *("Photographs and reconstruction", "Data and research", "Commands"),
)
_COMMON = ("seed", "jobs", "cluster", "as_json", "quiet", "verbose", "help")
_MARKUP = re.compile(r"\[/?(bold|italic|/)?\]")
_LEFT = 26  # widest first column


def command_page(command: Any, context: Any) -> str:
    """Return the help of a command."""
    parts = [f"Usage: {_usage(command, context)}", *_paragraphs(command.help)]
    kinds = kinds_of(command)
    shown = [p for p in command.get_params(context) if not getattr(p, "hidden", False)]
    arguments = [p for p in shown if p.param_type_name == "argument"]
    options = [p for p in shown if p.param_type_name == "option"]
    for title, own in (
        ("Arguments", arguments),
        ("Options", [p for p in options if p.name not in _COMMON]),
        ("Common options", [p for p in options if p.name in _COMMON]),
    ):
        if own:
            parts.append(_section(title, [_entry(p, kinds.get(p.name, str)) for p in own]))
    if command.epilog:
        parts.append(command.epilog)
    return "\n\n".join(parts)


def group_page(group: Any, context: Any) -> str:
    """Return the help of a group of commands."""
    parts = [f"Usage: {_usage(group, context)}", *_paragraphs(group.help)]
    panels: dict[str, list[tuple[str, str]]] = {}
    for name, command in group.commands.items():
        if not command.hidden:
            panel = command.rich_help_panel
            entry = (name, _first_sentence(command.help))
            panels.setdefault(panel if isinstance(panel, str) else "Commands", []).append(entry)
    width = max(len(name) for entries in panels.values() for name, _ in entries)
    parts += [_section(title, panels[title], width) for title in PANELS if title in panels]
    options = [_entry(p, bool) for p in group.get_params(context) if not p.hidden]
    parts.append(_section("Options", options))
    name = context.command_path
    parts.append(group.epilog or f"{name} COMMAND -h describes a command.")
    return "\n\n".join(parts)


def usage_pieces(command: Any) -> list[str]:
    """Return the options that are required and the arguments, as the usage line shows them."""
    kinds = kinds_of(command)
    arguments = [
        _value(p, kinds[p.name]) if p.required else f"[{_value(p, kinds[p.name])}]"
        for p in command.params
        if p.param_type_name == "argument"
    ]
    required = [
        f"{p.opts[0]} {_value(p, kinds[p.name])}"
        for p in command.params
        if p.param_type_name == "option" and p.required
    ]
    return [*arguments, *required, "[OPTIONS]"]


def kinds_of(command: Any) -> dict[str, Any]:
    """Return the type hint of each parameter of a command, by name."""
    return get_type_hints(inspect.unwrap(command.callback))


def _single(hint: Any) -> tuple[Any, bool]:
    """Return the type of one value, and whether there may be several."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (arg for arg in get_args(hint) if arg is not type(None))
    if get_origin(hint) is list:
        return get_args(hint)[0], True
    return hint, False


def value_type(hint: Any) -> Any:
    """Return the type of one value of a parameter, such as `Path` for ``list[Path] | None``."""
    return _single(hint)[0]


def choices_of(hint: Any) -> list[str]:
    """Return the values that a parameter accepts, if they are listed in its type."""
    kind = value_type(hint)
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    return []


def _value(parameter: Any, hint: Any) -> str:
    """Return the placeholder of a parameter's value; empty for a flag."""
    kind, several = _single(hint)
    if getattr(parameter, "is_flag", False):
        return ""
    placeholder = parameter.metavar
    if placeholder is None and choices_of(hint) and len(parameter.name) <= 8:
        placeholder = parameter.name.upper()
    if placeholder is None:
        placeholder = {Path: "FILE", int: "N", float: "X"}.get(kind, "NAME")
    if several and parameter.param_type_name == "argument":
        placeholder += "..."
    return str(placeholder)


def _entry(parameter: Any, hint: Any) -> tuple[str, str]:
    """Return the two columns of a parameter."""
    value = _value(parameter, hint)
    if parameter.param_type_name == "argument":
        return value, _description(parameter, hint)
    short = [name for name in parameter.opts if not name.startswith("--")]
    long = [name for name in parameter.opts if name.startswith("--")]
    names = ", ".join(short + long) if short else "    " + ", ".join(long)
    if parameter.secondary_opts:
        names += ", " + ", ".join(parameter.secondary_opts)
    return f"{names} {value}".rstrip(), _description(parameter, hint)


def _description(parameter: Any, hint: Any) -> str:
    text = _MARKUP.sub("", parameter.help or "").strip()
    choices = choices_of(hint)
    if choices and not all(re.search(rf"\b{re.escape(c)}\b", text) for c in choices):
        text += f" One of {', '.join(choices[:-1])} or {choices[-1]}."
    notes = []
    if parameter.required and parameter.param_type_name == "option":
        notes.append("required")
    default = getattr(parameter, "default", None)
    if default is not None and default is not False and not callable(default):
        value = default.value if isinstance(default, Enum) else default
        if value is True and parameter.secondary_opts:
            value = parameter.opts[0].removeprefix("--")
        if value is not True:
            notes.append(f"default: {value}")
    if getattr(parameter, "envvar", None):
        notes.append(f"or set {parameter.envvar}")
    return f"{text} [{'; '.join(notes)}]".replace(": ", ":\xa0") if notes else text


def _section(title: str, entries: Iterable[tuple[str, str]], width: int = 0) -> str:
    entries = list(entries)
    left = max([width, *(len(name) for name, _ in entries if len(name) <= _LEFT)])
    lines = [f"\x1b[1m{title}:\x1b[0m"]
    for name, text in entries:
        rest = list(_wrapped(text, left + 4))
        if len(name) > left:
            lines.append(f"  {name}")
        else:
            lines.append(f"  {name:<{left}}  {rest.pop(0) if rest else ''}".rstrip())
        lines += [" " * (left + 4) + line for line in rest]
    return "\n".join(lines)


def _usage(command: Any, context: Any) -> str:
    return " ".join([context.command_path, *command.collect_usage_pieces(context)])


def _paragraphs(text: str | None) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        yield "\n".join(_wrapped(_MARKUP.sub("", paragraph), 0))


def _first_sentence(text: str | None) -> str:
    first = " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())
    return _MARKUP.sub("", first)


def _wrapped(text: str, indent: int) -> list[str]:
    """Wrap text to the terminal, at most 100 columns, without breaking the names of options."""
    width = max(min(shutil.get_terminal_size().columns, 100) - indent, 24)
    words = re.sub(r"[ \n]+", " ", text)  # leaves no-break spaces as they are
    lines = textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]
