"""Replacing files."""

from __future__ import annotations

import ast
import fcntl
import os
from pathlib import Path

import pytest

import kdiffhash
from kdiffhash._util.files import check_regular, replacing

PACKAGE = Path(kdiffhash.__file__).parent


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


# Functions that write without `replacing` or `creating` around the call.
OTHER_WRITERS = {
    "_util/files.py": {"replacing", "sync_files"},  # open a file only to sync it
    "search/index_lock.py": {"creating"},
    "search/index_file.py": {"_append", "_write"},  # append; write to a temporary name
    "search/index_format.py": {"write_slot", "clean_slots"},
    "datasets/scene.py": {"write_scene"},  # to a temporary folder
    "datasets/fetch.py": {"_download", "_download_rest"},  # downloads that can be resumed
}
WRITES = {"write_text", "write_bytes", "savefig", "savez", "savez_compressed", "savetxt", "imwrite"}


def unguarded_writes(node, function="", guarded=False):
    """Yield the names of functions with a write that no `replacing` or `creating` encloses."""
    if isinstance(node, ast.FunctionDef):
        function = node.name
    if isinstance(node, ast.With):
        names = {ast.unparse(item.context_expr).partition("(")[0] for item in node.items}
        guarded = guarded or bool(names & {"replacing", "creating"})
    if isinstance(node, ast.Call) and not guarded:
        name = ast.unparse(node.func)
        method = name.rpartition(".")[2]
        words = {one.value for part in node.args for one in ast.walk(part)
                 if isinstance(one, ast.Constant)}  # fmt: skip
        opens = method in ("open", "File") and words & {"w", "wb", "a", "ab", "x", "xb", "r+b"}
        if method in WRITES or name == "np.save" or (opens and name != "HammingIndex.open"):
            yield function
    for child in ast.iter_child_nodes(node):
        yield from unguarded_writes(child, function, guarded)


def test_files_are_written_under_a_temporary_name():
    found = {
        path.relative_to(PACKAGE).as_posix(): set(unguarded_writes(ast.parse(path.read_text())))
        for path in PACKAGE.rglob("*.py")
    }
    assert {name: functions for name, functions in found.items() if functions} == OTHER_WRITERS
