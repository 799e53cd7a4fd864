"""Scenes built from photographs of a façade with published cameras, and unusable input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import skimage
from PIL import Image

from kdiffhash import roc
from kdiffhash.datasets import build, build_scene, load_scene
from kdiffhash.learn.preprocess import preprocess_rows

IMAGES = Path(skimage.__file__).parent / "data"


def stored_descriptors(database):
    """Return the descriptors in a COLMAP database by image id; empty if it is not readable yet."""
    if not database.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            return dict(connection.execute("SELECT image_id, data FROM descriptors").fetchall())
    except sqlite3.Error:
        return {}


@pytest.fixture(scope="module")
def built(photos, tmp_path_factory):
    """A scene from eight photographs; the first process is killed while it detects keypoints."""
    source, out = photos / "herz-jesus-p8", tmp_path_factory.mktemp("build") / "facade"
    command = [sys.executable, "-c", "from kdiffhash.cli import main; main()"]
    arguments = ["data", "build", str(source), "--out", str(out), "--json"]
    database = out / "colmap" / "database.db"
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL)
    while not stored_descriptors(database) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = stored_descriptors(database)
    assert 0 < len(before) < 8
    assert not (out / "info.txt").exists()
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    after = stored_descriptors(database)
    assert all(after[number] == content for number, content in before.items())
    return load_scene(out), json.loads(done.stdout)


def published_camera(path):
    """Return K for images of half the size, R from world to camera, and the camera centre."""
    rows = [np.array(line.split(), float) for line in path.read_text().splitlines() if line.strip()]
    K, R, centre = np.array(rows[:3]), np.array(rows[4:7]), rows[7]
    return np.diag([0.5, 0.5, 1]) @ K, R.T, centre


def test_all_photographs_are_registered_with_enough_points(built):
    scene, output = built
    assert output["photos_placed"] == output["photos_given"] == 8
    assert output["points"] == len(np.unique(scene.points)) >= 5000
    assert output["patches"] == len(scene)
    assert 0.1 < output["share_added_by_projection"] < 0.6
    observations = np.stack([scene.points, scene.photos], axis=1)
    assert len(np.unique(observations, axis=0)) == len(scene)


def test_positive_pairs_agree_with_the_published_cameras(built, photos):
    scene, _ = built
    cameras = [
        published_camera(photos / "herz-jesus-p8" / f"{number:04d}.camera") for number in range(8)
    ]
    table = np.loadtxt(scene.path / "interest.txt")
    pairs, similar = scene.test_pairs()
    assert similar.sum() == 50_000
    distances = []
    for a, b in pairs[similar][:4000]:
        (K, R, centre), (K2, R2, centre2) = (cameras[int(table[row, 0])] for row in (a, b))
        # The epipolar line of the first keypoint in the second photograph.
        ray = R.T @ np.linalg.solve(K, [*table[a, 1:3], 1])
        start, end = K2 @ R2 @ (centre - centre2), K2 @ R2 @ (centre + ray - centre2)
        line = np.cross(start, end)
        distances.append(abs(line @ [*table[b, 1:3], 1]) / np.hypot(line[0], line[1]))
    assert np.mean(np.array(distances) < 2) >= 0.95


def test_sift_does_not_match_all_positive_pairs(built):
    scene, _ = built
    pairs, similar = scene.test_pairs()
    rows = preprocess_rows(np.asarray(scene.descriptors), None)
    curve = roc(np.linalg.norm(rows[pairs[:, 0]] - rows[pairs[:, 1]], axis=1), similar)
    assert 0.01 < curve.fpr95 < 0.3


def test_building_from_an_existing_model_gives_the_same_scene(built, photos, tmp_path):
    scene, _ = built
    work = scene.path / "colmap"
    (model,) = (work / "sparse").iterdir()
    again = build_scene(
        photos / "herz-jesus-p8",
        tmp_path,
        model=model,
        database=work / "database.db",
        sheets="png",
    )
    np.testing.assert_array_equal(again.points, scene.points)
    np.testing.assert_array_equal(again.patches[:500], scene.patches[:500])
    np.testing.assert_array_equal(again.descriptors, scene.descriptors)
    assert not (tmp_path / "colmap").exists()


def test_models_and_databases_that_do_not_belong_together_are_refused(built, photos, tmp_path):
    scene, _ = built
    (model,) = (scene.path / "colmap" / "sparse").iterdir()
    source = photos / "herz-jesus-p8"
    with pytest.raises(ValueError, match="must be given together"):
        build_scene(source, tmp_path, model=model)
    with pytest.raises(FileNotFoundError, match="no such file"):
        build_scene(source, tmp_path, model=model, database=tmp_path / "no.db")
    database = tmp_path / "other.db"
    database.write_bytes(b"not a database, not at all, not even a little bit" * 20)
    with pytest.raises(ValueError, match="not a COLMAP database"):
        build_scene(source, tmp_path, model=model, database=database)
    shutil.copy(scene.path / "colmap" / "database.db", database)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE keypoints SET cols = 2, rows = rows * 3 WHERE image_id = 1")
    with pytest.raises(ValueError, match="no scale and orientation"):
        build_scene(source, tmp_path, model=model, database=database)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM keypoints")
    with pytest.raises(ValueError, match="has no keypoints of"):
        build_scene(source, tmp_path, model=model, database=database)
    with pytest.raises(ValueError, match="not a complete COLMAP model"):
        build_scene(source, tmp_path, model=tmp_path, database=database)


@pytest.fixture
def unrelated(tmp_path):
    """A folder of three images of different objects."""
    folder = tmp_path / "unrelated"
    folder.mkdir()
    for name in ("astronaut.png", "coffee.png", "chelsea.png"):
        shutil.copy(IMAGES / name, folder)
    return folder


def test_photographs_that_do_not_overlap_are_refused(unrelated, tmp_path):
    with pytest.raises(ValueError, match="unrelated do not overlap"):
        build_scene(unrelated, tmp_path / "scene")
    assert not (tmp_path / "scene" / "info.txt").exists()
    with pytest.raises(ValueError, match="is the folder of the photographs"):
        build_scene(unrelated, unrelated)
    with pytest.raises(ValueError, match="max_error positive"):
        build_scene(unrelated, tmp_path / "scene", max_error=float("nan"))
    (unrelated / "another.png").write_bytes((IMAGES / "rocket.jpg").read_bytes())
    with pytest.raises(ValueError, match="other photographs"):
        build_scene(unrelated, tmp_path / "scene")


def test_unreadable_photographs_are_skipped_and_named(unrelated, tmp_path, monkeypatch):
    (unrelated / "notes.jpg").write_text("not an image")
    (unrelated / "cut.jpg").write_bytes((IMAGES / "rocket.jpg").read_bytes()[:20_000])
    Image.fromarray(np.zeros((9, 9), np.int32)).save(unrelated / "deep.tif")
    Image.fromarray(np.zeros((600, 600), np.uint8)).save(unrelated / "large.png")
    given = []

    def stop(source, names, *_, **__):
        given.extend(names)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(build, "reconstruct", stop)
        with pytest.raises(KeyboardInterrupt):
            build_scene(unrelated, tmp_path / "scene", max_pixels=300_000)
    assert given == ["astronaut.png", "chelsea.png", "coffee.png"]
    (unrelated / "coffee.png").unlink()
    with pytest.raises(ValueError, match="has 2 readable photographs") as error:
        build_scene(unrelated, tmp_path / "scene", max_pixels=300_000)
    for message in (
        "notes.jpg is not a readable image",
        "cut.jpg is not a readable image: image file is truncated",
        "deep.tif is not a readable image: it has more than 16 bits",
        "large.png has 360,000 pixels (600 x 600), but at most 300,000 are read",
    ):
        assert message in str(error.value)
    with pytest.raises(ValueError, match="not a folder of photographs"):
        build_scene(tmp_path / "nowhere", tmp_path / "scene")
    assert not (tmp_path / "scene").exists()


def test_photographs_of_another_size_than_in_the_model_are_refused(built, photos, tmp_path):
    scene, _ = built
    work = scene.path / "colmap"
    (model,) = (work / "sparse").iterdir()
    for path in (photos / "herz-jesus-p8").glob("*.jpg"):
        Image.open(path).resize((768, 512)).save(tmp_path / path.name)
    with pytest.raises(ValueError, match="768 x 512 pixels, but its camera"):
        build_scene(tmp_path, tmp_path / "out", model=model, database=work / "database.db")


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX resource limits")
def test_a_full_disk_leaves_no_incomplete_scene(built, photos, tmp_path):
    scene, _ = built
    work = scene.path / "colmap"
    (model,) = (work / "sparse").iterdir()
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000));"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "from kdiffhash.cli import main; main()"
    )
    arguments = ["--model", model, "--database", work / "database.db", "--out", tmp_path / "scene"]
    done = subprocess.run(
        [sys.executable, "-c", code, "data", "build", photos / "herz-jesus-p8", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: File too large")
    assert not (tmp_path / "scene" / "info.txt").exists()


def test_scenes_that_kdiffhash_did_not_build_are_not_replaced(built, photos, tmp_path):
    (tmp_path / "info.txt").write_text("0 1\n")
    (tmp_path / "meta.json").write_text('{"licence": "mine"}')
    with pytest.raises(ValueError, match="did not build"):
        build_scene(photos / "herz-jesus-p8", tmp_path)
    assert (tmp_path / "info.txt").read_text() == "0 1\n"


@pytest.mark.parametrize("name", ["points3D.bin", "images.bin"])
def test_a_truncated_model_is_refused(built, photos, tmp_path, name):
    scene, _ = built
    (model,) = (scene.path / "colmap" / "sparse").iterdir()
    copy = shutil.copytree(model, tmp_path / "model")
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"truncated|not a complete COLMAP model"):
        build_scene(
            photos / "herz-jesus-p8",
            tmp_path / "out",
            model=copy,
            database=scene.path / "colmap" / "database.db",
        )


def test_the_error_for_a_damaged_working_folder_says_what_to_remove(unrelated, tmp_path):
    work = tmp_path / "scene" / "colmap"
    work.mkdir(parents=True)
    (work / "database.db").write_bytes(b"not a database" * 100)
    with pytest.raises(ValueError, match=f"Remove {work} to start again"):
        build_scene(unrelated, tmp_path / "scene")
    (work / "photos.json").write_text("{")
    with pytest.raises(ValueError, match=r"photos.json is damaged"):
        build_scene(unrelated, tmp_path / "scene")
