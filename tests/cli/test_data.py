"""`kdiffhash data`."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from kdiffhash.datasets.sheets import write_sheets


@pytest.fixture
def scene(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    rng = np.random.default_rng(0)
    write_sheets(folder, rng.integers(0, 256, (300, 64, 64)).astype(np.uint8), "png")
    np.savetxt(folder / "info.txt", np.arange(300)[:, None] // [3, 300], fmt="%d")
    return folder


def test_local_archive_is_fetched_described_and_trained_on(scene, tmp_path, command):
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        for path in scene.iterdir():
            archive.write(path, path.name)
    cache = ["--cache", tmp_path / "cache"]
    fetched = command("data", "fetch", "mine", "--from", tmp_path / "mine.zip", *cache, "--json")
    assert fetched["patches"] == 300
    assert fetched["points"] == 100
    assert fetched["photos"] is None
    assert fetched["descriptors"] == ["sift"]
    folder = fetched["scene"]
    assert "descriptors: hog, sift" in command("data", "describe", folder, "--descriptor", "hog")
    model = tmp_path / "model.safetensors"
    train = ["train", folder, "-o", model, "--bits", 32, "--basis", 50, "--json"]
    assert command(*train)["input_features"] == 128
    assert command(*train)["preprocess"] == "hellinger"
    with_hog = command(*train, "--descriptor", "hog")
    assert with_hog["input_features"] == 288
    assert with_hog["preprocess"] is None
    codes = ["-o", tmp_path / "codes.npy", "--json"]
    encoded = command("encode", model, folder, "--descriptor", "hog", *codes)
    assert encoded["shape"] == [300, 4]
    evaluated = command("eval", model, folder, "--descriptor", "hog", "--json")
    assert evaluated["positives"] == 300  # drawn, since the scene has no test list
    assert "photos: -" in command("data", "info", folder)
    error = command("train", folder, "-o", model, "--across-groups", fail=True)
    assert "needs groups (photos)" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "nowhere"], "no scene 'nowhere'"),
        (["fetch", "paris"], "unknown scene 'paris'; choose one of trevi"),
        (["fetch", "mine", "--from", "nothing.zip"], "nothing.zip is not a file"),
        pytest.param(
            ["fetch", "mine", "--url", "http://127.0.0.1:9/x.zip"],
            "was interrupted",
            marks=pytest.mark.network,
        ),
        (["build", "nowhere", "--out", "scene"], "nowhere is not a folder of photographs"),
    ],
)
def test_errors_are_reported_in_one_sentence(arguments, message, command, monkeypatch):
    monkeypatch.setattr("kdiffhash.datasets.fetch.time.sleep", lambda seconds: None)
    assert message in command("data", *arguments, fail=True)


def test_info_reports_missing_sheets(scene, command):
    (scene / "patches0000.png").unlink()
    assert "sheet patches0000 is missing" in command("data", "info", scene, fail=True)
    (scene / "patches0001.png").rename(scene / "patches0000.png")
    assert "the number of sheets must be 2, but it is 1" in command(
        "data", "info", scene, fail=True
    )
