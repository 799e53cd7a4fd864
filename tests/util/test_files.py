"""Replacing files."""

from __future__ import annotations

import fcntl
import os

import pytest

from kdiffhash._util.files import check_regular, replacing


def test_a_file_is_synced_through_a_handle_that_is_open_for_writing(tmp_path, monkeypatch):
    """Windows refuses to sync a file that is open for reading only."""
    flags = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: flags.append(fcntl.fcntl(handle, fcntl.F_GETFL))
    )
    with replacing(tmp_path / "a") as temporary:
        temporary.write_bytes(b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert flags[0] & os.O_ACCMODE == os.O_RDWR


def test_a_read_only_file_is_replaced_and_stays_read_only(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "a").chmod(0o444)
    with replacing(tmp_path / "a") as temporary:
        temporary.write_bytes(b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o444


def test_only_regular_files_pass(tmp_path):
    (tmp_path / "file").touch()
    check_regular(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/null"):
        with pytest.raises(ValueError, match="not a regular file"):
            check_regular(path)
    with pytest.raises(FileNotFoundError):
        check_regular(tmp_path / "none")
