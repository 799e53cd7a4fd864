"""Hashers with a closed form: linear and kernel diff-hash and LDA-hash."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import kdiffhash.hashers.closed_form
from kdiffhash import (
    PAPER_SETTING,
    ConstantBitWarning,
    DiffHash,
    KernelDiffHash,
    KernelLDAHash,
    LDAHash,
    draw_pairs,
    unpack,
)


def test_moments_summed_over_batches_give_the_same_codes(objects, monkeypatch):
    X, y = objects
    pairs, similar = draw_pairs(y, 800, 900, random_state=0)
    hasher = KernelDiffHash(20, n_basis=50, random_state=0)
    whole = clone(hasher).fit_pairs(X, pairs, similar)
    monkeypatch.setattr(kdiffhash.hashers.closed_form, "_FEATURE_BYTES", 2**15)
    np.testing.assert_array_equal(
        clone(hasher).fit_pairs(X, pairs, similar).transform(X), whole.transform(X)
    )


def test_thresholds_weighted_by_alpha_give_constant_bits_and_a_warning(objects):
    """Eqs. 5 and 6 give FNR the weight alpha = 25; equal weights for both rates work."""
    X, y = objects
    paper = {**PAPER_SETTING, "n_basis": 200, "n_bits": 64, "random_state": 0}
    working = KernelDiffHash(**paper).fit(X, y)
    assert np.minimum(working.bit_ones_, 1 - working.bit_ones_).min() > 0.02
    with pytest.warns(ConstantBitWarning, match="of 64 bits are constant"):
        literal = KernelDiffHash(**paper, threshold_weight=25).fit(X, y)
    rare = np.minimum(literal.bit_ones_, 1 - literal.bit_ones_)
    assert np.median(rare) < 0.01
    assert literal.score(X, y) < 0.3 * working.score(X, y)


def test_default_alpha_depends_on_the_moment(objects):
    X, y = objects
    for cls in (DiffHash, KernelDiffHash):
        for moment, alpha in (("difference", 2), ("cross", 25)):
            one, other = (
                cls(8, moment=moment, alpha=a, random_state=0).fit(X, y) for a in (None, alpha)
            )
            np.testing.assert_array_equal(one.directions_, other.directions_)


@pytest.mark.filterwarnings("ignore::kdiffhash.ConstantBitWarning")
def test_default_n_bits_depends_on_the_number_of_features(objects):
    X, y = objects
    assert DiffHash().fit(X, y).n_bits_ == 12
    assert KernelLDAHash(n_basis=50).fit(X, y).n_bits_ == 50
    assert KernelLDAHash(n_basis=400).fit(X, y).n_bits_ == 128
    few = KernelDiffHash(n_basis=1000).fit(X[:40], y[:40])  # fewer rows than n_basis
    assert len(few.basis_) == few.n_bits_ == 40


@pytest.mark.parametrize(
    ("hasher", "message"),
    [
        (DiffHash(13), "use KernelDiffHash"),
        (LDAHash(13), "use KernelLDAHash"),
        (KernelDiffHash(101, n_basis=100), "raise n_basis"),
        (KernelDiffHash(700, n_basis=800), "there are 600 basis rows"),
        (DiffHash(moment="third"), "moment must be"),
        (DiffHash(alpha=-1), "alpha must be"),
        (LDAHash(ridge=-1), "ridge must be"),
        (KernelDiffHash(kernel="sphere"), "kernel must be"),
        (KernelDiffHash(basis="grid"), "basis must be"),
        (KernelDiffHash(basis=np.zeros((5, 3))), "basis must have shape"),
        (KernelDiffHash(gamma=0), "gamma must be"),
        (KernelDiffHash(gamma="mean"), "gamma must be"),
        (KernelDiffHash(norm="l1"), "norm must be"),
        (KernelLDAHash(n_basis=0), "n_basis must be"),
        (KernelLDAHash(n_basis=50.5), "n_basis must be"),
        (KernelLDAHash(gamma=np.inf), "gamma must be"),
        (KernelLDAHash(kernel_params={"gamma": 5}), "no kernel_params"),
        (KernelLDAHash(ridge=np.inf), "ridge must be"),
        (LDAHash(threshold_weight=0), "threshold_weight must be"),
        (LDAHash(threshold_weight=np.nan), "threshold_weight must be"),
        (LDAHash(n_jobs=1.5), "n_jobs must be"),
    ],
)
def test_invalid_parameters_raise_an_error(objects, hasher, message):
    with pytest.raises(ValueError, match=message):
        hasher.fit(*objects)


def test_degenerate_data_works_or_raises_an_error(objects):
    X, y = objects
    doubled = np.hstack([X, X, np.full((len(X), 2), 3, np.float32)])  # rank 12 of 26
    for hasher in (DiffHash(26), LDAHash(26)):
        with pytest.warns(ConstantBitWarning, match="constant"):
            wide = hasher.fit(doubled, y)
        assert wide.truncate(8).score(doubled, y) > 0.3
    for hasher in (KernelDiffHash(60, n_basis=100), KernelLDAHash(60, n_basis=100)):
        assert hasher.fit(doubled, y).score(doubled, y) > 0.3
    repeated = np.repeat(X[:30], 20, axis=0)  # basis rows are copies of each other
    assert KernelLDAHash(8, n_basis=300).fit(repeated, np.repeat(y[:30], 20)).n_bits_ == 8
    with pytest.raises(ValueError, match="raise ridge"):
        LDAHash(3, ridge=0).fit(doubled, y)
    with pytest.raises(ValueError, match="one class"):
        DiffHash().fit(X, np.zeros(len(X)))


def test_a_large_offset_does_not_reduce_precision(objects):
    X, y = objects
    linear, kernel = DiffHash(12, random_state=0), KernelDiffHash(32, n_basis=100, random_state=0)
    for hasher, offset in ((linear, 1e8), (kernel, 1e4)):
        far = X.astype(np.float64) + offset
        near_score = clone(hasher).fit(X, y).score(X, y)
        assert clone(hasher).fit(far, y).score(far, y) == pytest.approx(near_score, abs=0.02)


def test_linear_kernel_gives_the_bits_of_the_linear_hasher(objects):
    """With a linear kernel and the basis of unit vectors, features are the rows themselves."""
    X, y = objects
    pairs, similar = draw_pairs(y, 1000, 1000, random_state=0)
    linear = LDAHash(6).fit_pairs(X, pairs, similar)
    kernel = KernelLDAHash(6, kernel="linear", basis=np.eye(12), ridge=1e-3)
    kernel.fit_pairs(X, pairs, similar)
    same = unpack(linear.transform(X), 6) == unpack(kernel.transform(X), 6)
    assert same.mean(axis=0).min() > 0.99  # only the regularised Gram matrix differs


def test_kernel_hasher_separates_classes_that_are_not_linearly_separable():
    """Objects are concentric rings, which no linear bit can separate."""
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=2000)
    angle = rng.uniform(0, 2 * np.pi, 2000)
    radius = y + 1 + rng.normal(0, 0.1, 2000)
    X = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    pairs, similar = draw_pairs(y, 5000, 5000, random_state=0)
    from kdiffhash import roc

    linear = roc(DiffHash(2).fit(X, y).pair_distance(X, pairs), similar).auc
    kernel = KernelLDAHash(3, n_basis=200, gamma=2.0, random_state=0).fit(X, y)
    assert linear < 0.6
    assert roc(kernel.pair_distance(X, pairs), similar).auc > 0.9


@pytest.mark.parametrize("scale", [1e-25, 1e-10, 1e15, 1e20])
@pytest.mark.parametrize("preprocess", [None, "unit"])
def test_the_scale_of_the_data_does_not_matter(objects, scale, preprocess):
    X, y = objects
    hasher = KernelLDAHash(32, n_basis=100, preprocess=preprocess, random_state=0)
    expected = clone(hasher).fit(X, y).score(X, y)
    scaled = X.astype(np.float64) * scale
    assert clone(hasher).fit(scaled, y).score(scaled, y) == pytest.approx(expected, abs=0.03)


def test_failing_refit_leaves_the_hasher_unfitted(objects):
    X, y = objects
    hasher = KernelDiffHash(8, kernel="linear", n_basis=50).fit(X, y)
    with pytest.raises(ValueError, match="one class"):
        hasher.fit(X[:, :3], np.zeros(len(X)))
    with pytest.raises(NotFittedError):
        hasher.transform(X[:, :3])


@pytest.mark.parametrize("kernel", ["sigmoid", "additive_chi2"])
def test_indefinite_kernels_work(objects, kernel):
    X, y = objects
    if kernel == "additive_chi2":  # defined for non-negative values only
        X = X - X.min()
    for cls in (KernelDiffHash, KernelLDAHash):
        assert cls(16, kernel=kernel, n_basis=80).fit(X, y).score(X, y) > 0.05


def test_kernel_functions_get_no_padding_rows_and_read_only_arrays(objects):
    X, y = objects
    cosine = lambda a, b: (  # noqa: E731
        a @ b.T / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)
    )
    function = KernelLDAHash(16, kernel=cosine, n_basis=80, random_state=0).fit(X, y)
    named = KernelLDAHash(16, kernel="cosine", n_basis=80, random_state=0).fit(X, y)
    assert function.score(X, y) == pytest.approx(named.score(X, y), abs=0.03)

    def modify_basis(a, b):
        b[:] = 0
        return a @ b.T

    with pytest.raises(ValueError, match="read-only"):
        KernelLDAHash(4, kernel=modify_basis, n_basis=20).fit(X, y)


def test_metric_is_ignored_after_switching_to_another_kernel(objects):
    X, y = objects
    hasher = KernelDiffHash(8, kernel="mahalanobis", n_basis=50, random_state=0).fit(X, y)
    plain = KernelDiffHash(8, basis=hasher.basis_, gamma=hasher.gamma_).fit(X, y)
    hasher.set_params(kernel="rbf")
    for name in ("directions_", "thresholds_"):
        setattr(plain, name, getattr(hasher, name))
    np.testing.assert_array_equal(hasher.transform(X), plain.transform(X))
