"""Cross-modal hashing compared with NumPy's SVD, a grid search and chance level."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from kdiffhash import CrossDiffHash, DiffHash, KernelDiffHash, LDAHash, hamming, load


def make_views(n, seed, noise=0.2):
    """Return two kinds of measurements of the same objects, one linear and one non-linear."""
    hidden = np.random.default_rng(0).normal(size=(6, 10))
    frequencies = np.random.default_rng(1).normal(size=(6, 14))
    rng = np.random.default_rng(seed)
    objects = rng.normal(size=(n, 6))
    X = objects @ hidden + noise * rng.normal(size=(n, 10))
    Y = np.sin(0.5 * objects @ frequencies) + noise * rng.normal(size=(n, 14))
    return X.astype(np.float32), Y.astype(np.float32)


def precision_at_one(cross, X, Y):
    codes_x, codes_y = cross.transform(X, Y)
    distances = hamming(codes_x[:, None], codes_y)
    ties = (distances == distances.min(axis=1, keepdims=True)).sum(axis=1)
    return np.mean((distances.diagonal() == distances.min(axis=1)) / ties)


def test_projections_are_weighted_canonical_variates_up_to_a_rotation():
    """A common rotation preserves inner products of projections, within and across kinds."""
    X, Y = make_views(3000, 0)
    cross = CrossDiffHash(10, alpha=np.inf, ridge=0.0, random_state=0).fit(X, Y)
    centred = [data - data.mean(axis=0) for data in (X.astype(float), Y.astype(float))]
    white = []
    for data in centred:
        values, vectors = np.linalg.eigh(np.cov(data.T))
        white.append(data @ (vectors / np.sqrt(values)) @ vectors.T)
    left, values, right = np.linalg.svd(white[0].T @ white[1] / len(X), full_matrices=False)
    weights = (values / values[0]) ** 2
    x, y = (white[0] @ left) * weights, (white[1] @ right.T) * weights
    found_x, found_y = cross.x_.project(X), cross.y_.project(Y)
    found_x, found_y = found_x - found_x.mean(axis=0), found_y - found_y.mean(axis=0)
    for found, expected in ((found_x @ found_y.T, x @ y.T), (found_x @ found_x.T, x @ x.T)):
        np.testing.assert_allclose(found[:200], expected[:200], atol=0.02 * np.abs(expected).max())


def test_thresholds_are_close_to_the_best_of_a_grid_search():
    X, Y = make_views(400, 0)
    cross = CrossDiffHash(3, n_negatives=2000, random_state=0).fit(X, Y)
    rng = np.random.default_rng(5)
    pairs = rng.integers(400, size=(3000, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    x, y = cross.x_.project(X), cross.y_.project(Y)  # positive where the bit is 1

    def loss(bit, a, b):
        one, two = x[:, bit] > a, y[:, bit] > b
        return (one != two).mean() + (one[pairs[:, 0]] == two[pairs[:, 1]]).mean()

    for bit in range(3):
        grid = [np.quantile(side[:, bit], np.linspace(0.2, 0.8, 13)) for side in (x, y)]
        best = min(loss(bit, a, b) for a in grid[0] for b in grid[1])
        assert loss(bit, 0, 0) < best + 0.06


@pytest.mark.parametrize(
    "cross",
    [
        CrossDiffHash(10, random_state=0),
        CrossDiffHash(
            32,
            x=KernelDiffHash(n_basis=200, gamma="median/3"),
            y=KernelDiffHash(n_basis=200, gamma="median/3"),
            random_state=0,
        ),
        CrossDiffHash(10, y=KernelDiffHash(n_basis=150, preprocess="unit"), random_state=0),
    ],
    ids=["linear", "kernel", "mixed"],
)
def test_new_objects_are_matched_across_kinds(cross):
    fitted = clone(cross).fit(*make_views(3000, 0))
    assert precision_at_one(fitted, *make_views(100, 1)) > 0.1  # chance is 0.01


def test_kernel_improves_precision_on_nonlinear_data():
    train, test = make_views(3000, 0), make_views(200, 1)
    kernel = KernelDiffHash(n_basis=300, gamma="median/3")
    linear = CrossDiffHash(10, random_state=0).fit(*train)
    nonlinear = CrossDiffHash(64, x=kernel, y=kernel, random_state=0).fit(*train)
    assert precision_at_one(nonlinear, *test) > 1.5 * precision_at_one(linear, *test)


def test_each_side_can_be_used_as_a_separate_hasher(tmp_path):
    X, Y = make_views(500, 0)
    cross = CrossDiffHash(8, y=KernelDiffHash(n_basis=50), random_state=0).fit(X, Y)
    assert isinstance(cross.x_, DiffHash)
    cross.y_.save(tmp_path / "y.safetensors")
    np.testing.assert_array_equal(
        load(tmp_path / "y.safetensors").transform(Y), cross.transform(X, Y)[1]
    )
    again = CrossDiffHash(8, y=KernelDiffHash(n_basis=50), random_state=0, n_jobs=1).fit(X, Y)
    np.testing.assert_array_equal(again.y_.directions_, cross.y_.directions_)
    np.testing.assert_array_equal(again.y_.thresholds_, cross.y_.thresholds_)


def test_rows_of_equal_groups_are_not_used_as_negative_pairs():
    """Two objects with a hundred rows each; given the groups, one bit separates them."""
    rng = np.random.default_rng(0)
    groups = np.repeat(["cat", "dog"], 100)
    X, Y = (
        np.where(groups == "cat", 1, -1)[:, None] + rng.normal(0, 0.1, (200, d)) for d in (4, 6)
    )
    with_groups, without_groups = (
        CrossDiffHash(1, n_negatives=4000, random_state=0).fit(X, Y, given)
        for given in (groups, None)
    )
    codes_x, codes_y = with_groups.transform(X, Y)
    assert len(np.unique(codes_x[:100])) == len(np.unique(codes_x[100:])) == 1
    np.testing.assert_array_equal(codes_x, codes_y)
    assert codes_x[0] != codes_x[100]
    assert with_groups.x_.bit_fnr_ == with_groups.x_.bit_fpr_ == 0
    # Without groups, half of the drawn pairs belong to one object and count as false positives.
    assert without_groups.x_.bit_fnr_ + without_groups.x_.bit_fpr_ == pytest.approx(0.5, abs=0.05)


def test_invalid_input_raises_an_error():
    X, Y = make_views(50, 0)
    with pytest.raises(ValueError, match="X has 50 rows and Y has 49"):
        CrossDiffHash(4).fit(X, Y[:49])
    with pytest.raises(ValueError, match="Y has rows 0 to 19"):
        CrossDiffHash(4).fit_pairs(X, [[0, 0], [1, 49]], [True, False], Y=Y[:20])
    with pytest.raises(ValueError, match="at most one bit per feature"):
        CrossDiffHash(11).fit(X, Y)
    with pytest.raises(ValueError, match="alpha must be a positive number"):
        CrossDiffHash(4, alpha=0).fit(X, Y)
    with pytest.raises(ValueError, match="x must be a DiffHash or KernelDiffHash"):
        CrossDiffHash(4, x=LDAHash()).fit(X, Y)
    with pytest.raises(ValueError, match="NaN"):
        CrossDiffHash(4).fit(np.full_like(X, np.nan), Y)
    with pytest.raises(ValueError, match="groups has 3 entries"):
        CrossDiffHash(4).fit(X, Y, np.arange(3))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_bits": None}, "n_bits must be a positive integer"),
        ({"n_negatives": -1}, "n_negatives must be a positive integer"),
        ({"x": "rbf"}, "x must be a DiffHash or KernelDiffHash"),
        ({"y": DiffHash}, "y must be a DiffHash or KernelDiffHash"),
        ({"ridge": "decay"}, "ridge must be a finite, non-negative"),
    ],
)
def test_invalid_parameters_raise_an_error(params, message):
    X, Y = make_views(50, 0)
    with pytest.raises(ValueError, match=message):
        CrossDiffHash(**{"n_bits": 4, **params}).fit(X, Y)


def test_constant_rows_and_single_rows_raise_an_error():
    X, Y = make_views(50, 0)
    with pytest.raises(ValueError, match="whether all rows are equal"):
        CrossDiffHash(4).fit(np.ones_like(X), Y)
    with pytest.raises(ValueError, match="minimum of 2 is required"):
        CrossDiffHash(4).fit(X[:1], Y[:1])
