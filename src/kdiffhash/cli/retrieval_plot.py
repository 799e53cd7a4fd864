"""A plot of the share of the floats' quality that codes keep, by length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._util.extras import need
from .._util.files import replacing
from .matplotlib_folder import matplotlib_folder

KEPT = {
    "recall_at_10": "recall@10",
    "ndcg_at_10": "nDCG@10",
}  # measures whose kept share is computed
FORMATS: dict[str, dict[str, Any]] = {
    ".svg": {"metadata": {"Date": None}},
    ".png": {"dpi": 130},
    ".pdf": {"metadata": {"CreationDate": None}},
}
# Colours that colour-blind readers can distinguish, and markers for print in grey.
_STYLES = {
    "bits": ("#0072b2", "o", "-"),
    "bits, float query": ("#d55e00", "s", "-"),
    "sign bits": ("#555555", "D", ""),
}


def draw_kept(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the kept share of each measure against bytes per code, with confidence intervals."""
    with matplotlib_folder(), need("matplotlib", "study").rc_context({"svg.hashsalt": "kdiffhash"}):
        figure = need("matplotlib.figure", "study").Figure(figsize=(9, 4), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(KEPT), sharey=True), KEPT):
            _draw(axes, rows, f"kept_{name}")
            axes.set_title(f"{KEPT[name]}, share of the floats'")
        figure.axes[0].legend(loc="lower right")
        with replacing(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:], **FORMATS[path.suffix])


def _draw(axes: Any, rows: list[dict[str, Any]], measure: str) -> None:
    for name, (colour, marker, line) in _STYLES.items():
        chosen = [row for row in rows if row["method"] == name and measure in row]
        if not chosen:
            continue
        values = [row[measure] for row in chosen]
        bounds = [row.get(f"{measure}_interval", [row[measure]] * 2) for row in chosen]
        below = [max(0.0, value - low) for value, (low, _) in zip(values, bounds)]
        above = [max(0.0, high - value) for value, (_, high) in zip(values, bounds)]
        axes.errorbar(
            [row["bits"] / 8 for row in chosen],
            values,
            yerr=[below, above],
            color=colour,
            marker=marker,
            linestyle=line or "none",
            capsize=3,
            label=name,
        )
    axes.axhline(1, color="#999999", linewidth=1, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({row["bits"] / 8 for row in rows if row["method"] != "floats"}))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlabel("bytes per code")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#dddddd", linewidth=0.6)
