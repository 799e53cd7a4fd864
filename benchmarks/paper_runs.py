"""The paper's own runs, as far as they can be run here, for docs/study.md.

Tested on notredame-2007 (labels recovered); trained on its other blocks, on nature (caliterra) and
on other architecture (herz-jesus-p25). Five seeds. `--out` keeps finished steps, so that an
interrupted run resumes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.harness import arguments, report
from support.study_tables import (
    comparison_table,
    copy_figures,
    kept,
    rate_tables,
    settings_table,
    verdicts,
)

from kdiffhash.study import run_paper_study


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {
        "paper-run": verdicts(result, "paper-"),
        "paper-run-comparisons": comparison_table(result, "kDIF outperforms DIF", "paper"),
        "paper-run-rates": "\n\n".join(rate_tables(result, "paper-")),
        "paper-run-settings": settings_table(result),
    }


def main() -> None:
    options = arguments(__doc__, out="paper-report")
    results = run_paper_study(options.out, "notredame-2007")
    report("paper_runs", kept(results, Path(options.out)), options)
    if not options.no_save:
        copy_figures(Path(options.out), "paper-*.svg")
        copy_figures(Path(options.out), "alpha.svg", "paper-")


if __name__ == "__main__":
    main()
