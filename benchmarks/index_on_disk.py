"""Time and anonymous memory of building, opening and searching 100 million codes on disk."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from support.harness import arguments, log, report
from support.markdown import machine_note, table
from support.memory import MemoryMonitor, anonymous_mb

from kdiffhash import HammingIndex

BATCH = 1_000_000


def disk_table(result: dict[str, Any]) -> str:
    rows = [
        [row["step"], f"{row['seconds']:.3g} s", f"{row['added_mb']:.0f} MB"]
        for row in result["rows"]
    ]
    note = (
        f"{result['n']:,} codes of {result['n_bits']} bits, {result['bytes'] / 1e9:.2f} GB. "
        f"{machine_note(result)}. (`python benchmarks/index_on_disk.py`)"
    )
    return note + "\n\n" + table(["step", "time", "additional anonymous memory"], rows)


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"disk": disk_table(result)}


def main() -> None:
    options = arguments(__doc__, n=100_000_000, n_bits=128)
    rng = np.random.default_rng(0)
    folder = Path(tempfile.mkdtemp())
    size = options.n * options.n_bits // 8
    if shutil.disk_usage(folder).free < 1.2 * size:
        shutil.rmtree(folder)
        raise SystemExit(
            f"{folder} has less than {1.2 * size / 2**30:.1f} GB free; set TMPDIR to a larger disk"
        )
    width = options.n_bits // 8
    queries = np.frombuffer(rng.bytes(100 * width), np.uint8).reshape(100, width)
    HammingIndex(queries).search(queries, 10)  # warm up
    HammingIndex(queries).search(queries[:1], 10)
    before, monitor, path = anonymous_mb(), MemoryMonitor(), folder / "codes.index"
    rows = []

    def timed(step, function):
        monitor.peak = 0.0
        start = time.perf_counter()
        result = function()
        seconds = time.perf_counter() - start
        time.sleep(0.05)
        added = max(monitor.peak, anonymous_mb()) - before
        rows.append({"step": step, "seconds": seconds, "added_mb": added})
        log(rows[-1])
        return result

    def build() -> None:
        with HammingIndex.open(path, "a", n_bits=options.n_bits) as index:
            for start in range(0, options.n, BATCH):
                n = min(BATCH, options.n - start)
                index.add(np.frombuffer(rng.bytes(n * width), np.uint8).reshape(n, width))

    try:
        monitor.start()
        timed("build", build)
        index = timed("open", lambda: HammingIndex.open(path))
        timed("search, 1 query", lambda: index.search(queries[:1], 10))
        timed("search, 1 query again", lambda: index.search(queries[:1], 10))
        timed("search, 100 queries", lambda: index.search(queries, 10))
        timed("verify", lambda: HammingIndex.verify(path))
        n, nbytes = len(index), path.stat().st_size
    finally:
        monitor.done.set()
        shutil.rmtree(folder)
    report(
        "index_on_disk", {"n": n, "n_bits": options.n_bits, "bytes": nbytes, "rows": rows}, options
    )


if __name__ == "__main__":
    main()
