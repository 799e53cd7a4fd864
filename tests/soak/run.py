"""Run all attacks with a fixed seed; print and store a table; fail if any outcome is wrong.

python tests/soak/run.py [--scale 0.1] [--only index] [--seed 0] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import numpy as np
from common import ATTACKS, Tally

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of tries")
    parser.add_argument("--only", default="", help="run attacks whose name contains this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the outcomes as JSON")
    options = parser.parse_args()
    for path in sorted(HERE.glob("attack_*.py")):
        import_module(path.stem)
    chosen = [one for one in ATTACKS if options.only in one.name]
    print(f"seed {options.seed}, {len(chosen)} attacks", flush=True)
    rows = []
    for number, one in enumerate(chosen):
        tally = Tally(one.name)
        tries = max(1, round(one.tries * options.scale))
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            name = np.frombuffer(one.name.encode(), np.uint8).astype(int).tolist()
            rng = np.random.default_rng([options.seed, *name])
            one.run(rng, tries, Path(folder), tally)
        seconds = time.perf_counter() - started
        rows.append(asdict(tally) | {"tries": tally.tries, "seconds": round(seconds, 1)})
        print(f"[{number + 1}/{len(chosen)}] {format_row(rows[-1])}", flush=True)
        for note in tally.notes:
            print(f"    {note}", flush=True)
    print(f"\n{'attack':<50} {'tries':>8} {'refused':>8} {'right':>8} {'wrong':>6} {'crashed':>8}")
    for row in rows:
        print(format_row(row))
    bad = sum(row["wrong"] + row["crashed"] for row in rows)
    if options.out:
        result = {"seed": options.seed, "python": platform.python_version(), "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if bad else 0


def format_row(row: dict[str, object]) -> str:
    """One line of the table."""
    return (
        f"{row['attack']:<50} {row['tries']:>8,} {row['refused']:>8,} {row['right']:>8,} "
        f"{row['wrong']:>6} {row['crashed']:>8}"
    )


if __name__ == "__main__":
    sys.exit(main())
