"""Exceptions of kdiffhash, with a common base class.

Invalid arguments raise a plain `ValueError`. The exceptions here are for conditions that a caller
may want to handle separately.
"""

from __future__ import annotations


class KdiffhashError(Exception):
    """Base class of all exceptions that kdiffhash defines.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import kdiffhash
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "model.safetensors")
    ...     _ = path.write_bytes(b"not a model")
    ...     try:
    ...         kdiffhash.load(path)
    ...     except kdiffhash.KdiffhashError as error:
    ...         print(type(error).__name__)
    ModelFileError
    """


class NotSupportedError(KdiffhashError, ValueError):
    """Raised when a store of codes does not support an operation.

    Examples
    --------
    >>> from kdiffhash import KdiffhashError
    >>> from kdiffhash._util.errors import NotSupportedError
    >>> issubclass(NotSupportedError, KdiffhashError), issubclass(NotSupportedError, ValueError)
    (True, True)
    """
