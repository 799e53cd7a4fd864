"""Markdown tables, and the formatting of numbers in their cells."""

from __future__ import annotations

from typing import Any


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine_note(result: dict[str, Any]) -> str:
    """Describe the machine of a result; older results name the instruction set with the CPU."""
    machine = result["machine"]
    name = machine["cpu"].replace("(R)", "").replace("(TM)", "")
    cpu = ", ".join(filter(None, (name, machine.get("instructions"))))
    return f"Measured on {cpu}, {machine['cores']} cores, {machine['memory_gb']} GB"


def rates(row: dict[str, Any]) -> str:
    """Format FNR at 0.1 % FPR, with FPR95 in brackets, in percent."""
    return f"{100 * row['fnr_at_1e-3']:.1f} ({100 * row['fpr95']:.1f})"


def with_interval(value: float, low: float, high: float) -> str:
    """Format a rate and its confidence interval in percent."""
    return f"{100 * value:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def duration(seconds: float) -> str:
    """Format a duration in the unit that suits it."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{0 if seconds >= 10 * size else 1}f} {unit}"
    return f"{1000 * seconds:.0f} ms"


def size(n_bytes: float) -> str:
    """Format a number of bytes in the unit that suits it."""
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= one:
            return f"{n_bytes / one:.{0 if n_bytes >= 10 * one else 1}f} {unit}"
    return f"{n_bytes:.0f} B"
