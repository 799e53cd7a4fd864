"""Download the published patch data, verify and unpack it, and compute descriptors.

Interrupted downloads are resumed. Archives are not trusted: a member that would be written outside
the target folder, or that is not a regular file, is refused before anything is unpacked.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import lzma
import os
import re
import shutil
import stat
import struct
import tempfile
import time
import unicodedata
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock

from .._util.errors import KdiffhashError
from .._util.files import DAMAGE, first_line, make_cache_folder, sync_files, sync_folder
from .._util.progress import progress
from .descriptors import describe_folder
from .scene import Scene, read_scene
from .sheets import find_sheets, read_sheet

_READ_SIZE = 1 << 18  # bytes per read from the network
_TIMEOUT = 60.0  # seconds without receiving a byte
_MAX_ATTEMPTS = 4
_MAX_ARCHIVE = 4 << 30  # bytes of a download; the largest published archive has 2.6 GB
_MAX_UNPACKED = 8 << 30  # total bytes
_MAX_FILES = 100_000  # in an archive
_MAX_NAME = 255  # bytes in the name of a file

_2007 = "https://phototour.cs.washington.edu/patches/"
_2011 = "http://matthewalunbrown.com/patchdata/"
PUBLISHED = {  # URL and MD5 checksum of each archive
    "trevi": (_2007 + "trevi.zip", "d49ab428f154554856f83dba8aa76539"),
    "notredame-2007": (_2007 + "notredame.zip", "0f801127085e405a61465605ea80c595"),
    "halfdome": (_2007 + "halfdome.zip", "db871c5a86f4878c6754d0d12146440b"),
    "liberty": (_2011 + "liberty.zip", "fdd9152f138ea5ef2091746689176414"),
    "notredame": (_2011 + "notredame.zip", "509eda8535847b8c0a90bbb210c83484"),
    "yosemite": (_2011 + "yosemite.zip", "533b2e8eb7ede31be40abc317b2fd4f0"),
}


class FetchError(KdiffhashError, ValueError):
    """Raised if a scene cannot be downloaded, or if its archive is damaged or unsafe.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from kdiffhash.datasets import FetchError, fetch_scene
    >>> archive = Path(tempfile.mkdtemp(), "trevi.zip")
    >>> _ = archive.write_bytes(b"not the archive")
    >>> try:
    ...     fetch_scene("trevi", archive=archive, cache=archive.parent)
    ... except FetchError as error:
    ...     print("damaged or a different file" in str(error))
    True
    """


def fetch_scene(
    name: str,
    *,
    archive: str | os.PathLike[str] | None = None,
    url: str | None = None,
    md5: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    verbose: bool = False,
) -> Scene:
    """Download a published scene to the cache, compute its SIFT descriptors and open it.

    A scene that is already in the cache is not downloaded again.

    Parameters
    ----------
    name : str
        `trevi`, `notredame-2007`, `halfdome` (2007), `liberty`, `notredame` or `yosemite` (2011).
        With `archive` or `url`, any other name is accepted too.
    archive : path, optional
        Local copy of the archive (.zip) to unpack; nothing is downloaded.
    url : str, optional
        URL to download the archive from instead of the published one.
    md5 : str, optional
        Expected MD5 checksum of the archive. By default that of the published archive, and no check
        if `url` is given or the name is not one of the above.
    cache : path, optional
        Cache folder; by default KDIFFHASH_CACHE or the user's cache folder.
    n_jobs : int, optional
        Number of threads for the descriptors; by default all cores available to the process.
    verbose : bool, default=False
        Show progress bars on a terminal.

    Returns
    -------
    scene : Scene

    Raises
    ------
    FetchError
        If the download fails, or if the archive is damaged, unsafe or not a scene.
    ValueError
        If the name is unknown or not a plain folder name.

    Examples
    --------
    >>> from kdiffhash.datasets import fetch_scene
    >>> scene = fetch_scene("trevi")  # doctest: +SKIP
    """
    if name != Path(name).name or name in ("", ".", "..", "views-train", "views-test"):
        raise ValueError(
            "the name of a scene must be a plain folder name other than views-train and "
            f"views-test, got {name!r}"
        )
    if name not in PUBLISHED and archive is None and url is None:
        raise ValueError(
            f"unknown scene {name!r}; choose one of {', '.join(PUBLISHED)}, or give archive or url"
        )
    if url is None and name in PUBLISHED:
        url, known = PUBLISHED[name]
        md5 = md5 or known
    root = Path(cache) if cache is not None else make_cache_folder()
    folder = root / "scenes" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{name}.lock")):
        if (folder / "info.txt").is_file():
            if archive is not None:
                raise ValueError(f"{folder} exists already; remove it to unpack another archive")
        elif archive is not None:
            if not Path(archive).is_file():
                raise FileNotFoundError(f"{archive} is not a file")
            advice = "if you packed the archive yourself, choose another name for the scene"
            _unpack(Path(archive), md5, advice, folder, verbose)
        else:
            target = root / "downloads" / f"{name}.zip"
            _download(str(url), target, verbose)
            try:
                _unpack(target, md5, "it has been deleted, fetch it again", folder, verbose)
            except FetchError:
                target.unlink()  # keeping it would make the next call fail in the same way
                raise
            target.unlink()
        if not (folder / "sift.npy").is_file():
            describe_folder(folder, n_jobs=n_jobs, verbose=verbose)
    return read_scene(folder)


def _download(url: str, target: Path, verbose: bool) -> None:
    """Download a file, resuming an interrupted download."""
    if target.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial, validator = target.with_suffix(".part"), target.with_suffix(".etag")
    for attempt in range(_MAX_ATTEMPTS):
        try:
            _download_rest(url, partial, validator, verbose)
            break
        except (OSError, http.client.HTTPException) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or isinstance(error, http.client.InvalidURL):
                raise FetchError(
                    f"cannot download {url}: {error}. To unpack a local copy instead: kdiffhash "
                    "data fetch NAME --from FILE.zip"
                ) from error
            # An error with a file name is local (such as a full disk), not a network error.
            if not isinstance(error, urllib.error.URLError) and getattr(error, "filename", None):
                raise
            if attempt == _MAX_ATTEMPTS - 1:
                n_bytes = _resumable_bytes(partial, validator)
                action = f"resume after {n_bytes} bytes" if n_bytes else "try again"
                raise FetchError(
                    f"the download of {url} was interrupted ({error}). Run the command again to "
                    f"{action}"
                ) from error
            time.sleep(0.5 * 2**attempt)
    with partial.open("r+b") as file:
        os.fsync(file.fileno())
    partial.replace(target)
    validator.unlink(missing_ok=True)


def _resumable_bytes(partial: Path, validator: Path) -> int:
    """Return the size of a partial download; 0 without a validator to resume it with."""
    return partial.stat().st_size if partial.exists() and validator.exists() else 0


def _download_rest(url: str, partial: Path, validator: Path, verbose: bool) -> None:
    """Request the missing bytes once, or the whole file if it has changed on the server.

    `validator` is a file with the ETag or modification date that the server sent with the first
    bytes. The server compares it with the current file (``If-Range``).
    """
    n_bytes = _resumable_bytes(partial, validator)
    headers = {"User-Agent": "kdiffhash", "Accept-Encoding": "identity"}
    if n_bytes:
        headers |= {"Range": f"bytes={n_bytes}-", "If-Range": validator.read_text()}
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=_TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if error.code != 416 or not n_bytes:
            raise
        if error.headers["Content-Range"] == f"bytes */{n_bytes}":
            return  # the partial file is complete
        partial.unlink()
        raise ConnectionError("the file has changed on the server") from error
    with response:
        total = _total_bytes(response, partial, n_bytes)
        limit = _MAX_ARCHIVE if total is None else total
        if response.status != 206:
            n_bytes = 0
        # Weak ETags cannot be used to resume.
        etag = response.headers["ETag"] or "W/"
        tag = response.headers["Last-Modified"] if etag.startswith("W/") else etag
        validator.unlink(missing_ok=True)
        if tag and tag.isascii() and tag.isprintable():
            validator.write_text(tag)
        progress_bar = progress(total, f"downloading {partial.stem}", verbose)
        with partial.open("ab" if n_bytes else "wb") as file, progress_bar as advance:
            advance(n_bytes)
            while data := response.read1(_READ_SIZE):
                n_bytes += len(data)
                if n_bytes > limit:
                    break
                try:
                    file.write(data)
                except OSError as error:
                    error.filename = error.filename or file.name
                    raise
                advance(len(data))
    if n_bytes > limit:
        partial.unlink()
        raise FetchError(f"{url} sends more than {limit} bytes; give another URL")
    if total is not None and n_bytes < total:
        raise ConnectionError(f"received {n_bytes} of {total} bytes")


def _total_bytes(response: Any, partial: Path, n_bytes: int) -> int | None:
    """Return the size of the whole file, if the server tells it; raise if its answer is invalid.

    `n_bytes` were received before, and the bytes after them were requested.
    """
    length = response.headers["Content-Length"]
    if length is not None and not re.fullmatch(r"[0-9]{1,18}", length.strip()):
        raise FetchError(
            f"cannot download {response.url}: the server sent the invalid Content-Length "
            f"{length[:80]!r}"
        )
    total = None if length is None else int(length)
    if response.status == 206:
        content_range = response.headers["Content-Range"] or ""
        if not n_bytes or not content_range.startswith(f"bytes {n_bytes}-"):
            partial.unlink(missing_ok=True)
            raise ConnectionError("the server sent another range than the one requested")
        total = None if total is None else n_bytes + total
    if total is not None and total > _MAX_ARCHIVE:
        raise FetchError(
            f"cannot download {response.url}: it has {total} bytes, more than the limit of "
            f"{_MAX_ARCHIVE >> 30} GB"
        )
    return total


def _unpack(archive: Path, md5: str | None, advice: str, folder: Path, verbose: bool) -> None:
    """Unpack an archive to a temporary folder and rename that, so that no partial scene is left."""
    with archive.open("rb") as file:
        actual = hashlib.file_digest(file, "md5").hexdigest() if md5 else ""
    if md5 and actual != md5.lower():
        raise FetchError(
            f"{archive} has MD5 checksum {actual}, expected {md5}: it is damaged or a different "
            f"file; {advice}"
        )
    if folder.exists():
        raise ValueError(f"{folder} exists but is not a scene; remove it")
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _extract(archive, unfinished, verbose)
        infos = sorted(unfinished.rglob("info.txt"), key=lambda path: len(path.parts))
        if not infos:
            raise FetchError(f"{archive} is not a scene: it has no info.txt")
        try:
            read_scene(infos[0].parent)  # raises if files are missing or damaged
            for sheet in find_sheets(infos[0].parent):
                read_sheet(sheet)
        except (ValueError, OSError) as error:
            reason = str(error).replace(f"{unfinished}{os.sep}", "").replace(str(unfinished), "it")
            raise FetchError(f"{archive} is not a complete scene: {reason}") from error
        infos[0].parent.chmod(0o755)  # mkdtemp makes it accessible to its owner only
        sync_files(infos[0].parent)
        infos[0].parent.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _extract(archive: Path, target: Path, verbose: bool) -> None:
    """Extract all files of a zip archive after checking that they are safe."""
    try:
        with zipfile.ZipFile(archive) as file:
            members = [member for member in file.infolist() if not member.is_dir()]
            _check_members(members, archive)
            size = sum(member.file_size for member in members)
            with progress(size, f"unpacking {archive.name}", verbose) as advance:
                for member in members:
                    n_bytes = Path(file.extract(member, target)).stat().st_size
                    if n_bytes != member.file_size:  # zipfile compares checksums only
                        raise FetchError(
                            f"{archive} is not a readable zip archive: {member.filename!r} has "
                            f"{n_bytes} bytes instead of {member.file_size}"
                        )
                    advance(member.file_size)
    except FetchError:
        raise
    except (*DAMAGE, zlib.error, lzma.LZMAError, struct.error, OSError) as error:
        # Damage can make zipfile seek to an invalid place or bzip2 fail without a number; any other
        # number is that of a local error, such as a full disk.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        reason = first_line(error)
        raise FetchError(f"{archive} is not a readable zip archive: {reason}") from error


def _check_members(members: list[zipfile.ZipInfo], archive: Path) -> None:
    """Raise if a file would be written outside the target folder, is special, or is too large."""
    taken: dict[str, bool] = {}  # paths as a file system that ignores case sees them: is it a file?
    for member in members:
        path = PurePosixPath(member.filename.replace("\\", "/"))
        kind = stat.S_IFMT(member.external_attr >> 16)
        is_outside = path.is_absolute() or ".." in path.parts or ":" in member.filename
        if is_outside or "\0" in member.filename or not path.parts:
            raise FetchError(
                f"{archive} is refused: {member.filename!r} would be written outside the folder"
            )
        if kind not in (0, stat.S_IFREG):
            raise FetchError(f"{archive} is refused: {member.filename!r} is not a regular file")
        if max(len(os.fsencode(part)) for part in path.parts) > _MAX_NAME:
            raise FetchError(
                f"{archive} is refused: {member.filename[:80]!r}... is too long a name"
            )
        for ancestor in (path, *path.parents[:-1]):
            name, is_file = _folded(ancestor), ancestor is path
            if name in taken and (is_file or taken[name]):
                raise FetchError(
                    f"{archive} is refused: two of its files would be written to {str(ancestor)!r}"
                )
            taken[name] = is_file
    if len(members) > _MAX_FILES:
        raise FetchError(f"{archive} is refused: it has more than {_MAX_FILES} files")
    if sum(member.file_size for member in members) > _MAX_UNPACKED:
        raise FetchError(
            f"{archive} is refused: it would unpack to more than {_MAX_UNPACKED >> 30} GB"
        )


def _folded(path: PurePosixPath) -> str:
    """Return what a path has in common with all paths that some file system takes for equal."""
    return "/".join(
        unicodedata.normalize("NFKC", part).casefold().rstrip(". ") for part in path.parts
    )
