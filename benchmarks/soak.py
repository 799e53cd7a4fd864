"""How many attacks does kdiffhash survive? Stores the outcomes of `tests/soak/run.py`.

python benchmarks/soak.py [--outcome build/soak.json]

Without an outcome the attacks are run first, which takes up to 30 minutes; `make soak` does both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.harness import arguments, report
from support.markdown import duration, machine_note, table

ROOT = Path(__file__).parents[1]
COUNTS = ("tries", "refused", "right", "wrong", "crashed")


def tables(result: dict[str, Any]) -> dict[str, str]:
    """Return the table of all attacks."""
    rows = sorted(result["rows"], key=lambda row: row["attack"])
    lines = [[row["attack"], *(f"{row[name]:,}" for name in COUNTS)] for row in rows]
    total = [f"**{sum(row[name] for row in rows):,}**" for name in COUNTS]
    scale = "" if result["scale"] == 1 else f" with {100 * result['scale']:g} % of the tries"
    note = (
        f"{machine_note(result)}: `make soak`{scale} with seed {result['seed']} took "
        f"{duration(60 * result['minutes'])}."
    )
    return {"soak": f"{table(['attack', *COUNTS], [*lines, ['**all**', *total]])}\n\n{note}"}


def main() -> None:
    options = arguments(__doc__, outcome="", seed=0)
    path = Path(options.outcome or ROOT / "build" / "soak.json")
    if not options.outcome:
        path.parent.mkdir(exist_ok=True)
        command = [sys.executable, str(ROOT / "tests" / "soak" / "run.py"), "--out", str(path)]
        done = subprocess.run([*command, "--seed", str(options.seed)], check=False)
        if done.returncode:
            sys.exit("not stored: an outcome is wrong or a crash, or an attack was not run")
    outcome = json.loads(path.read_text())
    for row in outcome["rows"]:
        row["notes"] = [note for note in row["notes"] if row["wrong"] + row["crashed"]]
    report("soak", outcome, options)


if __name__ == "__main__":
    main()
