"""Reading of text files that users write: every damage is one sentence that names the file."""

from __future__ import annotations

import os
import re

import pytest

from kdiffhash._util.text import read_csv, read_text


def test_text_and_rows_with_their_line_numbers(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes('\ufeffa,b\r\n1,"x\ny"\r\n\r\nä,2\r\n'.encode())
    assert read_text(path).startswith("a,b\r\n")
    assert list(read_csv(path)) == [(1, ["a", "b"]), (3, ["1", "x\ny"]), (4, []), (5, ["ä", "2"])]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,\xff\n", "line 2: not UTF-8 text"),
        (b'a,b\n1,"' + b"x" * 200_000, "line 2: field larger than field limit"),
    ],
)
def test_damage_is_an_error_that_names_file_and_line(tmp_path, content, message):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{path}, {message}")):
        list(read_csv(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        read_text(tmp_path / "pipe")
