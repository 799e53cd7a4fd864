"""The error of index files."""

from __future__ import annotations

from .._util.errors import KdiffhashError

REPAIR = "restore it from a copy, or copy its whole batches with `kdiffhash index repair`"


class IndexFileError(KdiffhashError, ValueError):
    """Error raised if a file is not an index, is damaged, or has an unknown version.

    Examples
    --------
    >>> import tempfile
    >>> from kdiffhash import HammingIndex, IndexFileError
    >>> path = tempfile.mkdtemp() + "/notes.txt"
    >>> with open(path, "w") as file:
    ...     _ = file.write("not an index")
    >>> try:
    ...     HammingIndex.open(path)
    ... except IndexFileError as error:
    ...     print("not a kdiffhash index" in str(error))
    True
    """
