"""Reading of text files that users write: lists of ids, of pairs and of relevant documents."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path

from .files import check_regular


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the content of a UTF-8 file without a byte order mark; line ends stay as they are."""
    check_regular(path)
    content = Path(path).read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise ValueError(
            f"{os.fspath(path)}, line {line}: not UTF-8 text; give a text file in this encoding"
        ) from None


def read_csv(path: str | os.PathLike[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row of a CSV file."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""))
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise ValueError(f"{os.fspath(path)}, line {reader.line_num}: {error}") from None
