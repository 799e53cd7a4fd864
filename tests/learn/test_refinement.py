"""Refinement against a plain account of its loss, and what hashers promise of it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

import kdiffhash
from kdiffhash import DiffHash, KernelDiffHash, KernelLDAHash, LDAHash, draw_pairs, roc
from kdiffhash.codes import truncate
from kdiffhash.learn.kernels import GaussianMap, IdentityMap
from kdiffhash.learn.pairs import labels_joined_by
from kdiffhash.learn.refinement import Hash, Refinement, _Descent, refine
from kdiffhash.learn.thresholds import rates_at


def make_things(n_things, seed, n_views=4, noise=0.25, d=16):
    """Views of objects on a bent surface, so that a kernel has something to bend."""
    rng = np.random.default_rng(seed)
    hidden = np.repeat(rng.normal(size=(n_things, d // 2)), n_views, axis=0)
    hidden = hidden + noise * rng.normal(size=hidden.shape) * np.linspace(0.3, 1.5, d // 2)
    X = np.concatenate([hidden, np.sin(2 * hidden)], axis=1).astype(np.float32)
    return X, np.repeat(np.arange(n_things), n_views)


def plain_loss(features, directions, thresholds, objects, settings, prefixes):
    """The loss as the module's first lines put it, pair by pair, in double precision."""
    soft = np.tanh(settings.slope * (features @ directions.T - thresholds))
    n, total = len(soft), 0.0
    for length in prefixes:
        part = soft[:, :length]
        distance = (1 - part @ part.T / length) / 2
        for i in range(n):
            partner = (i + n // 2) % n
            other = min(distance[i, j] for j in range(n) if objects[j] != objects[i])
            excess = settings.sharpness * (distance[i, partner] - other + settings.margin)
            total += np.log1p(np.exp(excess)) / n
    return total


@pytest.mark.parametrize("kind", ["linear", "gaussian", "mahalanobis"])
def test_gradients_are_those_of_the_loss(kind):
    rng = np.random.default_rng(0)
    X, y = make_things(30, 0, n_views=2, d=6)
    basis = X[rng.choice(len(X), 9, replace=False)]
    metric = np.linalg.qr(rng.normal(size=(6, 6)))[0] * [1, 2, 1, 0.5, 1, 1]
    metric = (metric @ metric.T).astype(np.float32)
    features = {
        "linear": IdentityMap(np.zeros(6, np.float32)),
        "gaussian": GaussianMap(basis, 0.5),
        "mahalanobis": GaussianMap(basis, 0.5, metric),
    }[kind]
    n_bits = 6
    settings = Refinement(1, sharpness=5.0, shortest=2)
    start = Hash(
        features,
        rng.normal(size=(n_bits, features.width)).astype(np.float32),
        rng.normal(size=n_bits).astype(np.float32),
    )
    descending = _Descent(start, X, settings, rng, 1)
    assert descending.prefixes.tolist() == [2, 4, 6]
    items = np.concatenate([np.arange(0, 60, 2), np.arange(1, 60, 2)])
    found = descending.gradients(items, y)
    assert len(found) == (2 if kind == "linear" else 3)

    def loss():
        white, offsets = (found[k][0].values.astype(np.float64) for k in (0, 1))
        rows = X[items].astype(np.float64)
        if kind != "linear":
            away = rows[:, None] - found[2][0].values.astype(np.float64)
            away = away @ (metric if kind == "mahalanobis" else np.eye(6))
            rows = np.exp(-0.5 * (away**2).sum(axis=2))
        directions = white @ descending.whiten.astype(np.float64)
        thresholds = offsets + directions @ descending.mean
        return plain_loss(rows, directions, thresholds, y[items], settings, [2, 4, 6])

    for parameter, gradient in found:
        flat, flat_gradient = parameter.values.reshape(-1), gradient.reshape(-1)
        chosen = rng.choice(flat.size, min(12, flat.size), replace=False)
        for i in chosen:
            kept, step = flat[i], np.float32(2e-4)
            flat[i] = kept + step
            above = loss()
            flat[i] = kept - step
            below = loss()
            flat[i] = kept
            slope = (above - below) / (2 * step)
            near = 0.02 * float(np.abs(gradient).max())
            assert flat_gradient[i] == pytest.approx(slope, rel=0.02, abs=near)


def rates(hasher, X, y, lengths):
    pairs, similar = draw_pairs(y, 3000, 60_000, random_state=1)
    codes = hasher.transform(X)
    found = []
    for length in lengths:
        short = truncate(codes, length)
        far = kdiffhash.hamming(short[pairs[:, 0]], short[pairs[:, 1]])
        found.append(roc(far, similar).fnr_at(0.01))
    return np.array(found)


@pytest.mark.parametrize(
    "hasher",
    [LDAHash(16), DiffHash(16), KernelLDAHash(64, n_basis=150), KernelDiffHash(64, n_basis=150)],
    ids=lambda h: type(h).__name__,
)
def test_refined_codes_are_better_on_new_things(hasher):
    X, y = make_things(1500, 0)
    hasher.set_params(random_state=0, n_positives=5000, n_negatives=10_000)
    lengths, steps = ([16], 400) if hasher.n_bits == 16 else ([32, 64], 150)
    test = make_things(500, 1)
    before = rates(clone(hasher).fit(X, y), *test, lengths)
    after = rates(clone(hasher).set_params(refine=steps).fit(X, y), *test, lengths)
    assert (after < 0.97 * before).all()


def test_the_result_does_not_depend_on_threads_and_follows_from_the_seed():
    X, y = make_things(300, 0)
    first, same, other = (
        KernelLDAHash(40, n_basis=80, refine=15, random_state=seed, n_jobs=n_jobs).fit(X, y)
        for seed, n_jobs in ((0, 1), (0, 3), (1, 1))
    )
    for name in ("basis_", "directions_", "thresholds_"):
        np.testing.assert_array_equal(getattr(first, name), getattr(same, name))
    assert (first.basis_ != other.basis_).any()


def test_descent_stops_when_things_kept_aside_gain_nothing(monkeypatch):
    """Pairs of random rows have nothing in common: there is only something to remember."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 10)).astype(np.float32)
    y = np.repeat(np.arange(400), 2)
    steps = []
    step = _Descent.step
    monkeypatch.setattr(_Descent, "step", lambda *given: steps.append(1) or step(*given))
    start = Hash(
        IdentityMap(np.zeros(10, np.float32)),
        np.eye(8, 10, dtype=np.float32),
        np.zeros(8, np.float32),
    )
    pairs = np.arange(800).reshape(-1, 2)
    settings = Refinement(5000, rate=0.05, batch=64, patience=3)
    result = refine(start, X, pairs, y, settings, np.random.default_rng(0))
    assert len(steps) < 2000
    assert np.isfinite(result.directions).all()


def test_thresholds_move_and_their_rates_are_told():
    X, y = make_things(30, 0)  # too few to keep some aside
    closed = LDAHash(12, random_state=0).fit(X, y)
    refined = LDAHash(12, refine=30, random_state=0).fit(X, y)
    assert not np.allclose(closed.thresholds_, refined.thresholds_)
    pairs, similar = draw_pairs(y, 100_000, 200_000, random_state=refined._rng("pairs"))
    bits = kdiffhash.unpack(refined.transform(X), 12)
    unlike = bits[pairs[:, 0]] != bits[pairs[:, 1]]
    np.testing.assert_allclose(refined.bit_fnr_, unlike[similar].mean(axis=0))
    np.testing.assert_allclose(refined.bit_fpr_, 1 - unlike[~similar].mean(axis=0))
    np.testing.assert_allclose(refined.bit_ones_, bits[np.unique(pairs)].mean(axis=0))


def test_a_large_offset_costs_a_linear_hasher_nothing():
    X, y = make_things(300, 0)
    X = (np.round(X * 1024) / 1024).astype(np.float64)
    near = LDAHash(8, refine=20, random_state=0).fit(X, y).transform(X)
    far = LDAHash(8, refine=20, random_state=0).fit(X + 2.0**20, y).transform(X + 2.0**20)
    assert (np.bitwise_count(near ^ far).sum() / (8 * len(X))) < 0.02


def test_other_kernels_keep_their_basis():
    X, y = make_things(200, 0)
    hasher = KernelLDAHash(16, kernel="laplacian", n_basis=40, random_state=0)
    closed, refined = clone(hasher).fit(X, y), clone(hasher).set_params(refine=50).fit(X, y)
    np.testing.assert_array_equal(closed.basis_, refined.basis_)
    assert (closed.directions_ != refined.directions_).any()


def test_a_refined_model_is_saved_and_read_again(tmp_path):
    X, y = make_things(200, 0)
    hasher = KernelLDAHash(32, n_basis=60, refine=10, random_state=0).fit(X, y)
    hasher.save(tmp_path / "model.safetensors")
    again = kdiffhash.load(tmp_path / "model.safetensors")
    assert again.refine == 10
    np.testing.assert_array_equal(again.transform(X), hasher.transform(X))


def test_pairs_alone_say_which_rows_show_the_same_thing():
    pairs = np.array([[0, 3], [3, 5], [1, 2]])
    objects = labels_joined_by(pairs, 7)
    same = objects[:, None] == objects
    wanted = np.eye(7, dtype=bool)
    for group in ([0, 3, 5], [1, 2]):
        wanted[np.ix_(group, group)] = True
    np.testing.assert_array_equal(same, wanted)


def test_pairs_are_enough_to_refine():
    X, y = make_things(1500, 0)
    pairs, similar = draw_pairs(y, 5000, 5000, random_state=0)
    hasher = KernelDiffHash(64, n_basis=100, random_state=0)
    closed = clone(hasher).fit_pairs(X, pairs, similar)
    refined = clone(hasher).set_params(refine=100).fit_pairs(X, pairs, similar)
    test = make_things(500, 1)
    assert rates(refined, *test, [64]) < 0.9 * rates(closed, *test, [64])


def test_rates_of_known_codes():
    codes = np.array([[0b10000000], [0b11000000], [0b00000000]], np.uint8)
    pairs, similar = np.array([[0, 1], [0, 2], [1, 2]]), np.array([True, False, False])
    found = rates_at(np.zeros(2, np.float32), codes, pairs, similar)
    assert found.fnr.tolist() == [0, 1]
    assert found.fpr.tolist() == [0, 0.5]
    np.testing.assert_allclose(found.ones, [2 / 3, 1 / 3])


@pytest.mark.parametrize("steps", [-1, 1.5, "many", None])
def test_a_number_of_steps_that_is_none_is_refused(steps):
    X, y = make_things(20, 0)
    with pytest.raises(ValueError, match="refine must be a non-negative integer"):
        LDAHash(4, refine=steps).fit(X, y)


def test_what_cannot_be_refined_is_said():
    X, y = make_things(20, 0)
    pairs, similar = draw_pairs(y, 50, 50, random_state=0)
    chain = np.stack([np.arange(79), np.arange(79) + 1], axis=1)
    both = np.concatenate([chain, [[0, 5]]])
    with pytest.raises(ValueError, match="all similar pairs show one object"):
        LDAHash(4, refine=5).fit_pairs(X, both, np.arange(80) < 79)
    with pytest.raises(ValueError, match="X has 80 rows, but y has 3 labels"):
        LDAHash(4, refine=5).fit_pairs(X, pairs, similar, [1, 2, 3])


def test_a_refinement_that_fails_leaves_no_half_of_a_hasher(monkeypatch):
    from sklearn.exceptions import NotFittedError

    X, y = make_things(50, 0)
    hasher = LDAHash(4, random_state=0).fit(X, y)
    hasher.set_params(refine=5)

    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(_Descent, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hasher.fit(X, y)
    with pytest.raises(NotFittedError):
        hasher.transform(X)


def test_pairs_of_refinement_span_groups_where_that_is_asked_for(monkeypatch):
    X, y = make_things(60, 0)
    groups = np.tile([0, 0, 1, 2], 60)
    seen = []

    def look(start, rows, positives, objects, *more, **options):
        seen.append(rows[positives])
        return start

    monkeypatch.setattr("kdiffhash.hashers.closed_form.refine", look)
    LDAHash(4, refine=5, random_state=0).fit(X, y, groups)
    assert len(seen[0]) == 300  # five of the six pairs of each object
    place = {row.tobytes(): i for i, row in enumerate(X)}
    for left, right in seen[0]:
        a, b = place[left.tobytes()], place[right.tobytes()]
        assert y[a] == y[b]
        assert groups[a] != groups[b]
