"""Fixtures shared by several tests, and the locations of real scenes and photographs."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from kdiffhash import cli

SLOW = {"built", "small_study"}  # fixtures
NETWORK = {"browser", "cluster", "dsn", "server"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests whose fixtures are slow or open sockets."""
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        for name, fixtures in (("slow", SLOW), ("network", NETWORK)):
            if used & fixtures:
                item.add_marker(name)


@pytest.fixture(scope="session")
def scenes() -> Path:
    """Folder of scenes; tests are skipped without it."""
    return _folder_from("KDIFFHASH_SCENES", "scenes")


@pytest.fixture(scope="session")
def photos() -> Path:
    """Folder of photographs; tests are skipped without it."""
    return _folder_from("KDIFFHASH_PHOTOS", "photographs")


def _folder_from(variable: str, content: str) -> Path:
    root = os.environ.get(variable)
    if not root or not Path(root).is_dir():
        pytest.skip(f"{variable} is not set to a folder of {content}")
    return Path(root)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory, worker_id) -> Path:
    """A fresh cache folder, shared by all workers of a test run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "kdiffhash-cache"
    folder.mkdir(exist_ok=True)
    os.environ["KDIFFHASH_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def views(cache):
    """The data set of `load_views`; one worker builds it while the others wait."""
    from kdiffhash import load_views

    return load_views()


@pytest.fixture(scope="session")
def objects() -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels of 150 objects, four rows of 12 values each, with anisotropic noise."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(150, 12)) * np.linspace(2, 0.5, 12)
    y = np.repeat(np.arange(150), 4)
    X = centres[y] + rng.normal(size=(600, 12)) * np.linspace(0.2, 0.8, 12)
    return X.astype(np.float32), y


@pytest.fixture(scope="session")
def command():
    """Function that runs a command in this process.

    It returns the JSON if ``--json`` is among the arguments, otherwise the text on standard output.
    With ``fail=True`` the command must fail, and the text of standard error and output is returned.
    """

    def run(*arguments, fail=False):
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["kdiffhash", *map(str, arguments)])
            try:
                cli.run()
                code = 0
            except SystemExit as error:
                code = error.code
        assert bool(code) == fail, err.getvalue()
        if fail:
            return err.getvalue() + out.getvalue()
        return json.loads(out.getvalue()) if "--json" in arguments else out.getvalue()

    return run
