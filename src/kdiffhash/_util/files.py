"""Files: arrays read without trust; writing that leaves the old file, or the whole new one."""

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

_IN_MEMORY = 2**30  # bytes of an array above which it lies in a temporary file


def open_npy(path: Path) -> Any:
    """Memory-map an .npy file; nothing in it is run."""
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a readable .npy file: {error}") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} is an .npz file; a single array (.npy) is wanted here")
    return array


def scratch_array(shape: tuple[int, ...], dtype: Any) -> Any:
    """An empty array in memory, or in an unnamed temporary file if it is above 1 GB."""
    import numpy as np

    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= _IN_MEMORY:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:
        if hasattr(
            os, "posix_fallocate"
        ):  # a full disk is an error here, not a crash at some access
            os.posix_fallocate(file.fileno(), 0, size)
        return np.memmap(file, dtype, "r+", shape=shape)


def cache_folder() -> Path:
    """The folder that KDIFFHASH_CACHE names, or the user's cache folder of this system."""
    chosen = os.environ.get("KDIFFHASH_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("kdiffhash", appauthor=False)


def json_ready(value: Any) -> Any:
    """A value as JSON has it: infinity as text, arrays as lists."""
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
    """A temporary path beside `path`, which is synced and takes its place if all goes well."""
    target = Path(path).resolve()  # a link stays a link
    if target.exists() and not target.is_file():
        raise ValueError(f"{os.fspath(path)} is not a regular file, so it is not replaced")
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
    """Make a rename durable, where the system lets folders be synced."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
