"""hloc's features and matches files, and `kdiffhash hloc`."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from itertools import combinations

import numpy as np
import pytest

from kdiffhash import load_pretrained, match_codes
from kdiffhash.study.baselines import RandomHyperplaneHash
from kdiffhash.vision.hloc import encode_features, match_features

h5py = pytest.importorskip("h5py")

NAMES = ("db/1.jpg", "db/2.jpg", "empty.jpg", "query/night/1.jpg")


@pytest.fixture(scope="module")
def descriptors():
    """RootSIFT of four images; three of them show the same objects with noise."""
    rng = np.random.default_rng(0)
    objects = rng.gamma(0.4, 60, (120, 128))
    out = {}
    for name, n in zip(NAMES, (100, 120, 0, 90)):
        rows = objects[rng.permutation(120)[:n]] + rng.gamma(0.4, 6, (n, 128))
        out[name] = np.sqrt(rows / rows.sum(axis=1, keepdims=True)).astype(np.float32)
    return out


@pytest.fixture
def features(descriptors, tmp_path):
    """A features file in the layout of hloc."""
    rng = np.random.default_rng(1)
    path = tmp_path / "features.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for name, rows in descriptors.items():
            group = file.create_group(name)
            group["keypoints"] = rng.uniform(0, 500, (len(rows), 2)).astype(np.float16)
            group["keypoints"].attrs["uncertainty"] = 1.5
            group["scores"] = rng.uniform(size=len(rows)).astype(np.float16)
            group["descriptors"] = rows.T
            group["image_size"] = np.array([640, 480])
    return path


@pytest.fixture
def run(command):
    return partial(command, "hloc")


@pytest.fixture(scope="module")
def codes(descriptors):
    """The expected codes of each image."""
    model = load_pretrained("rootsift", 256)
    return {
        name: model.transform(rows) if len(rows) else np.empty((0, 32), np.uint8)
        for name, rows in descriptors.items()
    }


def contents(path):
    """Return all datasets of a file with their attributes by name."""
    out = {}
    with h5py.File(path, "r") as file:

        def collect(name, item):
            if isinstance(item, h5py.Dataset):
                out[name] = (item[()], dict(item.attrs))

        file.visititems(collect)
    return out


def assert_matches(path, codes, pairs, n_bits=256, ratio=0.74):
    """Assert that a file has the matches of these pairs only; return their numbers."""
    found, counts = contents(path), {}
    groups = {}
    for a, b in pairs:
        group = groups[a, b] = f"{a.replace('/', '-')}/{b.replace('/', '-')}"
        numbers, scores = np.full(len(codes[a]), -1), np.zeros(len(codes[a]))
        matches, distances = match_codes(codes[a], codes[b], ratio=ratio)
        for (i, j), distance in zip(matches.tolist(), distances.tolist()):
            numbers[i], scores[i] = j, 1 - distance / n_bits
        written = found[f"{group}/matches0"][0]
        assert written.dtype == np.int16
        np.testing.assert_array_equal(written, numbers)
        written = found[f"{group}/matching_scores0"][0]
        assert written.dtype == np.float16
        np.testing.assert_array_equal(written, scores.astype(np.float16))
        counts[a, b] = len(matches)
    expected = {f"{g}/{n}" for g in groups.values() for n in ("matches0", "matching_scores0")}
    assert found.keys() == expected
    return counts


def test_encode_replaces_descriptors_by_codes_and_copies_the_rest(features, codes, tmp_path):
    before = features.read_bytes()
    assert encode_features(features, tmp_path / "new.h5", load_pretrained("rootsift", 256)) == 4
    old, new = contents(features), contents(tmp_path / "new.h5")
    assert old.keys() == new.keys()
    for name, (values, attributes) in new.items():
        if name.endswith("/descriptors"):
            expected = codes[name.removesuffix("/descriptors")]
            assert values.dtype == np.uint8
            assert values.shape == (32, len(expected))
            np.testing.assert_array_equal(values.T, expected)
            assert attributes["n_bits"] == 256
        else:
            assert values.dtype == old[name][0].dtype
            np.testing.assert_array_equal(values, old[name][0])
            assert attributes == old[name][1]
    assert new["db/1.jpg/keypoints"][1] == {"uncertainty": 1.5}
    assert features.read_bytes() == before


def test_descriptors_that_cannot_be_encoded_are_named(features, tmp_path):
    with h5py.File(features, "a") as file:
        stored = file[NAMES[1]]["descriptors"][()].astype(np.float32)
        stored[0, 0] = np.nan
        del file[NAMES[1]]["descriptors"]
        file[NAMES[1]]["descriptors"] = stored
    with pytest.raises(ValueError, match=f"descriptors of {NAMES[1]}: "):
        encode_features(features, tmp_path / "new.h5", load_pretrained("rootsift", 256))
    assert not (tmp_path / "new.h5").exists()


def test_matches_are_written_in_the_layout_that_hloc_reads(features, codes, tmp_path):
    done = []
    model = load_pretrained("rootsift", 256)
    found = match_features(features, tmp_path / "matches.h5", model, advance=done.append)
    assert sum(done) == 6
    assert found == assert_matches(tmp_path / "matches.h5", codes, combinations(NAMES, 2))
    assert found["db/1.jpg", "db/2.jpg"] > 50
    assert found["db/1.jpg", "empty.jpg"] == found["empty.jpg", "query/night/1.jpg"] == 0
    with h5py.File(tmp_path / "matches.h5") as file:
        assert set(file) == {"db-1.jpg", "db-2.jpg", "empty.jpg"}
        assert set(file["db-1.jpg"]) == {"db-2.jpg", "empty.jpg", "query-night-1.jpg"}


def test_only_listed_pairs_are_matched(features, codes, tmp_path):
    pairs = [("query/night/1.jpg", "db/2.jpg"), ("query/night/1.jpg", "db/1.jpg")]
    lines = [" ".join(pair) for pair in pairs]
    (tmp_path / "pairs.txt").write_text("\n".join([*lines, "db/2.jpg query/night/1.jpg"]))
    out, model = tmp_path / "matches.h5", load_pretrained("rootsift", 256)
    found = match_features(features, out, model, tmp_path / "pairs.txt", ratio=0.9)
    assert found == assert_matches(out, codes, pairs, ratio=0.9)
    match_features(features, out, model, tmp_path / "pairs.txt", ratio=None, max_distance=40)
    for a, b in pairs:
        expected = match_codes(codes[a], codes[b], max_distance=40).pairs
        numbers = contents(out)[f"{a.replace('/', '-')}/{b.replace('/', '-')}/matches0"][0]
        np.testing.assert_array_equal(np.flatnonzero(numbers >= 0), expected[:, 0])


def test_encoded_features_give_the_same_matches(features, codes, tmp_path):
    model = load_pretrained("rootsift", 256)
    encode_features(features, tmp_path / "codes.h5", model)
    match_features(tmp_path / "codes.h5", tmp_path / "matches.h5", model)
    assert_matches(tmp_path / "matches.h5", codes, combinations(NAMES, 2))


def test_codes_of_another_model_are_refused(features, tmp_path):
    encode_features(features, tmp_path / "codes.h5", load_pretrained("rootsift", 256))
    other = load_pretrained("rootsift", 256)
    other.thresholds_ = other.thresholds_ + np.float32(1e-3)
    for model in (load_pretrained("rootsift", 128), other):
        for work in (match_features, encode_features):
            with pytest.raises(ValueError, match=r"another model or length \(256 bits\)"):
                work(tmp_path / "codes.h5", tmp_path / "out.h5", model)
    assert {p.name for p in tmp_path.iterdir()} == {"features.h5", "codes.h5"}
    match_features(tmp_path / "codes.h5", tmp_path / "out.h5", load_pretrained("sift", 256))


def test_indices_are_32_bit_if_there_are_many_keypoints(tmp_path):
    rows = np.random.default_rng(0).normal(size=(40_000, 16)).astype(np.float32)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["a/descriptors"], file["b/descriptors"] = rows[-20:].T, rows.T
    model = RandomHyperplaneHash(128, random_state=0).fit(rows[:200], np.arange(200) // 2)
    match_features(tmp_path / "f.h5", tmp_path / "m.h5", model)
    numbers = contents(tmp_path / "m.h5")["a/b/matches0"][0]
    expected = match_codes(model.transform(rows[-20:]), model.transform(rows), ratio=0.74).pairs
    assert len(expected) > 10
    assert expected[:, 1].min() > np.iinfo(np.int16).max
    np.testing.assert_array_equal(numbers[expected[:, 0]], expected[:, 1])


def test_the_commands_encode_and_match(features, codes, tmp_path, run):
    out, matches = tmp_path / "codes.h5", tmp_path / "matches.h5"
    output = run("encode", features, "-o", out, "--json")
    assert output == {
        "features": str(out),
        "images": 4,
        "bits": 256,
        "bytes_before": features.stat().st_size,
        "bytes": out.stat().st_size,
    }
    assert out.stat().st_size < features.stat().st_size
    for path in (features, out):
        output = run("match", path, "-o", matches, "--json")
        counts = assert_matches(matches, codes, combinations(NAMES, 2))
        assert output.pop("seconds") >= 0
        assert output == {"written": str(matches), "pairs": 6, "matches": sum(counts.values())}
    assert "pairs: 6" in run("match", features, "-o", matches)
    assert "bits: 64" in run("encode", features, "-o", out, "--bits", 64)


def test_the_commands_pass_their_options_on(features, descriptors, tmp_path, run):
    matches = tmp_path / "matches.h5"
    (tmp_path / "pairs.txt").write_text("db/1.jpg db/2.jpg\n")
    load_pretrained("rootsift", 128).save(tmp_path / "own")
    short = {n: load_pretrained("rootsift", 128).transform(descriptors[n]) for n in NAMES[:2]}
    for which in (("--bits", 128), ("--model", tmp_path / "own")):
        options = (*which, "--pairs", tmp_path / "pairs.txt", "--ratio", 0.9, "--jobs", 1)
        run("match", features, "-o", matches, *options)
        assert_matches(matches, short, [NAMES[:2]], n_bits=128, ratio=0.9)
    run("match", features, "-o", matches, "--descriptor", "sift", "--pairs", tmp_path / "pairs.txt")
    model = load_pretrained("sift", 256)
    assert_matches(matches, {n: model.transform(descriptors[n]) for n in short}, [NAMES[:2]])


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def make_text(path):
    path.write_text("not a features file")


def make_rows(path):
    with h5py.File(path, "w") as file:
        file["descriptors"] = np.zeros((10, 128), np.float32)


def make_no_descriptors(path):
    with h5py.File(path, "w") as file:
        file["a/keypoints"] = np.zeros((10, 2))


def make_narrow(path):
    with h5py.File(path, "w") as file:
        file["a/descriptors"] = file["b/descriptors"] = np.ones((64, 10), np.float32)


def make_nan(path):
    with h5py.File(path, "r+") as file:
        file["db/1.jpg/descriptors"][3, 5] = np.nan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (truncate, "features.h5 is not a readable HDF5 file"),
        (make_text, "features.h5 is not a readable HDF5 file"),
        (make_rows, "has rows, but no images"),
        (make_no_descriptors, "has neither IMAGE/descriptors"),
        (make_narrow, "descriptors of a have 64 values, but the model expects 128; the model in"),
        (make_nan, "NaN in row 5"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_unusable_files_are_refused_and_leave_no_output(features, tmp_path, run, change, message):
    change(features)
    (tmp_path / "old.h5").write_bytes(b"old")
    for which in ("encode", "match"):
        for out in ("new.h5", "old.h5"):
            assert message in run(which, features, "-o", tmp_path / out, fail=True)
    assert {p.name for p in tmp_path.iterdir()} == {"features.h5", "old.h5"}
    assert (tmp_path / "old.h5").read_bytes() == b"old"


def test_invalid_arguments_are_reported(features, tmp_path, run):
    out, pairs = tmp_path / "out.h5", tmp_path / "pairs.txt"
    for which in ("encode", "match"):
        output = run(which, tmp_path / "missing.h5", "-o", out, fail=True)
        assert "No such file" in output
        assert "missing.h5" in output
        nowhere = tmp_path / "nowhere" / "out.h5"
        assert "does not exist" in run(which, features, "-o", nowhere, fail=True)
        assert "from 1 to 512" in run(which, features, "-o", out, "--bits", 1000, fail=True)
    for text, message in {
        "db/1.jpg db/3.jpg": "line 1: no image with descriptors is named 'db/3.jpg'",
        "db/1.jpg db/2.jpg\ndb/1.jpg": "line 2: expected two image names",
        "db/1.jpg db/1.jpg": "paired with itself",
        "": "lists no pairs",
    }.items():
        pairs.write_text(text)
        assert message in run("match", features, "-o", out, "--pairs", pairs, fail=True)
    assert {p.name for p in tmp_path.iterdir()} == {"features.h5", "pairs.txt"}


@pytest.mark.parametrize("place", ["new.jpg", "db/1.jpg/scores", "db/1.jpg/descriptors"])
def test_links_are_refused_without_opening_what_they_name(place, features, tmp_path):
    """Opening a pipe would wait for its writer."""
    os.mkfifo(tmp_path / "pipe")
    for link in (h5py.SoftLink("/nowhere"), h5py.ExternalLink(str(tmp_path / "pipe"), "/X")):
        with h5py.File(features, "a") as file:
            if place in file:
                del file[place]
            file[place] = link
        for what in ("encode", "match"):
            command = ["hloc", what, str(features), "-o", str(tmp_path / "out.h5")]
            done = subprocess.run(
                [sys.executable, "-m", "kdiffhash", *command],
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            message = f"features.h5: {place} refers to another file or place; copy the data into"
            assert done.returncode == 1
            assert message in " ".join(done.stderr.split())
            assert not (tmp_path / "out.h5").exists()
        with h5py.File(features, "a") as file:
            del file[place]


def test_image_names_with_the_same_group_name_are_refused(features, tmp_path, run):
    with h5py.File(features, "a") as file:
        file.copy(file["db/1.jpg"], file, "db-1.jpg")
    output = run("match", features, "-o", tmp_path / "matches.h5", fail=True)
    assert "db-1.jpg and db/1.jpg" in output
    assert not (tmp_path / "matches.h5").exists()


def test_the_input_file_is_not_accepted_as_output(features, run):
    before = features.read_bytes()
    for what in ("encode", "match"):
        assert "would be replaced" in run(what, features, "-o", features, fail=True)
    assert features.read_bytes() == before


def change_codes(path):
    with h5py.File(path, "a") as file:
        file["db/2.jpg/descriptors"][3, 5] ^= 1


def swap_images(path):
    with h5py.File(path, "a") as file:
        for old, new in (("db/1.jpg", "x"), ("db/2.jpg", "db/1.jpg"), ("x", "db/2.jpg")):
            file.move(old, new)


def drop_the_checksum(path):
    with h5py.File(path, "a") as file:
        del file["db/1.jpg/descriptors"].attrs["crc"]


def make_the_fingerprint_a_number(path):
    with h5py.File(path, "a") as file:
        file["db/1.jpg/descriptors"].attrs["kdiffhash_model"] = [1, 2, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_codes, "codes of db/2.jpg are damaged"),
        (swap_images, "are damaged"),
        (drop_the_checksum, "codes of db/1.jpg are damaged"),
        (make_the_fingerprint_a_number, "codes of another model"),
    ],
)
def test_damaged_codes_are_refused(features, tmp_path, run, change, message):
    path, out = tmp_path / "codes.h5", tmp_path / "matches.h5"
    run("encode", features, "-o", path)
    run("match", path, "-o", out)
    before = out.read_bytes()
    change(path)
    assert message in run("match", path, "-o", out, fail=True)
    assert out.read_bytes() == before


def test_an_image_with_more_keypoints_than_descriptors_is_refused(features, tmp_path, run):
    with h5py.File(features, "a") as file:
        del file["db/1.jpg/keypoints"]
        file["db/1.jpg/keypoints"] = np.zeros((101, 2), np.float32)
    for name in ("match", "encode"):
        output = run(name, features, "-o", tmp_path / "out.h5", fail=True)
        assert "db/1.jpg has 101 keypoints, but 100 descriptors" in output
        assert not (tmp_path / "out.h5").exists()
