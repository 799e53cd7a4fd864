"""Download and unpack published scenes, from a real server on loopback."""

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
    """A zip archive of a scene of 300 patches in the published layout."""
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
    """A server of one file that can interrupt transfers, fail, and ignore range requests.

    `interrupt_after` lists after how many bytes the next responses end, `status_codes` the error
    codes of the next responses, `requested_ranges` the `Range` header of each request. `answer`
    replaces all responses: a status, headers and an iterable of bytes.
    """
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetch.time, "sleep", lambda seconds: None)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            web.requested_ranges.append(self.headers["Range"])
            content, start = web.content, 0
            if self.path != "/scene.zip":
                self.send_error(404)
                return
            if web.answer is not None:
                status, headers, body = web.answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    for data in body:
                        self.wfile.write(data)
                        web.n_sent += len(data)
                except ConnectionError:  # the client has heard enough
                    pass
                return
            if web.status_codes:
                self.send_error(web.status_codes.pop())
                return
            range_header = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
            is_unchanged = self.headers["If-Range"] == web.etag
            if range_header and is_unchanged and web.supports_ranges:
                start = int(range_header.group(1))
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
            n_sent = web.interrupt_after.pop(0) if web.interrupt_after else len(content)
            self.wfile.write(content[start : start + n_sent])

        def log_message(self, *arguments):
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.requested_ranges, web.interrupt_after, web.status_codes = [], [], []
    web.etag, web.supports_ranges = '"one"', True
    web.content, web.answer, web.n_sent = b"", None, 0
    web.url = f"http://127.0.0.1:{web.server_port}/scene.zip"
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    yield web
    web.shutdown()
    thread.join()
    web.server_close()


def md5(content):
    return hashlib.md5(content).hexdigest()


def leftover_files(cache):
    """Return the names of files in the cache that do not belong to a scene."""
    return sorted(p.name for p in cache.rglob("*") if p.is_file() and "scenes" not in p.parts)


def test_a_scene_is_fetched_unpacked_and_described(server, archive, patches, tmp_path, monkeypatch):
    server.content = archive
    scene = fetch_scene("mine", url=server.url, md5=md5(archive), cache=tmp_path)
    np.testing.assert_array_equal(np.asarray(scene.patches), patches)
    np.testing.assert_array_equal(scene.descriptors, describe_patches(patches))
    assert scene.photos is None
    assert leftover_files(tmp_path) == []
    fetch_scene("mine", url=server.url, cache=tmp_path)  # found in the cache
    assert server.requested_ranges == [None]
    monkeypatch.setenv("KDIFFHASH_CACHE", str(tmp_path))
    assert find_scene("mine") == tmp_path / "scenes" / "mine"


def test_an_interrupted_transfer_is_resumed(server, archive, tmp_path):
    server.content, server.interrupt_after = archive, [10_000, 70_000]
    scene = fetch_scene("mine", url=server.url, md5=md5(archive), cache=tmp_path)
    assert len(scene) == 300
    assert server.requested_ranges == [None, "bytes=10000-", "bytes=80000-"]


def test_the_next_call_resumes_a_failed_download(server, archive, tmp_path):
    server.content, server.interrupt_after = archive, [50_000, 0, 0, 0]
    with pytest.raises(FetchError, match=r"interrupted.*resume after 50000 bytes"):
        fetch_scene("mine", url=server.url, cache=tmp_path)
    assert not (tmp_path / "scenes" / "mine").exists()
    fetch_scene("mine", url=server.url, md5=md5(archive), cache=tmp_path)
    assert server.requested_ranges[-1] == "bytes=50000-"


def test_a_file_that_changed_on_the_server_is_downloaded_from_the_start(server, archive, tmp_path):
    server.content, server.interrupt_after = b"x" * 90_000, [50_000, 0, 0, 0]
    with pytest.raises(FetchError):
        fetch_scene("mine", url=server.url, cache=tmp_path)
    server.content, server.etag = archive, '"two"'
    assert len(fetch_scene("mine", url=server.url, md5=md5(archive), cache=tmp_path)) == 300


def test_server_errors_are_retried(server, archive, tmp_path):
    server.content, server.status_codes = archive, [503, 500]
    assert len(fetch_scene("mine", url=server.url, md5=md5(archive), cache=tmp_path)) == 300
    assert len(server.requested_ranges) == 3


def test_a_complete_partial_file_is_not_downloaded_again(server, archive, tmp_path):
    server.content = archive
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "mine.part").write_bytes(archive)
    (tmp_path / "downloads" / "mine.etag").write_text(server.etag)
    assert len(fetch_scene("mine", url=server.url, md5=md5(archive), cache=tmp_path)) == 300
    assert server.requested_ranges == [f"bytes={len(archive)}-"]


def test_a_download_that_is_not_a_scene_is_deleted(server, archive, tmp_path):
    server.content = b"<html>please log in</html>"
    with pytest.raises(FetchError, match="not a readable zip"):
        fetch_scene("mine", url=server.url, cache=tmp_path)
    server.content, server.etag = archive, '"two"'
    assert len(fetch_scene("mine", url=server.url, cache=tmp_path)) == 300


def test_a_server_without_range_support_sends_the_whole_file_again(server, archive, tmp_path):
    server.content, server.interrupt_after, server.supports_ranges = archive, [50_000], False
    assert len(fetch_scene("mine", url=server.url, md5=md5(archive), cache=tmp_path)) == 300


def test_an_archive_with_a_wrong_checksum_is_refused_and_deleted(server, archive, tmp_path):
    server.content = archive
    with pytest.raises(FetchError, match=f"MD5 checksum {md5(archive)}, expected 0000.*deleted"):
        fetch_scene("mine", url=server.url, md5="0000", cache=tmp_path)
    assert leftover_files(tmp_path) == []
    assert not (tmp_path / "scenes" / "mine").exists()


def test_missing_files_and_unreachable_servers_are_reported(server, tmp_path):
    server.content = b""
    with pytest.raises(FetchError, match=r"404.*--from"):
        fetch_scene("mine", url=server.url + ".no", cache=tmp_path)
    with pytest.raises(FetchError, match="was interrupted"):
        fetch_scene("mine", url="http://127.0.0.1:9/scene.zip", cache=tmp_path)


def test_a_download_without_a_length_stops_at_the_limit(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "_MAX_ARCHIVE", 3_000_000)
    server.answer = 200, {}, (bytes(10_000) for _ in range(100_000))  # a gigabyte
    with pytest.raises(FetchError, match="sends more than 3000000 bytes"):
        fetch_scene("mine", url=server.url, cache=tmp_path)
    assert server.n_sent < 100_000_000  # what the buffers between the two hold
    assert leftover_files(tmp_path) == []


def test_a_download_stops_at_its_length_although_it_comes_in_chunks(server, tmp_path):
    """HTTP ignores the length of a response in chunks."""
    chunk = b"2710\r\n" + bytes(10_000) + b"\r\n"
    headers = {"Content-Length": "30000", "Transfer-Encoding": "chunked"}
    server.answer = 200, headers, (chunk for _ in range(100_000))
    with pytest.raises(FetchError, match="sends more than 30000 bytes"):
        fetch_scene("mine", url=server.url, cache=tmp_path)
    assert server.n_sent < 100_000_000
    assert leftover_files(tmp_path) == []


def test_a_download_without_a_length_is_accepted_up_to_the_limit(server, archive, tmp_path):
    server.answer = 200, {}, [archive]
    assert len(fetch_scene("mine", url=server.url, md5=md5(archive), cache=tmp_path)) == 300


@pytest.mark.parametrize("length", ["abc", "-5", "1e3", "", "9" * 30, "10, 20"])
def test_an_invalid_content_length_is_refused(server, archive, tmp_path, length):
    server.answer = 200, {"Content-Length": length}, [archive]
    with pytest.raises(FetchError, match="invalid Content-Length"):
        fetch_scene("mine", url=server.url, cache=tmp_path)
    assert leftover_files(tmp_path) == []


def test_a_length_above_the_limit_is_refused_before_anything_is_stored(server, tmp_path):
    server.answer = 200, {"Content-Length": str(10**15)}, []
    with pytest.raises(FetchError, match="it has 1000000000000000 bytes, more than the limit"):
        fetch_scene("mine", url=server.url, cache=tmp_path)
    assert leftover_files(tmp_path) == []


@pytest.mark.parametrize("content_range", ["bytes 0-99/1000", "bytes 5-9/10", "", "nonsense"])
def test_a_part_of_the_file_that_was_not_requested_is_refused(server, tmp_path, content_range):
    headers = {"Content-Length": "100", "Content-Range": content_range}
    server.answer = 206, headers, [bytes(100)]
    with pytest.raises(FetchError, match="another range than the one requested"):
        fetch_scene("mine", url=server.url, cache=tmp_path)
    assert leftover_files(tmp_path) == []


@pytest.mark.parametrize("content_range", ["bytes */0", "bytes */100", ""])
def test_a_416_that_no_range_asked_for_is_refused(server, tmp_path, content_range):
    server.answer = 416, {"Content-Range": content_range, "Content-Length": "0"}, []
    with pytest.raises(FetchError, match=r"cannot download .* 416"):
        fetch_scene("mine", url=server.url, cache=tmp_path)
    assert leftover_files(tmp_path) == []


def symlink():
    member = zipfile.ZipInfo("info.txt")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    return member


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"info.txt": "0 0\n", "../evil.txt": "x"}, "'../evil.txt' would be written outside"),
        ({"info.txt": "0 0\n", "a/../../evil.txt": "x"}, "would be written outside"),
        ({"info.txt": "0 0\n", "/tmp/evil.txt": "x"}, "would be written outside"),
        ({"info.txt": "0 0\n", "..\\evil.txt": "x"}, "would be written outside"),
        ({"info.txt": "0 0\n", "C:\\evil.txt": "x"}, "would be written outside"),
        ({symlink(): "/etc/passwd"}, "not a regular file"),
        ({"info.txt": "0 0\n", "INFO.TXT": "1 1\n"}, "two of its files would be written to"),
        ({"info.txt": "0 0\n", "./info.txt": "1 1\n"}, "two of its files would be written to"),
        ({"info.txt": "0 0\n", "a": "x", "A/b": "y"}, "two of its files would be written to 'A'"),
        ({"info.txt": "0 0\n", "a/b": "y", "A": "x"}, "two of its files would be written to 'A'"),
        ({"info.txt": "0 0\n", "x" * 300: "x"}, "is too long"),
        ({"info.txt": "0 0\n", ".": "x"}, "would be written outside"),
        (
            {"info.txt": "0 0\n", "patches0000.png": b"\x89PNG\r\n\x1a\n damaged"},
            "not a complete scene: patches0000.png is not a readable image",
        ),
        ({"readme.txt": "nothing here"}, "no info.txt"),
        ({"info.txt": "0 0\n" * 300}, "neither sift.npy nor sheets"),
        ({"info.txt": "0 0\n1\n"}, r"given.zip is not a complete scene: info.txt, line 2"),
    ],
)
def test_unsafe_and_unrelated_archives_are_refused_and_leave_no_files(files, message, tmp_path):
    source = tmp_path / "given.zip"
    source.write_bytes(pack(files))
    before = set(tmp_path.parent.iterdir())
    with pytest.raises((FetchError, ValueError, FileNotFoundError), match=message):
        fetch_scene("mine", archive=source, cache=tmp_path / "cache")
    assert set(tmp_path.parent.iterdir()) == before
    remaining = {path.name for path in (tmp_path / "cache").rglob("*")}
    assert remaining <= {"scenes", ".mine.lock"}
    assert source.exists()


def test_an_archive_that_unpacks_to_too_many_bytes_is_refused(tmp_path, monkeypatch, archive):
    monkeypatch.setattr(fetch, "_MAX_UNPACKED", 100_000)
    (tmp_path / "given.zip").write_bytes(archive)
    with pytest.raises(FetchError, match="would unpack to more than"):
        fetch_scene("mine", archive=tmp_path / "given.zip", cache=tmp_path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_the_same_name_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "given.zip", "w") as file:
        file.writestr("info.txt", "0 0\n")
        file.writestr("info.txt", "1 1\n")
    with pytest.raises(FetchError, match=r"two of its files would be written to 'info\.txt'"):
        fetch_scene("mine", archive=tmp_path / "given.zip", cache=tmp_path)


def test_an_archive_of_too_many_files_is_refused(tmp_path, monkeypatch, archive):
    monkeypatch.setattr(fetch, "_MAX_FILES", 2)
    (tmp_path / "given.zip").write_bytes(archive)
    with pytest.raises(FetchError, match="more than 2 files"):
        fetch_scene("mine", archive=tmp_path / "given.zip", cache=tmp_path)


@pytest.mark.parametrize("size", [0, 100, 100_000])
def test_a_truncated_archive_is_refused(tmp_path, archive, size):
    (tmp_path / "given.zip").write_bytes(archive[:size])
    with pytest.raises(FetchError, match="not a readable zip archive"):
        fetch_scene("mine", archive=tmp_path / "given.zip", cache=tmp_path)
    assert not (tmp_path / "scenes" / "mine").exists()


def test_an_archive_with_a_damaged_file_is_refused(tmp_path, archive):
    damaged = bytearray(archive)
    damaged[50_000:50_100] = bytes(100)
    (tmp_path / "given.zip").write_bytes(damaged)
    with pytest.raises(FetchError, match="not a readable zip archive"):
        fetch_scene("mine", archive=tmp_path / "given.zip", cache=tmp_path)


def test_a_file_without_bytes_in_the_directory_of_the_archive_is_refused(tmp_path, archive):
    """The checksum of no bytes is 0, so zipfile accepts an entry with zeros in both places."""
    damaged = bytearray(archive)
    entry = damaged.rindex(b"PK\x01\x02")
    damaged[entry + 16 : entry + 24] = bytes(8)  # checksum and compressed size
    (tmp_path / "given.zip").write_bytes(damaged)
    with pytest.raises(FetchError, match="has 0 bytes instead of"):
        fetch_scene("mine", archive=tmp_path / "given.zip", cache=tmp_path)
    assert not (tmp_path / "scenes" / "mine").exists()


def test_the_scene_may_be_in_a_subfolder_of_the_archive(tmp_path, archive):
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        files = {f"trevi/{name}": file.read(name) for name in file.namelist()}
    (tmp_path / "given.zip").write_bytes(pack(files))
    scene = fetch_scene("mine", archive=tmp_path / "given.zip", cache=tmp_path)
    assert scene.path == tmp_path / "scenes" / "mine"
    assert len(scene) == 300
    with pytest.raises(ValueError, match="exists already"):
        fetch_scene("mine", archive=tmp_path / "given.zip", cache=tmp_path)
    with pytest.raises(FetchError, match=r"expected d49ab428.*another name"):
        fetch_scene("trevi", archive=tmp_path / "given.zip", cache=tmp_path)


def test_unknown_and_reserved_names_are_refused():
    assert set(fetch.PUBLISHED) == {
        "trevi",
        "notredame-2007",
        "halfdome",
        "liberty",
        "notredame",
        "yosemite",
    }
    with pytest.raises(ValueError, match="unknown scene 'paris'; choose one of trevi"):
        fetch_scene("paris")
    for name in ("../trevi", "views-train"):
        with pytest.raises(ValueError, match="plain folder name"):
            fetch_scene(name)
