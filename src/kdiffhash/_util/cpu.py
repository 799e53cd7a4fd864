"""The instruction set that the environment variable KDIFFHASH_CPU asks for."""

from __future__ import annotations

import warnings


def warn_if_lower(asked: str) -> None:
    """Warn if the compiled core uses a lower instruction set than the one asked for.

    Parameters
    ----------
    asked : str
        Value of KDIFFHASH_CPU.
    """
    from .. import _core

    if _core.level != asked:
        warnings.warn(
            f"KDIFFHASH_CPU={asked}, but this CPU does not support it, so {_core.level} is used; "
            "unset the variable to use the best instruction set of the CPU",
            RuntimeWarning,
            stacklevel=3,
        )
