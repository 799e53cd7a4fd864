"""The study on two other scenes, for docs/study-results.md.

The methods, trained on herz-jesus-p25 (architecture), tested on boruszyn (rural, a
development scene) and castle-p30 (architecture). Five seeds. `--out` keeps finished steps, so that
an interrupted run resumes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.harness import arguments, report
from support.study_tables import (
    budget_table,
    copy_figures,
    kept,
    rate_tables,
    settings_table,
    verdicts,
)

from kdiffhash.study import run_study
from kdiffhash.study.methods import METHODS

# Methods that the paper does not compare with; benchmarks/untouched.py measures them too.
LEFT_OUT = ("sdh", "ksh")


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {
        "study": verdicts(result, ""),
        "study-rates": "\n\n".join(rate_tables(result, "")),
        "study-settings": settings_table(result),
        "budgets": budget_table(),
    }


def main() -> None:
    options = arguments(__doc__, out="study-report")
    results = run_study(
        options.out,
        cases=[("herz-jesus-p25", "boruszyn"), ("herz-jesus-p25", "castle-p30")],
        methods=[name for name in METHODS if name not in LEFT_OUT],
        n_seeds=5,
    )
    report("study", kept(results, Path(options.out)), options)
    if not options.no_save:
        copy_figures(Path(options.out), "[!p]*.svg")


if __name__ == "__main__":
    main()
