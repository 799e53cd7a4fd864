"""Import of optional dependencies, with an error that says how to install a missing one."""

from __future__ import annotations

from importlib import import_module
from typing import Any


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
            f"pip install 'kdiffhash[{extra}]' ({error})"
        ) from error
