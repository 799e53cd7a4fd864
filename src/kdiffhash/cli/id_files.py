"""Read ids from files: .npy arrays of integers or strings, or text with one id per line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

ID_FILE = "a .npy file, or text with one id per line"


class IdFile:
    """The ids in a file, read in chunks.

    Lines of text are strings; with `strings` false they are converted to integers.
    """

    def __init__(self, path: Path, strings: bool) -> None:
        from .._util.files import check_regular, open_npy

        check_regular(path)
        self.path, self.strings = path, strings
        self._array = open_npy(path) if path.suffix == ".npy" else None
        if self._array is not None and self._array.ndim != 1:
            raise ValueError(f"{path} must hold ids of shape (n,), got shape {self._array.shape}")
        self._done = 0
        self._lines = self._read_lines()

    def __len__(self) -> int:
        """Return the number of ids in the file."""
        return sum(1 for _ in self._read_lines()) if self._array is None else len(self._array)

    def take(self, n: int) -> Any:
        """Return the next n ids, as an array or a list of strings."""
        if self._array is not None:
            chunk = self._array[self._done : self._done + n]
            self._done += n
            return chunk
        lines = list(islice(self._lines, n))
        return [line for _, line in lines] if self.strings else self._to_integers(lines)

    def all(self) -> Any:
        """Return all ids."""
        return self.take(len(self))

    def _read_lines(self) -> Iterator[tuple[int, str]]:
        with self.path.open(encoding="utf-8-sig", newline="\n") as file:
            try:
                for number, line in enumerate(file, 1):
                    if line.strip():  # empty lines are no ids
                        yield number, line.rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{self.path} is not text in UTF-8 ({error.reason}); ids come from {ID_FILE}"
                ) from None

    def _to_integers(self, lines: list[tuple[int, str]]) -> Any:
        import numpy as np

        ids = []
        for number, line in lines:
            try:
                ids.append(np.int64(int(line)))
            except (ValueError, OverflowError):
                raise ValueError(
                    f"{self.path}, line {number}: {line[:40]!r} is not an id of this index; its "
                    "ids are integers of at most 64 bits"
                ) from None
        return np.array(ids, np.int64)


def has_strings(index: Any) -> bool:
    """Return whether the ids of an index are strings."""
    return bool(index.info().get("ids") == "strings")


def read_ids(path: Path, index: Any) -> Any:
    """Return the ids in a file, of the kind that an index has."""
    return IdFile(path, has_strings(index)).all()


def to_ids(values: list[str], index: Any) -> Any:
    """Return ids given on the command line, of the kind that an index has."""
    import numpy as np

    if has_strings(index):
        return values
    try:
        return np.array([int(value) for value in values])
    except ValueError:
        raise ValueError(
            f"the ids of this index are whole numbers, got {' '.join(values)[:60]!r}"
        ) from None


def write_ids(path: Path, ids: Any) -> None:
    """Write ids to a text file, one per line."""
    from .._util.files import replacing

    lines = [str(one) for one in ids.tolist()]
    for line in lines:
        if "\n" in line or "\r" in line:
            raise ValueError(
                f"the id {line!r} contains a line break, so it cannot be written to {path}; write "
                "all groups with --out FILE.json instead"
            )
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
