"""Fetching the published patch data: download with resume, check, unpack, describe.

The archives hold what the scene reader reads. An archive comes from the network and is trusted with
nothing: no file of it is written outside its folder, and none that is not a plain file.
"""

from __future__ import annotations

import hashlib
import http.client
import lzma
import os
import shutil
import stat
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from filelock import FileLock

from .._util.errors import KdiffhashError
from .._util.files import cache_folder
from .._util.progress import progress
from .descriptors import describe_folder
from .scene import Scene, read_scene

_BLOCK = 1 << 18
_TIMEOUT = 60.0  # seconds without a byte
_TRIES = 4
_LARGEST = 8 << 30  # bytes of all files of an archive together; the largest known one has 2.6 GB


_2007 = "https://phototour.cs.washington.edu/patches/"
_2011 = "http://matthewalunbrown.com/patchdata/"
PUBLISHED = {  # where a scene is, and the MD5 sum of its archive
    "trevi": (_2007 + "trevi.zip", "d49ab428f154554856f83dba8aa76539"),
    "notredame-2007": (_2007 + "notredame.zip", "0f801127085e405a61465605ea80c595"),
    "halfdome": (_2007 + "halfdome.zip", "db871c5a86f4878c6754d0d12146440b"),
    "liberty": (_2011 + "liberty.zip", "fdd9152f138ea5ef2091746689176414"),
    "notredame": (_2011 + "notredame.zip", "509eda8535847b8c0a90bbb210c83484"),
    "yosemite": (_2011 + "yosemite.zip", "533b2e8eb7ede31be40abc317b2fd4f0"),
}


class FetchError(KdiffhashError, ValueError):
    """A download or an archive that cannot be used."""


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
    """Get a published scene, unless it is in the cache, and compute its SIFT descriptors.

    Parameters
    ----------
    name : str
        `trevi`, `notredame-2007`, `halfdome` (2007), `liberty`, `notredame` or `yosemite` (2011);
        with `archive` or `url` any name.
    archive : path, optional
        A copy of the archive (.zip) that is there already; nothing is downloaded then.
    url : str, optional
        Another place to download from.
    md5 : str, optional
        The archive's checksum; known for the scenes above, except from another `url`.
    cache : path, optional
        Cache folder; by default KDIFFHASH_CACHE or the user's cache folder.
    n_jobs : int, optional
        Threads for the descriptors.
    verbose : bool
        Show progress on a terminal.

    Returns
    -------
    Scene
    """
    if name != Path(name).name or name in ("", ".", "..", "views-train", "views-test"):
        raise ValueError(f"a scene's name is a plain word that is not taken, got {name!r}")
    if name not in PUBLISHED and archive is None and url is None:
        raise ValueError(f"unknown scene {name!r}; known are {', '.join(PUBLISHED)}")
    if url is None and name in PUBLISHED:
        url, known = PUBLISHED[name]
        md5 = md5 or known
    root = Path(cache) if cache is not None else cache_folder()
    folder = root / "scenes" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{name}.lock")):
        if (folder / "info.txt").is_file():
            if archive is not None:
                raise ValueError(f"{folder} is there already; remove it to unpack another archive")
        elif archive is not None:
            if not Path(archive).is_file():
                raise FileNotFoundError(f"{archive} is not a file")
            advice = "if you packed it yourself, give the scene another name"
            _unpack(Path(archive), md5, advice, folder, verbose)
        else:
            target = root / "downloads" / f"{name}.zip"
            _download(str(url), target, verbose)
            try:
                _unpack(target, md5, "it was removed, fetch it again", folder, verbose)
            except FetchError:
                target.unlink()  # what is no scene now is none the next time
                raise
            target.unlink()
        if not (folder / "sift.npy").is_file():
            describe_folder(folder, n_jobs=n_jobs, verbose=verbose)
    return read_scene(folder)


def _download(url: str, target: Path, verbose: bool) -> None:
    """Download a file; what an earlier try has left is gone on with."""
    if target.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part, note = target.with_suffix(".part"), target.with_suffix(".etag")
    for attempt in range(_TRIES):
        try:
            _download_rest(url, part, note, verbose)
            break
        except (OSError, http.client.HTTPException) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or isinstance(error, http.client.InvalidURL):
                raise FetchError(
                    f"{url} cannot be had: {error}. If you have a copy: kdiffhash data fetch NAME "
                    "--from FILE.zip"
                ) from error
            # A name of a file: this machine is at fault (a full disk, say), not the connection.
            if not isinstance(error, urllib.error.URLError) and getattr(error, "filename", None):
                raise
            if attempt == _TRIES - 1:
                kept = part.stat().st_size if part.exists() and note.exists() else 0
                again = f"go on after the {kept} bytes that are kept" if kept else "try again"
                raise FetchError(
                    f"{url}: the transfer broke off ({error}). Run the command again to {again}"
                ) from error
            time.sleep(0.5 * 2**attempt)
    part.replace(target)
    note.unlink(missing_ok=True)


def _download_rest(url: str, part: Path, note: Path, verbose: bool) -> None:
    """One try: ask for the bytes that are missing, if the file on the server is still the same."""
    have = part.stat().st_size if part.exists() and note.exists() else 0
    headers = {"User-Agent": "kdiffhash", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": note.read_text()}
    try:
        answer = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=_TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        if error.headers["Content-Range"] == f"bytes */{have}":
            return  # nothing is missing
        part.unlink()
        raise ConnectionError("the server's file has changed") from error
    with answer:
        if answer.status != 206:
            have = 0
        elif not (answer.headers["Content-Range"] or "").startswith(f"bytes {have}-"):
            part.unlink()
            raise ConnectionError("the server sent another part than was asked for")
        length, etag = answer.headers["Content-Length"], answer.headers["ETag"] or "W/"
        total = None if length is None else have + int(length)
        validator = answer.headers["Last-Modified"] if etag.startswith("W/") else etag
        note.unlink(missing_ok=True)
        if validator:
            note.write_text(validator)
        shown = progress(total, f"downloading {part.stem}", verbose)
        with part.open("ab" if have else "wb") as file, shown as advance:
            advance(have)
            while block := answer.read1(_BLOCK):
                try:
                    file.write(block)
                except OSError as error:
                    error.filename = error.filename or file.name
                    raise
                have += len(block)
                advance(len(block))
    if total is not None and have < total:
        raise ConnectionError(f"{have} of {total} bytes came")


def _unpack(archive: Path, md5: str | None, advice: str, folder: Path, verbose: bool) -> None:
    """Unpack beside the folder, then put it in place, so that it is whole or not there."""
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest() if md5 else ""
    if md5 and found != md5.lower():
        raise FetchError(
            f"{archive} has MD5 sum {found}, but {md5} is wanted: it is damaged or another file; "
            + advice
        )
    if folder.exists():
        raise ValueError(f"{folder} is there, but is not a scene; remove it")
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _extract(archive, unfinished, verbose)
        infos = sorted(unfinished.rglob("info.txt"), key=lambda path: len(path.parts))
        if not infos:
            raise FetchError(f"{archive} is not a scene: it has no info.txt")
        try:
            read_scene(infos[0].parent)  # says what is missing
        except (ValueError, FileNotFoundError) as error:
            inside = str(error).replace(f"{unfinished}{os.sep}", "").replace(str(unfinished), "it")
            raise FetchError(f"{archive} is not a whole scene: {inside}") from error
        infos[0].parent.chmod(0o755)  # made for its owner alone, if it is the temporary folder
        infos[0].parent.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _extract(archive: Path, target: Path, verbose: bool) -> None:
    broken = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError)
    locked = (NotImplementedError, RuntimeError)  # zipfile's for unknown packing, for passwords
    try:
        with zipfile.ZipFile(archive) as file:
            members = [member for member in file.infolist() if not member.is_dir()]
            _refuse_hostile(members, archive)
            size = sum(member.file_size for member in members)
            with progress(size, f"unpacking {archive.name}", verbose) as advance:
                for member in members:
                    file.extract(member, target)
                    advance(member.file_size)
    except (*broken, *locked) as error:
        raise FetchError(f"{archive} is not a whole zip archive: {error}") from error
    except OSError as error:
        if error.errno is None:  # from a damaged bzip2 stream
            raise FetchError(f"{archive} is not a whole zip archive: {error}") from error
        raise


def _refuse_hostile(members: list[zipfile.ZipInfo], archive: Path) -> None:
    """Stop before anything is written if a member would leave the folder or is not a plain file."""
    for member in members:
        path = PurePosixPath(member.filename.replace("\\", "/"))
        kind = stat.S_IFMT(member.external_attr >> 16)
        outside = path.is_absolute() or ".." in path.parts or ":" in member.filename
        if outside or "\0" in member.filename:
            raise FetchError(f"{archive}: {member.filename!r} leads out of the folder; refused")
        if kind not in (0, stat.S_IFREG):
            raise FetchError(f"{archive}: {member.filename!r} is not a plain file; refused")
    if sum(member.file_size for member in members) > _LARGEST:
        raise FetchError(f"{archive} would unpack to more than {_LARGEST >> 30} GB; refused")
