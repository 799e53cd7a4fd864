"""Real descriptors: codes learned on one scene, compared with SIFT on another."""

import numpy as np
import pytest

from kdiffhash import KernelLDAHash, bootstrap_difference, draw_pairs, roc
from kdiffhash.datasets import load_scene
from kdiffhash.learn.preprocess import preprocess_rows


@pytest.fixture(scope="module")
def trained(scenes):
    """A hasher of 256 bits, trained on boruszyn."""
    train = load_scene("boruszyn")
    pairs, similar = draw_pairs(train.points, 20_000, 40_000, groups=train.photos, random_state=0)
    hasher = KernelLDAHash(256, n_basis=500, preprocess="hellinger", random_state=0)
    return hasher.fit_pairs(train.descriptors, pairs, similar)


def test_all_scenes_can_be_loaded(scenes):
    folders = [path for path in scenes.iterdir() if path.is_dir()]
    assert folders
    for folder in folders:
        scene = load_scene(folder.name)
        pairs, similar = scene.test_pairs()
        assert scene.descriptors.shape == (len(scene.points), 128)
        assert (scene.points[pairs[:, 0]] == scene.points[pairs[:, 1]]).tolist() == similar.tolist()


def test_codes_of_32_bytes_have_lower_error_rates_than_sift(trained):
    test = load_scene("castle-p30")
    test_pairs, is_positive = test.test_pairs()
    drawn, flags = draw_pairs(test.points, 1, 100_000, random_state=0)
    pairs = np.concatenate([test_pairs[is_positive][:20_000], drawn[~flags]])
    similar = np.arange(len(pairs)) < len(pairs) - 100_000
    codes = trained.pair_distance(test.descriptors, pairs)
    rows = preprocess_rows(np.asarray(test.descriptors), None)
    sift = np.linalg.norm(rows[pairs[:, 0]] - rows[pairs[:, 1]], axis=1)
    difference = bootstrap_difference(
        lambda r: r.fnr_at(1e-3),
        codes,
        sift,
        similar,
        test.points[pairs],
        n_resamples=60,
        random_state=0,
    )
    assert difference.high < 0
    assert roc(codes, similar).fpr95 < roc(sift, similar).fpr95


def test_codes_do_not_depend_on_the_order_of_the_pairs(trained):
    train = load_scene("boruszyn")
    pairs, similar = draw_pairs(train.points, 20_000, 40_000, groups=train.photos, random_state=0)
    again = KernelLDAHash(256, preprocess="hellinger", basis=trained.basis_, gamma=trained.gamma_)
    order = np.random.default_rng(0).permutation(len(pairs))
    again.fit_pairs(train.descriptors, pairs[order], similar[order])
    np.testing.assert_array_equal(*(h.transform(train.descriptors) for h in (trained, again)))
