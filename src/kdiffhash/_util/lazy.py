"""Lazy import of the public names of a package, on first use.

`import kdiffhash` must not load scikit-learn, and reading the header of a model file must not load
the estimators. A package lists its public names once, by the module that defines them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` for a package.

    Parameters
    ----------
    package : str
        The package's ``__name__``.
    modules : mapping of str to sequence of str
        The public names that each module, relative to the package, defines.

    Returns
    -------
    names : list of str
        ``__all__``.
    get : function
        ``__getattr__``.
    dir : function
        ``__dir__``.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f".{module_of[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return [*module_of], get, names
