"""Refinement: gradients compared with a plain implementation of the loss, and refined hashers."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

import kdiffhash
from kdiffhash import DiffHash, KernelDiffHash, KernelLDAHash, LDAHash, draw_pairs, roc
from kdiffhash.codes import truncate
from kdiffhash.learn.kernels import GaussianMap, IdentityMap
from kdiffhash.learn.pairs import labels_from_pairs
from kdiffhash.learn.refinement import Hash, Refinement, _Optimizer, refine
from kdiffhash.learn.thresholds import rates_at


def make_objects(n_objects, seed, rows_per_object=4, noise=0.25, d=16):
    """Draw noisy rows of objects on a curved surface, on which kernels have an advantage."""
    rng = np.random.default_rng(seed)
    hidden = np.repeat(rng.normal(size=(n_objects, d // 2)), rows_per_object, axis=0)
    hidden = hidden + noise * rng.normal(size=hidden.shape) * np.linspace(0.3, 1.5, d // 2)
    X = np.concatenate([hidden, np.sin(2 * hidden)], axis=1).astype(np.float32)
    return X, np.repeat(np.arange(n_objects), rows_per_object)


def plain_loss(features, directions, thresholds, labels, settings, prefixes):
    """Compute the loss by its definition, pair by pair, in double precision."""
    soft = np.tanh(settings.slope * (features @ directions.T - thresholds))
    n, total = len(soft), 0.0
    for length in prefixes:
        prefix = soft[:, :length]
        distance = (1 - prefix @ prefix.T / length) / 2
        for i in range(n):
            partner = (i + n // 2) % n
            negative = min(distance[i, j] for j in range(n) if labels[j] != labels[i])
            excess = settings.sharpness * (distance[i, partner] - negative + settings.margin)
            total += np.log1p(np.exp(excess)) / n
    return total


@pytest.mark.parametrize("kind", ["linear", "gaussian", "mahalanobis"])
def test_gradients_agree_with_finite_differences_of_the_loss(kind):
    rng = np.random.default_rng(0)
    X, y = make_objects(30, 0, rows_per_object=2, d=6)
    basis = X[rng.choice(len(X), 9, replace=False)]
    metric = np.linalg.qr(rng.normal(size=(6, 6)))[0] * [1, 2, 1, 0.5, 1, 1]
    metric = (metric @ metric.T).astype(np.float32)
    features = {
        "linear": IdentityMap(np.zeros(6, np.float32)),
        "gaussian": GaussianMap(basis, 0.5),
        "mahalanobis": GaussianMap(basis, 0.5, metric),
    }[kind]
    n_bits = 6
    settings = Refinement(1, sharpness=5.0, shortest_prefix=2)
    start = Hash(
        features,
        rng.normal(size=(n_bits, features.width)).astype(np.float32),
        rng.normal(size=n_bits).astype(np.float32),
    )
    optimizer = _Optimizer(start, X, settings, rng, 1)
    assert optimizer.loss.prefixes.tolist() == [2, 4, 6]
    members = np.concatenate([np.arange(0, 60, 2), np.arange(1, 60, 2)])
    gradients = optimizer.gradients(members, y)
    assert len(gradients) == (2 if kind == "linear" else 3)

    def loss():
        whitened, centred = (gradients[k][0].values.astype(np.float64) for k in (0, 1))
        rows = X[members].astype(np.float64)
        if kind != "linear":
            gaps = rows[:, None] - gradients[2][0].values.astype(np.float64)
            gaps = gaps @ (metric if kind == "mahalanobis" else np.eye(6))
            rows = np.exp(-0.5 * (gaps**2).sum(axis=2))
        directions = whitened @ optimizer.whitening.astype(np.float64)
        thresholds = centred + directions @ optimizer.feature_mean
        return plain_loss(rows, directions, thresholds, y[members], settings, [2, 4, 6])

    for parameter, gradient in gradients:
        flat, flat_gradient = parameter.values.reshape(-1), gradient.reshape(-1)
        chosen = rng.choice(flat.size, min(12, flat.size), replace=False)
        for i in chosen:
            value, step = flat[i], np.float32(2e-4)
            flat[i] = value + step
            above = loss()
            flat[i] = value - step
            below = loss()
            flat[i] = value
            slope = (above - below) / (2 * step)
            tolerance = 0.02 * float(np.abs(gradient).max())
            assert flat_gradient[i] == pytest.approx(slope, rel=0.02, abs=tolerance)


def fnr_of_prefixes(hasher, X, y, lengths):
    """Compute the FNR at an FPR of 0.01 of prefixes of these lengths."""
    pairs, similar = draw_pairs(y, 3000, 60_000, random_state=1)
    codes = hasher.transform(X)
    rates = []
    for length in lengths:
        short = truncate(codes, length)
        distances = kdiffhash.hamming(short[pairs[:, 0]], short[pairs[:, 1]])
        rates.append(roc(distances, similar).fnr_at(0.01))
    return np.array(rates)


@pytest.mark.parametrize(
    "hasher",
    [LDAHash(16), DiffHash(16), KernelLDAHash(64, n_basis=150), KernelDiffHash(64, n_basis=150)],
    ids=lambda h: type(h).__name__,
)
def test_refinement_lowers_the_fnr_on_new_objects(hasher):
    X, y = make_objects(1500, 0)
    hasher.set_params(random_state=0, n_positives=5000, n_negatives=10_000)
    lengths, steps = ([16], 400) if hasher.n_bits == 16 else ([32, 64], 150)
    test = make_objects(500, 1)
    closed = clone(hasher).fit(X, y)
    refined = clone(hasher).set_params(refine=steps).fit(X, y)
    before, after = (fnr_of_prefixes(fitted, *test, lengths) for fitted in (closed, refined))
    assert (after < 0.97 * before).all()


def test_result_depends_on_the_seed_but_not_on_the_number_of_threads():
    X, y = make_objects(300, 0)
    first, same, other = (
        KernelLDAHash(40, n_basis=80, refine=15, random_state=seed, n_jobs=n_jobs).fit(X, y)
        for seed, n_jobs in ((0, 1), (0, 3), (1, 1))
    )
    for name in ("basis_", "directions_", "thresholds_"):
        np.testing.assert_array_equal(getattr(first, name), getattr(same, name))
    assert (first.basis_ != other.basis_).any()


def test_refinement_stops_early_if_the_validation_error_does_not_improve(monkeypatch):
    """Pairs of random rows have nothing in common, so refinement can only overfit."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 10)).astype(np.float32)
    y = np.repeat(np.arange(400), 2)
    steps = []
    step = _Optimizer.step
    monkeypatch.setattr(_Optimizer, "step", lambda *args: steps.append(1) or step(*args))
    start = Hash(
        IdentityMap(np.zeros(10, np.float32)),
        np.eye(8, 10, dtype=np.float32),
        np.zeros(8, np.float32),
    )
    pairs = np.arange(800).reshape(-1, 2)
    settings = Refinement(5000, learning_rate=0.05, batch_size=64, patience=3)
    result = refine(start, X, pairs, y, settings, np.random.default_rng(0))
    assert len(steps) < 2000
    assert np.isfinite(result.directions).all()


def test_bit_rates_are_those_of_the_refined_thresholds():
    X, y = make_objects(30, 0)  # too few for a validation set
    closed = LDAHash(12, random_state=0).fit(X, y)
    refined = LDAHash(12, refine=30, random_state=0).fit(X, y)
    assert not np.allclose(closed.thresholds_, refined.thresholds_)
    pairs, similar = draw_pairs(y, 100_000, 200_000, random_state=refined._rng("pairs"))
    bits = kdiffhash.unpack(refined.transform(X), 12)
    differ = bits[pairs[:, 0]] != bits[pairs[:, 1]]
    np.testing.assert_allclose(refined.bit_fnr_, differ[similar].mean(axis=0))
    np.testing.assert_allclose(refined.bit_fpr_, 1 - differ[~similar].mean(axis=0))
    np.testing.assert_allclose(refined.bit_ones_, bits[np.unique(pairs)].mean(axis=0))


def test_large_offset_hardly_changes_codes_of_a_linear_hasher():
    X, y = make_objects(300, 0)
    X = (np.round(X * 1024) / 1024).astype(np.float64)
    shifted = X + 2.0**20
    hasher = LDAHash(8, refine=20, random_state=0)
    codes, other = (clone(hasher).fit(rows, y).transform(rows) for rows in (X, shifted))
    assert (np.bitwise_count(codes ^ other).sum() / (8 * len(X))) < 0.02


def test_basis_of_other_kernels_is_not_refined():
    X, y = make_objects(200, 0)
    hasher = KernelLDAHash(16, kernel="laplacian", n_basis=40, random_state=0)
    closed, refined = clone(hasher).fit(X, y), clone(hasher).set_params(refine=50).fit(X, y)
    np.testing.assert_array_equal(closed.basis_, refined.basis_)
    assert (closed.directions_ != refined.directions_).any()


def test_refined_model_can_be_saved_and_loaded(tmp_path):
    X, y = make_objects(200, 0)
    hasher = KernelLDAHash(32, n_basis=60, refine=10, random_state=0).fit(X, y)
    hasher.save(tmp_path / "model.safetensors")
    loaded = kdiffhash.load(tmp_path / "model.safetensors")
    assert loaded.refine == 10
    np.testing.assert_array_equal(loaded.transform(X), hasher.transform(X))


def test_rows_connected_by_positive_pairs_share_a_label():
    pairs = np.array([[0, 3], [3, 5], [1, 2]])
    labels = labels_from_pairs(pairs, 7)
    same = labels[:, None] == labels
    expected = np.eye(7, dtype=bool)
    for group in ([0, 3, 5], [1, 2]):
        expected[np.ix_(group, group)] = True
    np.testing.assert_array_equal(same, expected)


def test_refinement_works_with_pairs_instead_of_labels():
    X, y = make_objects(1500, 0)
    pairs, similar = draw_pairs(y, 5000, 5000, random_state=0)
    hasher = KernelDiffHash(64, n_basis=100, random_state=0)
    closed = clone(hasher).fit_pairs(X, pairs, similar)
    refined = clone(hasher).set_params(refine=100).fit_pairs(X, pairs, similar)
    test = make_objects(500, 1)
    before, after = (fnr_of_prefixes(fitted, *test, [64]) for fitted in (closed, refined))
    assert after < 0.9 * before


def test_bit_rates_of_given_codes():
    codes = np.array([[0b10000000], [0b11000000], [0b00000000]], np.uint8)
    pairs, similar = np.array([[0, 1], [0, 2], [1, 2]]), np.array([True, False, False])
    rates = rates_at(np.zeros(2, np.float32), codes, pairs, similar)
    assert rates.fnr.tolist() == [0, 1]
    assert rates.fpr.tolist() == [0, 0.5]
    np.testing.assert_allclose(rates.ones, [2 / 3, 1 / 3])


@pytest.mark.parametrize("steps", [-1, 1.5, "many", None])
def test_invalid_number_of_steps_raises_value_error(steps):
    X, y = make_objects(20, 0)
    with pytest.raises(ValueError, match="refine must be a non-negative integer"):
        LDAHash(4, refine=steps).fit(X, y)


def test_pairs_of_one_object_and_wrong_labels_raise_value_error():
    X, y = make_objects(20, 0)
    pairs, similar = draw_pairs(y, 50, 50, random_state=0)
    chain = np.stack([np.arange(79), np.arange(79) + 1], axis=1)
    with_negative = np.concatenate([chain, [[0, 5]]])
    with pytest.raises(ValueError, match="all positive pairs belong to one object"):
        LDAHash(4, refine=5).fit_pairs(X, with_negative, np.arange(80) < 79)
    with pytest.raises(ValueError, match="X has 80 rows, but y has 3 labels"):
        LDAHash(4, refine=5).fit_pairs(X, pairs, similar, [1, 2, 3])


def test_hasher_is_not_fitted_after_interrupted_refinement(monkeypatch):
    from sklearn.exceptions import NotFittedError

    X, y = make_objects(50, 0)
    hasher = LDAHash(4, random_state=0).fit(X, y)
    hasher.set_params(refine=5)

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(_Optimizer, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hasher.fit(X, y)
    with pytest.raises(NotFittedError):
        hasher.transform(X)


def test_pairs_for_refinement_span_two_groups_if_groups_are_given(monkeypatch):
    X, y = make_objects(60, 0)
    groups = np.tile([0, 0, 1, 2], 60)
    calls = []

    def record(start, rows, positives, labels, *args, **options):
        calls.append(rows[positives])
        return start

    monkeypatch.setattr("kdiffhash.hashers.closed_form.refine", record)
    LDAHash(4, refine=5, random_state=0).fit(X, y, groups)
    assert len(calls[0]) == 300  # five of the six pairs of each object
    number = {row.tobytes(): i for i, row in enumerate(X)}
    for left, right in calls[0]:
        a, b = number[left.tobytes()], number[right.tobytes()]
        assert y[a] == y[b]
        assert groups[a] != groups[b]
