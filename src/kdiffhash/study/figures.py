"""The paper's figures, as PNG and SVG.

Colours are told apart by people who see fewer of them; dashes and markers tell them apart in grey.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._util.extras import need

if TYPE_CHECKING:
    from .run import Results


class Style(NamedTuple):
    """How a method is drawn."""

    colour: str
    on_dark: str
    dash: str  # lengths of strokes and gaps, as in SVG
    marker: str


STYLES = {
    "sift": Style("#555555", "#bbbbbb", "6 4", "s"),
    "rootsift": Style("#555555", "#bbbbbb", "2 3", "D"),
    "dif-paper": Style("#56b4e9", "#8fd0f5", "5 3", "v"),
    "kdif-paper": Style("#e69f00", "#ffc04d", "5 3", "^"),
    "dif": Style("#0072b2", "#4aa8e0", "", "v"),
    "kdif": Style("#d55e00", "#ff8a3d", "", "o"),
    "lda": Style("#009e73", "#35c79c", "8 3 2 3", "<"),
    "kernel-lda": Style("#009e73", "#35c79c", "", "P"),
    "boosted": Style("#cc79a7", "#e8a3c8", "", "X"),
    "random": Style("#8c6d31", "#c9a75f", "2 2", "h"),
    "itq": Style("#8c6d31", "#c9a75f", "8 3 2 3", "*"),
    "refined": Style("#b2182b", "#ff6b6b", "", "d"),
    "sdh": Style("#7b5ea7", "#b39ddb", "5 3", "1"),
    "ksh": Style("#7b5ea7", "#b39ddb", "2 2", "2"),
}
_OWN = ("#000000", "#7f3c8d", "#11a579", "#3969ac", "#b8860b")


def style_of(name: str, names: list[str]) -> Style:
    """The style of a method; the user's own take turns."""
    if name in STYLES:
        return STYLES[name]
    own = [other for other in names if other not in STYLES]
    colour = _OWN[own.index(name) % len(_OWN)]
    return Style(colour, "#ffffff" if colour == "#000000" else colour, "1 2", "p")


def make_figures(results: Results, folder: Path) -> dict[str, str]:
    """Draw all figures that the results allow; their names and what they show."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted: dict[str, tuple[tuple[float, float], Callable[[Any], str]]] = {}
    gallery = results.extras.get("matches", {}).get("gallery")
    if gallery is not None:
        wanted["pair"] = (9, 4.2), partial(_pair, gallery["pair"])
    for case in results.cases:
        wanted["roc-{}-to-{}".format(*case)] = (8, 5), partial(_roc, results, *case)
        wanted["size-{}-to-{}".format(*case)] = (10, 4.6), partial(_size, results, *case)
    if gallery is not None:
        height = 3.1 * min(4, len(gallery["queries"]))
        wanted["matches"] = (7.5, height), partial(_matches, gallery)
    if "alpha" in results.extras:
        wanted["alpha"] = (9, 4), partial(_alpha, results.extras["alpha"])
    return {name: _save(folder / name, *figure) for name, figure in wanted.items()}


_LOOK = {"svg.hashsalt": "kdiffhash", "font.size": 10, "text.parse_math": False}


def _save(path: Path, size: tuple[float, float], draw: Callable[[Any], str]) -> str:
    with need("matplotlib", "study").rc_context(_LOOK):
        figure = need("matplotlib.figure", "study").Figure(figsize=size, layout="constrained")
        alt = draw(figure)
        figure.savefig(path.with_name(f"{path.name}.svg"), metadata={"Date": None})
        figure.savefig(path.with_name(f"{path.name}.png"), dpi=130)
    return alt


def _line(style: Style) -> dict[str, Any]:
    strokes = [float(number) / 1.5 for number in style.dash.split()]
    return {"color": style.colour, "linestyle": (0, strokes) if strokes else "-"}


def _plain_axes(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _roc(results: Results, train: str, test: str, figure: Any) -> str:
    axes = figure.subplots()
    drawn = [name for name in ("dif", "kdif") if (train, test, name) in results.measured]
    others = [name for name in results.methods if name not in ("sift", "rootsift")]
    for name in drawn or others:
        arrays = results.measured.get((train, test, name))
        if arrays is None:
            continue
        style, n = style_of(name, list(results.methods)), len(arrays["n_bits"])
        for i, n_bits in enumerate(arrays["n_bits"].tolist()):
            strength = 0.3 + 0.7 * (i + 1) / n
            axes.plot(
                arrays["fpr"][i],
                arrays["tpr"][i],
                **_line(style),
                alpha=strength,
                linewidth=0.7 + 1.6 * (i + 1) / n,
                marker=style.marker,
                markevery=(10 * i, 40),
                markersize=5,
                label=f"{results.methods[name].title}, {n_bits} bits",
            )
    for name in ("sift", "rootsift"):
        arrays = results.measured.get((train, test, name))
        if arrays is not None:
            style = STYLES[name]
            title = results.methods[name].title
            axes.plot(arrays["fpr"][0], arrays["tpr"][0], **_line(style), linewidth=2, label=title)
    axes.set(
        xscale="log",
        xlim=(1e-4, 1),
        ylim=(0, 1.01),
        xlabel="false-positive rate",
        ylabel="true-positive rate",
        title=f"learned on {train}, tested on {test}",
    )
    axes.xaxis.set_major_formatter("{x:g}")
    _plain_axes(axes)
    axes.legend(fontsize=8, frameon=False, loc="lower right", ncols=2)
    return (
        f"ROC curves of methods learned on {train} and tested on {test}: true-positive rate "
        "against false-positive rate on a logarithmic axis."
    )


def _size(results: Results, train: str, test: str, figure: Any) -> str:
    panels = figure.subplots(1, 2, sharey=False)
    rows = [row for row in results.table() if (row["train"], row["test"]) == (train, test)]
    looks = {"markersize": 5.5, "linewidth": 1.5, "elinewidth": 0.8}
    for axes, (rate, title) in zip(
        panels, (("fnr_at_1e-3", "at 0.1 % FPR"), ("fnr_at_1e-4", "at 0.01 % FPR"))
    ):
        columns = [rate, f"{rate}_low", f"{rate}_high"]
        for name, method in results.methods.items():
            mine = [row for row in rows if row["method"] == name]
            if not mine:
                continue
            style = style_of(name, list(results.methods))
            values = 100 * np.array([[row[column] for column in columns] for row in mine])
            axes.errorbar(
                [row["n_bits"] for row in mine],
                values[:, 0],
                np.abs(values[:, 1:] - values[:, :1]).T,
                **_line(style),
                **looks,
                marker=style.marker,
                label=method.title,
            )
        axes.set(xscale="log", xlabel="bits", ylabel="FNR, %", title=title)
        ticks = sorted({*results.plan.lengths, 1024})
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        _plain_axes(axes)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, loc="outside lower center", ncols=6)
    figure.suptitle(f"learned on {train}, tested on {test}", fontsize=10)
    return (
        f"False-negative rate against size in bits at 0.1 % and 0.01 % false positives, learned on "
        f"{train}, tested on {test}, with 95 % intervals."
    )


def _pair(pair: dict[str, Any], figure: Any) -> str:
    grid = figure.subplots(2, 4, width_ratios=[1, 1, 2.2, 2.2])
    for row, title in enumerate(("same point", "different points")):
        patches, panels = pair["patches"][2 * row : 2 * row + 2], grid[row]
        for axes, patch in zip(panels, patches):
            axes.imshow(patch, cmap="gray", vmin=0, vmax=255)
            axes.set_axis_off()
        panels[0].set_title(title, loc="left", fontsize=10)
        a, b = pair["descriptors"][2 * row : 2 * row + 2].astype(int)
        panels[2].bar(np.arange(len(a)), a, color="#0072b2", width=1)
        panels[2].bar(np.arange(len(b)), -b, color="#d55e00", width=1)
        panels[2].set_title(f"SIFT, distance {np.linalg.norm(a - b):.0f}", fontsize=10)
        panels[2].set_yticks([])
        bits = pair["bits"][2 * row : 2 * row + 2].astype(int)
        differ = bits[0] != bits[1]
        panels[3].imshow(1 - bits, cmap="gray", vmin=-0.3, vmax=1.3, aspect="auto")
        panels[3].plot(np.flatnonzero(differ), np.full(differ.sum(), 1.75), "^", color="#d55e00")
        panels[3].set(ylim=(2.1, -0.5), yticks=[0, 1], yticklabels=["left", "right"], xticks=[])
        panels[3].set_title(f"32-bit code, {int(differ.sum())} bits differ", fontsize=10)
        for axes in panels[2:]:
            axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    return "A pair of patches of one point and a pair of different points, their SIFT and codes."


def _matches(gallery: dict[str, Any], figure: Any) -> str:
    queries = gallery["queries"][:4]
    names = list(gallery["queries"][0]["matches"])
    shown = [names[0], next(name for name in names if "bits" in name)]
    grid = figure.subplots(2 * len(queries), 6)
    for i, query in enumerate(queries):
        for j, name in enumerate(shown):
            row = grid[2 * i + j]
            _patch(row[0], gallery["patches"][query["row"]], name, "#888888")
            for axes, match in zip(row[1:], query["matches"][name]):
                right = match["right"]
                sign, colour = ("✓", "#009e73") if right else ("✗", "#d55e00")
                label = f"{sign} {match['distance']:.0f}"
                _patch(axes, gallery["patches"][match["row"]], label, colour)
    return (
        "Queries and their first five matches, by SIFT and by codes in turn: right ones in green "
        "with a tick, wrong ones in red with a cross, distances below."
    )


def _patch(axes: Any, pixels: Any, label: str, colour: str) -> None:
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255)
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(label, fontsize=8, color=colour, labelpad=2)
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=2.5)


def _alpha(sweep: dict[str, Any], figure: Any) -> str:
    panels = figure.subplots(1, 2)
    position = np.arange(len(sweep["alphas"]))
    looks = {
        "cross": {"color": "#0072b2", "linestyle": "--", "marker": "v"},
        "difference": {"color": "#d55e00", "linestyle": "-", "marker": "o"},
    }
    for axes, (rate, title) in zip(
        panels, (("fnr_at_1e-3", "FNR at 0.1 % FPR, %"), ("fpr95", "FPR95, %"))
    ):
        for form, rates in sweep["forms"].items():
            values = 100 * np.array(rates[rate])
            axes.plot(position, values, **looks[form], label=f"{form} moments")
        labels = ["∞" if text == "inf" else f"{float(text):g}" for text in sweep["alphas"]]
        axes.set_xticks(position, labels)
        axes.set(xlabel="alpha", ylabel=title)
        _plain_axes(axes)
    panels[0].legend(frameon=False)
    figure.suptitle(f"kDIF, {sweep['n_bits']} bits", fontsize=10)
    return (
        "FNR at 0.1 % false positives and FPR95 of kDIF against alpha, for both kinds of moments."
    )
