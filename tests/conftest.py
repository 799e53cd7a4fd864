"""Data that several tests use, and where real scenes and photographs are found."""

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
    """Mark tests by the fixtures that take long to make, or that open sockets."""
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        for name, fixtures in (("slow", SLOW), ("network", NETWORK)):
            if used & fixtures:
                item.add_marker(name)


@pytest.fixture(scope="session")
def scenes() -> Path:
    return _named_folder("KDIFFHASH_SCENES", "scenes")


@pytest.fixture(scope="session")
def photos() -> Path:
    return _named_folder("KDIFFHASH_PHOTOS", "photographs")


def _named_folder(variable: str, what: str) -> Path:
    root = os.environ.get(variable)
    if not root or not Path(root).is_dir():
        pytest.skip(f"{variable} is not set to a folder of {what}")
    return Path(root)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory, worker_id) -> Path:
    """A cache folder that all workers of a run share and that no other run has touched."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "kdiffhash-cache"
    folder.mkdir(exist_ok=True)
    os.environ["KDIFFHASH_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def views(cache):
    """The embedded set; one worker makes it while the others wait."""
    from kdiffhash import load_views

    return load_views()


@pytest.fixture(scope="session")
def objects() -> tuple[np.ndarray, np.ndarray]:
    """150 objects seen four times each, 12 features, with noise that is not isotropic."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(150, 12)) * np.linspace(2, 0.5, 12)
    y = np.repeat(np.arange(150), 4)
    X = centres[y] + rng.normal(size=(600, 12)) * np.linspace(0.2, 0.8, 12)
    return X.astype(np.float32), y


@pytest.fixture(scope="session")
def command():
    """Run a command in this process; its JSON or its text, or what it says if it is to fail."""

    def run(*arguments, fail=False):
        out, told = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(told):
            patch.setattr(sys, "argv", ["kdiffhash", *map(str, arguments)])
            try:
                cli.main()
                code = 0
            except SystemExit as error:
                code = error.code
        assert bool(code) == fail, told.getvalue()
        if fail:
            return told.getvalue() + out.getvalue()
        return json.loads(out.getvalue()) if "--json" in arguments else out.getvalue()

    return run
