"""Peak anonymous memory and time per row of encoding up to ten million memory-mapped rows."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
from support.harness import arguments, report
from support.memory import MemoryMonitor, anonymous_mb

from kdiffhash import KernelDiffHash


def table_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return the rows for the table that `encode.py` writes."""
    return [
        [
            f"encode {case['n']:,} memory-mapped descriptors",
            f"memory grows by {case['added_mb']:.0f} MB; codes take {case['codes_mb']:.0f} MB",
            f"{case['ns_per_vector'] / 1000:.2f} µs per descriptor",
        ]
        for case in result["cases"]
    ]


def main() -> None:
    options = arguments(__doc__, n=10_000_000)
    rng = np.random.default_rng(0)
    small = np.clip(rng.gamma(0.6, 40, (20_000, 128)), 0, 255).astype(np.uint8)
    hasher = KernelDiffHash(128, n_basis=256, preprocess="hellinger", random_state=0)
    hasher.fit(small, np.arange(20_000) // 4)
    cases = []
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        rows = np.lib.format.open_memmap(file.name, "w+", np.uint8, (options.n, 128))
        for start in range(0, options.n, len(small)):
            rows[start : start + len(small)] = np.roll(small, start // 999, axis=1)[
                : options.n - start
            ]
        rows.flush()
        del rows
        mapped = np.load(file.name, mmap_mode="r")
        hasher.transform(mapped[:1000])
        for n in (options.n // 100, options.n // 10, options.n):
            before, monitor = anonymous_mb(), MemoryMonitor()
            monitor.start()
            start = time.perf_counter()
            codes = hasher.transform(mapped[:n])
            seconds = time.perf_counter() - start
            monitor.done.set()
            monitor.join()
            cases.append(
                {
                    "n": n,
                    "added_mb": monitor.peak - before,
                    "codes_mb": codes.nbytes / 2**20,
                    "ns_per_vector": 1e9 * seconds / n,
                }
            )
            del codes
    report("encode_memory", {"n_basis": 256, "n_bits": 128, "cases": cases}, options)


if __name__ == "__main__":
    main()
