"""Matching two photographs, drawing the matches, and `kdiffhash match`."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import cv2
import numpy as np
import pytest
from PIL import Image

from kdiffhash import HashedSIFT, load_pretrained, match_codes
from kdiffhash.study.baselines import RandomHyperplaneHash
from kdiffhash.vision import PhotoMatches, draw_matches, match_photos, read_photo, write_image
from kdiffhash.vision.opencv_baselines import match_by_baseline
from kdiffhash.vision.photo_matching import read_image, verify_matches

CORNERS = np.array([[0, 0], [359, 0], [0, 359], [359, 359]], float)


@pytest.fixture
def run(command):
    return partial(command, "match")


@pytest.fixture
def photos(two_photos):
    return [read_photo(path, HashedSIFT()) for path in two_photos]


def apply_homography(H, positions):
    moved = np.column_stack([positions, np.ones(len(positions))]) @ H.T
    return moved[:, :2] / moved[:, 2:]


def make_matches(left, right, inliers):
    pairs = np.repeat(np.arange(len(left))[:, None], 2, axis=1)
    return PhotoMatches(pairs, np.float32(left), np.float32(right), np.array(inliers, bool), None)


def is_green(pixels):
    blue, green, red = np.moveaxis(pixels.astype(int), -1, 0)
    return (green > red + 60) & (green > blue + 60)


def is_red(pixels):
    blue, green, red = np.moveaxis(pixels.astype(int), -1, 0)
    return (red > green + 60) & (red > blue + 60)


def test_read_photo_returns_keypoints_and_codes(two_photos, image_named):
    photo = read_photo(two_photos[0], HashedSIFT(128))
    keypoints, codes = HashedSIFT(128).detectAndCompute(image_named())
    assert photo.name == "a.png"
    np.testing.assert_array_equal(photo.image, image_named())
    np.testing.assert_array_equal(photo.points, np.float32([k.pt for k in keypoints]))
    np.testing.assert_array_equal(photo.codes, codes)


def test_a_homography_is_estimated(photos, homography, agree):
    found = match_photos(*photos, geometry="homography")
    good = agree(found.left, found.right)
    assert found.inliers.sum() > 150
    assert good[found.inliers].mean() > 0.98
    assert found.inliers[good].mean() > 0.95
    error = apply_homography(found.model, CORNERS) - apply_homography(homography, CORNERS)
    assert np.linalg.norm(error, axis=1).max() < 2


def test_a_fundamental_matrix_is_estimated(photos, agree):
    found = match_photos(*photos)
    assert found.inliers.sum() > 150
    assert agree(found.left, found.right)[found.inliers].mean() > 0.95
    assert np.linalg.matrix_rank(found.model, 1e-6 * np.abs(found.model).max()) == 2
    lines = np.column_stack([found.left, np.ones(len(found.left))]) @ found.model.T
    distances = np.abs((lines[:, :2] * found.right).sum(axis=1) + lines[:, 2])
    distances = distances / np.linalg.norm(lines[:, :2], axis=1)  # from the epipolar lines
    assert np.percentile(distances[found.inliers], 95) < 4
    assert match_photos(*photos, tolerance=1e-3).inliers.sum() < found.inliers.sum()


def draw_from_opencv():
    """Return numbers of OpenCV's global random generator."""
    numbers = np.zeros(8, np.int32)
    cv2.randu(numbers, 0, 2**30)
    return numbers.tolist()


@pytest.mark.parametrize("geometry", ["fundamental", "homography"])
def test_verification_leaves_the_random_generator_of_opencv_alone(photos, geometry):
    cv2.setRNGSeed(7)
    expected = draw_from_opencv()
    results = []
    for seed in (7, 8, 9):
        cv2.setRNGSeed(seed)
        results.append(match_photos(*photos, geometry=geometry))
        assert (draw_from_opencv() == expected) == (seed == 7)
    for one in results[1:]:  # reproducible whatever the state of that generator is
        np.testing.assert_array_equal(one.model, results[0].model)
        np.testing.assert_array_equal(one.inliers, results[0].inliers)


def test_geometry_none_returns_all_matches(photos):
    a, b = photos
    found = match_photos(a, b, ratio=0.7, geometry="none", n_jobs=1)
    expected = match_codes(a.codes, b.codes, ratio=0.7).pairs
    np.testing.assert_array_equal(found.pairs, expected)
    np.testing.assert_array_equal(found.left, a.points[expected[:, 0]])
    np.testing.assert_array_equal(found.right, b.points[expected[:, 1]])
    assert found.inliers.all()
    assert found.model is None
    assert len(match_photos(a, b, ratio=None, geometry="none").pairs) > len(expected)


def test_matching_is_deterministic(photos):
    first, second = (match_photos(*photos) for _ in range(2))
    np.testing.assert_array_equal(first.inliers, second.inliers)
    np.testing.assert_array_equal(first.model, second.model)


@pytest.mark.parametrize("geometry", ["fundamental", "homography"])
def test_too_few_matches_give_no_geometry(two_photos, write, flat, geometry):
    few = [read_photo(path, HashedSIFT(n_features=5)) for path in two_photos]
    found = match_photos(*few, geometry=geometry)
    assert 0 < len(found.pairs) < 8
    empty = read_photo(write("flat.png", flat), HashedSIFT())
    none = match_photos(few[0], empty, geometry=geometry)
    assert none.pairs.shape == (0, 2)
    for matches in (found, none):
        assert not matches.inliers.any()
        assert matches.inliers.shape == (len(matches.pairs),)
        assert matches.model is None


def test_coincident_positions_give_no_geometry(photos):
    a, b = (replace(photo, points=np.full_like(photo.points, 7)) for photo in photos)
    for geometry in ("fundamental", "homography"):
        assert not match_photos(a, b, geometry=geometry).inliers.any()


def test_an_unknown_geometry_is_refused(photos):
    with pytest.raises(ValueError, match="fundamental, homography or none, got 'affine'"):
        match_photos(*photos, geometry="affine")


def test_large_photographs_are_reduced(image_named, write):
    path = write("a.png", image_named()[:240])
    reduced = read_photo(path, HashedSIFT(), size=180)
    assert reduced.image.shape == (120, 180)
    half = image_named()[:240].reshape(120, 2, 180, 2).mean(axis=(1, 3))
    assert np.abs(reduced.image - half).max() <= 0.5
    assert reduced.points[:, 0].max() < 180
    assert read_image(path, 400).shape == read_image(path, None).shape == (240, 360)
    wide = write("wide.png", np.zeros((100, 2000), np.uint8))
    assert read_image(wide).shape == (80, 1600)
    assert read_image(write("line.png", np.zeros((1, 2000), np.uint8)), 100).shape == (1, 100)


UPRIGHT = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: np.transpose,
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).T,
    8: np.rot90,
}


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_exif_orientation_is_applied(image_named, tmp_path, orientation):
    stored = image_named("coins")
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(stored).save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), UPRIGHT[orientation](stored))


def test_exif_orientation_is_applied_to_jpeg(image_named, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = Image.fromarray(image_named("coins"))
    stored.save(tmp_path / "plain.jpg")
    stored.save(tmp_path / "turned.jpg", exif=exif)
    plain, turned = (read_image(tmp_path / f"{name}.jpg") for name in ("plain", "turned"))
    np.testing.assert_array_equal(turned, np.rot90(plain, -1))


def test_colour_and_16_bit_images_are_read(image_named, tmp_path):
    image = image_named()
    Image.fromarray(np.dstack([image] * 3)).save(tmp_path / "colour.png")
    Image.fromarray(image.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    for name in ("colour", "deep"):
        np.testing.assert_array_equal(read_image(tmp_path / f"{name}.png"), image)


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "a.jpg")
    command = [sys.executable, "-m", "kdiffhash", "match", *2 * [str(tmp_path / "a.jpg")]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "is not a regular file" in done.stderr


def test_inliers_are_drawn_green_and_outliers_red():
    a, b = np.zeros((100, 120), np.uint8), np.full((80, 90), 200, np.uint8)
    left, right = [[20, 30], [60, 70]], [[40, 30], [70, 20]]
    drawn = draw_matches(a, b, make_matches(left, right, [True, False]))
    assert drawn.shape == (100, 120 + 8 + 90, 3)
    assert drawn.dtype == np.uint8
    second = 120 + 8
    for x, y in [(20, 30), (second + 40, 30), (100, 30)]:
        assert is_green(drawn[y, x])
    for x, y in [(60, 70), (second + 70, 20)]:
        assert is_red(drawn[y, x])
    assert (drawn[5, 5] == 89).all()  # 35 % white
    assert (drawn[75, second + 5] == 219).all()
    assert (drawn[95, second + 5] == 255).all()
    assert (drawn[50, 123] == 255).all()
    named = draw_matches(a, b, make_matches(left, right, [True, False]), "two matches")
    assert named.shape == (144, 218, 3)
    np.testing.assert_array_equal(named[44:], drawn)
    assert (named[:44] < 100).any()


def test_photographs_without_matches_are_drawn():
    a = np.zeros((50, 60), np.uint8)
    drawn = draw_matches(a, a, make_matches(np.empty((0, 2)), np.empty((0, 2)), []))
    assert drawn.shape == (50, 128, 3)
    assert not is_green(drawn).any()


def test_a_sample_of_many_matches_is_drawn():
    positions = np.column_stack([np.full(1000, 50), 4 * np.arange(1000)])
    inliers = np.arange(1000) % 4 > 0
    a = np.zeros((4000, 100), np.uint8)
    drawn = draw_matches(a, a, make_matches(positions, positions, inliers))
    between = drawn[positions[:, 1], 104]
    n_green, n_red = is_green(between).sum(), is_red(between).sum()
    assert (n_green, n_red) == (75, 25)
    dots = drawn[positions[inliers, 1], 50]
    assert is_green(dots).all()  # all inliers are drawn, if not as lines
    captioned = draw_matches(a, a, make_matches(positions, positions, inliers), "many")
    assert not np.array_equal(captioned[:44], draw_matches(a, a, make_few(), "many")[:44])


def make_few():
    return make_matches([[9, 9]], [[9, 9]], [True])


def test_the_drawn_sample_is_spread_over_the_photograph():
    rng = np.random.default_rng(0)
    dense = rng.uniform(0, 50, (5000, 2))
    sparse = np.column_stack([np.full(20, 350), np.linspace(10, 390, 20)])
    positions = np.concatenate([dense, sparse])
    a = np.zeros((400, 400), np.uint8)
    drawn = draw_matches(a, a, make_matches(positions, positions, np.ones(5020, bool)))
    rows = sparse[:, 1].round().astype(int)
    assert is_green(drawn[rows, 403]).mean() > 0.7


def test_photographs_are_drawn_in_colour_with_their_names():
    a = np.full((60, 200, 3), (200, 100, 0), np.uint8)
    plain = draw_matches(a, a, make_few())
    assert plain[40, 100].tolist() == [219, 154, 89]
    named = draw_matches(a, a, make_few(), names=("left.jpg", "right.jpg"))
    changed = (named != plain).any(axis=2)
    assert changed[:30, :80].any()
    assert changed[:30, 208:288].any()
    assert not changed[35:].any()


def test_large_photographs_are_drawn_smaller():
    a = np.zeros((900, 1500), np.uint8)
    drawn = draw_matches(a, a, make_matches([[1500 / 2, 450]], [[30, 60]], [True]))
    assert drawn.shape == (600, 2008, 3)
    assert is_green(drawn[300, 500])
    assert is_green(drawn[40, 1008 + 20])


def test_images_are_written_as_png_or_jpeg(tmp_path):
    drawn = draw_matches(*[np.zeros((50, 60), np.uint8)] * 2, make_matches([[9, 9]], [[9, 9]], [1]))
    for name in ("a.png", "b.jpg", "c.jpeg", "D.PNG"):
        write_image(drawn, tmp_path / name)
        again = cv2.imread(str(tmp_path / name))
        assert again.shape == drawn.shape
        if name.lower().endswith("png"):
            np.testing.assert_array_equal(again, drawn)
    write_image(drawn[:20], tmp_path / "a.png")
    assert cv2.imread(str(tmp_path / "a.png")).shape == (20, 128, 3)
    for name in ("a.gif", "a.html", "a"):
        with pytest.raises(ValueError, match=r"\.png or \.jpg"):
            write_image(drawn, tmp_path / name)
    assert {p.name for p in tmp_path.iterdir()} == {"a.png", "b.jpg", "c.jpeg", "D.PNG"}


def test_the_command_matches_and_draws(two_photos, photos, tmp_path, run):
    output = run(*two_photos, "--json")
    found = match_photos(*photos)
    assert (output["a"], output["b"]) == tuple(map(str, two_photos))
    assert output["geometry"] == "fundamental"
    (row,) = output["rows"]
    assert row.pop("matching_ms") >= 0
    assert row == {
        "method": "kdiffhash, 256 bits",
        "features_a": len(photos[0].codes),
        "features_b": len(photos[1].codes),
        "matches": len(found.pairs),
        "inliers": int(found.inliers.sum()),
    }
    out = tmp_path / "matches.png"
    assert run(*two_photos, "-o", out, "--json")["written"] == [str(out)]
    drawn = cv2.imread(str(out))
    assert drawn.shape == (44 + 360, 360 + 8 + 360, 3)
    ends = np.rint(found.left[found.inliers]).astype(int)
    assert is_green(drawn[44 + ends[:, 1], ends[:, 0]]).mean() > 0.9
    assert "kdiffhash, 256 bits" in run(*two_photos)


def test_matches_are_written_with_coordinates_of_the_full_photographs(two_photos, tmp_path, run):
    paths = [tmp_path / f"m{suffix}" for suffix in (".npz", ".csv", ".json", ".jpg")]
    outs = [part for path in paths for part in ("-o", path)]
    assert run(*two_photos, "--size", 180, *outs, "--json")["written"] == list(map(str, paths))
    found = match_photos(*[read_photo(path, HashedSIFT(), 180) for path in two_photos])
    with np.load(paths[0]) as arrays:
        stored = dict(arrays)
    np.testing.assert_array_equal(stored["keypoints"], found.pairs)
    np.testing.assert_array_equal(stored["inliers"], found.inliers)
    np.testing.assert_array_equal(stored["distances"], found.distances)
    # Half the size: the centre of the first reduced pixel is between the first two pixels.
    np.testing.assert_allclose(stored["points_a"], 2 * found.left + 0.5, atol=1e-3)
    np.testing.assert_allclose(stored["points_b"], 2 * found.right + 0.5, atol=1e-3)
    left, right = (
        np.column_stack([stored[name][found.inliers], np.ones(found.inliers.sum())])
        for name in ("points_a", "points_b")
    )
    lines = left @ stored["model"].T
    errors = np.abs((lines * right).sum(axis=1)) / np.linalg.norm(lines[:, :2], axis=1)
    assert np.percentile(errors, 90) < 4  # pixels of the full photographs
    header, *rows = csv.reader(paths[1].read_text().splitlines())
    assert header == ["x_a", "y_a", "x_b", "y_b", "distance", "inlier"]
    table = np.array(rows, float)
    np.testing.assert_allclose(table[:, :2], stored["points_a"], atol=1e-3)
    np.testing.assert_array_equal(table[:, 5], found.inliers)
    written = json.loads(paths[2].read_text())
    assert written["a"] == {"name": "a.png", "size": [360, 360]}
    assert [list(match.values()) for match in written["matches"]] == table.tolist()
    np.testing.assert_allclose(written["model"], stored["model"])
    run(*two_photos, "--geometry", "homography", "-o", paths[0])
    with np.load(paths[0]) as arrays:
        moved = apply_homography(arrays["model"], arrays["points_a"])[arrays["inliers"]]
        assert np.abs(moved - arrays["points_b"][arrays["inliers"]]).max() < 5
    run(*two_photos, "--geometry", "none", "-o", paths[2])
    assert json.loads(paths[2].read_text())["model"] is None


def test_large_photographs_are_read_without_a_warning(tmp_path, run, recwarn):
    noise = np.random.default_rng(0).integers(0, 256, (500, 600), dtype=np.uint8)
    small = Image.fromarray(noise)
    small.resize((12_000, 9000), Image.Resampling.NEAREST).save(tmp_path / "large.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6
    small.resize((12_000, 9000), Image.Resampling.NEAREST).save(tmp_path / "b.jpg", exif=exif)
    limit = Image.MAX_IMAGE_PIXELS
    photo = read_photo(tmp_path / "large.jpg", HashedSIFT(n_features=100), size=600)
    assert photo.image.shape == (450, 600)
    assert photo.full_size == (12_000, 9000)
    np.testing.assert_allclose(photo.to_full_size @ [-0.5, -0.5, 1], [-0.5, -0.5, 1])
    np.testing.assert_allclose(photo.to_full_size @ [599.5, 449.5, 1], [11999.5, 8999.5, 1])
    turned = read_photo(tmp_path / "b.jpg", HashedSIFT(n_features=100), size=600)
    assert (turned.image.shape, turned.full_size) == ((600, 450), (9000, 12_000))
    assert read_image(tmp_path / "b.jpg", 600, colour=True).shape == (600, 450, 3)
    assert not recwarn.list
    assert limit == Image.MAX_IMAGE_PIXELS
    output = run(tmp_path / "large.jpg", tmp_path / "b.jpg", "--max-pixels", 10**8, fail=True)
    assert "large.jpg has 108,000,000 pixels (12000 x 9000), but at most 100,000,000" in output
    assert "--max-pixels" in output


def test_the_command_passes_its_options_on(two_photos, run):
    options = "--bits 128 --features 100 --size 200 --ratio 0.7 --tolerance 1 --jobs 1"
    output = run(*two_photos, *options.split(), "--geometry", "homography", "--json")
    a, b = (read_photo(path, HashedSIFT(128, 100), 200) for path in two_photos)
    found = match_photos(a, b, ratio=0.7, geometry="homography", tolerance=1)
    (row,) = output["rows"]
    assert row["method"] == "kdiffhash, 128 bits"
    assert (row["features_a"], row["features_b"]) == (len(a.codes), len(b.codes))
    assert (row["matches"], row["inliers"]) == (len(found.pairs), found.inliers.sum())
    output = run(*two_photos, "--geometry", "none", "--json")
    assert output["rows"][0]["inliers"] is None


def test_compare_adds_sift_and_orb(two_photos, tmp_path, run):
    output = run(*two_photos, "--compare", "-o", tmp_path / "all.jpg", "--json")
    assert [row["method"] for row in output["rows"]] == ["kdiffhash, 256 bits", "SIFT", "ORB"]
    ours, sift, orb = output["rows"]
    assert ours["features_a"] == sift["features_a"]
    for row in (ours, sift, orb):
        assert 20 < row["inliers"] <= row["matches"] <= row["features_a"]
    image = cv2.imread(str(tmp_path / "all.jpg"))
    assert image.shape == (3 * (44 + 360), 360 + 8 + 360, 3)


def test_baseline_matches_agree_with_a_plain_loop(two_photos):
    a, b = (read_image(path) for path in two_photos)
    baseline = match_by_baseline("SIFT", a, b, 150, "none", 2.0)
    left, right = (cv2.SIFT_create(150).detectAndCompute(i, None)[1] for i in (a, b))
    assert baseline.n_features == (len(left), len(right))
    table = np.linalg.norm(left[:, None] - right[None], axis=2)
    expected = []
    for i, row in enumerate(table):
        first, second = np.argsort(row)[:2]
        mean = (row[second] + np.sort(np.delete(table[:, first], i))[0]) / 2
        if row[first] < 0.8 * mean and np.argmin(table[:, first]) == i:
            expected.append([i, int(first)])
    assert len(expected) > 30
    assert baseline.matches.pairs.tolist() == expected


def test_baselines_find_no_matches_without_texture(flat, image_named):
    for name in ("SIFT", "ORB"):
        for a, b in ((flat, image_named()), (image_named(), flat)):
            baseline = match_by_baseline(name, a, b, 0, "fundamental", 2.0)
            assert baseline.matches.pairs.shape == (0, 2)
            assert 0 in baseline.n_features


def test_the_command_accepts_a_custom_model(two_photos, tmp_path, run):
    load_pretrained("sift", 64).save(tmp_path / "own")
    for own, options in (((), ("--bits", 64)), (("--bits", 40), ("--bits", 40))):
        output = run(*two_photos, "--model", tmp_path / "own", *own, "--json")
        expected = run(*two_photos, *options, "--json")
        for row in (output["rows"][0], expected["rows"][0]):
            del row["matching_ms"]
        assert output == expected
    rows = np.random.default_rng(0).normal(size=(100, 12))
    narrow = RandomHyperplaneHash(64, random_state=0).fit(rows, np.arange(100) // 2)
    narrow.save(tmp_path / "narrow")
    output = run(*two_photos, "--model", tmp_path / "narrow", fail=True)
    assert "12 features" in output


def test_invalid_arguments_are_reported_and_leave_no_file(two_photos, flat, write, tmp_path, run):
    good, jpeg = two_photos
    out = tmp_path / "out.png"
    truncated = tmp_path / "cut.jpg"
    truncated.write_bytes(jpeg.read_bytes()[: jpeg.stat().st_size // 2])
    text = tmp_path / "text.jpg"
    text.write_text("not a photograph")
    empty = tmp_path / "empty.jpg"
    empty.touch()
    folder = tmp_path / "folder.jpg"
    folder.mkdir()
    files = set(tmp_path.iterdir())
    for bad in (truncated, text, empty, folder):
        problem = "a regular file" if bad == folder else "a readable image"
        for both in ((bad, good), (good, bad)):
            output = run(*both, "--out", out, fail=True)
            assert f"{bad} is not {problem}" in output
    missing = tmp_path / "missing.jpg"
    assert f"No such file or directory: {missing}" in run(missing, good, "-o", out, fail=True)
    assert set(tmp_path.iterdir()) == files
    plain = write("flat.png", flat)
    assert "flat.png has no keypoints" in run(good, plain, "--out", out, fail=True)
    assert ".png or .jpg" in run(missing, jpeg, "--out", tmp_path / "out.gif", fail=True)
    output = run(good, jpeg, "--out", tmp_path / "nowhere" / "out.png", fail=True)
    assert "nowhere does not exist" in output
    assert "is a folder" in run(good, jpeg, "--out", folder, fail=True)
    assert "from 1 to 512" in run(good, jpeg, "--bits", 513, fail=True)
    assert set(tmp_path.iterdir()) == {*files, plain}


def test_a_failed_run_keeps_the_existing_image(two_photos, tmp_path, run):
    (tmp_path / "out.png").write_bytes(b"old")
    run(two_photos[0], tmp_path / "missing.jpg", "-o", tmp_path / "out.png", fail=True)
    assert (tmp_path / "out.png").read_bytes() == b"old"


def test_a_planar_scene_is_verified_if_usac_fails(monkeypatch, homography):
    rng = np.random.default_rng(0)
    left = rng.uniform(20, 300, (150, 2)).astype(np.float32)
    right = apply_homography(homography, left).astype(np.float32)
    right[:20] = rng.uniform(0, 300, (20, 2))
    find = cv2.findFundamentalMat

    def fail_for_usac(a, b, method, *more, **options):
        if method >= cv2.USAC_DEFAULT:
            raise cv2.error("assertion failed in estimator.cpp")
        return find(a, b, method, *more, **options)

    monkeypatch.setattr(cv2, "findFundamentalMat", fail_for_usac)
    found = verify_matches(left, right, np.arange(150).repeat(2).reshape(-1, 2))
    assert found.inliers[20:].all()
    assert found.inliers[:20].mean() < 0.5
    again = verify_matches(left, right, np.arange(150).repeat(2).reshape(-1, 2))
    np.testing.assert_array_equal(found.inliers, again.inliers)


def test_verification_falls_back_if_magsac_fails(monkeypatch, homography):
    rng = np.random.default_rng(0)
    left = rng.uniform(20, 300, (80, 2)).astype(np.float32)
    moved = np.column_stack([left, np.ones(80)]) @ homography.T
    right = (moved[:, :2] / moved[:, 2:]).astype(np.float32)
    right[:10] = rng.uniform(0, 300, (10, 2))
    pairs = np.arange(80).repeat(2).reshape(-1, 2)

    for name in ("findFundamentalMat", "findHomography"):
        find = getattr(cv2, name)

        def fail_for_magsac(a, b, method, *more, find=find, **options):
            if method == cv2.USAC_MAGSAC:
                raise cv2.error("no samples left")
            return find(a, b, method, *more, **options)

        monkeypatch.setattr(cv2, name, fail_for_magsac)
    for geometry in ("fundamental", "homography"):
        found = verify_matches(left, right, pairs, geometry)
        assert found.inliers[10:].all()
        assert found.inliers[:10].mean() < 0.5
        assert found.model.shape == (3, 3)
