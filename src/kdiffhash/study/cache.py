"""Finished parts of a study, kept so that a study that was interrupted picks up where it was."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from .._util.files import replacing

Arrays = dict[str, NDArray[Any]]


def stamp(*paths: Path) -> list[list[int]]:
    """Sizes and times of files, so that what was made from others is made again."""
    return [[p.stat().st_size, p.stat().st_mtime_ns] for p in paths if p.is_file()]


class Store:
    """A folder of results, each named by what it depends on."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def path(self, name: str, suffix: str, **depends_on: Any) -> Path:
        """Where a result is kept; other dependencies make another path."""
        text = json.dumps([__version__, depends_on], sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return self._folder / f"{name}-{digest}.{suffix}"

    def keep(self, name: str, make: Callable[[], Any], **depends_on: Any) -> Any:
        """A stored value, or what `make` gives, which is then stored unless it is None."""
        path = self.path(name, "json", **depends_on)
        value = self.read_json(path)
        if value is None:
            value = make()
            if value is not None:
                self.write_json(path, value)
        return value

    @staticmethod
    def read_json(path: Path) -> Any | None:
        """A stored value, or None if it is not there or not whole."""
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError):
            return None

    @staticmethod
    def write_json(path: Path, value: Any) -> None:
        """Store a value."""
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(value, indent=1))

    @staticmethod
    def read_arrays(path: Path) -> Arrays | None:
        """Stored arrays, or None if they are not there or not whole."""
        try:
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError):
            return None

    @staticmethod
    def write_arrays(path: Path, arrays: Arrays) -> None:
        """Store arrays."""
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
