"""Print the results of commands as JSON or as a table."""

from __future__ import annotations

import json
from typing import Any

from .._util.files import json_ready

_LONG = 30  # longest text that is not folded in a table


def show(result: dict[str, Any], as_json: bool) -> None:
    """Print a result as JSON, or as one line per value followed by a table of its `rows`."""
    if as_json:
        print(json.dumps(json_ready(result), indent=2, allow_nan=False))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    rows = result.get("rows")
    for name, value in result.items():
        if name != "rows":
            line = f"[bold]{name.replace('_', ' ')}[/]: {escape(_text(value))}"
            console.print(line, highlight=False, soft_wrap=True)
    if rows:
        # Long texts, such as paths, are folded; all other columns keep their width.
        table, width = Table(header_style="bold"), 1
        for column in rows[0]:
            header = column.replace("_", " ")
            longest = max(len(header), *(len(_text(row[column])) for row in rows))
            is_long = longest > _LONG
            table.add_column(header, no_wrap=not is_long, overflow="fold")
            width += 3 + (_LONG if is_long else longest)
        for row in rows:
            table.add_row(*[escape(_text(value)) for value in row.values()])
        console.width = max(console.width, width)
        console.print(table, crop=False)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " to ".join(_text(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={_text(item)}" for key, item in value.items())
    return "-" if value is None else str(value)
