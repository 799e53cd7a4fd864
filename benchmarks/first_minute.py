"""Record the first minute: an empty environment, `pip install`, and the matches of two photographs.

    python benchmarks/first_minute.py --wheel dist/kdiffhash-*.whl --a A.jpg --b B.jpg

Writes `docs/first-minute.svg`, a picture of the terminal with the real output, and
`results/first_minute.json` with the time of each step.
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

from rich.console import Console
from rich.text import Text
from support.harness import arguments, report

ROOT = Path(__file__).parent.parent


def run(command: str, folder: Path, environment: dict[str, str]) -> tuple[str, float]:
    """Run a line in a shell and return its output and its seconds."""
    start = time.perf_counter()
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stderr}")
    return done.stdout.rstrip(), time.perf_counter() - start


def main() -> None:
    options = arguments(__doc__, wheel="", a="", b="")
    wheel, *photographs = (Path(path).resolve() for path in (options.wheel, options.a, options.b))
    steps = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / ".venv", with_pip=True)
        for target, photograph in zip("AB", photographs):
            (folder / f"{target}.jpg").symlink_to(photograph)
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
    draw([steps[0], steps[-1]], ROOT / "docs" / "first-minute.svg")


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
