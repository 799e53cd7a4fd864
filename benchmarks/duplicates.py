"""Groups of near duplicates among up to ten million codes: time and peak anonymous memory.

Of the 64-bit codes, a tenth are equal, three tenths are copies of others with up to two bits
flipped, and the rest are random. Groups at radius 4 are compared with those that were planted: with
random codes, less than one accidental pair is expected. The index is a memory-mapped file.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from support.harness import arguments, log, report
from support.markdown import machine_note, table
from support.memory import MemoryMonitor, anonymous_mb

from kdiffhash import HammingIndex

RADIUS = 4


def planted(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return codes in random order, and the row of the original of each."""
    rng = np.random.default_rng(0)
    n_equal, n_copies = n // 10, 3 * n // 10
    n_originals = n - n_equal - n_copies
    codes = np.empty((n, 8), np.uint8)
    original = np.arange(n)
    codes[:n_originals] = np.frombuffer(rng.bytes(8 * n_originals), np.uint8).reshape(-1, 8)
    original[n_originals:-n_equal] = rng.integers(1, n_originals, n_copies)
    original[-n_equal:] = 0
    flips = np.uint64(1) << rng.integers(0, 64, (n_copies, 2)).astype(np.uint64)
    mask = np.bitwise_or.reduce(flips, axis=1).astype("<u8")
    codes[n_originals:] = codes[original[n_originals:]]
    codes[n_originals:-n_equal] ^= mask.view(np.uint8).reshape(-1, 8)
    order = rng.permutation(n)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    return codes[order], place[original[order]]


def measure(path: Path, method: str, original: np.ndarray, n_jobs: int) -> dict[str, Any]:
    """Time one search for groups, and compare the result with what was planted."""
    with HammingIndex.open(path) as index:
        before, monitor = anonymous_mb(), MemoryMonitor()
        monitor.start()
        start = time.perf_counter()
        groups = index.groups(RADIUS, method, n_jobs=n_jobs)
        seconds = time.perf_counter() - start
        monitor.done.set()
        monitor.join()
        n, kind = len(index), index.info()["ids"]
    rows, group = np.arange(n), groups.representative_rows
    together = float(np.mean(group == group[original]))
    case = {
        "n": n,
        "ids": kind,
        "method": method,
        "groups": len(groups),
        "planted": int(np.count_nonzero(np.bincount(original, minlength=n) > 1)),
        "with_original": together,
        "largest": int(np.bincount(groups.representative_rows).max()),
        "kept": int(np.count_nonzero(groups.representative_rows == rows)),
        "seconds": seconds,
        "peak_mb": monitor.peak - before,
        "bytes_per_code": 2**20 * (monitor.peak - before) / n,
        "threads": n_jobs,
    }
    log(case)
    return case


def groups_table(result: dict[str, Any]) -> str:
    rows = [
        [
            f"{case['n']:,}",
            case["ids"],
            case["method"],
            f"{case['groups']:,}",
            f"{case['largest']:,}",
            f"{case['seconds']:.0f} s",
            f"{case['peak_mb']:,.0f} MB",
        ]
        for case in result["cases"]
    ]
    header = ["codes", "ids", "method", "groups", "largest group", "time", "peak memory"]
    note = (
        "64-bit codes, radius 4, one thread. A tenth of the codes are equal, three tenths are "
        "copies with up to two bits flipped, the rest are random. Other programs used the same "
        "cores, so the times are upper bounds. Peak memory is without the "
        f"memory-mapped index file. {machine_note(result)}. (`python benchmarks/duplicates.py`)"
    )
    return f"{table(header, rows)}\n\n{note}"


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"groups": groups_table(result)}


def main() -> None:
    options = arguments(__doc__, n=10_000_000)
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for n in (options.n // 10, options.n):
            codes, original = planted(n)
            for kind in ("integers", "strings"):
                path = Path(folder, f"{n}-{kind}.index")
                with HammingIndex.open(path, "a", n_bits=64) as index:
                    for start in range(0, n, 2**20):
                        rows = range(start, min(start + 2**20, n))
                        names = [f"photos/{row:09d}.jpg" for row in rows]
                        index.add(codes[start : rows.stop], names if kind == "strings" else None)
            for kind, method in (
                ("integers", "connected"),
                ("integers", "greedy"),
                ("strings", "greedy"),
            ):
                cases.append(measure(Path(folder, f"{n}-{kind}.index"), method, original, 1))
    report("duplicates", {"radius": RADIUS, "n_bits": 64, "cases": cases}, options)


if __name__ == "__main__":
    main()
