"""The report: figures as files, and one self-contained page."""

from __future__ import annotations

import base64
import io
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from .._util.extras import need
from .._util.files import replacing
from ..evaluate.bootstrap import Interval
from .figures import make_figures, style_of
from .plan import describe
from .results import Results
from .train import budget_of
from .verdicts import Claim, Finding, count_verdicts

_PAGE = Path(__file__).parent / "page"


def write_report(results: Results, folder: Path) -> Path:
    """Write the figures and `index.html`, and return the path of the page."""
    figures = make_figures(results, folder / "figures")
    environment = need("jinja2", "study").Environment(
        loader=need("jinja2", "study").FileSystemLoader(_PAGE), autoescape=True
    )
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    page = environment.get_template("page.html").render(
        title="kdiffhash study",
        headline=headline(results),
        summary=summary(results),
        lengths=results.lengths,
        notes=results.notes,
        verdict_counts={
            "The paper's method": count_verdicts(results.extras["claims"]),
            "The recommended method": count_verdicts(results.extras["claims"], "recommended"),
        },
        claims=[claim_texts(claim) for claim in results.extras["claims"]],
        errors=results.errors,
        figures=[
            {
                "name": name,
                "alt": alt,
                "png": _data_uri((folder / f"figures/{name}.png").read_bytes(), "image/png"),
                "svg": _data_uri((folder / f"figures/{name}.svg").read_bytes(), "image/svg+xml"),
                "pdf": _data_uri((folder / f"figures/{name}.pdf").read_bytes(), "application/pdf"),
            }
            for name, alt in figures.items()
        ],
        figure_names=list(figures),
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
    """Return the result in two sentences: the paper's claims, then the most accurate codes."""
    claims: list[Claim] = results.extras["claims"]
    counts = count_verdicts(claims)
    verdicts = describe(
        [
            f"{number} {singular if number == 1 else plural}"
            for number, singular, plural in (
                (counts["holds"], "holds", "hold"),
                (counts["does not hold"], "does not hold", "do not hold"),
                (counts["undecided"], "is undecided", "are undecided"),
            )
        ]
    )
    n_left_out = counts.pop("not judged")
    text = (
        f"Of {sum(counts.values())} claims of the paper about its own method that this data can "
        f"test, {verdicts}."
    )
    if n_left_out:
        text += f" {n_left_out} more cannot be judged, because there are too few objects."
    train, test = results.cases[0]
    rows = [row for row in results.table() if (row["train"], row["test"]) == (train, test)]
    codes = [row for row in rows if results.measured[train, test, row["method"]]["is_code"]]
    if not codes:
        return text
    best = min(codes, key=lambda row: row["fnr_at_1e-3"])
    rates = [f"{best['title']}, {best['n_bits']} bits: {100 * best['fnr_at_1e-3']:.1f} %"]
    rates += [
        f"{row['title']}: {100 * row['fnr_at_1e-3']:.1f} %"
        for row in rows
        if row["method"] in ("sift", "rootsift")
    ]
    return f"{text} FNR at 0.1 % FPR on {test}, trained on {train}: {'; '.join(rates)}."


def claim_texts(claim: Claim) -> dict[str, Any]:
    """Return a claim as the page and the command line show it."""

    def column(findings: dict[str, Finding]) -> list[dict[str, Any]]:
        return [
            {
                "at": f"at {rate} FPR" if rate else "",
                "verdict": finding.verdict,
                "summary": finding.summary,
                "comparisons": finding.comparisons,
            }
            for rate, finding in findings.items()
        ]

    return {
        "claim": claim.claim,
        "section": claim.section,
        "quantity": claim.quantity,
        "figure": claim.figure,
        "is_ours": claim.is_ours,
        "columns": {
            "The paper's method": column(claim.paper),
            "The recommended method": column(claim.recommended),
        },
    }


def summary(results: Results) -> list[dict[str, Any]]:
    """Return a table per train-test case: one row per method, one cell per length.

    Methods without code lengths have one cell, under key 0.
    """
    tables: list[dict[str, Any]] = []
    for train, test in results.cases:
        methods: dict[str, dict[str, Any]] = {}
        best: dict[int, float] = {}
        for row in results.table():
            if (row["train"], row["test"]) != (train, test):
                continue
            is_code = bool(results.measured[train, test, row["method"]]["is_code"])
            empty = {"title": row["title"], "is_code": is_code, "cells": {}}
            fnr = Interval(*(row[f"fnr_at_1e-3{end}"] for end in ("", "_low", "_high")))
            cells = methods.setdefault(row["method"], empty)["cells"]
            cells[row["n_bits"] if is_code else 0] = {
                "fnr": fnr,
                "fpr95": row["fpr95"],
                "is_reliable": row["fnr_at_1e-3_reliable"],
            }
            if is_code:
                best[row["n_bits"]] = min(best.get(row["n_bits"], 1.0), fnr.value)
        tables.append({"train": train, "test": test, "rows": list(methods.values()), "best": best})
    return tables


def settings(results: Results) -> list[dict[str, str]]:
    """Return the chosen settings, their grid, training time and budget of each trained method."""
    out = []
    for (scene, name), by_seed in results.trained.items():
        trained = by_seed[0]
        grid = [
            f"{_settings_text(row['settings'])}: {100 * row['fnr_at_1e-3']:.1f}"
            for row in trained.choice["grid"]
        ]
        out.append(
            {
                "scene": scene,
                "title": results.methods[name].title,
                "chosen": _settings_text(trained.choice["settings"]) or "no choice",
                "budget": budget_of(results.methods[name], results.plan),
                "grid": ", ".join(grid),
                "seconds": f"{trained.seconds:.1f}",
            }
        )
    return out


def _settings_text(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} = {value:.3g}" if isinstance(value, float) else f"{key} = {value}"
        for key, value in values.items()
    )


def page_data(results: Results) -> dict[str, Any]:
    """Return the data that the page's script draws."""
    methods = {}
    for name, method in results.methods.items():
        style = style_of(name, list(results.methods))
        colours = {"light": style.colour, "dark": style.on_dark, "dash": style.dash}
        methods[name] = {"title": method.title, **colours}
    cases: dict[tuple[str, str], dict[str, Any]] = {
        case: {"train": case[0], "test": case[1], "curves": [], "sizes": []}
        for case in results.cases
    }
    for (train, test, name), arrays in results.measured.items():
        for i, n_bits in enumerate(arrays["n_bits"].tolist()):
            which = {"method": name, "bits": n_bits, "isCode": bool(arrays["is_code"])}
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
    """Return JSON that is safe inside a script element."""
    text = json.dumps(value, allow_nan=False).replace("<", "\\u003c")
    return need("markupsafe", "study").Markup(text)
