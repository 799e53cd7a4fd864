"""Import of optional dependencies, with an error that says how to install a missing one."""

from __future__ import annotations

import json
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import Distribution


def need(module: str, extra: str) -> Any:
    """Import a module of an optional dependency.

    Parameters
    ----------
    module : str
        Name of the module.
    extra : str
        The extra of kdiffhash that installs it.

    Returns
    -------
    module : module

    Raises
    ------
    ImportError
        If it is missing, with the pip command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this needs {module.partition('.')[0]}, which is not installed: "
            f"{install_command(extra)} ({error})"
        ) from error


def install_command(extra: str) -> str:
    """Return the pip command that installs an extra, for the way in which kdiffhash was installed.

    An installation from a folder or a file is repeated from there, one from a package index by
    name. If the folder or file is gone, the command lists the packages of the extra.
    """
    from importlib.metadata import Distribution, PackageNotFoundError
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        installed = Distribution.from_name("kdiffhash")
    except PackageNotFoundError:  # run from a copy of its files
        return f"{_pip()} install 'kdiffhash[{extra}]'"
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    if not origin:
        return f"{_pip()} install 'kdiffhash[{extra}]'"
    path = Path(url2pathname(urlsplit(origin["url"]).path))
    if not origin["url"].startswith("file:") or not path.exists():
        packages = " ".join(f"'{package}'" for package in _packages(installed, extra))
        return f"{_pip()} install {packages}"
    name = "." if path == Path.cwd() else str(path)
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"{_pip()} install {editable}'{name}[{extra}]'"


def _packages(installed: Distribution, extra: str) -> list[str]:
    """Return the packages of an extra, including those of the extras that it includes."""
    found: list[str] = []
    for line in installed.requires or ():
        requirement, _, marker = line.partition(";")
        if not re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", marker):
            continue
        included = re.match(r"\s*kdiffhash\[(.+)\]", requirement)
        if included:
            for name in included[1].split(","):
                found += _packages(installed, name.strip())
        else:
            found.append(requirement.strip())
    return list(dict.fromkeys(found))


def _pip() -> str:
    """Return the name of the pip that installs for this Python."""
    pip = shutil.which("pip")
    own = Path(sys.executable).parent
    return "pip" if pip and Path(pip).parent == own else f"{sys.executable} -m pip"
