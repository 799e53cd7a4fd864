"""The commands on the pages exist with these options, and those of the README run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

from kdiffhash.cli.commands import app
from kdiffhash.cli.study_command import repeat_options as repeated_options

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = {  # commands of the README that are only parsed, and why
    "data fetch": "downloads",
    "data build": "needs photographs of one object, and minutes",
    "study": "takes minutes; tests/study runs it on small scenes",
    "colmap match": "needs a database; tests/vision runs it",
    "train views-train": "takes a minute; tests/study trains on it",
}


def commands_of(page: Path) -> list[list[str]]:
    """Return the words of all kdiffhash commands in the shell blocks of a page."""
    found = []
    for block in re.findall(r"```(?:sh|console)\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            while words and ("=" in words[0] and not words[0].startswith("-")):
                words = words[1:]  # an environment variable
            if words[:1] == ["kdiffhash"]:
                found.append(words[1:])
    return found


COMMANDS = [
    pytest.param(words, id=f"{page.name}: {' '.join(words)}"[:90])
    for page in PAGES
    for words in commands_of(page)
]


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_on_pages_have_the_options_they_show(words, monkeypatch):
    words = repeated_options([word for word in words if word not in ("...", "…")])
    monkeypatch.setenv("KDIFFHASH_PG_DSN", "postgresql://nobody@127.0.0.1:9/x")
    monkeypatch.setenv("KDIFFHASH_SQLITE", "codes.db")
    command = typer.main.get_command(app)
    context = command.context_class(command, info_name="kdiffhash")
    if words[:1] in (["--version"], ["--install-completion"]):
        return
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"there is no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    if "-h" not in words:
        command.make_context("kdiffhash", list(words), parent=context)  # raises if it is wrong


def test_commands_are_found():
    assert len(COMMANDS) > 60
    assert len(commands_of(ROOT / "README.md")) >= 10


@pytest.mark.slow
def test_commands_of_the_readme_run(tmp_path):
    program = shlex.split(os.environ.get("KDIFFHASH_PROGRAM", ""))
    program = program or [sys.executable, "-m", "kdiffhash"]
    run_commands_of_the_readme(tmp_path, program, dict(os.environ))


def run_commands_of_the_readme(folder: Path, program: list[str], variables: dict[str, str]) -> None:
    """Run them in the order of the README, in one folder, on files with the names that it uses."""
    write_files(folder)
    environment = {**variables, "KDIFFHASH_CACHE": str(folder / "cache"), "COLUMNS": "80"}
    n_run = 0
    for words in commands_of(ROOT / "README.md"):
        if any(" ".join(words).startswith(skipped) for skipped in NOT_RUN):
            continue
        done = subprocess.run(
            [*program, *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stderr}"
        assert max(map(len, done.stdout.splitlines()), default=0) <= 120, done.stdout
        n_run += 1
    assert n_run >= 6


def write_files(folder: Path) -> None:
    """Write rows with labels, codes, and photographs of one scene under the names on the page."""
    from PIL import Image

    rng = np.random.default_rng(0)
    centres = rng.normal(size=(300, 16))
    for name, start in (("rows", 0), ("test", 150)):
        labels = np.repeat(np.arange(start, start + 150), 6)
        rows = centres[labels] + 0.2 * rng.normal(size=(len(labels), 16))
        np.save(folder / f"{name}.npy", rows.astype(np.float32))
        np.save(folder / ("labels.npy" if name == "rows" else "test-labels.npy"), labels)
    small = rng.integers(0, 256, (60, 80), dtype=np.uint8)
    large = Image.fromarray(small).resize((800, 600), Image.Resampling.BICUBIC)
    (folder / "FOLDER").mkdir()
    for name, box in (("A", (0, 0, 700, 600)), ("B", (60, 20, 800, 600))):
        for target in (f"{name}.jpg", f"FOLDER/{name}.jpg"):
            large.crop(box).save(folder / target)
    large.crop((30, 0, 760, 600)).save(folder / "QUERY.jpg")
