"""The error of a missing extra prints a command that works for how kdiffhash was installed."""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, PathDistribution

import pytest

from kdiffhash._util import extras

METADATA = """\
Metadata-Version: 2.1
Name: kdiffhash
Version: 1.0
Requires-Dist: numpy>=2.0
Provides-Extra: vision
Requires-Dist: opencv-python-headless>=4.10; extra == "vision"
Requires-Dist: pillow>=10.3; extra == "vision"
Provides-Extra: colmap
Requires-Dist: kdiffhash[vision]; extra == "colmap"
Requires-Dist: pycolmap>=4.0; python_version > "3" and extra == 'colmap'
"""


@pytest.fixture
def installed_from(tmp_path, monkeypatch):
    """Function that pretends that kdiffhash was installed from a URL (None for an index)."""

    def pretend(origin):
        folder = tmp_path / "kdiffhash-1.0.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(METADATA)
        if origin is not None:
            (folder / "direct_url.json").write_text(json.dumps(origin))
        found = PathDistribution(folder)
        monkeypatch.setattr(Distribution, "from_name", lambda name: found)

    monkeypatch.setattr(extras, "_pip", lambda: "pip")
    return pretend


def test_from_an_index(installed_from):
    installed_from(None)
    assert extras.install_command("vision") == "pip install 'kdiffhash[vision]'"


def test_from_a_checkout(installed_from, tmp_path, monkeypatch):
    checkout = tmp_path / "my checkout"
    checkout.mkdir()
    installed_from({"url": checkout.as_uri(), "dir_info": {}})
    assert extras.install_command("vision") == f"pip install '{checkout}[vision]'"
    installed_from({"url": checkout.as_uri(), "dir_info": {"editable": True}})
    assert extras.install_command("vision") == f"pip install -e '{checkout}[vision]'"
    monkeypatch.chdir(checkout)
    assert extras.install_command("vision") == "pip install -e '.[vision]'"


def test_from_a_wheel(installed_from, tmp_path):
    wheel = tmp_path / "kdiffhash-1.0.whl"
    wheel.touch()
    installed_from({"url": wheel.as_uri(), "archive_info": {}})
    assert extras.install_command("colmap") == f"pip install '{wheel}[colmap]'"


@pytest.mark.parametrize("url", ["file:///gone/kdiffhash.whl", "https://example.org/kdiffhash.whl"])
def test_packages_are_listed_if_the_origin_is_gone(installed_from, url):
    installed_from({"url": url, "archive_info": {}})
    assert extras.install_command("colmap") == (
        "pip install 'opencv-python-headless>=4.10' 'pillow>=10.3' 'pycolmap>=4.0'"
    )


def test_missing_module_is_named_with_the_command(installed_from):
    installed_from(None)
    with pytest.raises(ImportError, match=r"needs no_such.*pip install 'kdiffhash\[vision\]'"):
        extras.need("no_such.module", "vision")


def test_pip_of_another_python_is_not_suggested(monkeypatch):
    monkeypatch.setattr(extras.shutil, "which", lambda name: "/somewhere/else/pip")
    assert extras._pip() == f"{sys.executable} -m pip"
