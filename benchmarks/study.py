"""The full study on shared scenes, for docs/study.md: its numbers, and figures without patches.

Then a smaller one, of kDIF alone, with scenes on both sides: how well it carries over.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from support.harness import arguments, report
from support.markdown import rates, table

from kdiffhash.study import run_study

FIGURES = Path(__file__).parent.parent / "docs" / "study"
KEPT = ("train", "test", "method", "title", "n_bits", "fnr_at_1e-3", "fpr95")


def run(out: Path, **options: list[str]) -> dict:
    run_study(out, **options)
    found = json.loads((out / "results.json").read_text())
    return {
        "rows": [{key: row[key] for key in KEPT} for row in found["rows"]],
        "claims": found["claims"],
    }


def study_tables(found: dict[str, Any]) -> str:
    claims = [[claim["claim"], claim["verdict"], claim["found"]] for claim in found["claims"]]
    parts = [table(["claim", "verdict", "what was found"], claims)]
    for test in dict.fromkeys(row["test"] for row in found["rows"]):
        rows: dict[str, dict[int, str]] = {}
        for row in found["rows"]:
            if row["test"] == test:
                cell = rates(row)
                rows.setdefault(row["title"], {})[row["n_bits"]] = cell
        lengths = [32, 64, 128, 256, 512, 1024]
        header = [f"tested on {test}", *[f"{n} bits" for n in lengths]]
        parts.append(
            table(header, [[t, *[c.get(n, "") for n in lengths]] for t, c in rows.items()])
        )
        case = f"herz-jesus-p25-to-{test}"
        parts.append(f"![ROC curves on {test}](study/roc-{case}.svg)")
        parts.append(f"![Error against size on {test}](study/size-{case}.svg)")
    parts.append("![Rates against alpha](study/alpha.svg)")
    return "\n\n".join(parts)


def across_tables(found: dict[str, Any]) -> str:
    rates = {
        (row["train"], row["test"], row["method"]): f"{100 * row['fnr_at_1e-3']:.1f}"
        for row in found["rows"]
        if row["n_bits"] in (512, 1024)
    }
    scenes = list(dict.fromkeys(train for train, _, _ in rates))
    rows = [[f"kDIF, learned on {a}", *[rates[a, b, "kdif"] for b in scenes]] for a in scenes]
    rows.append(["SIFT", *[rates[scenes[0], b, "sift"] for b in scenes]])
    claims = [
        [claim["claim"], claim["verdict"], claim["found"]]
        for claim in found["claims"]
        if claim["claim"].startswith(("what was learned", "it generalises", "for architecture"))
    ]
    matrix = table(["FNR % at 0.1 % FPR, 512 bits", *[f"on {scene}" for scene in scenes]], rows)
    return matrix + "\n\n" + table(["claim", "verdict", "what was found"], claims)


def tables(found: dict[str, Any]) -> dict[str, str]:
    return {"study": study_tables(found), "across": across_tables(found["across"])}


def main() -> None:
    options = arguments(__doc__, out="study-report")
    out = Path(options.out)
    found = run(out, train_scenes=["herz-jesus-p25"], test_scenes=["boruszyn", "castle-p30"])
    found["across"] = run(
        out / "across",
        train_scenes=["herz-jesus-p25", "castle-p30", "caliterra"],
        test_scenes=["herz-jesus-p25", "castle-p30", "caliterra"],
        methods=["sift", "kdif"],
    )
    report("study", found, options)
    if not options.no_save:
        FIGURES.mkdir(exist_ok=True)
        for path in (out / "figures").glob("*.svg"):
            if path.stem not in ("pair", "matches"):
                shutil.copy(path, FIGURES / path.name)


if __name__ == "__main__":
    main()
