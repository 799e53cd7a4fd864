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
from ..extras import need
from ..files import replacing
from .figures import Style, make_figures, style_of
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
        figures=[_embed(name, alt, folder) for name, alt in figures.items()],
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
    best: tuple[float, int, str] | None = None
    for name, method in results.methods.items():
        for n_bits in results.lengths:
            found = results.rate(train, test, name, n_bits, "fnr_at_1e-3")
            if found and method.is_learned and (best is None or found[0] < best[0]):
                best = found[0], n_bits, method.title
    sift = results.rate(train, test, "sift", None, "fnr_at_1e-3")
    if best is None:
        return f"Methods compared on {test}."
    text = (
        f"At 0.1 % false positives, {best[2]} with {best[1]} bits misses {100 * best[0]:.1f} % of "
        f"the matching pairs of {test}"
    )
    if sift is not None:
        size = results.measured[train, test, "sift"]["n_bits"][-1]
        text += f"; SIFT, with {size} bits, misses {100 * sift[0]:.1f} %"
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
    """For each train-test pair: a row a method, a cell a length."""
    parts = []
    for train, test in results.cases:
        rows: list[dict[str, Any]] = []
        best: dict[int, float] = {}
        for name, method in results.methods.items():
            cells: dict[int, Any] = {}
            arrays = results.measured.get((train, test, name))
            if arrays is None:
                continue
            is_code = bool(arrays["is_code"])
            for n_bits in arrays["n_bits"].tolist():
                fnr = results.interval(train, test, name, n_bits, "fnr_at_1e-3")
                fpr95 = results.rate(train, test, name, n_bits, "fpr95")
                if fnr is not None and fpr95 is not None:
                    key = n_bits if is_code else 0
                    cells[key] = {"fnr": fnr, "fpr95": fpr95[0]}
                    if key:
                        best[key] = min(best.get(key, 1.0), fnr.value)
            if cells:
                rows.append({"title": method.title, "learned": is_code, "cells": cells})
        parts.append({"train": train, "test": test, "rows": rows, "best": best})
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
    methods = {
        name: {"title": method.title, **_style(style_of(name, list(results.methods)))}
        for name, method in results.methods.items()
    }
    cases = []
    for train, test in results.cases:
        curves, sizes = [], []
        for (a, b, name), arrays in results.measured.items():
            if (a, b) != (train, test):
                continue
            for i, n_bits in enumerate(arrays["n_bits"].tolist()):
                learned = bool(arrays["is_code"])
                curves.append(
                    {
                        "method": name,
                        "bits": n_bits,
                        "learned": learned,
                        "tpr": np.round(arrays["tpr"][i], 4).tolist(),
                    }
                )
                rates = [round(float(value), 5) for value in arrays["values"][i]]
                low, high = np.quantile(arrays["samples"][:, i], [0.025, 0.975], axis=0)
                sizes.append(
                    {
                        "method": name,
                        "bits": n_bits,
                        "learned": learned,
                        "rates": rates,
                        "low": np.round(low, 5).tolist(),
                        "high": np.round(high, 5).tolist(),
                    }
                )
        fpr = next(iter(results.measured.values()))["fpr"][0]
        cases.append({"train": train, "test": test, "curves": curves, "sizes": sizes})
    return {
        "methods": methods,
        "lengths": results.lengths,
        "fpr": [float(f"{value:.4g}") for value in fpr],
        "cases": cases,
        "gallery": _gallery(results),
    }


def _gallery(results: Results) -> dict[str, Any] | None:
    gallery = results.extras.get("matches", {}).get("gallery")
    if gallery is None:
        return None
    image_module = need("PIL.Image", "study")
    images = {}
    for row, patch in gallery["patches"].items():
        out = io.BytesIO()
        image_module.fromarray(patch).save(out, "JPEG", quality=80)
        images[row] = _data_uri(out.getvalue(), "image/jpeg")
    return {"images": images, "queries": gallery["queries"]}


def _style(style: Style) -> dict[str, str]:
    return {"light": style.colour, "dark": style.on_dark, "dash": style.dash}


def _embed(name: str, alt: str, folder: Path) -> dict[str, str]:
    path = folder / "figures" / name
    png = _data_uri(path.with_name(f"{name}.png").read_bytes(), "image/png")
    svg = _data_uri(path.with_name(f"{name}.svg").read_bytes(), "image/svg+xml")
    return {"name": name, "alt": alt, "png": png, "svg": svg}


def _data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _as_script(value: Any) -> Any:
    """JSON that can stand inside a script element."""
    text = json.dumps(value, allow_nan=False).replace("<", "\\u003c")
    return need("markupsafe", "study").Markup(text)
