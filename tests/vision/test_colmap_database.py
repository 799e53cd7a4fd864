"""Matching and shrinking COLMAP databases, and `kdiffhash colmap`."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import combinations

import cv2
import numpy as np
import pytest

from kdiffhash import load_pretrained, match_codes
from kdiffhash.study.baselines import RandomHyperplaneHash
from kdiffhash.vision import colmap, colmap_database, colmap_training

pycolmap = pytest.importorskip("pycolmap")

THIRD_VIEW = np.array([[1.05, -0.12, 20.0], [0.1, 0.9, 10.0], [-1e-4, 2e-4, 1.0]])
NAMES = ("a.png", "far/b.png", "far/c.png", "flat.png")


@pytest.fixture(scope="module")
def homographies(homography):
    """Homographies from the first image to each of the three views, by name."""
    return dict(zip(NAMES, (np.eye(3), homography, THIRD_VIEW)))


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, image_named, warp, flat, homographies):
    """A database made by COLMAP: three views of one image, and an image without texture."""
    folder = tmp_path_factory.mktemp("colmap")
    (folder / "images" / "far").mkdir(parents=True)
    for name in NAMES:
        image = warp(image_named(), homographies[name]) if name in homographies else flat
        cv2.imwrite(str(folder / "images" / name), image)
    pycolmap.extract_features(folder / "database.db", folder / "images", device=pycolmap.Device.cpu)
    return folder / "database.db"


@pytest.fixture
def database(extracted, tmp_path):
    return shutil.copy(extracted, tmp_path / "database.db")


@pytest.fixture
def run(command):
    return partial(command, "colmap")


def execute(path, *statements):
    with closing(sqlite3.connect(path)) as database, database:
        return [database.execute(one).fetchall() for one in statements][-1]


def contents(path):
    """Return all rows of a database by table."""
    names = [name for (name,) in execute(path, "SELECT name FROM sqlite_master WHERE type='table'")]
    return {name: execute(path, f"SELECT * FROM {name} ORDER BY 1, 2") for name in names}


def files_in(folder):
    """Return the names of files in a folder, without the journals of SQLite."""
    return {p.name for p in folder.iterdir() if not p.name.endswith(("-wal", "-shm"))}


def without(tables, *names):
    return {name: rows for name, rows in tables.items() if name not in names}


def features(path):
    """Return id, keypoint positions and descriptors of each image by name."""
    rows = execute(
        path,
        "SELECT name, image_id, k.rows, k.cols, k.data, d.data FROM images "
        "JOIN keypoints k USING (image_id) JOIN descriptors d USING (image_id)",
    )
    return {
        name: (
            number,
            np.frombuffer(points or b"", np.float32).reshape(n, width)[:, :2],
            np.frombuffer(data or b"", np.uint8).reshape(n, 128),
        )
        for name, number, n, width, points, data in rows
    }


def matches_between(path, *pairs):
    """Return the matches and geometries that COLMAP reads for pairs of names."""
    with closing(pycolmap.Database.open(path)) as database:
        numbers = {image.name: image.image_id for image in database.read_all_images()}
        return [
            (
                database.read_matches(numbers[a], numbers[b]),
                database.read_two_view_geometry(numbers[a], numbers[b]),
            )
            for a, b in pairs
        ]


def expected_matches(path, a, b, n_bits=256, ratio=0.74):
    """Encode and match the descriptors of two images."""
    model, found = load_pretrained("rootsift", n_bits), features(path)
    codes = [
        model.transform(found[name][2]) if len(found[name][2]) else np.empty((0, 32), np.uint8)
        for name in (a, b)
    ]
    return match_codes(*codes, ratio=ratio).pairs


@pytest.fixture
def expected(database):
    return {pair: expected_matches(database, *pair) for pair in combinations(NAMES, 2)}


def test_matches_are_those_of_the_encoded_descriptors(database, expected, agree, homographies):
    images = colmap.read_images(database, load_pretrained("rootsift", 256))
    assert {image.name for image in images} == set(NAMES)
    known = features(database)
    for image in images:
        number, points, _ = known[image.name]
        assert image.id == number
        np.testing.assert_array_equal(image.points, points)
    done = []
    found = colmap.match_images(images, advance=done.append)
    assert len(found) == sum(done) == 6
    order = [image.name for image in images]
    assert [(pair.a.name, pair.b.name) for pair in found] == list(combinations(order, 2))
    for pair in found:
        a, b = pair.a.name, pair.b.name
        np.testing.assert_array_equal(pair.matches, expected_matches(database, a, b))
        assert pair.n_verified == 0
        if "flat.png" in (a, b):
            assert len(pair.matches) == 0
            continue
        left, right = pair.a.points[pair.matches[:, 0]], pair.b.points[pair.matches[:, 1]]
        good = agree(left, right, homographies[b] @ np.linalg.inv(homographies[a]))
        assert len(good) > 100
        assert good.mean() > 0.8


def test_results_do_not_depend_on_the_number_of_threads(database):
    images = colmap.read_images(database, load_pretrained("rootsift", 256))
    one, two = (
        colmap.verify_pairs(colmap.match_images(images, n_jobs=n), n_jobs=n) for n in (1, 2)
    )
    for a, b in zip(one, two):
        np.testing.assert_array_equal(a.matches, b.matches)
        np.testing.assert_array_equal(a.geometry.inlier_matches, b.geometry.inlier_matches)


def test_colmap_reads_matches_and_geometries(database, expected, agree, homographies, run):
    before = contents(database)
    output = run("match", database, "--json")
    after = contents(database)
    assert without(before, "matches", "two_view_geometries") == without(
        after, "matches", "two_view_geometries"
    )
    assert before["matches"] == before["two_view_geometries"] == []
    assert len(after["matches"]) == len(after["two_view_geometries"]) == 6
    known = features(database)
    n_verified = []
    read = matches_between(database, *expected)
    for ((a, b), pairs), (matches, geometry) in zip(expected.items(), read):
        if known[a][0] > known[b][0]:
            pairs = expected_matches(database, b, a)[:, ::-1]
        np.testing.assert_array_equal(matches, pairs)
        inliers = geometry.inlier_matches
        n_verified.append(len(inliers))
        assert set(map(tuple, inliers.tolist())) <= set(map(tuple, matches.tolist()))
        if "flat.png" not in (a, b):
            assert len(inliers) > 100
            left, right = known[a][1][inliers[:, 0]], known[b][1][inliers[:, 1]]
            assert (
                agree(left, right, homographies[b] @ np.linalg.inv(homographies[a])).mean() > 0.95
            )
    assert output.pop("seconds").keys() == {"encoding", "matching", "verifying", "writing"}
    assert output == {
        "database": str(database),
        "images": 4,
        "pairs": 6,
        "matches": sum(len(matches) for matches, _ in read),
        "verified": sum(n_verified),
        "verified_pairs": 3,
    }


def test_matching_twice_gives_the_same_database(database, run):
    run("match", database)
    once = contents(database)
    assert "pairs: 6" in run("match", database, "--jobs", 1)
    assert contents(database) == once


def test_keep_copies_the_database_before_matching(database, tmp_path, run):
    before = contents(database)
    output = run("match", database, "--backup", tmp_path / "copy.db", "--json")
    assert output["copy"] == str(tmp_path / "copy.db")
    assert contents(tmp_path / "copy.db") == before != contents(database)
    with closing(pycolmap.Database.open(tmp_path / "copy.db")) as copy:
        assert copy.num_images() == 4
    assert files_in(tmp_path) == {"copy.db", "database.db"}


def test_listed_pairs_are_replaced_and_other_pairs_stay(database, tmp_path, run):
    run("match", database)
    before = contents(database)
    (tmp_path / "pairs.txt").write_text(
        "# some\n\nfar/c.png  a.png\nfar/b.png far/c.png\na.png far/c.png\n"
    )
    output = run("match", database, "--pairs", tmp_path / "pairs.txt", "--ratio", 0.6, "--json")
    assert output["pairs"] == 2
    for a, b in (("far/c.png", "a.png"), ("far/b.png", "far/c.png")):
        ((matches, geometry),) = matches_between(database, (a, b))
        np.testing.assert_array_equal(matches, expected_matches(database, a, b, ratio=0.6))
        assert 50 < len(geometry.inlier_matches) <= len(matches)
    after = contents(database)
    for table in ("matches", "two_view_geometries"):
        assert len(after[table]) == 6
        assert len(set(before[table]) & set(after[table])) == 4
    names = ("matches", "two_view_geometries")
    assert without(before, *names) == without(after, *names)


def test_geometries_follow_the_order_of_a_listed_pair(database, tmp_path, agree, homographies, run):
    for a, b in (("a.png", "far/b.png"), ("far/b.png", "a.png")):
        (tmp_path / "pairs.txt").write_text(f"{a} {b}\n")
        run("match", database, "--pairs", tmp_path / "pairs.txt")
        ((_, geometry),) = matches_between(database, (a, b))
        corner = geometry.H @ [100, 100, 1]
        moved = homographies[b] @ np.linalg.inv(homographies[a]) @ [100, 100, 1]
        assert np.linalg.norm(corner[:2] / corner[2] - moved[:2] / moved[2]) < 2


def test_likely_pairs_are_chosen_by_votes(database, run):
    names = NAMES[:3]  # the last has no keypoints
    images = colmap.read_images(database, load_pretrained("rootsift", 256))
    expected = {frozenset(pair) for pair in combinations(names, 2)}
    assert set(map(frozenset, colmap.likely_pairs(images))) == expected
    assert len(colmap.likely_pairs(images, 1)) < 3
    output = run("match", database, "--pairs", "auto", "--json")
    assert (output["pairs"], output["verified_pairs"]) == (3, 3)
    assert "choosing_pairs" in output["seconds"]
    for pair in expected:
        ((matches, _),) = matches_between(database, sorted(pair))
        known = features(database)
        a, b = sorted(pair, key=lambda name: known[name][0])
        found = expected_matches(database, a, b)
        assert len(matches) == len(found)


def test_unrelated_images_are_not_paired():
    rng = np.random.default_rng(0)
    objects = rng.integers(0, 256, (4, 300, 32), dtype=np.uint8)
    images = [
        colmap.ImageFeatures(
            i,
            f"{i}.jpg",
            None,
            np.zeros((1500, 2), np.float32),
            np.concatenate([objects[i // 3], rng.integers(0, 256, (1200, 32), dtype=np.uint8)]),
            np.concatenate([np.full(300, 9), np.ones(1200)]).astype(np.float32),
        )
        for i in range(12)
    ]
    expected = {(f"{a}.jpg", f"{b}.jpg") for a, b in combinations(range(12), 2) if a // 3 == b // 3}
    assert set(colmap.likely_pairs(images)) == expected
    assert colmap.likely_pairs([replace(image, codes=image.codes[:0]) for image in images]) == []


def project_descriptors(path, width, as_float):
    """Replace the descriptors of a database by a random projection of them."""
    matrix = np.random.default_rng(width).normal(size=(128, width))
    with closing(sqlite3.connect(path)) as database, database:
        rows = database.execute("SELECT image_id, rows, data FROM descriptors").fetchall()
        for number, n, data in rows:
            values = np.frombuffer(data or b"", np.uint8).reshape(n, 128) @ matrix / 512
            stored = values.astype(np.float32) if as_float else np.clip(32 * values + 128, 0, 255)
            stored = stored if as_float else stored.astype(np.uint8)
            database.execute(
                "UPDATE descriptors SET type = ?, cols = ?, data = ? WHERE image_id = ?",
                (1 if as_float else 0, width * (4 if as_float else 1), stored.tobytes(), number),
            )


@pytest.mark.parametrize(("width", "as_float"), [(64, True), (64, False), (256, True)])
def test_a_model_is_learned_from_verified_matches(
    database, tmp_path, agree, homographies, run, width, as_float
):
    run("match", database)
    project_descriptors(database, width, as_float)
    model = tmp_path / "own.safetensors"
    options = ("--bits", 128, "--basis", 200, "--refine", 0)
    output = run("train", database, "-o", model, *options, "--json")
    assert output["input_features"] == width
    assert output["tracks"] > 100
    assert output["descriptors"] >= 2 * output["tracks"]
    tracks = colmap.read_tracks(database)
    assert len(np.unique(np.stack([tracks.labels, tracks.images]), axis=1).T) == len(tracks.rows)
    message = run("match", database, fail=True)
    assert f"have {width} values, but the model expects 128" in message
    assert "kdiffhash colmap train" in message
    small = tmp_path / "small.db"
    run("shrink", database, "-o", small, "--model", model)
    for path in (database, small):
        run("match", path, "--model", model)
        names = NAMES[:2]
        ((_, geometry),) = matches_between(path, names)
        inliers = geometry.inlier_matches
        known = features_of(path)
        left, right = (known[name][inliers[:, i]] for i, name in enumerate(names))
        assert len(inliers) > 100
        assert agree(left, right).mean() > 0.9


def features_of(path):
    """Return keypoint positions by image name."""
    rows = execute(
        path, "SELECT name, rows, cols, data FROM images JOIN keypoints USING (image_id)"
    )
    return {
        name: np.frombuffer(data or b"", np.float32).reshape(n, width)[:, :2]
        for name, n, width, data in rows
    }


def test_tracks_with_a_wrong_match_are_left_out(database):
    images = np.repeat([1, 2, 3], 5)
    edges = [
        np.array([[0, 5], [1, 6], [2, 7]]),
        np.array([[5, 10], [6, 11]]),
        np.array([[1, 10]]),
    ]
    rows, labels = colmap_training._consistent_tracks(edges, images)
    # The last edge connects the tracks of keypoints 0 and 1, which then have two of each image.
    assert rows.tolist() == [2, 7]
    assert labels.tolist() == [0, 0]


def test_training_needs_verified_matches(database, tmp_path, run):
    output = run("train", database, "-o", tmp_path / "m.safetensors", fail=True)
    assert "0 tracks of verified matches" in output
    assert "colmap exhaustive_matcher" in output
    run("shrink", database, "-o", tmp_path / "small.db")
    output = run("train", tmp_path / "small.db", "-o", tmp_path / "m.safetensors", fail=True)
    assert "train on the original database" in output
    assert not (tmp_path / "m.safetensors").exists()


def test_errors_in_a_list_of_pairs_name_the_line(database, tmp_path, run):
    before = database.read_bytes()
    path = tmp_path / "pairs.txt"
    for text, message in {
        "a.png far/b.png\na.png nobody.png\n": "line 2: no image with descriptors is named 'nobody",
        "a.png far/b.png\n\na.png\n": "line 3: expected two image names, got 'a.png'",
        "a.png far/b.png far/c.png\n": "line 1: expected two image names",
        "a.png a.png\n": "line 1: a.png is paired with itself",
        "# no pairs\n\n": "lists no pairs",
    }.items():
        path.write_text(text)
        assert message in run("match", database, "--pairs", path, fail=True)
    assert "No such file" in run("match", database, "--pairs", tmp_path / "no.txt", fail=True)
    assert database.read_bytes() == before


def test_no_verify_writes_matches_without_geometries(database, expected, run):
    output = run("match", database, "--no-verify", "--json")
    assert output["verified"] is output["verified_pairs"] is None
    assert len(contents(database)["matches"]) == 6
    assert contents(database)["two_view_geometries"] == []
    run("match", database)
    run("match", database, "--no-verify")
    assert contents(database)["two_view_geometries"] == []


def test_the_options_model_bits_and_descriptors_choose_the_model(database, tmp_path, run):
    load_pretrained("rootsift", 128).save(tmp_path / "own")
    run("match", database, "--model", tmp_path / "own", "--no-verify")
    first = contents(database)
    run("match", database, "--bits", 128, "--no-verify")
    assert contents(database) == first
    run("match", database, "--bits", 128, "--descriptor", "sift", "--no-verify")
    assert contents(database) != first
    rows = np.random.default_rng(0).normal(size=(100, 64))
    RandomHyperplaneHash(32, random_state=0).fit(rows, np.arange(100)).save(tmp_path / "narrow")
    output = run("match", database, "--model", tmp_path / "narrow", fail=True)
    assert "have 128 values, but the model expects 64" in output


def make_newer(path):
    execute(path, "PRAGMA user_version = 99990000")


def make_older(path):
    execute(path, "PRAGMA user_version = 3130000")


def make_text(path):
    path.write_text("this is not a database, although it is long enough to be one\n" * 100)


def make_empty(path):
    path.write_bytes(b"")


def make_unrelated(path):
    path.unlink()
    execute(path, "CREATE TABLE images (name TEXT)")


def delete_descriptors(path):
    execute(path, "DELETE FROM descriptors")


def keep_one_image(path):
    execute(path, "DELETE FROM descriptors WHERE image_id > 1")


def shorten_descriptors(path):
    execute(path, "UPDATE descriptors SET cols = 64, data = substr(data, 1, 64 * rows)")


def truncate_keypoints(path):
    execute(path, "UPDATE keypoints SET data = substr(data, 1, 100) WHERE rows > 0")


def drop_a_byte_of_keypoints(path):
    execute(path, "UPDATE keypoints SET data = substr(data, 1, length(data) - 1)")


def delete_cameras(path):
    execute(path, "DELETE FROM cameras")


def add_empty_model_table(path):
    execute(path, "CREATE TABLE kdiffhash (model TEXT, bits INTEGER)")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (make_newer, "newer pycolmap"),
        (make_older, "has version 3.13.0"),
        (make_text, "not a database"),
        (make_empty, "not a COLMAP database"),
        (make_unrelated, "not a COLMAP database"),
        (delete_descriptors, "has 0 images with descriptors"),
        (keep_one_image, "has 1 images with descriptors"),
        (shorten_descriptors, "64 values, but the model expects 128"),
        (truncate_keypoints, "do not match"),
        (drop_a_byte_of_keypoints, "do not match"),
        (delete_cameras, "has no camera"),
        (add_empty_model_table, "model that made them is not recorded"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_unusable_databases_are_refused_and_unchanged(database, tmp_path, run, change, message):
    change(database)
    before = database.read_bytes()
    output = run("match", database, "--backup", tmp_path / "copy.db", fail=True)
    assert str(database) in output
    assert message in output
    assert database.read_bytes() == before
    assert files_in(tmp_path) == {"database.db"}


def test_a_missing_database_is_reported(tmp_path, run):
    output = run("match", tmp_path / "no.db", fail=True)
    assert f"there is no COLMAP database: {tmp_path / 'no.db'}" in output
    assert "no.db" in run("shrink", tmp_path / "no.db", "-o", tmp_path / "new.db", fail=True)
    assert "no COLMAP database" in run("match", tmp_path, fail=True)
    assert not list(tmp_path.iterdir())


def test_a_database_locked_for_writing_is_reported(database, run, monkeypatch):
    monkeypatch.setattr(colmap_database, "LOCK_TIMEOUT", 0.05)
    before, tables = database.read_bytes(), contents(database)
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        output = run("match", database, "--no-verify", fail=True)
        other.execute("ROLLBACK")
    assert f"{database}: database is locked; the database was not changed" in output
    assert database.read_bytes() == before
    assert contents(database) == tables


def test_a_database_locked_for_reading_is_reported(database, run, monkeypatch):
    monkeypatch.setattr(colmap_database, "LOCK_TIMEOUT", 0.05)
    execute(database, "PRAGMA journal_mode = DELETE")
    before = database.read_bytes()
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "database is locked" in run("match", database, fail=True)
        other.execute("ROLLBACK")
    assert database.read_bytes() == before
    run("match", database, "--no-verify")
    assert len(contents(database)["matches"]) == 6


def test_an_error_while_writing_rolls_back(database, tmp_path, run):
    run("match", database, "--ratio", 0.6)
    before, tables = database.read_bytes(), contents(database)

    class FailingConnection(sqlite3.Connection):
        def execute(self, statement, *values):
            if statement.startswith("INSERT INTO main.two_view_geometries"):
                raise OSError("the disk is full")
            return super().execute(statement, *values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=FailingConnection))
        assert "the disk is full" in run("match", database, fail=True)
    assert database.read_bytes() == before
    assert contents(database) == tables
    assert files_in(tmp_path) == {"database.db"}


def n_descriptor_bytes(path):
    return execute(path, "SELECT sum(length(data)) FROM descriptors")[0][0]


def test_shrink_replaces_descriptors_by_codes_and_copies_the_rest(database, tmp_path, run):
    before = database.read_bytes()
    small = tmp_path / "small.db"
    output = run("shrink", database, "-o", small, "--json")
    assert output == {
        "database": str(small),
        "bits": 256,
        "bytes_before": len(before),
        "bytes": small.stat().st_size,
    }
    assert database.read_bytes() == before
    assert small.stat().st_size < len(before)
    assert 4 * n_descriptor_bytes(small) == n_descriptor_bytes(database)
    both = contents(database), contents(small)
    assert without(both[0], "descriptors") == without(both[1], "descriptors", "kdiffhash")
    known, model = features(database), load_pretrained("rootsift", 256)
    for name, (number, points, descriptors) in known.items():
        ((n, width, data),) = execute(
            small, f"SELECT rows, cols, data FROM descriptors WHERE image_id = {number}"
        )
        assert (n, width) == (len(points), 32)
        if name != "flat.png":
            assert data == model.transform(descriptors).tobytes()
    with closing(pycolmap.Database.open(small)) as read:
        for number, points, _ in known.values():
            np.testing.assert_array_equal(read.read_keypoints(number)[:, :2], points)
    assert files_in(tmp_path) == {"database.db", "small.db"}


def test_a_shrunk_database_gives_the_same_matches(database, tmp_path, run):
    small = tmp_path / "small.db"
    run("shrink", database, "-o", small)
    untouched = contents(small)
    output = [run("match", path, "--json") for path in (database, small)]
    assert output[0]["matches"] == output[1]["matches"] > 300
    names = ("matches", "two_view_geometries")
    for name in names:
        assert contents(database)[name] == contents(small)[name]
    assert without(contents(small), *names) == without(untouched, *names)
    assert matches_between(small, NAMES[:2])[0][1].inlier_matches.shape[0] > 100


def test_codes_of_another_model_are_refused(database, tmp_path, run):
    small = tmp_path / "small.db"
    run("shrink", database, "-o", small, "--bits", 128)
    before = small.read_bytes()
    other = load_pretrained("rootsift", 128)
    other.thresholds_ = other.thresholds_ + np.float32(1e-3)
    other.save(tmp_path / "other")
    for options in ((), ("--bits", 64), ("--model", tmp_path / "other")):
        output = run("match", small, *options, fail=True)
        assert "codes of another model or length: 128 bits" in output
    assert "already has codes" in run("shrink", small, "-o", tmp_path / "new.db", fail=True)
    assert small.read_bytes() == before
    load_pretrained("rootsift", 128).save(tmp_path / "own")
    run("match", small, "--model", tmp_path / "own", "--no-verify")
    run("match", small, "--bits", 128, "--descriptor", "sift", "--no-verify")  # equal codes
    run("match", database, "--bits", 128, "--no-verify")
    assert contents(small)["matches"] == contents(database)["matches"]


def test_a_failed_shrink_leaves_no_file(database, tmp_path, run):
    before = database.read_bytes()
    assert "would be replaced" in run("shrink", database, "-o", database, fail=True)
    nowhere = tmp_path / "nowhere" / "small.db"
    assert "does not exist" in run("shrink", database, "-o", nowhere, fail=True)
    assert database.read_bytes() == before
    for change in (truncate_keypoints, shorten_descriptors, make_older, make_text):
        change(database)
        output = run("shrink", database, "-o", tmp_path / "small.db", fail=True)
        assert str(database) in output
        assert files_in(tmp_path) == {"database.db"}


def test_keep_does_not_replace_an_existing_file(database, tmp_path, run):
    (tmp_path / "copy.db").write_text("mine")
    before = contents(database)
    output = run("match", database, "--backup", tmp_path / "copy.db", fail=True)
    assert "--backup" in output
    assert "already exists" in output
    assert "would be replaced" in run("match", database, "--backup", database, fail=True)
    assert (tmp_path / "copy.db").read_text() == "mine"
    assert contents(database) == before
    output = run("match", database, "--backup", tmp_path / "nowhere" / "copy.db", fail=True)
    assert "--backup: the folder" in output
