"""`kdiffhash index duplicates`."""

from __future__ import annotations

import csv
import json
import os
from functools import partial

import numpy as np
import pytest

from kdiffhash import HammingIndex


@pytest.fixture
def run(command):
    return partial(command, "index", "duplicates")


@pytest.fixture
def path(tmp_path):
    """An index of a chain 10-11-12-13 with steps of one bit, two equal codes, and a single one."""
    codes = np.array([[0b0], [0b1], [0b11], [0b111], [0b11110000], [0b11110000], [0b10001000]])
    HammingIndex(codes.astype(np.uint8), [10, 11, 12, 13, 20, 21, 30]).save(tmp_path / "x.index")
    return tmp_path / "x.index"


def test_groups_are_written_in_each_format(path, run, tmp_path):
    connected = [
        {"representative": 10, "ids": [10, 11, 12, 13], "distances": [0, 1, 2, 3]},
        {"representative": 20, "ids": [20, 21], "distances": [0, 0]},
    ]
    result = run(path, "-r", 1, "--groups", "--json")
    assert result["rows"] == connected
    assert (result["codes"], result["groups"], result["keep"], result["drop"]) == (7, 2, 3, 4)
    run(path, "-r", 1, "--groups", "--out", tmp_path / "groups.json")
    assert json.loads((tmp_path / "groups.json").read_text()) == connected
    run(path, "-r", 1, "--groups", "--out", tmp_path / "groups.csv")
    with (tmp_path / "groups.csv").open(newline="") as file:
        rows = [tuple(map(int, row.values())) for row in csv.DictReader(file)]
    assert rows == [(10, 10, 0), (10, 11, 1), (10, 12, 2), (10, 13, 3), (20, 20, 0), (20, 21, 0)]
    run(path, "-r", 1, "--groups", "--out", tmp_path / "groups.npz")
    arrays = np.load(tmp_path / "groups.npz")
    assert arrays["ids"].tolist() == [10, 11, 12, 13, 20, 21, 30]
    assert arrays["representatives"].tolist() == [10, 10, 10, 10, 20, 20, 30]
    assert arrays["distances"].tolist() == [0, 1, 2, 3, 0, 0, 0]
    table = run(path, "-r", 1, "--groups")
    assert "11, 12, 13" in table
    run(path, "--groups", "--out", tmp_path / "none.json")
    assert json.loads((tmp_path / "none.json").read_text()) == connected[1:]


def test_greedy_groups_with_priority_and_lists_of_ids(path, run, tmp_path):
    (tmp_path / "first.txt").write_text("21\n12\n\n")
    options = ("--groups", "--method", "greedy", "--priority", tmp_path / "first.txt")
    keep, drop = tmp_path / "keep.txt", tmp_path / "drop.txt"
    result = run(path, "-r", 1, *options, "--keep", keep, "--drop", drop, "--json")
    assert [row["ids"] for row in result["rows"]] == [[21, 20], [12, 11, 13]]
    assert keep.read_text() == "21\n12\n10\n30\n"  # 10 is two bits from 12
    assert drop.read_text() == "11\n13\n20\n"
    np.save(tmp_path / "first.npy", np.array([21, 12]))
    again = run(path, "-r", 1, *options[:-1], tmp_path / "first.npy", "--json")
    assert again["rows"] == result["rows"]


def test_pairs_are_written_as_text(path, run, tmp_path):
    run(path, "-r", 1, "--out", tmp_path / "pairs.csv")
    text = "a,b,distance\n10,11,1\n11,12,1\n12,13,1\n20,21,0\n"
    assert (tmp_path / "pairs.csv").read_text() == text
    run(path, "-r", 1, "--out", tmp_path / "pairs.json")
    rows = run(path, "-r", 1, "--json")["rows"]
    assert json.loads((tmp_path / "pairs.json").read_text()) == rows


def test_errors_name_the_option_and_the_line(path, run, tmp_path):
    assert "--keep applies to groups" in run(path, "--keep", tmp_path / "k.txt", fail=True)
    assert "--method applies to groups" in run(path, "--method", "greedy", fail=True)
    assert ".csv or .json or .npz" in run(path, "--groups", "-o", tmp_path / "x.txt", fail=True)
    assert "also an input" in run(path, "--groups", "--drop", path, fail=True)
    keep = tmp_path / "k.txt"
    assert "--drop" in run(path, "--groups", "--keep", keep, "--drop", keep, fail=True)
    first = tmp_path / "first.txt"
    first.write_text("10\nten\n")
    assert "line 2: 'ten' is not an id" in run(path, "--groups", "--priority", first, fail=True)
    first.write_text("10\n77\n")
    message = run(path, "--groups", "--priority", first, fail=True)
    assert "first.txt: 1 of the ids are not stored, for example 77" in message
    first.write_text(f"{10**30}\n")
    assert "of at most 64 bits" in run(path, "--groups", "--priority", first, fail=True)
    first.write_bytes(b"10\n\xff")
    message = run(path, "--groups", "--priority", first, fail=True)
    assert "first.txt is not text in UTF-8" in message
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        message = run(path, "--groups", "--priority", tmp_path / "pipe", fail=True)
        assert "not a regular file" in message
    assert not keep.exists()
