"""The errors of kdiffhash's own, all of one base class.

An argument that makes no sense is a plain `ValueError`, as everywhere; these are for what a caller
may want to tell apart.
"""

from __future__ import annotations


class KdiffhashError(Exception):
    """Base class of all errors that kdiffhash defines."""


class NotSupportedError(KdiffhashError, ValueError):
    """A place for codes cannot do what was asked of it."""
