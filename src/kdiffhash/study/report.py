"""The report: figures as files, and one page that needs nothing else."""

from __future__ import annotations

import base64
import io
import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from .._util.extras import need
from .._util.files import replacing
from ..evaluate.bootstrap import Interval
from .figures import make_figures, style_of
from .plan import describe

if TYPE_CHECKING:
    from .run import Results

_PAGE = Path(__file__).parent / "page"


def write_report(results: Results, folder: Path) -> Path:
    """Write the figures and `index.html`; the path of the page."""
    figures = make_figures(results, folder / "figures")
    environment = need("jinja2", "study").Environment(
        loader=need("jinja2", "study").FileSystemLoader(_PAGE), autoescape=True
    )
    page = environment.get_template("page.html").render(
        title="kdiffhash study",
        headline=headline(results),
        summary=summary(results),
        lengths=results.lengths,
        claims=results.extras["claims"],
        errors=results.errors,
        figures=[
            {
                "name": name,
                "alt": alt,
                "png": _data_uri((folder / f"figures/{name}.png").read_bytes(), "image/png"),
                "svg": _data_uri((folder / f"figures/{name}.svg").read_bytes(), "image/svg+xml"),
            }
            for name, alt in figures.items()
        ],
        data=_as_script(page_data(results)),
        css=(_PAGE / "page.css").read_text(),
        js=(_PAGE / "page.js").read_text(),
        command=results.command,
        settings=settings(results),
        versions=f"kdiffhash {__version__}, Python {platform.python_version()}",
        csv=_data_uri((folder / "results.csv").read_bytes(), "text/csv"),
        json_file=_data_uri((folder / "results.json").read_bytes(), "application/json"),
    )
    target = folder / "index.html"
    with replacing(target) as temporary:
        temporary.write_text(page)
    return target


def headline(results: Results) -> str:
    """What was found, in a sentence or two."""
    train, test = results.cases[0]
    rows = [row for row in results.table() if (row["train"], row["test"]) == (train, test)]
    codes = [row for row in rows if results.measured[train, test, row["method"]]["is_code"]]
    if not codes:
        return f"Methods compared on {test}."
    best = min(codes, key=lambda row: row["fnr_at_1e-3"])
    text = (
        f"At 0.1 % false positives, {best['title']} with {best['n_bits']} bits misses "
        f"{100 * best['fnr_at_1e-3']:.1f} % of the matching pairs of {test}"
    )
    for row in rows:
        if row["method"] == "sift":
            rate = 100 * row["fnr_at_1e-3"]
            text += f"; SIFT, with {row['n_bits']} bits, misses {rate:.1f} %"
    verdicts = [claim["verdict"] for claim in results.extras["claims"]]
    counts = [
        f"{verdicts.count(verdict)} {words}"
        for verdict, words in (
            ("holds", "of the paper's claims hold"),
            ("does not hold", "do not"),
            ("not decided by this data", "are not decided by this data"),
        )
        if verdict in verdicts
    ]
    return f"{text}. {describe(counts)}."


def summary(results: Results) -> list[dict[str, Any]]:
    """For each train-test pair: a row a method, a cell a length; key 0 for what is no code."""
    parts: list[dict[str, Any]] = []
    for train, test in results.cases:
        methods: dict[str, dict[str, Any]] = {}
        best: dict[int, float] = {}
        for row in results.table():
            if (row["train"], row["test"]) != (train, test):
                continue
            learned = bool(results.measured[train, test, row["method"]]["is_code"])
            empty = {"title": row["title"], "learned": learned, "cells": {}}
            fnr = Interval(*(row[f"fnr_at_1e-3{end}"] for end in ("", "_low", "_high")))
            cells = methods.setdefault(row["method"], empty)["cells"]
            cells[row["n_bits"] if learned else 0] = {"fnr": fnr, "fpr95": row["fpr95"]}
            if learned:
                best[row["n_bits"]] = min(best.get(row["n_bits"], 1.0), fnr.value)
        part = {"train": train, "test": test, "rows": list(methods.values()), "best": best}
        parts.append(part)
    return parts


def settings(results: Results) -> list[dict[str, str]]:
    """What was chosen from which grid, for each trained method."""
    out = []
    for (scene, name), trained in results.trained.items():
        grid = [
            f"{_settings_text(row['settings'])}: {100 * row['fnr_at_1e-3']:.1f}"
            for row in trained.choice["grid"]
        ]
        out.append(
            {
                "scene": scene,
                "title": results.methods[name].title,
                "chosen": _settings_text(trained.choice["settings"]) or "nothing to choose",
                "grid": ", ".join(grid),
                "seconds": f"{trained.seconds:.1f}",
            }
        )
    return out


def _settings_text(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def page_data(results: Results) -> dict[str, Any]:
    """What the page's script draws."""
    methods = {}
    for name, method in results.methods.items():
        style = style_of(name, list(results.methods))
        look = {"light": style.colour, "dark": style.on_dark, "dash": style.dash}
        methods[name] = {"title": method.title, **look}
    cases: dict[tuple[str, str], dict[str, Any]] = {
        case: {"train": case[0], "test": case[1], "curves": [], "sizes": []}
        for case in results.cases
    }
    for (train, test, name), arrays in results.measured.items():
        for i, n_bits in enumerate(arrays["n_bits"].tolist()):
            which = {"method": name, "bits": n_bits, "learned": bool(arrays["is_code"])}
            curve = {**which, "tpr": np.round(arrays["tpr"][i], 4).tolist()}
            rates = [round(float(value), 5) for value in arrays["values"][i]]
            bounds = np.quantile(arrays["samples"][:, i], [0.025, 0.975], axis=0)
            low, high = np.round(bounds, 5).tolist()
            cases[train, test]["curves"].append(curve)
            cases[train, test]["sizes"].append({**which, "rates": rates, "low": low, "high": high})
    fpr = next(iter(results.measured.values()))["fpr"][0]
    return {
        "methods": methods,
        "lengths": results.lengths,
        "fpr": [float(f"{value:.4g}") for value in fpr],
        "cases": list(cases.values()),
        "gallery": _gallery(results),
    }


def _gallery(results: Results) -> dict[str, Any] | None:
    gallery = results.extras.get("matches", {}).get("gallery")
    if gallery is None:
        return None
    images = {}
    for row, patch in gallery["patches"].items():
        out = io.BytesIO()
        need("PIL.Image", "study").fromarray(patch).save(out, "JPEG", quality=80)
        images[row] = _data_uri(out.getvalue(), "image/jpeg")
    return {"images": images, "queries": gallery["queries"]}


def _data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _as_script(value: Any) -> Any:
    """JSON that can stand inside a script element."""
    text = json.dumps(value, allow_nan=False).replace("<", "\\u003c")
    return need("markupsafe", "study").Markup(text)
