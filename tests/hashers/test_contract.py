"""The contract of every hasher; a new hasher is added to HASHERS."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

import kdiffhash
from kdiffhash import (
    BoostedHash,
    DiffHash,
    ITQHash,
    KernelDiffHash,
    KernelLDAHash,
    LDAHash,
    draw_pairs,
    hamming,
    unpack,
)
from kdiffhash.study.baselines import KSHHash, RandomHyperplaneHash, SDHHash

FEW_PAIRS = {"n_positives": 1500, "n_negatives": 1500}
HASHERS = [
    DiffHash(random_state=0),
    DiffHash(moment="cross", random_state=0),
    LDAHash(random_state=0),
    KernelDiffHash(n_basis=100, random_state=0),
    KernelDiffHash(**{**kdiffhash.PAPER_SETTING, "n_basis": 100}, random_state=0),
    KernelDiffHash(kernel="laplacian", basis="kmeans", n_basis=60, random_state=0),
    KernelDiffHash(kernel="poly", kernel_params={"degree": 2}, n_basis=60, random_state=0),
    KernelLDAHash(n_basis=100, preprocess="unit", random_state=0),
    BoostedHash(10, weak="projection", random_state=0, **FEW_PAIRS),
    BoostedHash(10, weak="axis", random_state=0, **FEW_PAIRS),
    RandomHyperplaneHash(random_state=0),
    ITQHash(random_state=0),
    KSHHash(12, n_basis=30, n_rows=200, n_iter=10, random_state=0),
    SDHHash(12, n_basis=50, n_rows=400, random_state=0),
    KernelLDAHash(n_basis=60, refine=5, random_state=0),
]
every_hasher = pytest.mark.parametrize("hasher", HASHERS, ids=lambda h: repr(h).split("(")[0])


@parametrize_with_checks([*HASHERS, KernelDiffHash(preprocess="hellinger")])
@pytest.mark.filterwarnings("ignore::kdiffhash.ConstantBitWarning")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(autouse=True)
def _ignore_constant_bits():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kdiffhash.ConstantBitWarning)
        yield


@pytest.fixture(params=HASHERS, ids=lambda h: repr(h).split("(")[0])
def fitted(request, objects):
    return clone(request.param).fit(*objects)


def test_codes_are_the_signs_of_the_projections(fitted, objects):
    X, _ = objects
    codes, projections = fitted.transform(X), fitted.project(X)
    assert codes.dtype == np.uint8
    assert codes.shape == (len(X), -(-fitted.n_bits_ // 8))
    assert projections.shape == (len(X), fitted.n_bits_)
    np.testing.assert_array_equal(unpack(codes, fitted.n_bits_), projections > 0)


def test_codes_do_not_depend_on_batch_threads_or_order(fitted, objects):
    X = np.tile(objects[0], (3, 1))
    codes = fitted.set_params(n_jobs=1).transform(X)
    for n_jobs in (2, 3, None):
        np.testing.assert_array_equal(fitted.set_params(n_jobs=n_jobs).transform(X), codes)
    for split in (1, 5, 239, 600, 1001):
        both = np.concatenate([fitted.transform(X[:split]), fitted.transform(X[split:])])
        np.testing.assert_array_equal(both, codes)
    order = np.random.default_rng(0).permutation(len(X))
    np.testing.assert_array_equal(fitted.transform(X[order]), codes[order])


@every_hasher
def test_the_model_does_not_depend_on_the_number_of_threads(hasher, objects):
    fits = []
    for n_jobs, blas_threads in ((1, 1), (2, 1), (1, 2)):
        with threadpool_limits(blas_threads):
            fits.append(clone(hasher).set_params(n_jobs=n_jobs).fit(*objects))
    for other in fits[1:]:
        np.testing.assert_array_equal(fits[0].directions_, other.directions_)
        np.testing.assert_array_equal(fits[0].thresholds_, other.thresholds_)
        np.testing.assert_array_equal(fits[0].transform(objects[0]), other.transform(objects[0]))


def test_codes_do_not_depend_on_dtype_order_or_memory_mapping(fitted, objects, tmp_path):
    X = objects[0]
    codes = fitted.transform(X)
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for same in (X.astype(np.float64), np.asfortranarray(X), mapped, X[::-1][::-1]):
        np.testing.assert_array_equal(fitted.transform(same), codes)


def test_uint8_rows_give_the_same_codes_as_float_rows(objects):
    X, y = objects
    small = np.clip(20 * X + 128, 0, 255).astype(np.uint8)
    for hasher in HASHERS:
        codes = [clone(hasher).fit(z, y).transform(z) for z in (small, small.astype(np.float32))]
        np.testing.assert_array_equal(*codes)


def test_save_and_load_reproduce_the_model_exactly(fitted, objects, tmp_path):
    X, _ = objects
    fitted.save(tmp_path / "model.safetensors")
    again = kdiffhash.load(tmp_path / "model.safetensors")
    assert type(again) is type(fitted)
    assert again.get_params() == {**fitted.get_params(), "n_jobs": None}
    np.testing.assert_array_equal(again.transform(X), fitted.transform(X))
    np.testing.assert_array_equal(again.project(X), fitted.project(X))
    again.save(tmp_path / "again.safetensors")
    first, second = (tmp_path / f"{n}.safetensors" for n in ("model", "again"))
    assert first.read_bytes() == second.read_bytes()


def test_pickle_clone_and_feature_names(fitted, objects):
    X, _ = objects
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(X), fitted.transform(X))
    assert not hasattr(clone(fitted), "directions_")
    names = fitted.get_feature_names_out()
    assert len(names) == fitted.transform(X[:1]).shape[1]
    assert names[0].startswith(type(fitted).__name__.lower())


def test_codes_follow_attributes_set_after_the_first_transform(fitted, objects):
    X, _ = objects
    before = unpack(fitted.transform(X), fitted.n_bits_)
    again = pickle.loads(pickle.dumps(fitted))
    fitted.thresholds_ = fitted.thresholds_ + np.float32(0.01)
    shifted = fitted.project(X) > 0
    assert (shifted <= before).all()
    np.testing.assert_array_equal(unpack(fitted.transform(X), fitted.n_bits_), shifted)
    fitted.directions_ = np.zeros_like(fitted.directions_)
    fitted.thresholds_ = np.full(fitted.n_bits_, -1, np.float32)
    assert unpack(fitted.transform(X), fitted.n_bits_).all()
    with pytest.raises(ValueError, match="read-only"):  # a change in place would go unnoticed
        fitted.thresholds_[0] = 7
    np.testing.assert_array_equal(unpack(again.transform(X), again.n_bits_), before)
    if "unit" not in (again.preprocess, None):
        return
    scaled = again.set_params(preprocess="unit").transform(X)
    np.testing.assert_array_equal(again.transform(3 * X), scaled)


def test_truncated_hasher_gives_prefixes_of_codes(fitted, objects):
    X, _ = objects
    short = fitted.truncate(5)
    assert short.n_bits_ == short.get_params()["n_bits"] == 5
    bits = unpack(fitted.transform(X), fitted.n_bits_)
    np.testing.assert_array_equal(unpack(short.transform(X), 5), bits[:, :5])
    for wrong in (0, fitted.n_bits_ + 1):
        with pytest.raises(ValueError, match="n_bits must be an integer from 1 to"):
            fitted.truncate(wrong)


def test_pair_distance_and_score(fitted, objects):
    X, y = objects
    pairs, _ = draw_pairs(y, 50, 50, random_state=1)
    codes = fitted.transform(X)
    expected = hamming(codes[pairs[:, 0]], codes[pairs[:, 1]])
    np.testing.assert_array_equal(fitted.pair_distance(X, pairs), expected)
    assert 0.05 < fitted.score(X, y) <= 1  # chance is 0.01


def recall_at_one_percent(codes, y):
    """Return the recall over all pairs at an FPR of 1 %, interpolated between distances."""
    i, j = np.triu_indices(len(y), 1)
    distances, similar = hamming(codes[i], codes[j]), y[i] == y[j]
    edges = np.arange(-1, 8 * codes.shape[1] + 1)[:, None]
    fpr, tpr = ((distances[kind] <= edges).mean(axis=1) for kind in (~similar, similar))
    return np.interp(0.01, fpr, tpr)


@every_hasher
def test_pipeline_and_grid_search(hasher, objects):
    X, y = objects
    pipe = make_pipeline(StandardScaler(), clone(hasher))
    assert pipe.fit_transform(X, y).dtype == np.uint8
    search = GridSearchCV(clone(hasher), {"n_bits": [4, 8]}, cv=GroupKFold(2), error_score="raise")
    search.fit(X, y, groups=y)
    expected = []
    for n_bits in (4, 8):
        for train, test in GroupKFold(2).split(X, y, y):
            codes = clone(hasher).set_params(n_bits=n_bits).fit(X[train], y[train])
            expected.append(recall_at_one_percent(codes.transform(X[test]), y[test]))
    expected = np.reshape(expected, (2, 2)).mean(axis=1)
    # `score` draws a sample of pairs; the expected values use all pairs of the fold.
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], expected, atol=0.03)
    assert search.best_estimator_.n_bits_ == (4, 8)[search.cv_results_["mean_test_score"].argmax()]


@every_hasher
def test_calibrated_threshold_holds_on_new_objects(hasher, objects):
    X, y = objects
    train, calibrate, test = y < 50, (y >= 50) & (y < 100), y >= 100
    fitted = clone(hasher).fit(X[train], y[train])
    pairs, similar = draw_pairs(y[calibrate], 300, 4000, random_state=2)
    calibration = fitted.calibrate_threshold(X[calibrate], pairs, similar, fpr=0.05)
    codes = fitted.transform(X[calibrate])
    distances = hamming(codes[pairs[:, 0]], codes[pairs[:, 1]])
    assert calibration.fpr == np.mean(distances[~similar] <= calibration.distance) <= 0.05
    assert np.mean(distances[~similar] <= calibration.distance + 1) > 0.05
    assert calibration.tpr == np.mean(distances[similar] <= calibration.distance)
    test_pairs, flags = draw_pairs(y[test], 10, 4000, random_state=3)
    rate = np.mean(fitted.pair_distance(X[test], test_pairs[~flags]) <= calibration.distance)
    assert rate < 0.1
    with pytest.raises(ValueError, match="cannot show"):
        fitted.calibrate_threshold(X[calibrate], pairs, similar, fpr=1e-4)


def test_invalid_rows_raise_an_error(fitted, objects):
    X, _ = objects
    with pytest.raises(ValueError, match="expecting 12 features"):
        fitted.transform(X[:, :5])
    broken = X.copy()
    broken[400, 3] = np.nan
    with pytest.raises(ValueError, match="NaN in row 400"):
        fitted.transform(broken)
    with pytest.raises(ValueError, match="minimum of 1 is required"):
        fitted.transform(X[:0])


@every_hasher
def test_invalid_parameters_raise_an_error(hasher, objects):
    with pytest.raises(ValueError, match="preprocess must be"):
        clone(hasher).set_params(preprocess="l7").fit(*objects)
    for wrong in (0, -3, 2.5):
        with pytest.raises(ValueError, match="n_bits must be"):
            clone(hasher).set_params(n_bits=wrong).fit(*objects)
