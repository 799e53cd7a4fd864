"""Fetching, from a real server on loopback."""

from __future__ import annotations

import hashlib
import io
import re
import stat
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from kdiffhash.datasets import FetchError, describe_patches, fetch, fetch_scene, find_scene
from kdiffhash.datasets.sheets import write_sheets


@pytest.fixture(scope="module")
def patches():
    return np.random.default_rng(0).integers(0, 256, (300, 64, 64)).astype(np.uint8)


@pytest.fixture(scope="module")
def archive(tmp_path_factory, patches):
    """A scene of 300 patches, packed as the published ones are."""
    folder = tmp_path_factory.mktemp("published")
    write_sheets(folder, patches, "bmp")
    table = np.column_stack([np.arange(300) // 3, np.zeros(300, int)])
    np.savetxt(folder / "info.txt", table, fmt="%d")
    (folder / "m50_2_2_0.txt").write_text("0 0 0 1 0 0\n0 0 0 5 1 0\n")
    return pack({path.name: path.read_bytes() for path in folder.iterdir()})


def pack(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return out.getvalue()


@pytest.fixture
def server(monkeypatch):
    """A server of one file; it can break off transfers, change the file and know no ranges."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetch.time, "sleep", lambda seconds: None)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            web.asked.append(self.headers["Range"])
            content, start = web.content, 0
            if self.path != "/scene.zip":
                self.send_error(404)
                return
            if web.failures:
                self.send_error(web.failures.pop())
                return
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
            same = self.headers["If-Range"] == web.etag
            if wanted and same and web.knows_ranges:
                start = int(wanted.group(1))
                if start == len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header(
                    "Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}"
                )
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header("ETag", web.etag)
            self.end_headers()
            amount = web.breaks.pop(0) if web.breaks else len(content)
            self.wfile.write(content[start : start + amount])

        def log_message(self, *arguments):
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.asked, web.breaks, web.failures = [], [], []
    web.etag, web.knows_ranges = '"one"', True
    web.url = f"http://127.0.0.1:{web.server_port}/scene.zip"
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    yield web
    web.shutdown()
    thread.join()
    web.server_close()


def md5(content):
    return hashlib.md5(content).hexdigest()


def left_over(cache):
    return sorted(p.name for p in cache.rglob("*") if p.is_file() and "scenes" not in p.parts)


def test_a_scene_is_fetched_unpacked_and_described(server, archive, patches, tmp_path, monkeypatch):
    server.content = archive
    scene = fetch_scene("mine", url=server.url, md5=md5(archive), cache=tmp_path)
    np.testing.assert_array_equal(np.asarray(scene.patches), patches)
    np.testing.assert_array_equal(scene.descriptors, describe_patches(patches))
    assert scene.photos is None
    assert left_over(tmp_path) == []
    fetch_scene("mine", url=server.url, cache=tmp_path)  # it is there
    assert server.asked == [None]
    monkeypatch.setenv("KDIFFHASH_CACHE", str(tmp_path))
    assert find_scene("mine") == tmp_path / "scenes" / "mine"


def test_a_broken_transfer_goes_on_where_it_was(server, archive, tmp_path):
    server.content, server.breaks = archive, [10_000, 70_000]
    scene = fetch_scene("mine", url=server.url, md5=md5(archive), cache=tmp_path)
    assert len(scene) == 300
    assert server.asked == [None, "bytes=10000-", "bytes=80000-"]


def test_what_came_is_kept_for_the_next_call(server, archive, tmp_path):
    server.content, server.breaks = archive, [50_000, 0, 0, 0]
    with pytest.raises(FetchError, match=r"go on after the 50000 bytes that are kept"):
        fetch_scene("mine", url=server.url, cache=tmp_path)
    assert not (tmp_path / "scenes" / "mine").exists()
    fetch_scene("mine", url=server.url, md5=md5(archive), cache=tmp_path)
    assert server.asked[-1] == "bytes=50000-"


def test_a_file_that_has_changed_is_fetched_anew(server, archive, tmp_path):
    server.content, server.breaks = b"x" * 90_000, [50_000, 0, 0, 0]
    with pytest.raises(FetchError):
        fetch_scene("mine", url=server.url, cache=tmp_path)
    server.content, server.etag = archive, '"two"'
    assert len(fetch_scene("mine", url=server.url, md5=md5(archive), cache=tmp_path)) == 300


def test_a_server_that_is_busy_is_asked_again(server, archive, tmp_path):
    server.content, server.failures = archive, [503, 500]
    assert len(fetch_scene("mine", url=server.url, md5=md5(archive), cache=tmp_path)) == 300
    assert len(server.asked) == 3


def test_a_whole_download_that_was_not_renamed(server, archive, tmp_path):
    server.content = archive
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "mine.part").write_bytes(archive)
    (tmp_path / "downloads" / "mine.etag").write_text(server.etag)
    assert len(fetch_scene("mine", url=server.url, md5=md5(archive), cache=tmp_path)) == 300
    assert server.asked == [f"bytes={len(archive)}-"]


def test_a_download_that_is_no_scene_is_not_kept(server, archive, tmp_path):
    server.content = b"<html>please log in</html>"
    with pytest.raises(FetchError, match="not a whole zip"):
        fetch_scene("mine", url=server.url, cache=tmp_path)
    server.content, server.etag = archive, '"two"'
    assert len(fetch_scene("mine", url=server.url, cache=tmp_path)) == 300


def test_a_server_without_ranges(server, archive, tmp_path):
    server.content, server.breaks, server.knows_ranges = archive, [50_000], False
    assert len(fetch_scene("mine", url=server.url, md5=md5(archive), cache=tmp_path)) == 300


def test_a_wrong_checksum(server, archive, tmp_path):
    server.content = archive
    with pytest.raises(FetchError, match=f"MD5 sum {md5(archive)}, but 0000 is wanted.*removed"):
        fetch_scene("mine", url=server.url, md5="0000", cache=tmp_path)
    assert left_over(tmp_path) == []
    assert not (tmp_path / "scenes" / "mine").exists()


def test_a_missing_file_and_a_dead_server(server, tmp_path):
    server.content = b""
    with pytest.raises(FetchError, match=r"404.*--from"):
        fetch_scene("mine", url=server.url + ".no", cache=tmp_path)
    with pytest.raises(FetchError, match="broke off"):
        fetch_scene("mine", url="http://127.0.0.1:9/scene.zip", cache=tmp_path)


def symlink():
    member = zipfile.ZipInfo("info.txt")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    return member


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"info.txt": "0 0\n", "../evil.txt": "x"}, "'../evil.txt' leads out"),
        ({"info.txt": "0 0\n", "a/../../evil.txt": "x"}, "leads out"),
        ({"info.txt": "0 0\n", "/tmp/evil.txt": "x"}, "leads out"),
        ({"info.txt": "0 0\n", "..\\evil.txt": "x"}, "leads out"),
        ({"info.txt": "0 0\n", "C:\\evil.txt": "x"}, "leads out"),
        ({symlink(): "/etc/passwd"}, "not a plain file"),
        ({"readme.txt": "nothing here"}, "no info.txt"),
        ({"info.txt": "0 0\n" * 300}, "neither sift.npy nor sheets"),
        ({"info.txt": "0 0\n1\n"}, r"given.zip is not a whole scene: info.txt, line 2"),
    ],
)
def test_hostile_and_foreign_archives_leave_nothing(files, message, tmp_path):
    source = tmp_path / "given.zip"
    source.write_bytes(pack(files))
    before = set(tmp_path.parent.iterdir())
    with pytest.raises((FetchError, ValueError, FileNotFoundError), match=message):
        fetch_scene("mine", archive=source, cache=tmp_path / "cache")
    assert set(tmp_path.parent.iterdir()) == before
    left = {path.name for path in (tmp_path / "cache").rglob("*")}
    assert left <= {"scenes", ".mine.lock"}
    assert source.exists()


def test_an_archive_that_would_fill_the_disk(tmp_path, monkeypatch, archive):
    monkeypatch.setattr(fetch, "_LARGEST", 100_000)
    (tmp_path / "given.zip").write_bytes(archive)
    with pytest.raises(FetchError, match="would unpack to more than"):
        fetch_scene("mine", archive=tmp_path / "given.zip", cache=tmp_path)


@pytest.mark.parametrize("keep", [0, 100, 100_000])
def test_a_truncated_archive(tmp_path, archive, keep):
    (tmp_path / "given.zip").write_bytes(archive[:keep])
    with pytest.raises(FetchError, match="not a whole zip archive"):
        fetch_scene("mine", archive=tmp_path / "given.zip", cache=tmp_path)
    assert not (tmp_path / "scenes" / "mine").exists()


def test_a_damaged_member(tmp_path, archive):
    damaged = bytearray(archive)
    damaged[50_000:50_100] = bytes(100)
    (tmp_path / "given.zip").write_bytes(damaged)
    with pytest.raises(FetchError, match="not a whole zip archive"):
        fetch_scene("mine", archive=tmp_path / "given.zip", cache=tmp_path)


def test_a_copy_may_have_a_folder_inside(tmp_path, archive):
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        files = {f"trevi/{name}": file.read(name) for name in file.namelist()}
    (tmp_path / "given.zip").write_bytes(pack(files))
    scene = fetch_scene("mine", archive=tmp_path / "given.zip", cache=tmp_path)
    assert scene.path == tmp_path / "scenes" / "mine"
    assert len(scene) == 300
    with pytest.raises(ValueError, match="is there already"):
        fetch_scene("mine", archive=tmp_path / "given.zip", cache=tmp_path)
    with pytest.raises(FetchError, match=r"d49ab428.* is wanted.*another name"):
        fetch_scene("trevi", archive=tmp_path / "given.zip", cache=tmp_path)


def test_names():
    assert set(fetch.PUBLISHED) == {
        "trevi",
        "notredame-2007",
        "halfdome",
        "liberty",
        "notredame",
        "yosemite",
    }
    with pytest.raises(ValueError, match="unknown scene 'paris'; known are trevi"):
        fetch_scene("paris")
    for name in ("../trevi", "views-train"):
        with pytest.raises(ValueError, match="plain word"):
            fetch_scene(name)
