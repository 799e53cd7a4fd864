"""Figures of a study, as PNG, SVG and PDF.

Figures named `paper-*` have the axes, line styles and colours of the paper. In all others colours
can be distinguished by colour-blind readers, and dashes and markers distinguish lines in grey.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._util.extras import need
from .._util.files import replacing
from .results import Results


class Style(NamedTuple):
    """Colours, dashes and marker of a method."""

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
    "metric": Style("#555555", "#bbbbbb", "8 3 2 3", "p"),
    "lda-paper": Style("#009e73", "#35c79c", "2 2", ">"),
    "boosted-paper": Style("#cc79a7", "#e8a3c8", "5 3", "x"),
    "pca": Style("#a6761d", "#d9b26f", "5 3", "+"),
    "spectral": Style("#a6761d", "#d9b26f", "2 2", "3"),
    "sklsh": Style("#666666", "#aaaaaa", "1 2", "4"),
    "klsh": Style("#666666", "#aaaaaa", "4 2", "H"),
    "pq": Style("#1b7837", "#7fbf7b", "", "8"),
}
_OWN = ("#000000", "#7f3c8d", "#11a579", "#3969ac", "#b8860b")


def style_of(name: str, names: list[str]) -> Style:
    """Return the style of a method; a user's own methods cycle through a list of colours."""
    if name in STYLES:
        return STYLES[name]
    own = [other for other in names if other not in STYLES]
    colour = _OWN[own.index(name) % len(_OWN)]
    return Style(colour, "#ffffff" if colour == "#000000" else colour, "1 2", "p")


def make_figures(results: Results, folder: Path) -> dict[str, str]:
    """Draw all figures that the results allow and return their names with alternative texts."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted: dict[str, tuple[tuple[float, float], Callable[[Any], str]]] = {}
    gallery = results.extras.get("matches", {}).get("gallery")
    if gallery is not None:
        scene = gallery["scene"]
        shown = scene + _labels(results, scene.removesuffix("-sheets"))
        if "pair" in gallery:
            wanted["pair"] = (8, 5.8), partial(_pair, gallery["pair"], shown)
    for case in results.cases:
        if all((*case, name) in results.measured for name in _PAPER_LINES):
            wanted["paper-roc-{}-to-{}".format(*case)] = (8, 5), partial(_paper_roc, results, *case)
            wanted["paper-size-{}-to-{}".format(*case)] = (
                (9, 4),
                partial(_paper_size, results, *case),
            )
        wanted["roc-{}-to-{}".format(*case)] = (8, 5), partial(_roc, results, *case)
        wanted["size-{}-to-{}".format(*case)] = (10, 4.6), partial(_size, results, *case)
    if gallery is not None:
        height = 0.3 + 3.1 * min(4, len(gallery["queries"]))
        wanted["matches"] = (7.5, height), partial(_matches, gallery, shown)
    if "alpha" in results.extras:
        wanted["alpha"] = (9, 4), partial(_alpha, results.extras["alpha"])
    return {name: _save(folder / name, *figure) for name, figure in wanted.items()}


_LOOK = {"svg.hashsalt": "kdiffhash", "font.size": 10, "text.parse_math": False}
_FORMATS: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None}},
    "pdf": {"metadata": {"CreationDate": None}},
    "png": {"dpi": 130},
}


def _save(path: Path, size: tuple[float, float], draw: Callable[[Any], str]) -> str:
    with need("matplotlib", "study").rc_context(_LOOK):
        figure = need("matplotlib.figure", "study").Figure(figsize=size, layout="constrained")
        alt = draw(figure)
        for kind, options in _FORMATS.items():
            with replacing(path.with_name(f"{path.name}.{kind}")) as temporary:
                figure.savefig(temporary, format=kind, **options)
    return alt


def _line(style: Style) -> dict[str, Any]:
    strokes = [float(number) / 1.5 for number in style.dash.split()]
    return {"color": style.colour, "linestyle": (0, strokes) if strokes else "-"}


def _plain_axes(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _case(results: Results, train: str, test: str, words: str) -> str:
    """Return the title of a figure; it says if the labels of the test scene are recovered."""
    return words.format(train, test) + _labels(results, test)


def _labels(results: Results, test: str) -> str:
    recovered = any(note.startswith(f"{test}: labels recovered") for note in results.notes)
    return " (labels recovered)" if recovered else ""


# Line styles of the paper's figures.
_PAPER_LINES: dict[str, dict[str, Any]] = {
    "sift": {"color": "black", "linestyle": "--"},
    "dif-paper": {"color": "red", "linestyle": "-."},
    "kdif-paper": {"color": "blue", "linestyle": "-"},
}
_PAPER_TITLES = {"sift": "SIFT", "dif-paper": "DIF", "kdif-paper": "kDIF"}


def _paper_roc(results: Results, train: str, test: str, figure: Any) -> str:
    """Figures 2 and 3 of the paper: one curve per length, the length written at its end."""
    axes = figure.subplots()
    for name, line in _PAPER_LINES.items():
        arrays = results.measured[train, test, name]
        for i, n_bits in enumerate(arrays["n_bits"].tolist()):
            label = _PAPER_TITLES[name] if i == 0 else None
            axes.plot(arrays["fpr"][i], arrays["tpr"][i], **line, linewidth=1.2, label=label)
            if arrays["is_code"]:
                at = int(np.searchsorted(arrays["fpr"][i], 1.5e-4 * (2.2 if "k" in name else 1)))
                place = (arrays["fpr"][i][at], arrays["tpr"][i][at])
                box = {"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8}
                words = {"fontsize": 7, "color": line["color"], "ha": "center", "bbox": box}
                axes.annotate(str(n_bits), place, **words, va="center")
    title = _case(results, train, test, "{}\u2013{}")
    axes.set(xscale="log", xlim=(1e-4, 1), xlabel="FPR", ylabel="TPR", title=title)
    lowest = min(
        results.measured[train, test, name]["tpr"][0][0 if name == "sift" else 40]
        for name in _PAPER_LINES
    )
    axes.set_ylim(max(0.0, float(np.floor(10 * lowest) / 10)), 1.005)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False, loc="lower right")
    return (
        f"The paper's ROC figure, trained on {train}, tested on {test}: SIFT dashed black, DIF "
        "dash-dotted red, kDIF solid blue, one curve per code length."
    )


def _paper_size(results: Results, train: str, test: str, figure: Any) -> str:
    """Figure 4 of the paper: FNR at 0.1 % and 0.01 % FPR against the size of the descriptor."""
    panels = figure.subplots(1, 2)
    for axes, (rate, title) in zip(
        panels, (("fnr_at_1e-3", "0.1 % FPR"), ("fnr_at_1e-4", "0.01 % FPR"))
    ):
        for name, line in _PAPER_LINES.items():
            rows = [
                (
                    row["n_bits"],
                    100 * row[rate],
                    100 * row[f"{rate}_low"],
                    100 * row[f"{rate}_high"],
                )
                for row in results.table()
                if (row["train"], row["test"], row["method"]) == (train, test, name)
            ]
            bits, value, low, high = np.array(rows).T
            errors = [value - low, high - value]
            if len(rows) == 1:
                axes.axhline(value[0], **line, linewidth=0.8)
            axes.errorbar(
                bits, value, errors, **line, marker="o", ms=4, capsize=2, label=_PAPER_TITLES[name]
            )
        ticks = sorted({*results.plan.lengths, 1024})
        axes.set(xscale="log", xlabel="descriptor size, bits", ylabel="FNR, %", title=f"at {title}")
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.grid(True, color="#dddddd", linewidth=0.6)
    panels[0].legend(frameon=False)
    figure.suptitle(_case(results, train, test, "{}\u2013{}"), fontsize=10)
    return (
        f"The paper's figure of FNR against descriptor size, trained on {train}, tested on {test}, "
        "with 95 % confidence intervals."
    )


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
        xlabel="false positive rate",
        ylabel="true positive rate",
        title=_case(results, train, test, "trained on {}, tested on {}"),
    )
    axes.xaxis.set_major_formatter("{x:g}")
    _plain_axes(axes)
    axes.legend(fontsize=8, frameon=False, loc="lower right", ncols=2)
    return (
        f"ROC curves of methods trained on {train} and tested on {test}: true positive rate "
        "against false positive rate on a logarithmic axis."
    )


def _size(results: Results, train: str, test: str, figure: Any) -> str:
    panels = figure.subplots(1, 2, sharey=False)
    rows = [row for row in results.table() if (row["train"], row["test"]) == (train, test)]
    line_options = {"markersize": 5.5, "linewidth": 1.5, "elinewidth": 0.8}
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
                **line_options,
                marker=style.marker,
                label=method.title,
            )
        axes.set(xscale="log", xlabel="bits", ylabel="FNR, %", title=title)
        ticks = sorted({*results.plan.lengths, 1024, *(row["n_bits"] for row in rows)})
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        _plain_axes(axes)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, loc="outside lower center", ncols=6)
    figure.suptitle(_case(results, train, test, "trained on {}, tested on {}"), fontsize=10)
    return (
        f"False negative rate against size in bits at 0.1 % and 0.01 % false positives, trained on "
        f"{train}, tested on {test}, with 95 % intervals."
    )


def _pair(pair: dict[str, Any], title: str, figure: Any) -> str:
    """Figure 1 of the paper: patches, SIFT, and 32-bit codes; columns query, positive, negative."""
    figure.suptitle(title, fontsize=10)
    grid = figure.subplots(3, 3, height_ratios=[2, 1.2, 0.5])
    rows, bits = pair["descriptors"].astype(int), pair["bits"].astype(int)
    for i, role in enumerate(("query", "matching patch", "non-matching patch")):
        patch, sift, code = grid[:, i]
        patch.imshow(pair["patches"][i], cmap="gray", vmin=0, vmax=255)
        patch.set_title(role, fontsize=10)
        sift.bar(np.arange(rows.shape[1]), rows[i], color="#0072b2", width=1)
        code.imshow(1 - bits[i : i + 1], cmap="gray", vmin=-0.3, vmax=1.3, aspect="auto")
        if i:
            sift.set_xlabel(f"SIFT, distance {np.linalg.norm(rows[i] - rows[0]):.0f}", fontsize=9)
            code.set_xlabel(
                f"code, {int((bits[i] != bits[0]).sum())} of 32 bits differ", fontsize=9
            )
        else:
            sift.set_xlabel("SIFT", fontsize=9)
            code.set_xlabel("32-bit code", fontsize=9)
        for axes in (patch, sift, code):
            axes.set(xticks=[], yticks=[])
            axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    return (
        "A query patch, a matching and a non-matching patch, their SIFT descriptors and the first "
        "32 bits of their codes."
    )


def _matches(gallery: dict[str, Any], title: str, figure: Any) -> str:
    figure.suptitle(title, fontsize=10)
    queries = gallery["queries"][:4]
    names = list(gallery["queries"][0]["matches"])
    shown = [names[0], next(name for name in names if "bits" in name)]
    grid = figure.subplots(2 * len(queries), 6)
    for i, query in enumerate(queries):
        for j, name in enumerate(shown):
            row = grid[2 * i + j]
            label = name.replace(", ", "\n")
            _patch(row[0], gallery["patches"][query["row"]], label, "#555555")
            for axes, match in zip(row[1:], query["matches"][name]):
                sign, colour = ("✓", "#009e73") if match["correct"] else ("✗", "#d55e00")
                label = f"{sign} {match['distance']:.0f}"
                _patch(axes, gallery["patches"][match["row"]], label, colour)
    return (
        "Queries and their first five matches, alternately by SIFT and by codes: correct ones in "
        "green with a tick, wrong ones in red with a cross, with their distances."
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
    lines = {
        "paper": {"color": "#0072b2", "linestyle": "--", "marker": "v", "label": "paper's setting"},
        "recommended": {
            "color": "#d55e00",
            "linestyle": "-",
            "marker": "o",
            "label": "recommended setting",
        },
    }
    for axes, (rate, title) in zip(
        panels, (("fnr_at_1e-3", "FNR at 0.1 % FPR, %"), ("fpr95", "FPR95, %"))
    ):
        for name, rates in sweep["settings"].items():
            axes.plot(position, 100 * np.array(rates[rate]), **lines[name])
        labels = ["∞" if text == "inf" else f"{float(text):g}" for text in sweep["alphas"]]
        axes.set_xticks(position, labels)
        axes.set(xlabel="alpha", ylabel=title)
        _plain_axes(axes)
    panels[0].legend(frameon=False)
    figure.suptitle(f"kDIF, {sweep['n_bits']} bits", fontsize=10)
    return "FNR at 0.1 % FPR and FPR95 of kDIF against alpha, in both settings."
