"""The embedded set."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from skimage.data import stereo_motorcycle

from kdiffhash import KernelLDAHash, bootstrap_difference
from kdiffhash.datasets import views as views_module
from kdiffhash.learn.preprocess import preprocess_rows


def photo_ranges(scene):
    """Return the first and last photo id of each image."""
    meta = json.loads((scene.path / "meta.json").read_text())
    return {entry["file"]: entry["photos"] for entry in meta["pictures"]}


def rows_of(scene, name):
    """Return the indices of the patches of an image."""
    first, last = photo_ranges(scene)[name]
    return np.flatnonzero((scene.photos >= first) & (scene.photos <= last))


@pytest.mark.slow
def test_every_point_has_patches_from_different_views(views):
    assert len(views.train) + len(views.test) >= 20_000
    for scene in views:
        assert scene.patches.shape == (len(scene), 64, 64)
        assert np.bincount(scene.points).min() >= 2
        observations = np.stack([scene.points, scene.photos], axis=1)
        # At most one patch per point and view.
        assert len(np.unique(observations, axis=0)) == len(scene)
        assert (np.asarray(scene.patches[::50]).std(axis=(1, 2)) > 0).all()
    assert not set(photo_ranges(views.train)) & set(photo_ranges(views.test))


@pytest.mark.slow
def test_motorcycle_patches_agree_with_the_ground_truth_disparity(views):
    rows = rows_of(views.test, "motorcycle_left.png")
    assert len(rows) >= 2000
    # The first view is the original left image, the second one the original right image.
    first, _ = photo_ranges(views.test)["motorcycle_left.png"]
    table = np.loadtxt(views.test.path / "interest.txt")
    points, photos = views.test.points, views.test.photos
    left = {points[i]: table[i, 1:3] for i in rows if photos[i] == first}
    right = {points[i]: table[i, 1:3] for i in rows if photos[i] == first + 1}
    both = sorted(set(left) & set(right))
    assert len(both) > 100
    disparity = stereo_motorcycle()[2]
    for point in both:
        (x, y), (x_right, y_right) = left[point], right[point]
        sigma = 2.0 ** table[(points == point) & (photos == first), 4][0]
        expected = disparity[round(y), round(x)]
        assert abs(x - x_right - expected) <= max(1.5, 1.2 * sigma) + 0.01
        assert abs(y - y_right) <= max(1.5, 1.2 * sigma) + 0.01


@pytest.mark.slow
def test_the_set_is_reproducible(views):
    rows = rows_of(views.test, "coins.png")
    rng = np.random.default_rng(
        [views_module.RECIPE_VERSION, views_module.zlib.crc32(b"coins.png")]
    )
    again = views_module._views_of("coins.png", rng)
    np.testing.assert_array_equal(again.patches, views.test.patches[rows])
    first = views.test.points[rows][0]
    np.testing.assert_array_equal(again.points, views.test.points[rows] - first)


def test_homography_derivatives_agree_with_finite_differences():
    H = views_module._random_homography((300, 400), np.random.default_rng(3))
    positions = np.array([[30.0, 250.0], [200.0, 150.0]])
    derivative = views_module._homography_derivative(H, positions)
    for axis, step in enumerate(np.eye(2) * 1e-4):
        change = (
            views_module._apply_homography(H, positions + step)
            - views_module._apply_homography(H, positions - step)
        ) / 2e-4
        np.testing.assert_allclose(derivative[:, :, axis], change, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(
        views_module._apply_homography(H, np.array([[200.0, 150.0]])), [[200, 150]]
    )


def test_the_set_is_made_once_and_an_incomplete_one_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("KDIFFHASH_CACHE", str(tmp_path))
    monkeypatch.setattr(views_module, "TRAIN", ("rocket.jpg",))
    monkeypatch.setattr(views_module, "TEST", ("coins.png",))
    monkeypatch.setattr(views_module, "_N_VIEWS", 4)

    def fail(*arguments, **options):
        raise OSError(28, "No space left on device", str(tmp_path))

    with monkeypatch.context() as full_disk:
        full_disk.setattr(views_module, "write_scene", fail)
        with pytest.raises(OSError, match="No space left"):
            views_module.load_views()
    assert [path.name for path in tmp_path.iterdir()] in ([], [".views-1.lock"])
    with ThreadPoolExecutor(2) as pool:  # called from two threads at the same time
        (train, test), _ = pool.map(lambda _: views_module.load_views(), range(2))
    assert train.name == "views-train"
    stamp = (test.path / "info.txt").stat().st_mtime_ns
    assert (views_module.load_views().test.path / "info.txt").stat().st_mtime_ns == stamp
    (train.path / "patches0000.bmp").unlink()
    assert views_module.load_views().train.patches[0].any()  # made again


@pytest.mark.slow
def test_codes_have_a_lower_fnr_than_sift_on_test_images(views):
    pairs, similar = views.train.draw_pairs(random_state=0)
    hasher = KernelLDAHash(256, preprocess="hellinger", random_state=0)
    hasher.fit_pairs(views.train.descriptors, pairs, similar)
    pairs, similar = views.test.test_pairs(500_000)
    codes = hasher.pair_distance(views.test.descriptors, pairs)
    for kind in (None, "hellinger"):
        rows = preprocess_rows(np.asarray(views.test.descriptors), kind)
        floats = np.linalg.norm(rows[pairs[:, 0]] - rows[pairs[:, 1]], axis=1)
        difference = bootstrap_difference(
            lambda r: r.fnr_at(1e-3),
            codes,
            floats,
            similar,
            views.test.points[pairs],
            n_resamples=60,
            random_state=0,
        )
        assert difference.value < 0, kind
        assert difference.high < 0 or kind == "hellinger"  # not significant for RootSIFT
