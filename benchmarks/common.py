"""What the benchmarks share: options, timing side by side, the machine, the result file."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def arguments(description: str | None, **options: Any) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--no-save", action="store_true", help="do not write benchmarks/results")
    for name, default in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser.parse_args()


def machine() -> dict[str, Any]:
    import os

    name = platform.processor() or platform.machine()
    memory = None
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((s.split(":")[1].strip() for s in lines if s.startswith("model name")), name)
        flags = next((s for s in lines if s.startswith("flags")), "")
        name += ", AVX-512" if "avx512f" in flags else ", AVX2" if "avx2" in flags else ""
        total = Path("/proc/meminfo").read_text().split("\n")[0].split()[1]
        memory = round(int(total) / 2**20, 1)
    return {"cpu": name, "cores": os.cpu_count(), "memory_gb": memory}


def interleaved(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each function; they take turns, so that noise hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: sorted(values)[len(values) // 2] for name, values in times.items()}


def say(*what: Any) -> None:
    """Tell how far it is; standard output is for the result."""
    print(*what, file=sys.stderr, flush=True)


def rows_before(
    name: str, keep: Callable[[dict[str, Any]], bool], key: str = "rows"
) -> list[dict[str, Any]]:
    """Rows of the last result of a benchmark that are not measured again."""
    return list(filter(keep, json.loads((RESULTS / f"{name}.json").read_text())[key]))


def report(name: str, result: dict[str, Any], options: argparse.Namespace) -> None:
    result = {"benchmark": name, "machine": machine(), **result}
    if not options.no_save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{name} on {result['machine']['cpu']}")
    for row in next(value for key, value in result.items() if key in ("cases", "rows")):
        print("  " + "  ".join(f"{key}={_short(value)}" for key, value in row.items()))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
