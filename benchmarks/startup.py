"""CPU seconds of a new process until its first result, and its peak memory.

Measured on a regular install of the wheel in a separate environment, because an editable install
looks for changed C++ files on every import. Photographs come from KDIFFHASH_PHOTOS.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.harness import arguments, log, report

ROOT = Path(__file__).parent.parent
TARGETS = {
    "import_s": 0.15,
    "info_s": 0.5,
    "first_search_s": 0.4,
    "first_transform_s": 1.2,
    "first_match_s": 2.5,
}
SEARCH = """
import numpy as np, kdiffhash
codes = np.random.default_rng(0).integers(0, 256, (10_000, 32), dtype=np.uint8)
kdiffhash.HammingIndex(codes).search(codes[:100], 10)
"""
TRANSFORM = """
import numpy as np, kdiffhash
rows = np.random.default_rng(0).integers(0, 256, (1000, 128), dtype=np.uint8)
kdiffhash.load_pretrained().transform(rows)
"""


def install(folder: Path) -> Path:
    """Install the wheel with its `vision` extra in a new environment; return its bin folder."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder]
    build += [f"-Cbuild-dir={folder / 'build'}", ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=True)
    bin_folder = folder / "env" / "bin"
    pip = [bin_folder / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"{wheel}[vision]"], check=True)
    return bin_folder


def cost(command: list[Any], repeats: int) -> tuple[float, float]:
    """Return the median CPU seconds (user and system) and peak memory in MB of a command."""
    seconds, memory = [], []
    for repeat in range(repeats + 1):
        pid = os.posix_spawn(
            command[0],
            [os.fspath(argument) for argument in command],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
        )
        _, status, used = os.wait4(pid, 0)
        if status:
            raise RuntimeError(f"{command} failed with status {status}")
        if repeat:  # the first run compiles Python files and fills the system's caches
            seconds.append(used.ru_utime + used.ru_stime)
            memory.append(used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10))
    return statistics.median(seconds), statistics.median(memory)


def main() -> None:
    options = arguments(__doc__, repeats=7)
    photos = sorted((Path(os.environ["KDIFFHASH_PHOTOS"]) / "herz-jesus-p8").rglob("*.jpg"))[:2]
    figures: dict[str, float] = {}
    with TemporaryDirectory() as folder:
        bin_folder = install(Path(folder))
        python, command = bin_folder / "python", bin_folder / "kdiffhash"

        def measure(name: str, *arguments: Any) -> float:
            log(name)
            seconds, figures["rss_mb"] = cost([*arguments], options.repeats)
            return seconds

        model = ROOT / "src" / "kdiffhash" / "hashers" / "models" / "sift.safetensors"
        numpy_only = measure("numpy", python, "-c", "import numpy")
        both = measure("import_s", python, "-c", "import numpy, kdiffhash")
        figures["import_s"] = both - numpy_only
        figures["info_s"] = measure("info_s", command, "info", model)
        match = [command, "match", *photos, "--size", "1600", "--jobs", "1"]
        figures["first_match_s"] = measure("first_match_s", *match)
        figures["first_transform_s"] = measure("first_transform_s", python, "-c", TRANSFORM)
        figures["first_search_s"] = measure("first_search_s", python, "-c", SEARCH)
    figures = {name: round(figures[name], 3) for name in (*TARGETS, "rss_mb")}
    rows = [{"figure": n, "measured": v, "target": TARGETS.get(n)} for n, v in figures.items()]
    report("startup", {"repeats": options.repeats, **figures, "rows": rows}, options)


if __name__ == "__main__":
    main()
