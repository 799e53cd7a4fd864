"""`kdiffhash calibrate`."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy.stats import binomtest

from kdiffhash import HammingIndex


@pytest.fixture
def run(command):
    return partial(command, "calibrate")


@pytest.fixture
def files(tmp_path):
    """Codes 0, and the first k bits set for k = 0..16 many times; the distance to row 0 is k.

    Ten negative pairs at each distance 1..16, four positive pairs at each distance 0..4.
    """
    bits = np.tri(17, 16, -1, dtype=np.uint8)
    negatives, positives = np.repeat(np.arange(1, 17), 10), np.repeat(np.arange(5), 4)
    codes = np.packbits(bits[np.concatenate([[0], negatives, positives])], axis=1)
    np.save(tmp_path / "codes.npy", codes)
    similar = np.arange(1, len(codes)) > len(negatives)
    lines = [f"{row},0,{int(flag)}" for row, flag in enumerate(similar, 1)]
    (tmp_path / "pairs.csv").write_text("\n".join(["a,b,similar", *lines, ""]))
    np.savez(
        tmp_path / "pairs.npz",
        pairs=np.column_stack([np.arange(1, len(codes)), np.zeros(len(similar), int)]),
        similar=similar,
    )
    return tmp_path / "codes.npy", tmp_path / "pairs.csv"


def test_threshold_with_intervals_and_false_pairs_at_scale(files, run, tmp_path):
    codes, pairs = files
    result = run(codes, "--pairs", pairs, "--fpr", 0.15, "--at-scale", 1000, "--json")
    assert (result["positives"], result["negatives"], result["bits"]) == (20, 160, 16)
    # At most 24 of 160 negative pairs: 20 have a distance of 1 or 2, 30 of at most 3.
    assert result["distance"] == 2
    assert result["fpr"] == 0.125
    assert result["recall"] == 0.6  # 12 of 20 positive pairs have a distance of at most 2
    exact = binomtest(20, 160).proportion_ci(0.95, method="exact")
    assert result["fpr_interval"] == pytest.approx([exact.low, exact.high])
    assert result["false_pairs"] == 499_500 * 0.125
    assert result["false_pairs_interval"] == pytest.approx(
        [499_500 * exact.low, 499_500 * exact.high]
    )
    from_npz = run(codes, "--pairs", pairs.with_suffix(".npz"), "--fpr", 0.15, "--json")
    assert from_npz.items() <= result.items()
    text = run(codes, "--pairs", pairs, "--fpr", 0.15)
    assert "distance: 2\n" in text
    assert "false pairs" not in text


def test_threshold_is_a_radius(files, run, command, tmp_path):
    codes, pairs = files
    HammingIndex(np.load(codes)).save(tmp_path / "x.index")
    radius = run(codes, "--pairs", pairs, "--fpr", 0.15, "--json")["distance"]
    near = command("index", "radius", tmp_path / "x.index", codes, "-r", radius, "--json")
    own = np.setdiff1d(near["rows"][0]["ids"], [0])  # row 0 is one side of every pair
    assert np.count_nonzero(own <= 160) == 20
    assert np.count_nonzero(own > 160) == 12


def test_what_the_pairs_cannot_show_is_refused(files, run):
    codes, pairs = files
    message = run(codes, "--pairs", pairs, "--fpr", 1e-4, fail=True)
    assert "160 negative pairs cannot show a false positive rate of 0.0001" in message
    assert "at least 30000 negative pairs" in message
    assert "fpr must lie between 0 and 1" in run(codes, "--pairs", pairs, "--fpr", 2, fail=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n0,1\n", "no column similar"),
        ("", "no column a and no column b and no column similar"),
        ("a,b,similar\n0,1,1\n0,x,0\n", "line 3: '0,x,0' is not a pair"),
        ("a,b,similar\n0,1,2\n", "line 2: '0,1,2' is not a pair"),
        ("a,b,similar\n0\n", "line 2: '0' is not a pair"),
        ("a,b,similar\n0,999,1\n", "pair 0 is [0, 999], but "),
        (f"a,b,similar\n0,{10**30},1\n", "larger than 64 bits"),
        ("a,b,similar\n", "pairs is empty"),
        ("a,b,similar\n0,1,1\n1,0,1\n", "every pair is similar"),
        ("a,b,similar\n0,1,1\n1,0,0\n", "both a positive and a negative pair"),
        ("a,b,similar\n3,3,1\n", "pairs row 3 with itself"),
    ],
)
def test_invalid_pairs_name_the_line(files, run, text, message):
    codes, pairs = files
    pairs.write_text(text)
    assert message in run(codes, "--pairs", pairs, "--fpr", 0.1, fail=True)


def test_rows_that_are_not_codes_are_refused(files, run, tmp_path):
    _, pairs = files
    np.save(tmp_path / "floats.npy", np.ones((200, 4), np.float32))
    message = run(tmp_path / "floats.npy", "--pairs", pairs, "--fpr", 0.1, fail=True)
    assert "packed uint8 rows" in message
    other = run(files[0], "--pairs", tmp_path / "pairs.txt", "--fpr", 0.1, fail=True)
    assert "must end in .csv or .npz" in other


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (b'a,b,similar\n0,"' + b"1" * 200_000, "line 2: field larger than field limit"),
        (b"a,b,similar\n0,\xff,1\n", "line 2: not UTF-8 text"),
        (b"a,b,similar\n0,1,1\nx,2,0\n", "line 3: 'x,2,0' is not a pair"),
    ],
)
def test_damaged_pairs_are_one_sentence_that_names_the_file_once(
    files, run, tmp_path, lines, message
):
    pairs = tmp_path / "damaged.csv"
    pairs.write_bytes(lines)
    found = run(files[0], "--pairs", pairs, "--fpr", 0.1, fail=True)
    assert found.startswith(f"error: {pairs}, {message}")
    assert found.count(str(pairs)) == 1


def test_more_codes_than_there_can_be_are_refused(files, run):
    found = run(files[0], "--pairs", files[1], "--fpr", 0.1, "--at-scale", "9" * 400, fail=True)
    assert "n must be from 2" in found
