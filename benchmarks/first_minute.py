"""Record the first minute: an empty environment, `pip install`, and the matches of two photographs.

    python benchmarks/first_minute.py --wheel dist/kdiffhash-*.whl

The photographs are two of herz-jesus-p8 in `KDIFFHASH_PHOTOS`, or `--a` and `--b`, at 1,600 pixels.
Writes `docs/first-minute.svg`, a picture of the terminal with the real output, and
`results/first_minute.json` with the time of each step. Packages come from pip's index or its cache.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from support.harness import arguments, report
from support.markdown import machine_note

ROOT = Path(__file__).parent.parent
SIZE = 1600  # pixels on the longer side


def run(command: str, folder: Path, environment: dict[str, str]) -> tuple[str, float]:
    """Run a line in a shell and return its output and its seconds."""
    start = time.perf_counter()
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stderr}")
    return done.stdout.rstrip(), time.perf_counter() - start


def resize(source: str, target: Path) -> None:
    """Write a photograph with 1,600 pixels on the longer side."""
    from PIL import Image  # optional, and not needed to write tables

    with Image.open(source) as image:
        scale = SIZE / max(image.size)
        size = [round(scale * side) for side in image.size]
        image.resize(size, Image.Resampling.LANCZOS).save(target, quality=92)


def tables(result: dict[str, Any]) -> dict[str, str]:
    install, first, *_, warm = (step["seconds"] for step in result["rows"])
    return {
        "first-minute": f"Installing took {install:.0f} s, with the other packages in pip's cache, "
        f"the first `match` {first:.1f} s and the third {warm:.1f} s, with photographs of {SIZE:,} "
        f"pixels. {machine_note(result)}. (`python benchmarks/first_minute.py`)"
    }


def main() -> None:
    photographs = Path(os.environ.get("KDIFFHASH_PHOTOS", "")) / "herz-jesus-p8"
    a, b = (str(photographs / name) for name in ("0003.jpg", "0004.jpg"))
    options = arguments(__doc__, wheel="", a=a, b=b)
    wheel = Path(options.wheel).resolve()
    steps = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / ".venv", with_pip=True)
        for photograph, target in ((options.a, "A.jpg"), (options.b, "B.jpg")):
            resize(photograph, folder / target)
        environment = {
            **os.environ,
            "PATH": f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}",
            "COLUMNS": "80",
        }
        environment.pop("PYTHONPATH", None)
        install = f"pip install --quiet --disable-pip-version-check '{wheel}[vision]'"
        for shown, command in (
            ("pip install 'kdiffhash[vision]'", install),
            *[("kdiffhash match A.jpg B.jpg -o matches.jpg",) * 2] * 3,  # the last one is warm
        ):
            output, seconds = run(command, folder, environment)
            steps.append({"command": shown, "output": output, "seconds": round(seconds, 2)})
    report("first_minute", {"rows": steps}, options)
    draw(steps[:2], ROOT / "docs" / "first-minute.svg")


def draw(steps: list[dict], target: Path) -> None:
    """Draw commands and their output as a terminal."""
    console = Console(record=True, width=84, file=io.StringIO(), force_terminal=True)
    for step in steps:
        console.print(Text.assemble(("$ ", "green"), (step["command"], "bold")))
        if step["output"]:
            console.print(Text(step["output"]))
        console.print(Text(f"# {step['seconds']:.1f} s", "dim"))
    svg = console.export_svg(title="the first minute", unique_id="first-minute")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # no fonts from the network
    target.write_text(re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE))


if __name__ == "__main__":
    main()
