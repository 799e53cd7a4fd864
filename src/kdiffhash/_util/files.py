"""Safe reading of .npy files, temporary arrays, and atomic replacement of files."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import stat
import tempfile
import tokenize
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_IN_MEMORY = 2**30  # bytes; larger temporary arrays are stored in a file
DAMAGE = (  # errors that reading a damaged .npy or .npz file may raise
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    ArithmeticError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    tokenize.TokenError,
    zipfile.BadZipFile,
)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of the error if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def open_npy(path: Path) -> Any:
    """Memory-map an .npy file, without unpickling anything."""
    import numpy as np

    check_regular(path)
    with path.open("rb") as file:
        if file.read(2) == b"PK":
            raise ValueError(f"{path} is an .npz file; give a single array (.npy)")
        file.seek(0)
        try:
            read_npy_header(file)
            with np.errstate(over="ignore"):  # in the size of a shape that is refused right after
                return np.load(path, mmap_mode="r", allow_pickle=False)
        except DAMAGE as error:
            raise ValueError(f"{path} is not a readable .npy file: {first_line(error)}") from error


def read_npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, Any]:
    """Read shape, Fortran order and dtype from the start of an .npy file, and check them.

    NumPy itself crashes on negative sizes together with items of no bytes.
    """
    import numpy as np

    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in read:
        raise ValueError(f"unknown .npy version {version}")
    shape, fortran, dtype = read[version](stream)
    if dtype.hasobject:
        raise ValueError("arrays of Python objects are refused, because they are pickled")
    if min(shape, default=0) < 0 or not dtype.itemsize:
        raise ValueError(f"its header gives {dtype} of shape {shape}")
    return shape, fortran, dtype


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise unless a path leads to a regular file; opening a pipe would wait for its writer."""
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise ValueError(
            f"{os.fspath(path)} is not a regular file, but a folder, pipe or device; copy its "
            "contents to a file"
        )


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
    """Return the folder named by KDIFFHASH_CACHE, or else the user's cache folder.

    Raises
    ------
    FileNotFoundError
        If neither is known, as in a container whose user has no home folder.
    """
    from platformdirs import user_cache_path

    chosen = os.environ.get("KDIFFHASH_CACHE")
    try:
        folder = Path(chosen) if chosen else user_cache_path("kdiffhash", appauthor=False)
        folder = folder.expanduser()
        if chosen or folder.is_absolute():
            return folder
    except RuntimeError:  # ~ of a user without a home folder
        pass
    raise FileNotFoundError(
        "the cache folder is not known because this user has no home folder; "
        "set the environment variable KDIFFHASH_CACHE to a folder that can be written to"
    )


def make_cache_folder() -> Path:
    """Return the cache folder, created if necessary and checked to be writable."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise type(error)(
            f"the cache folder {folder} cannot be written to ({error.strerror}); "
            "set the environment variable KDIFFHASH_CACHE to another folder"
        ) from error
    return folder


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


_unfinished: set[Path] = set()  # temporary files of `replacing`


def remove_unfinished() -> None:
    """Remove the temporary files of `replacing`, for a process that ends without unwinding."""
    for path in list(_unfinished):
        with suppress(OSError):
            path.unlink(missing_ok=True)


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
    _unfinished.add(temporary)
    try:
        yield temporary
        with temporary.open("r+b") as file:  # Windows cannot sync a file that is open for reading
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
        _unfinished.discard(temporary)
    sync_folder(target.parent)


def sync_files(folder: Path) -> None:
    """Make the files of a folder durable, and those of its subfolders, before it is renamed."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path.is_file():
                with path.open("r+b") as file:  # Windows cannot sync a file open for reading
                    os.fsync(file.fileno())
        sync_folder(Path(parent))


def sync_folder(folder: Path) -> None:
    """Make a rename durable, on systems on which folders can be synced."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
