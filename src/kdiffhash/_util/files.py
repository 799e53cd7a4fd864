"""Safe reading of .npy files, temporary arrays, and atomic replacement of files."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_IN_MEMORY = 2**30  # bytes; larger temporary arrays are stored in a file


def open_npy(path: Path) -> Any:
    """Memory-map an .npy file, without unpickling anything."""
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a readable .npy file: {error}") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} is an .npz file; give a single array (.npy)")
    return array


def scratch_array(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an uninitialised array, in an unnamed temporary file if it is larger than 1 GB."""
    import numpy as np

    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= _IN_MEMORY:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:
        if hasattr(os, "posix_fallocate"):
            # A full disk is an error here instead of a crash at a later access.
            os.posix_fallocate(file.fileno(), 0, size)
        return np.memmap(file, dtype, "r+", shape=shape)


def cache_folder() -> Path:
    """Return the folder named by KDIFFHASH_CACHE, or else the user's cache folder."""
    chosen = os.environ.get("KDIFFHASH_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("kdiffhash", appauthor=False)


def json_ready(value: Any) -> Any:
    """Convert a value for JSON: arrays to lists, infinity and NaN to strings."""
    import numpy as np

    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, np.ndarray):
        return json_ready(value.tolist())
    if isinstance(value, np.generic):
        return json_ready(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and rename it to `path` at the end.

    The file is synced before it is renamed. After an exception the temporary file is deleted and
    `path` is unchanged.
    """
    target = Path(path).resolve()  # a symbolic link stays one
    if target.exists() and not target.is_file():
        raise ValueError(f"{os.fspath(path)} is not a regular file; give another path")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield temporary
        if target.exists():
            shutil.copymode(target, temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, on systems on which folders can be synced."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
