"""Reading, writing and splitting scenes, and drawing pairs from them."""

from __future__ import annotations

import os

import numpy as np
import pytest

from kdiffhash.datasets import find_scene, load_scene
from kdiffhash.datasets.scene import read_meta, read_scene, write_scene


@pytest.fixture
def scene(tmp_path):
    """The folder of a scene with four patches, two points and a list of two pairs."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "info.txt").write_text("0 1 9\n0 2 9\n5 1 9\n5 3 9\n")
    (folder / "m50_2_2_0.txt").write_text("0 0 0 1 0 0\n1 0 0 2 5 0\n")
    np.save(folder / "sift.npy", np.arange(32, dtype=np.uint8).reshape(4, 8))
    return folder


def test_load_scene_finds_a_scene_by_name(scene, monkeypatch):
    monkeypatch.setenv("KDIFFHASH_SCENES", str(scene.parent))
    loaded = load_scene("tiny")
    assert loaded.name == "tiny"
    assert loaded.points.tolist() == [0, 0, 5, 5]
    assert loaded.photos.tolist() == [1, 2, 1, 3]
    assert loaded.descriptors[2, 0] == 16
    pairs, similar = loaded.test_pairs()
    assert pairs.tolist() == [[0, 1], [1, 2]]
    assert similar.tolist() == [True, False]


def test_photo_ids_are_unknown_if_all_are_zero(scene):
    (scene / "info.txt").write_text("0 0\n0 0\n5 0\n5 0\n")
    assert load_scene(scene).photos is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("info.txt", "0 1\n0\n", r"info.txt, line 2: expected 2 integers"),
        ("info.txt", "0 1\nx 2\n", r"line 2"),
        ("info.txt", "", "empty"),
        ("info.txt", "0 1\n0 1\n", "info.txt has 2 lines"),
        ("info.txt", "0 1\n0 1.5\n", r"line 2: expected 2 integers, got '0 1.5'"),
        ("m50_2_2_0.txt", "0 0 0 1 0 0\n\n0 0 0 1 0\n", r"m50_2_2_0.txt, line 3"),
        ("m50_2_2_0.txt", "0 0 0 1 0 0\n0 0 0 9 5 0\n", r"m50_2_2_0.txt, line 2"),
        ("m50_2_2_0.txt", "0 5 0 1 0 0\n", r"do not agree with info.txt"),
        ("m50_2_2_0.txt", "0 0 0 1 0 0\n\n\n0 5 0 1 0 0\n", r"line 4: patches"),
        ("sift.npy", "junk", "sift.npy is not a readable"),
    ],
)
def test_errors_name_the_damaged_file_and_line(scene, name, content, message):
    (scene / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        load_scene(scene).test_pairs()


def test_the_error_for_a_missing_scene_names_the_folders_searched(tmp_path, monkeypatch, scene):
    monkeypatch.delenv("KDIFFHASH_SCENES", raising=False)
    with pytest.raises(FileNotFoundError, match=r"KDIFFHASH_SCENES \(which is not set\)"):
        find_scene("none")
    monkeypatch.setenv("KDIFFHASH_SCENES", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"KDIFFHASH_SCENES={tmp_path}"):
        find_scene("none")
    (scene / "sift.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"neither sift\.npy nor sheets"):
        load_scene(scene)


def test_sheets_that_do_not_match_info_are_refused(scene):
    for number in range(2):
        (scene / f"patches{number:04d}.bmp").touch()
    with pytest.raises(
        ValueError, match=r"info.txt has 4 lines, so the number of sheets must be 1, but it is 2"
    ):
        load_scene(scene)


@pytest.fixture
def large(tmp_path):
    """A scene of 400 points in 6 photos each; ids of points have gaps, ids of photos start at 2."""
    points, photos = np.repeat(np.arange(400) * 3, 6), np.tile(np.arange(6) + 2, 400)
    rng = np.random.default_rng(0)
    write_scene(
        tmp_path / "large",
        np.zeros((2400, 64, 64), np.uint8),
        points,
        photos,
        descriptors=np.arange(2400 * 4, dtype=np.uint8).reshape(2400, 4),
        frames=rng.uniform(1, 9, (2400, 4)),
        meta={},
    )
    return load_scene(tmp_path / "large")


def test_a_written_scene_is_read_back(large):
    assert large.points.tolist() == np.repeat(np.arange(400) * 3, 6).tolist()
    assert large.photos.tolist() == np.tile(np.arange(6) + 2, 400).tolist()
    assert large.patches.shape == (2400, 64, 64)
    names = sorted(path.name for path in large.path.glob("m50_*"))
    assert names == ["m50_12000_12000_0.txt", "m50_2000_2000_0.txt"]  # 400 points have 6000 pairs
    pairs, similar = large.test_pairs()
    assert len(pairs) == 12_000
    assert similar.sum() == 6000
    assert ((large.points[pairs[:, 0]] == large.points[pairs[:, 1]]) == similar).all()


def test_a_scene_is_replaced_completely_or_not_at_all(large, monkeypatch):
    np.save(large.path / "hog.npy", np.zeros((2400, 3)))
    points, photos = np.repeat(np.arange(200), 2), np.tile([1, 2], 200)
    new = {"descriptors": np.zeros((400, 4), np.uint8), "frames": np.ones((400, 4)), "meta": {}}
    patches = np.zeros((400, 64, 64), np.uint8)
    with monkeypatch.context() as full_disk:

        def fail(*arguments, **options):
            raise OSError(28, "No space left on device")

        full_disk.setattr(np, "savetxt", fail)
        with pytest.raises(OSError, match="No space left"):
            write_scene(large.path, patches, points, photos, **new)
    assert len(load_scene(large.path)) == 2400
    write_scene(large.path, patches, points, photos, **new)
    assert len(load_scene(large.path)) == 400
    assert not (large.path / "hog.npy").exists()
    assert len(list(large.path.glob("patches*.bmp"))) == 2
    assert not list(large.path.glob(".new-*"))


def test_byte_order_marks_and_crlf_line_ends_are_accepted(scene):
    content = (scene / "info.txt").read_text().replace("\n", "\r\n")
    (scene / "info.txt").write_text("\ufeff" + content, encoding="utf-8")
    assert load_scene(scene).points.tolist() == [0, 0, 5, 5]


def test_the_length_of_a_list_is_not_taken_from_its_file_name(scene):
    (scene / "m50_2_2_0.txt").rename(scene / "m50_500000_500000_0.txt")
    assert len(load_scene(scene).test_pairs()[0]) == 2


def test_negatives_can_be_drawn_instead_of_those_of_the_list(large):
    listed, listed_similar = large.test_pairs()
    pairs, similar = large.test_pairs(50_000, random_state=3)
    assert similar.sum() == 6000
    assert (~similar).sum() == 50_000
    assert sorted(map(tuple, pairs[similar])) == sorted(map(tuple, listed[listed_similar]))
    assert (large.points[pairs[~similar]][:, 0] != large.points[pairs[~similar]][:, 1]).all()
    again, _ = large.test_pairs(50_000, random_state=3)
    np.testing.assert_array_equal(again, pairs)


def test_pairs_across_photos_need_photo_ids(large, scene):
    pairs, similar = large.draw_pairs(3000, 3000, across_photos=True, random_state=0)
    assert (large.photos[pairs[:, 0]] != large.photos[pairs[:, 1]]).all()
    assert similar.sum() == 3000
    again, _ = large.draw_pairs(3000, 3000, across_photos=True, random_state=0)
    np.testing.assert_array_equal(again, pairs)
    (scene / "info.txt").write_text("0 0\n0 0\n5 0\n5 0\n")
    unknown = load_scene(scene)
    assert len(unknown.draw_pairs(2, 2, random_state=0)[0]) == 4
    with pytest.raises(ValueError, match="does not say which photo"):
        unknown.draw_pairs(2, 2, across_photos=True)
    with pytest.raises(ValueError, match="does not say which photo"):
        unknown.split(by="photos")


def test_split_scenes_share_no_point(large):
    train, test = large.split(0.25, random_state=1)
    assert not set(train.points) & set(test.points)
    assert len(np.unique(test.points)) == 100
    assert len(train) + len(test) == 2400
    np.testing.assert_array_equal(test.descriptors, large.descriptors[test.rows])
    np.testing.assert_array_equal(test.points, large.points[test.rows])
    again, _ = large.split(0.25, random_state=1)
    np.testing.assert_array_equal(again.rows, train.rows)
    pairs, similar = test.test_pairs()  # drawn, because the list has points of both scenes
    assert pairs.max() < len(test)
    assert similar.sum() == 100 * 15
    assert test.patches[5].shape == (64, 64)
    inner, _ = test.split(0.5)
    np.testing.assert_array_equal(inner.descriptors, large.descriptors[inner.rows])


def test_split_by_photos_shares_no_photo(large):
    train, test = large.split(by="photos")
    assert not set(train.points) & set(test.points)
    assert not set(train.photos) & set(test.photos)
    assert len(np.unique(train.photos)) == len(np.unique(test.photos)) == 3


def test_split_by_blocks_alternates_and_keeps_points_together(large):
    train, test = large.split(by="blocks", block_size=100)
    assert not set(train.points) & set(test.points)
    assert len(train) + len(test) == 2400
    # The first 100 patches are those of 16 points and the start of another one.
    assert train.rows[:102].tolist() == list(range(102))
    assert test.rows[:96].tolist() == list(range(102, 198))
    _, test = large.split(0.2, by="blocks", block_size=100)
    starts = test.rows[np.unique(test.points, return_index=True)[1]]
    assert (starts // 100 % 5 == 4).all()
    np.testing.assert_array_equal(large.split(by="blocks", block_size=100)[0].rows, train.rows)


def test_patches_with_uncertain_points_are_in_no_pair(large):
    confident = np.ones(2400, bool)
    confident[600:1800] = False
    np.save(large.path / "confident.npy", confident)
    scene = load_scene(large.path)
    pairs, similar = scene.draw_pairs(1000, 1000, random_state=0)
    assert confident[pairs].all()
    assert similar.sum() == 1000
    pairs, similar = scene.test_pairs(3000)
    assert confident[pairs[~similar]].all()
    train, _ = scene.split(by="points")
    pairs, _ = train.draw_pairs(500, 500, random_state=0)
    assert confident[train.rows[pairs]].all()


def test_a_confident_file_of_the_wrong_length_is_refused(large):
    np.save(large.path / "confident.npy", np.ones(7, bool))
    with pytest.raises(ValueError, match=r"confident.npy holds bool of shape \(7,\)"):
        load_scene(large.path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "blocks", "block_size": 0}, "block_size must be at least 1"),
        ({"test_share": 0}, "between 0 and 1"),
        ({"by": "colour"}, "by must be"),
        ({"test_share": 0.001}, "too small"),
    ],
)
def test_invalid_splits_are_refused(large, options, message):
    with pytest.raises(ValueError, match=message):
        large.split(**options)


def test_pipes_in_a_scene_are_refused_without_waiting_for_a_writer(tmp_path):
    np.save(tmp_path / "sift.npy", np.zeros((2, 128), np.uint8))
    os.mkfifo(tmp_path / "info.txt")
    with pytest.raises(ValueError, match="not a regular file"):
        read_scene(tmp_path)
    (tmp_path / "info.txt").unlink()
    (tmp_path / "info.txt").write_text("0 0\n0 0\n")
    os.mkfifo(tmp_path / "meta.json")
    assert read_meta(tmp_path) == {}
    os.mkfifo(tmp_path / "m50_2_2_0.txt")
    with pytest.raises(ValueError, match="not a regular file"):
        read_scene(tmp_path).test_pairs()


def test_descriptors_without_columns_are_refused(tmp_path):
    (tmp_path / "info.txt").write_text("0 0\n0 0\n")
    np.save(tmp_path / "sift.npy", np.zeros((2, 0), np.uint8))
    with pytest.raises(ValueError, match=r"sift.npy has shape \(2, 0\)"):
        read_scene(tmp_path)
