"""Time and memory of matching two photographs with many features.

Each size is measured in a fresh process: the peak of the resident memory while matching, minus that
before, which is what matching takes beside the codes of both photographs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from support.harness import arguments, log, report
from support.markdown import duration, machine_note, table

from kdiffhash import match_codes
from kdiffhash.vision.photo_matching import RATIO

SIZES, LENGTHS, THREADS = (8_000, 30_000, 100_000), (256, 512), 2


def resident(kind: str) -> int:
    """Return the resident memory of this process in bytes: now (VmRSS) or its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(kind))
    return 1024 * int(line.split()[1])


def measure(n: int, n_bits: int) -> dict[str, Any]:
    """Match two photographs of n features, half of which match with a fifth of bits flipped."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, (n, n_bits // 8), dtype=np.uint8) for _ in range(2))
    noise = np.packbits(rng.random((n // 2, n_bits), np.float32) < 0.2, axis=1)
    b[: n // 2] = a[: n // 2] ^ noise
    del noise
    match_codes(a[:500], b[:500], ratio=RATIO, n_jobs=THREADS)  # warm up
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, start = resident("VmRSS"), time.perf_counter()
    matches = match_codes(a, b, ratio=RATIO, n_jobs=THREADS)
    seconds = time.perf_counter() - start
    return {
        "features": n,
        "n_bits": n_bits,
        "seconds": seconds,
        "bytes": resident("VmHWM") - before,
        "code_bytes": a.nbytes + b.nbytes,
        "matches": len(matches.pairs),
    }


def tables(result: dict[str, Any]) -> dict[str, str]:
    rows = [
        [
            f"{row['features']:,}",
            str(row["n_bits"]),
            duration(row["seconds"]),
            f"{row['bytes'] / 1e6:.0f} MB",
            f"{row['code_bytes'] / 1e6:.1f} MB",
        ]
        for row in result["rows"]
    ]
    header = ["features per photograph", "bits", "time", "memory beside the codes", "codes of both"]
    note = (
        f"One pair of photographs with the two-way test, on {THREADS} threads; random codes, half "
        f"of which have a match. {machine_note(result)}. (`python benchmarks/match_memory.py`)"
    )
    return {"match-memory": note + "\n\n" + table(header, rows)}


def main() -> None:
    options = arguments(__doc__, only="")
    if options.only:
        print(json.dumps(measure(*map(int, options.only.split("x")))))
        return
    rows = []
    for n in SIZES:
        for n_bits in LENGTHS:
            command = [sys.executable, __file__, "--only", f"{n}x{n_bits}"]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rows.append(json.loads(done.stdout))
            log(rows[-1])
    report("match_memory", {"rows": rows}, options)


if __name__ == "__main__":
    main()
