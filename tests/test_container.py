"""The Dockerfile on the page of installation: its steps in an empty environment."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import venv
from pathlib import Path

import pytest
from test_readme import write_files

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "install.md").read_text()


def _steps() -> dict[str, str]:
    (dockerfile,) = re.findall(r"```dockerfile\n(.*?)```", PAGE, flags=re.DOTALL)
    return dict(line.split(" ", 1) for line in dockerfile.splitlines())


def test_dockerfile_has_five_lines():
    assert list(_steps()) == ["FROM", "COPY", "RUN", "ENV", "ENTRYPOINT"]


@pytest.mark.slow
@pytest.mark.network
def test_steps_of_the_dockerfile_work_in_an_empty_environment(tmp_path):
    """All but those of apt-get, which would change the machine; there is a compiler already."""
    steps = _steps()
    assert steps["COPY"] == ". /src"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs a checkout, to copy the files in it")
    for name in filter(os.path.exists, (ROOT / line for line in listed.stdout.splitlines())):
        target = tmp_path / "src" / name.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, target)
    venv.create(tmp_path / "env", with_pip=True)
    bin_folder = tmp_path / "env" / "bin"
    (install,) = (step for step in steps["RUN"].split(" && ") if step.startswith("pip "))
    command = install.replace("/src", str(tmp_path / "src"))
    env = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    env["SKBUILD_CMAKE_DEFINE"] = "OPTIMISE=-O0"  # compiles faster
    subprocess.run(command, shell=True, check=True, env=env)

    (line,) = re.findall(r"docker run .* kdiffhash (match .*)", PAGE)
    name, _, cache = steps["ENV"].partition("=")
    env = {"PATH": str(bin_folder), name: str(tmp_path / cache.strip("/"))}
    data = tmp_path / "data"
    data.mkdir()
    write_files(data)
    program = [str(bin_folder / word) for word in json.loads(steps["ENTRYPOINT"])]
    subprocess.run([*program, *shlex.split(line)], cwd=data, check=True, env=env)
    assert (data / "matches.jpg").read_bytes()[:2] == b"\xff\xd8"
