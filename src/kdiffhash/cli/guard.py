"""Checks of an output before the work starts: it can be written, and it replaces no input."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

Inputs = Path | str | Sequence[Path] | Sequence[str] | None


def check_writable(out: Path, *inputs: Inputs, folder: bool = False, option: str = "--out") -> None:
    """Raise if the output cannot be written or would replace an input.

    Parameters
    ----------
    out : Path
        File to write, or folder to write to.
    *inputs : path, sequence of paths or None
        Everything that the command reads.
    folder : bool, default=False
        Whether `out` is a folder.
    option : str, default="--out"
        Option that named `out`, for the error message.
    """
    refuse_inputs(out, *inputs, option=option)
    place = out if folder and out.exists() else out.parent
    if not place.is_dir():
        problem = "is a file; name a folder" if place.exists() else "does not exist"
        raise ValueError(f"{option}: the folder {place} {problem}")
    if out.is_dir() and not folder:
        raise ValueError(f"{option}: {out} is a folder; name a file")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ValueError(f"{option}: the folder {place} is not writable")


def refuse_inputs(out: Path, *inputs: Inputs, option: str = "--out") -> None:
    """Raise if the output is an input, or an existing file in a folder that is an input."""
    for path in _flatten(inputs):
        if any(_is_same(out, used) for used in (path, *_label_files(path))):
            raise ValueError(
                f"{option}: {out} is also an input and would be replaced; choose another name"
            )
        if path.is_dir() and not out.is_dir() and _is_inside(out, path):
            raise ValueError(
                f"{option}: {out} is in the folder {path}, which is an input, and would be "
                "replaced; choose another name"
            )


def _flatten(inputs: Sequence[Inputs]) -> Iterator[Path]:
    for item in inputs:
        if isinstance(item, str | os.PathLike):
            yield Path(item)
        elif item is not None:
            yield from map(Path, item)


def _label_files(path: Path) -> list[Path]:
    """Return the files that hold the labels and groups of a file of rows, if it is one."""
    from ..shards.shard import LABEL_FILES

    return [path.with_suffix(suffix) for suffix in LABEL_FILES] if path.suffix == ".npy" else []


def _is_same(a: Path, b: Path) -> bool:
    """Return whether two paths lead to the same file, also through symbolic and hard links."""
    if a.exists() and b.exists():
        return a.samefile(b)
    return a.resolve() == b.resolve()


def _is_inside(file: Path, folder: Path) -> bool:
    """Return whether a file exists in a folder, under this name or as a hard link."""
    if not file.exists():
        return False
    if file.resolve().is_relative_to(folder.resolve()):
        return True
    return file.stat().st_nlink > 1 and any(_is_same(file, other) for other in folder.iterdir())
