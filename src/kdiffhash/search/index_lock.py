"""One writer per index file: a lock on the file itself, and names for new files.

The lock belongs to the file and not to a name of it, so it holds through hard links and renames,
and nothing is left behind when its process dies.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from .._util.files import sync_folder
from .index_format import open_file

_LOCKED_BYTE = 2**62  # Windows locks bytes; this one is beyond the end of any file


def open_locked(path: Path, readonly: bool = False) -> int:
    """Open an existing file and lock it; raise BlockingIOError if another writer has it open."""
    refuse_missing_folder(path)
    while True:
        file = open_file(path, writable=not readonly)
        try:
            if not _lock(file):
                raise BlockingIOError(
                    errno.EAGAIN, f"another writer has {path} open; wait until it is closed"
                )
            if is_at(file, path):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # it was replaced before it was locked


def unlock(file: int) -> None:
    """Release the lock, also if a forked child still has the file open."""
    with contextlib.suppress(OSError):
        if os.name == "nt":
            _lock_byte(file, lock=False)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_UN)


def is_at(file: int, path: Path) -> bool:
    """Return whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def refuse_missing_folder(path: Path) -> None:
    """Raise FileNotFoundError if the folder of a file does not exist."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such folder", str(folder))


@contextlib.contextmanager
def creating(path: Path) -> Iterator[Path]:
    """Yield a temporary path, and name the file there `path` unless there is such a file by then.

    The file is synced before. It is deleted after an exception.
    """
    refuse_missing_folder(path)
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        try:
            if os.name == "nt":
                temporary.rename(target)  # refuses to replace a file
            else:
                _link(temporary, target)
        except FileExistsError:
            raise FileExistsError(
                errno.EEXIST, "the file already exists; remove it first", str(path)
            ) from None
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)


def remove_leftovers(path: Path) -> None:
    """Delete the temporary files of writers of this file that were killed; the caller has the lock.

    A temporary file that is still being written is locked.
    """
    target = path.resolve()
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.part")
    with contextlib.suppress(OSError):  # a folder that cannot be listed
        for leftover in target.parent.iterdir():
            if not pattern.fullmatch(leftover.name):
                continue
            with contextlib.suppress(OSError, ValueError):
                file = open_locked(leftover)
                try:
                    leftover.unlink()
                finally:
                    os.close(file)


def _link(temporary: Path, target: Path) -> None:
    """Give a file a second name, which must be free."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        if target.exists():  # a file system without hard links
            raise FileExistsError(errno.EEXIST, "the file already exists", str(target)) from None
        temporary.rename(target)


def _lock(file: int) -> bool:
    """Lock an open file without waiting; return whether that succeeded."""
    try:
        if os.name == "nt":
            _lock_byte(file, lock=True)
        else:
            import fcntl

            # Not lockf: its locks end when the process closes any descriptor of the file.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


def _lock_byte(file: int, lock: bool) -> None:
    import msvcrt

    os.lseek(file, _LOCKED_BYTE, os.SEEK_SET)
    mode = "LK_NBLCK" if lock else "LK_UNLCK"
    getattr(msvcrt, "locking")(file, getattr(msvcrt, mode), 1)  # noqa: B009 (typed on Windows only)
