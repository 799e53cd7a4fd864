"""Optional packages: imported where they are used, and named when they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def need(module: str, extra: str) -> Any:
    """Import an optional module, or say how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this needs {module.partition('.')[0]}, which is not installed: "
            f"pip install 'kdiffhash[{extra}]' ({error})"
        ) from error
