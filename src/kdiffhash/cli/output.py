"""Print the results of commands: JSON for programs, lines and a table with units for people."""

from __future__ import annotations

import json
import re
import shutil
import sys
from typing import Any

from .._util.files import json_ready

_TITLES = {  # of values whose unit is printed with the number
    "seconds": "time",
    "bytes_on_disk": "size on disk",
    "bytes_before": "size before",
    "bytes": "size",
}
_IDS = {"id", "ids", "a", "b", "query", "representative", "format", "seed", "others"}
_NUMBER = re.compile(r"(-|[-+]?\d[\d,.e+-]*( [\w%µ/]+)?)(\n.*)?$")  # also with a unit, or unknown
_IN_ONE_LINE = 4  # values of a dictionary that are printed in one line
_NARROWEST = 24  # columns that a long text gets at least


def show(result: dict[str, Any], as_json: bool) -> None:
    """Print a result as JSON, or as one line per value followed by a table of its `rows`."""
    if as_json:
        print(json.dumps(json_ready(result), indent=2, allow_nan=False))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for name, value in result.items():
        if name == "rows":
            continue
        lines = [("", name, value)]
        if isinstance(value, dict) and len(value) > _IN_ONE_LINE:
            lines = [("", name, ""), *(("  ", key, item) for key, item in value.items())]
        for indent, key, item in lines:
            line = Text.assemble((f"{indent}{title(key)}:", "bold"), f" {text(item, key)}")
            console.print(line, highlight=False, soft_wrap=True)
    if result.get("rows"):
        _show_table(console, result["rows"])


def warn(message: str) -> None:
    """Print a warning on standard error, unless the command was started with `--quiet`."""
    from .app import verbosity

    if not verbosity["quiet"]:
        print(f"warning: {message}", file=sys.stderr)


def title(name: str) -> str:
    """Return the name of a value as words."""
    if name in _TITLES:
        return _TITLES[name]
    for suffix in ("_seconds", "_ms"):
        if name.endswith(suffix):
            name = name.removesuffix(suffix) + " time"
    return name.replace("_per_second", "").replace("_", " ")


def text(value: Any, name: str = "") -> str:
    """Return a value as text, with the unit that its name ends with."""
    if isinstance(value, dict):
        unit = name if name == "seconds" else ""
        items = ((title(key), text(item, unit or key)) for key, item in value.items())
        return ", ".join(f"{key} {item}" for key, item in items) or "none"
    if isinstance(value, list | tuple):
        if name.endswith("interval"):
            return " to ".join(text(item, name) for item in value)
        return ", ".join(text(item, name) for item in value) or "none"
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if name == "seconds" or name.endswith("_seconds"):
        return duration(float(value))
    if name.endswith("_ms"):
        return duration(float(value) / 1000)
    if name in ("bytes", "bytes_before", "bytes_on_disk"):
        return size(value)
    if name.endswith("_per_second"):
        return f"{value:,.0f}/s"
    if isinstance(value, float) and (abs(value) < 1000 or not abs(value) < 1e15):
        return f"{value:.4g}"
    whole = round(value)
    return str(whole) if name in _IDS or abs(whole) < 10_000 else f"{whole:,}"


def duration(seconds: float) -> str:
    """Return a time with its unit, for example ``13.7 ms`` or ``2 min 5 s``."""
    if seconds < 1e-3:
        return f"{1e6 * seconds:.3g} µs"
    if seconds < 0.9995:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 99.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def size(n_bytes: float) -> str:
    """Return a number of bytes with its unit, for example ``1.5 MB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.3g} {unit}" if unit != "bytes" else f"{n_bytes:.0f} bytes"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"


def _show_table(console: Any, rows: list[dict[str, Any]]) -> None:
    """Print rows as a table, or one below the other if the terminal is too narrow for it.

    Numbers are aligned at the right. Long texts, such as paths, are folded.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [{name: text(value, name) for name, value in row.items()} for row in rows]
    titles = {name: title(name) for name in rows[0]}
    width = console.width if console.is_terminal else _width_of_pipe()
    widest, needed = {}, {}
    for name, heading in titles.items():
        lines = [part for row in cells for part in row[name].split("\n")]
        head = max(map(len, heading.split("\n")))
        widest[name] = max(head, *map(len, lines))
        needed[name] = max(head, min(widest[name], _NARROWEST))
    gaps = 2 * len(titles)
    if sum(needed.values()) + gaps > width:
        _show_records(console, cells, titles)
        return
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    for name, heading in titles.items():
        is_number = all(_NUMBER.match(row[name]) for row in cells)
        table.add_column(
            heading,
            justify="right" if is_number else "left",
            no_wrap=needed[name] == widest[name],
            min_width=needed[name],
            overflow="fold",
        )
    for row in cells:
        table.add_row(*[Text(value) for value in row.values()])
    console.width = width
    console.print(table, crop=False)


def _width_of_pipe() -> int:
    """Return the width of tables in files and pipes: COLUMNS, or 80."""
    return shutil.get_terminal_size((80, 24)).columns


def _show_records(console: Any, cells: list[dict[str, str]], titles: dict[str, str]) -> None:
    """Print one line per value, and an empty line before each row."""
    flat = {name: heading.replace("\n", " ") for name, heading in titles.items()}
    left = max(map(len, flat.values()))
    for row in cells:
        console.print()
        for name, value in row.items():
            line = f"{flat[name]:<{left}}  {value}".replace("\n", " ")
            console.print(line, highlight=False, markup=False, soft_wrap=True)
