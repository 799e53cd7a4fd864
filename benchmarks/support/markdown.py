"""Markdown tables, and how their cells show numbers."""

from __future__ import annotations

from typing import Any


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine_note(found: dict[str, Any]) -> str:
    """Which machine a result is from; an older result names the instruction set with the CPU."""
    machine = found["machine"]
    cpu = ", ".join(filter(None, (machine["cpu"], machine.get("instructions"))))
    return f"Measured on {cpu}, {machine['cores']} cores, {machine['memory_gb']} GB"


def rates(row: dict[str, Any]) -> str:
    """FNR at 0.1 % FPR, in brackets FPR95, in percent."""
    return f"{100 * row['fnr_at_1e-3']:.1f} ({100 * row['fpr95']:.1f})"


def with_interval(value: float, low: float, high: float) -> str:
    """In percent."""
    return f"{100 * value:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def duration(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{0 if seconds >= 10 * size else 1}f} {unit}"
    return f"{1000 * seconds:.0f} ms"


def size(n_bytes: float) -> str:
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= one:
            return f"{n_bytes / one:.{0 if n_bytes >= 10 * one else 1}f} {unit}"
    return f"{n_bytes:.0f} B"
