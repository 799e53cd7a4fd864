"""Run all attacks with a fixed seed; print and store a table; fail if any outcome is wrong.

python tests/soak/run.py [--scale 0.1] [--only index] [--seed 0] [--jobs 2] [--out FILE]

Each attack runs in a process of its own, large ones in several pieces, with a generator seeded by
the seed, the name of the attack and the number of the piece. A process that dies or says nothing
for too long counts as crashed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np
from common import ATTACKS, CRASHED, Attack, Tally

HERE = Path(__file__).parent
_LIMIT = 5400  # seconds within which a piece must end, also on a busy machine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of tries")
    parser.add_argument("--only", default="", help="run attacks whose name contains this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--out", type=Path, help="write the outcomes as JSON")
    parser.add_argument("--piece", type=int, help="run one piece in this process, print its tally")
    options = parser.parse_args()
    # A shell starts background jobs with Ctrl-C ignored, and attacked processes would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for path in sorted(HERE.glob("attack_*.py")):
        import_module(path.stem)
    if options.piece is not None:
        (chosen,) = (one for one in ATTACKS if one.name == options.only)
        print("\n" + json.dumps(run_piece(chosen, options.piece, options.seed, options.scale)))
        return 0
    return run_all(options)


def run_all(options: Any) -> int:
    """Run the pieces of all attacks, those that cannot be split first, and print the table."""
    chosen = [one for one in ATTACKS if options.only in one.name]
    print(f"seed {options.seed}, {len(chosen)} attacks", flush=True)
    if any(one.records for one in chosen):
        from power_loss import build_library

        build_library()
    pieces = [(one, number) for one in chosen for number in range(n_pieces(one, options.scale))]
    pieces.sort(key=lambda piece: piece[0].pieces)
    rows = {one.name: Tally(one.name) for one in chosen}
    seconds = dict.fromkeys(rows, 0.0)
    started = time.perf_counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(start_piece, *piece, options): piece for piece in pieces}
        for done, future in enumerate(as_completed(running), 1):
            (one, number), (tally, took) = running[future], future.result()
            rows[one.name].add(tally)
            seconds[one.name] += took
            line = f"{format_row(row_of(tally, took))} {took:6.1f} s, piece {number}"
            print(f"[{done}/{len(pieces)}] {line}", flush=True)
            for note in tally.notes:
                print(f"    {note}", flush=True)
    total = time.perf_counter() - started
    table = [row_of(tally, seconds[name]) for name, tally in rows.items()]
    print(f"\n{'attack':<56} {'tries':>8} {'refused':>8} {'right':>8} {'wrong':>6} {'crashed':>8}")
    for row in table:
        print(format_row(row))
    print(f"seed {options.seed}, {total / 60:.1f} minutes")
    if options.out:
        result = {"seed": options.seed, "scale": options.scale, "rows": table}
        result |= {"minutes": round(total / 60, 1)}
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    empty = [row["attack"] for row in table if not row["tries"]]
    if empty:
        print(f"without a single try: {', '.join(empty)}")
    return 1 if empty or sum(row["wrong"] + row["crashed"] for row in table) else 0


def n_pieces(one: Attack, scale: float) -> int:
    """Return the number of pieces of an attack, fewer if there are few tries."""
    return max(1, min(one.pieces, round(one.tries * scale) // 50))


def run_piece(one: Attack, number: int, seed: int, scale: float) -> dict[str, Any]:
    """Run one piece of an attack in this process and return its tally."""
    n = n_pieces(one, scale)
    tries = max(1, round(one.tries * scale))
    tries = tries * (number + 1) // n - tries * number // n
    name = np.frombuffer(one.name.encode(), np.uint8).astype(int).tolist()
    rng = np.random.default_rng([seed, number, *name])
    tally = Tally(one.name)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        one.run(rng, tries, Path(folder), tally)
    return asdict(tally)


def memory_folder() -> str | None:
    """Return a folder in memory, if there is room: syncing would take most of the time on a disk.

    Power losses are simulated, so they need none either.
    """
    folder = Path("/dev/shm")
    return str(folder) if folder.is_dir() and disk_usage(folder).free > 4 << 30 else None


def start_piece(one: Attack, number: int, options: Any) -> tuple[Tally, float]:
    """Run one piece in a process of its own; return its tally and the seconds that it took."""
    command = [sys.executable, __file__, "--only", one.name, "--piece", str(number)]
    command += ["--seed", str(options.seed), "--scale", str(options.scale)]
    env = dict(os.environ)
    if one.records:
        from power_loss import LIBRARY

        env["LD_PRELOAD"] = str(LIBRARY)
    started = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=env,
            timeout=_LIMIT, check=False, errors="replace",
        )  # fmt: skip
        if done.returncode == 0:
            tally = Tally(**json.loads(done.stdout.splitlines()[-1]))
            return tally, time.perf_counter() - started
        note = f"piece {number}: exit code {done.returncode}: {done.stderr[-3000:]}"
    except subprocess.TimeoutExpired:
        note = f"piece {number}: no end after {_LIMIT} s"
    tally = Tally(one.name)
    tally.count(CRASHED, note)
    return tally, time.perf_counter() - started


def row_of(tally: Tally, seconds: float) -> dict[str, Any]:
    """Return a row of the table."""
    return asdict(tally) | {"tries": tally.tries, "seconds": round(seconds, 1)}


def format_row(row: dict[str, Any]) -> str:
    """One line of the table."""
    return (
        f"{row['attack']:<56} {row['tries']:>8,} {row['refused']:>8,} {row['right']:>8,} "
        f"{row['wrong']:>6} {row['crashed']:>8}"
    )


if __name__ == "__main__":
    sys.exit(main())
