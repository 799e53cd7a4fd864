"""The full study on shared scenes, for docs/study.md: its numbers, and figures without patches.

Then a smaller one, of kDIF alone, with scenes on both sides: how well it carries over.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from common import arguments, report

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
