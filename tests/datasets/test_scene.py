from __future__ import annotations

import numpy as np
import pytest

from kdiffhash.datasets import find_scene, load_scene


@pytest.fixture
def scene(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "info.txt").write_text("0 1 9\n0 2 9\n5 1 9\n5 3 9\n")
    (folder / "m50_2_2_0.txt").write_text("0 0 0 1 0 0\n1 0 0 2 5 0\n")
    np.save(folder / "sift.npy", np.arange(32, dtype=np.uint8).reshape(4, 8))
    return folder


def test_a_scene_is_read(scene, monkeypatch):
    monkeypatch.setenv("KDIFFHASH_SCENES", str(scene.parent))
    found = load_scene("tiny")
    assert found.name == "tiny"
    assert found.points.tolist() == [0, 0, 5, 5]
    assert found.photos.tolist() == [1, 2, 1, 3]
    assert found.descriptors[2, 0] == 16
    pairs, similar = found.test_pairs()
    assert pairs.tolist() == [[0, 1], [1, 2]]
    assert similar.tolist() == [True, False]


def test_photos_that_are_all_zero_are_unknown(scene):
    (scene / "info.txt").write_text("0 0\n0 0\n5 0\n5 0\n")
    assert load_scene(scene).photos is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("info.txt", "0 1\n0\n", r"info.txt, line 2: 2 whole numbers"),
        ("info.txt", "0 1\nx 2\n", r"line 2"),
        ("info.txt", "", "empty"),
        ("info.txt", "0 1\n0 1\n", "info.txt has 2 lines"),
        ("m50_2_2_0.txt", "0 0 0 1 0 0\n0 0 0 9 5 0\n", r"m50_2_2_0.txt, line 2"),
        ("m50_2_2_0.txt", "0 5 0 1 0 0\n", r"does not fit info.txt"),
        ("sift.npy", "junk", "sift.npy cannot be read"),
    ],
)
def test_damage_is_named_by_file_and_line(scene, name, content, message):
    (scene / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        load_scene(scene).test_pairs()


def test_missing_scenes_are_explained(tmp_path, monkeypatch, scene):
    monkeypatch.delenv("KDIFFHASH_SCENES", raising=False)
    with pytest.raises(FileNotFoundError, match="KDIFFHASH_SCENES is not set"):
        find_scene("none")
    (scene / "sift.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"no sift\.npy"):
        load_scene(scene)
    (scene / "m50_2_2_0.txt").unlink()
    np.save(scene / "sift.npy", np.zeros((4, 8), np.uint8))
    with pytest.raises(ValueError, match="no test list"):
        load_scene(scene).test_pairs()
