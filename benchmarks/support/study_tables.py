"""Tables of a study: verdicts in two columns, comparisons, rates, training data and settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from kdiffhash import Interval
from kdiffhash.study.methods import METHODS
from kdiffhash.study.plan import Plan
from kdiffhash.study.report import headline
from kdiffhash.study.results import Results
from kdiffhash.study.train import budget_of
from kdiffhash.study.verdicts import in_words

from .markdown import table

FIGURES = Path(__file__).parents[2] / "docs" / "study"
KEPT = ("train", "test", "method", "title", "n_bits", "fnr_at_1e-3", "fnr_at_1e-4", "fpr95")
BITS = (32, 64, 128, 256, 512)
COLUMNS = {"paper": "the paper's method", "recommended": "the recommended method"}


def kept(results: Results, out: Path) -> dict[str, Any]:
    """Return the parts of a study that the pages show."""
    found = json.loads((out / "results.json").read_text())
    rows = []
    for row in results.table():
        arrays = results.measured[row["train"], row["test"], row["method"]]
        reliable = {f"{rate}_reliable": row[f"{rate}_reliable"] for rate in KEPT[5:7]}
        is_code = bool(arrays["is_code"])
        rows.append({**{key: row[key] for key in KEPT}, **reliable, "is_code": is_code})
    chosen = {
        key: value["settings"] for key, value in found["settings"].items() if value["settings"]
    }
    return {
        "headline": headline(results),
        "notes": results.notes,
        "rows": rows,
        "claims": found["claims"],
        "first_matches": found["first_matches"],
        "chosen": chosen,
        "errors": results.errors,
    }


def claims_table(found: dict[str, Any], is_ours: bool, figures: str) -> str:
    """Return the two columns of verdicts, one row per claim, with a link to its figure."""
    lines = []
    for claim in found["claims"]:
        if claim["is_ours"] != is_ours:
            continue
        cells = []
        for column in COLUMNS:
            texts = []
            for fpr, finding in claim[column].items():
                at = f" at {fpr} FPR" if fpr else ""
                texts.append(f"**{finding['verdict']}**{at}: {finding['summary']}")
            cells.append("<br>".join(texts))
        quantity = claim["quantity"][:1].upper() + claim["quantity"][1:]
        words = f"{claim['claim']} ({claim['section']}). {quantity}."
        figure = f"{figures}{claim['figure']}.svg"
        if (FIGURES / figure).is_file():
            words += f" [Figure](study/{figure})"
        lines.append([words, *cells])
    return table(["claim", *COLUMNS.values()], lines)


def comparison_table(found: dict[str, Any], start: str, column: str) -> str:
    """Return all comparisons of one claim at 0.1 % FPR."""
    (claim,) = (claim for claim in found["claims"] if claim["claim"].startswith(start))
    lines = []
    for one in claim[column]["0.1 %"]["comparisons"]:
        bounds = in_words(Interval(one["value"], one["low"], one["high"]))
        p = "-" if one["p_value"] is None else f"{one['p_value']:.3f}".replace("0.000", "< 0.001")
        lines.append([one["where"], bounds, p, one["verdict"]])
    return table(["case", claim["quantity"], "p, corrected", "verdict"], lines)


def rate_tables(found: dict[str, Any], figures: str) -> list[str]:
    """Return a table of rates and the figures for each train-test case."""
    parts = []
    for train, test in dict.fromkeys((row["train"], row["test"]) for row in found["rows"]):
        cells: dict[str, dict[int, str]] = {}
        for row in found["rows"]:
            if (row["train"], row["test"]) == (train, test):
                marks = ["" if row[f"{rate}_reliable"] else "†" for rate in KEPT[5:7]]
                text = f"{100 * row['fnr_at_1e-3']:.1f}{marks[0]} "
                text += f"({100 * row['fnr_at_1e-4']:.1f}{marks[1]})"
                cells.setdefault(row["title"], {})[row["n_bits"] if row["is_code"] else 0] = text
        header = [f"{train} → {test}", "floats", *(f"{n} bits" for n in BITS)]
        rows = [[title, *(by.get(n, "") for n in (0, *BITS))] for title, by in cells.items()]
        parts.append(table(header, rows))
        case = f"{train}-to-{test}"
        parts.append(f"![ROC curves, {train} to {test}](study/{figures}roc-{case}.svg)")
        parts.append(f"![FNR against size, {train} to {test}](study/{figures}size-{case}.svg)")
    return parts


def verdicts(found: dict[str, Any], figures: str) -> str:
    """Return the headline, notes, the paper's claims and our own rules.

    Names of figures start with `figures`.
    """
    parts = [
        found["headline"],
        " ".join(found["notes"]),
        claims_table(found, False, figures),
        "Our own rules, outside the count:",
        claims_table(found, True, figures),
    ]
    return "\n\n".join(filter(None, parts))


def budget_table() -> str:
    """Return what each method is trained on, the most frequent budget first."""
    plan, titles = Plan((), (), ()), dict[str, list[str]]()
    for method in METHODS.values():
        if method.is_learned:
            titles.setdefault(budget_of(method, plan), []).append(method.title)
    rows = [[budget, "; ".join(names)] for budget, names in titles.items()]
    return table(["trained on", "methods"], rows)


def settings_table(found: dict[str, Any]) -> str:
    rows = [
        [name, ", ".join(f"{key} = {value}" for key, value in chosen.items())]
        for name, chosen in found["chosen"].items()
    ]
    return table(["method and training scene", "chosen"], rows)


def copy_figures(folder: Path, pattern: str, prefix: str = "") -> None:
    """Copy figures without patches, which are not ours to publish, to the documentation."""
    FIGURES.mkdir(exist_ok=True)
    for path in (folder / "figures").glob(pattern):
        if path.stem not in ("pair", "matches"):
            shutil.copy(path, FIGURES / f"{prefix}{path.name}")
