"""Sheets of patches."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image

from kdiffhash.datasets import PatchSheets, load_scene, sheets
from kdiffhash.datasets.sheets import find_sheets, read_sheet, write_sheets


@pytest.fixture(scope="module")
def patches():
    return np.random.default_rng(0).integers(0, 256, (700, 64, 64)).astype(np.uint8)


def crop(folder, index):
    """Return the patch as Pillow crops it from its sheet."""
    (sheet,) = folder.glob(f"patches{index // 256:04d}.*")
    row, column = divmod(index % 256, 16)
    box = (64 * column, 64 * row, 64 * column + 64, 64 * row + 64)
    return np.asarray(Image.open(sheet).convert("L").crop(box))


@pytest.mark.parametrize("suffix", ["bmp", "png"])
def test_written_patches_are_read_back(tmp_path, patches, suffix):
    write_sheets(tmp_path, patches, suffix)
    files = find_sheets(tmp_path)
    assert [file.name for file in files] == [f"patches{i:04d}.{suffix}" for i in range(3)]
    lazy = PatchSheets(files, 700)
    assert lazy.shape == patches.shape
    assert len(lazy) == 700
    for key in (0, 255, 256, -1, slice(250, 260), [699, 3, 3, 256], np.arange(700) % 100 == 7):
        np.testing.assert_array_equal(lazy[key], patches[key])
    np.testing.assert_array_equal(np.asarray(lazy), patches)
    rows = np.array([600, 2, 300])
    np.testing.assert_array_equal(lazy.take(rows)[1:], patches[rows][1:])
    np.testing.assert_array_equal(crop(tmp_path, 300), patches[300])
    assert not crop(tmp_path, 701).any()  # the last sheet is padded with black
    with pytest.raises(IndexError):
        lazy[700]
    with pytest.raises(IndexError, match="along the first axis only"):
        lazy[0, :10]
    grid = np.array([[1, 2], [300, 4]])
    np.testing.assert_array_equal(lazy[grid], patches[grid])


def test_jpeg_sheets_differ_from_the_patches_by_few_grey_levels(tmp_path):
    smooth = np.add.outer(np.arange(64), np.arange(64)).astype(np.uint8)
    write_sheets(tmp_path, np.stack([smooth] * 3), "jpg")
    assert np.abs(read_sheet(tmp_path / "patches0000.jpg")[:64, :64] - smooth.astype(int)).max() < 4


def test_grey_bmp_sheets_are_memory_mapped_and_others_decoded(tmp_path, patches):
    write_sheets(tmp_path, patches[:256], "bmp")
    path = tmp_path / "patches0000.bmp"
    pixels = read_sheet(path)
    assert isinstance(pixels, np.memmap)
    colour = tmp_path / "colour.bmp"
    Image.open(path).convert("RGB").save(colour)
    np.testing.assert_array_equal(read_sheet(colour), pixels)
    inverted = Image.open(path)  # an inverted palette
    inverted.putpalette(np.repeat(np.arange(255, -1, -1), 3).astype(np.uint8).tobytes())
    inverted.save(tmp_path / "inverted.bmp")
    np.testing.assert_array_equal(read_sheet(tmp_path / "inverted.bmp"), 255 - pixels)


@pytest.mark.parametrize("suffix", ["bmp", "png", "jpg"])
def test_the_error_for_a_truncated_sheet_names_the_file(tmp_path, patches, suffix):
    write_sheets(tmp_path, patches[:256], suffix)
    path = tmp_path / f"patches0000.{suffix}"
    content = path.read_bytes()
    for size in (len(content) * 2 // 3, 40, 0):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match=f"patches0000.{suffix}"):
            read_sheet(path)


def test_16_bit_sheets_are_reduced_to_their_upper_byte(tmp_path):
    levels = np.random.default_rng(0).integers(0, 2**16, (1024, 1024)).astype(np.uint16)
    Image.fromarray(levels).save(tmp_path / "patches0000.png")
    np.testing.assert_array_equal(read_sheet(tmp_path / "patches0000.png"), levels // 256)


def test_a_sheet_of_another_size_is_refused(tmp_path):
    Image.new("L", (512, 1024)).save(tmp_path / "patches0000.png")
    with pytest.raises(ValueError, match=r"patches0000.png has 512 x 1024 pixels"):
        read_sheet(tmp_path / "patches0000.png")


def test_gaps_and_duplicates_in_the_numbering_are_refused(tmp_path):
    (tmp_path / "patches0000.bmp").touch()
    (tmp_path / "patches0002.bmp").touch()
    with pytest.raises(ValueError, match="patches0001 is missing"):
        find_sheets(tmp_path)
    (tmp_path / "patches0001.png").touch()
    (tmp_path / "patches0001.jpg").touch()
    with pytest.raises(ValueError, match="two sheets with number 1"):
        find_sheets(tmp_path)


def test_opening_a_scene_of_100_000_patches_reads_no_sheet(tmp_path):
    table = np.column_stack([np.arange(100_000) // 5, np.arange(100_000) % 5])
    np.savetxt(tmp_path / "info.txt", table, fmt="%d")
    for number in range(391):
        (tmp_path / f"patches{number:04d}.bmp").touch()  # empty, so reading one would raise
    scene = load_scene(tmp_path)
    assert scene.patches.shape == (100_000, 64, 64)
    with pytest.raises(ValueError, match=r"patches0195.bmp is not a readable image"):
        scene.patches[50_000]
    with pytest.raises(FileNotFoundError, match="kdiffhash data describe"):
        _ = scene.descriptors


def test_patches_of_real_scenes_equal_crops_of_their_sheets(scenes):
    rng = np.random.default_rng(0)
    n_scenes = 0
    for folder in sorted(p for p in scenes.iterdir() if p.is_dir()):
        scene = load_scene(folder)
        if not find_sheets(folder):
            with pytest.raises(FileNotFoundError, match="descriptors only"):
                _ = scene.patches
            continue
        n_scenes += 1
        rows = np.append(rng.integers(len(scene), size=12), [0, 255, 256, len(scene) - 1])
        for row, patch in zip(rows, scene.patches[rows]):
            np.testing.assert_array_equal(patch, crop(folder, row))
            np.testing.assert_array_equal(scene.patches[int(row)], patch)
    assert n_scenes


def test_a_sheet_of_another_size_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = tmp_path / "patches0000.png"
    Image.fromarray(np.zeros((6000, 9000), np.uint8)).save(path)
    monkeypatch.setattr(sheets, "read_grey", None)  # decoding would fail with another error
    with pytest.raises(ValueError, match="has 9000 x 6000 pixels; a sheet must have 1024 x 1024"):
        read_sheet(path)


def test_an_image_that_asks_for_too_much_memory_is_refused(tmp_path, monkeypatch):
    write_sheets(tmp_path, np.zeros((1, 64, 64), np.uint8), "png")

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(Image.Image, "convert", fail)
    with pytest.raises(ValueError, match=r"patches0000.png is not a readable image: MemoryError"):
        read_sheet(tmp_path / "patches0000.png")


def test_pipes_are_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "patches0000.bmp")
    with pytest.raises(ValueError, match="not a regular file"):
        read_sheet(tmp_path / "patches0000.bmp")
