"""The ranking loss against a plain implementation, and refinement of pairs with two sides."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from kdiffhash import DiffHash, ITQHash, KernelLDAHash, LDAHash
from kdiffhash.learn.kernels import IdentityMap
from kdiffhash.learn.losses import Batch, NeighborLoss, RankingLoss
from kdiffhash.learn.refinement import Hash, _rotated

PREFIXES = np.array([2, 4, 7])


def plain_loss(floats, queries, documents, labels, temperature):
    """Compute the loss by its definition, query by query, in double precision."""
    n, total = len(floats), 0.0
    for length in PREFIXES:
        f, q, d = floats[:, :length], queries[:, :length], documents[:, :length]
        for logits in (q @ d.T / length, f @ d.T / np.sqrt(length * (f**2).sum(axis=1))[:, None]):
            for i in range(n):
                others = [j for j in range(n) if j != i and labels[n + j] != labels[i]]
                row = sum(np.exp(temperature * logits[i, j]) for j in [i, *others])
                others = [j for j in range(n) if j != i and labels[j] != labels[n + i]]
                column = sum(np.exp(temperature * logits[j, i]) for j in [i, *others])
                total -= (2 * temperature * logits[i, i] - np.log(row * column)) / 2 / n
    return total


def batch(seed=0, n=6):
    rng = np.random.default_rng(seed)
    projections = rng.normal(size=(2 * n, 7)).astype(np.float32)
    thresholds = rng.normal(size=7).astype(np.float32) / 4
    labels = np.array([0, 1, 1, 2, 3, 4] * 2)  # the second and the third pair are near duplicates
    return projections, thresholds, labels


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_gradient_is_that_of_the_loss_with_straight_through_bits(n_jobs):
    projections, thresholds, labels = batch()
    loss = RankingLoss(PREFIXES, 1.5, n_jobs, 4.0)
    centred = projections.astype(np.float64) - thresholds
    n = len(centred) // 2
    values = [centred[:n], np.sign(centred[:n]), np.sign(centred[n:])]
    assert loss.error(projections, thresholds, Batch(labels, projections)) == pytest.approx(
        plain_loss(*values, labels, 4.0), rel=1e-4
    )
    slopes = []  # with respect to floats and bits of queries, and bits of documents
    for value in values:
        slopes.append(np.empty_like(value))
        for index in np.ndindex(value.shape):
            kept, ends = value[index], []
            for step in (1e-5, -1e-5):
                value[index] = kept + step
                ends.append(plain_loss(*values, labels, 4.0))
            value[index] = kept
            slopes[-1][index] = (ends[0] - ends[1]) / 2e-5
    through = 1.5 * (1 - np.tanh(1.5 * centred) ** 2)
    expected = np.concatenate([slopes[0] + through[:n] * slopes[1], through[n:] * slopes[2]])
    gradient = loss.gradient(projections, thresholds, Batch(labels, projections))
    np.testing.assert_allclose(gradient, expected, atol=2e-5)


def test_large_temperatures_do_not_overflow():
    projections, thresholds, labels = batch()
    loss = RankingLoss(PREFIXES, 1.0, 1, 80.0)
    assert np.isfinite(loss.gradient(projections, thresholds, Batch(labels, projections))).all()
    assert np.isfinite(loss.error(projections, thresholds, Batch(labels, projections)))


def make_sides(n, seed, d=24, noise=1.0):
    """Draw queries and documents of topics, with noise in other directions than the topics'."""
    rng = np.random.default_rng(seed)
    topics = rng.normal(size=(n, d)) * np.geomspace(1, 0.2, d)
    noise = [noise * rng.normal(size=(n, d)) * np.geomspace(0.1, 0.5, d) for _ in range(2)]
    rows = [(topics + own).astype(np.float32) for own in noise]
    return [side / np.linalg.norm(side, axis=1, keepdims=True) for side in rows]


def recall(hasher, sides, floats):
    """Compute the share of queries whose document is the first."""
    queries, documents = (hasher.project(side) for side in sides)
    scores = (queries if floats else np.sign(queries)) @ np.sign(documents).T
    return (scores.argmax(axis=1) == np.arange(len(scores))).mean()


@pytest.mark.parametrize("hasher", [DiffHash(24), LDAHash(24, ridge=0.3)], ids=["diff", "lda"])
def test_refinement_raises_the_recall_of_new_queries(hasher):
    queries, documents = make_sides(2000, 0)
    hasher.set_params(random_state=0, n_negatives=20_000)
    closed = clone(hasher).fit_pairs(queries, Y=documents)
    refined = clone(hasher).set_params(refine=200).fit_pairs(queries, Y=documents)
    test = make_sides(500, 1)
    for floats in (False, True):
        assert recall(refined, test, floats) > recall(closed, test, floats) + 0.1


def test_prefixes_are_good_codes_only_if_nested():
    queries, documents = make_sides(2000, 0, d=160, noise=2.5)
    hasher = LDAHash(128, ridge=0.3, refine=100, random_state=0, n_negatives=20_000)
    nested = clone(hasher).fit_pairs(queries, Y=documents)
    whole = clone(hasher).set_params(nested=False).fit_pairs(queries, Y=documents)
    test = make_sides(2000, 1, d=160, noise=2.5)
    recalls = {
        name: [recall(learned.truncate(n), test, False) for n in (64, 128)]
        for name, learned in (("nested", nested), ("whole", whole))
    }
    assert recalls["nested"][0] > recalls["whole"][0] + 0.03
    assert recalls["whole"][1] > recalls["nested"][1]
    with pytest.raises(ValueError, match="nested must be True or False, got 2"):
        clone(hasher).set_params(nested=2).fit_pairs(queries, Y=documents)


def test_refinement_starts_from_mixtures_of_directions():
    """A bit of the first prefix mixes as many directions; added bits hold less of these."""
    rng = np.random.default_rng(0)
    scales = np.geomspace(1, 0.1, 128)
    rows = (rng.normal(size=(4000, 128)) * scales).astype(np.float32)
    rows[2000:] = rows[:2000] + 0.5 * rng.normal(size=(2000, 128)) * scales
    start = Hash(
        IdentityMap(np.zeros(128, np.float32)), np.eye(128, dtype=np.float32), np.zeros(128)
    )
    pairs = np.stack([np.arange(2000), 2000 + np.arange(2000)], axis=1)
    mixed = _rotated(start, rows, pairs, np.array([64, 128]), rng, 1)
    projections = rows @ mixed.directions.T
    np.testing.assert_allclose(projections.std(axis=0), 1, rtol=1e-3)
    np.testing.assert_allclose(mixed.thresholds, projections.mean(axis=0), atol=1e-4)
    # In units of the regularised spread within pairs, by definition.
    within = ((rows[:2000] - rows[2000:]) ** 2).mean(axis=0)
    within = within + 0.3 * 2 * rows.var(axis=0).mean()
    mixtures = mixed.directions * np.sqrt(within)
    assert (mixtures[:64, 64:] == 0).all()
    for own in (mixtures[:64], mixtures[64:]):  # orthogonal bits
        own = own / np.linalg.norm(own, axis=1, keepdims=True)
        np.testing.assert_allclose(own @ own.T, np.eye(64), atol=1e-4)
    old, new = (np.square(mixtures[64:, half]).sum() for half in (slice(64), slice(64, 128)))
    assert 0.3**2 < old / new < 0.5  # orthogonality makes the old ones count more than 0.3 squared


def test_result_depends_on_the_seed_but_not_on_the_number_of_threads(tmp_path):
    queries, documents = make_sides(600, 0)
    hasher = KernelLDAHash(16, n_basis=40, refine=10, n_negatives=5000)
    first, same, other = (
        clone(hasher).set_params(random_state=seed, n_jobs=n_jobs).fit_pairs(queries, Y=documents)
        for seed, n_jobs in ((0, 1), (0, 3), (1, 1))
    )
    for name in ("basis_", "directions_", "thresholds_"):
        np.testing.assert_array_equal(getattr(first, name), getattr(same, name))
    assert (first.directions_ != other.directions_).any()


def test_groups_are_not_negatives_of_each_other():
    """Two versions of each text: without groups, refinement pushes them apart."""
    queries, documents = make_sides(800, 0)
    queries = np.concatenate([queries, queries])
    documents = np.concatenate([documents, documents])
    hasher = LDAHash(16, ridge=0.3, refine=100, random_state=0, n_negatives=20_000)
    grouped = clone(hasher).fit_pairs(queries, Y=documents, groups=np.tile(np.arange(800), 2))
    assert recall(grouped, make_sides(400, 1), True) > 0.2
    with pytest.raises(ValueError, match="connect all rows of X"):
        clone(hasher).fit_pairs(queries, Y=documents, groups=np.zeros(1600))


def plain_neighbor_loss(floats, bits, rows, temperature, sharpness):
    """Compute the loss by its definition: cross-entropies with the softmax of cosines."""
    n, total = len(floats), 0.0
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    others = ~np.eye(n, dtype=bool)
    weights = np.where(others, np.exp(sharpness * (unit @ unit.T)), 0)
    weights /= weights.sum(axis=1, keepdims=True)
    for length in PREFIXES:
        f, b = floats[:, :length], bits[:, :length]
        for logits in (b @ b.T / length, f @ b.T / np.sqrt(length * (f**2).sum(axis=1))[:, None]):
            for oriented in (logits, logits.T):
                values = np.exp(temperature * oriented) * others
                shares = values / values.sum(axis=1, keepdims=True)
                total -= (weights[others] * np.log(shares[others])).sum() / 2 / n
    return total


def test_neighbor_loss_compares_with_the_similarity_of_rows():
    projections, thresholds, _ = batch()
    rows = np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
    projections, labels = np.tile(projections[:6], (2, 1)), np.tile(np.arange(6), 2)
    loss = NeighborLoss(PREFIXES, 1.5, 1, 4.0, 3.0)
    both = Batch(labels, np.tile(rows, (2, 1)))
    floats = projections[:6].astype(np.float64) - thresholds
    plain = plain_neighbor_loss(floats, np.sign(floats), rows.astype(np.float64), 4.0, 3.0)
    assert loss.error(projections, thresholds, both) == pytest.approx(plain, rel=1e-4)
    # The gradient with respect to the floats alone, which are in no bit's derivative.
    gradient = loss.gradient(projections, thresholds, both)
    flat = NeighborLoss(PREFIXES, 1e-9, 1, 4.0, 3.0).gradient(projections, thresholds, both)
    assert np.abs(gradient - flat).max() > 1e-3
    bits = np.sign(floats)
    for index in ((0, 0), (3, 4), (5, 6)):
        ends = []
        for step in (1e-5, -1e-5):
            moved = floats.copy()
            moved[index] += step
            ends.append(plain_neighbor_loss(moved, bits, rows.astype(np.float64), 4.0, 3.0))
        assert flat[index] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=2e-5)


def kept_neighbors(hasher, X, n_queries=200, k=10):
    """Compute the share of the ten nearest by cosine that are among the ten nearest codes."""
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    bits = np.sign(hasher.project(X))
    found = []
    for scores in (X[:n_queries] @ X.T, bits[:n_queries] @ bits.T):
        scores[np.arange(n_queries), np.arange(n_queries)] = -np.inf
        found.append(np.argsort(-scores, axis=1, kind="stable")[:, :k])
    return np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(*found)])


def make_sparse_rows(n, seed, d=48):
    """Draw sums of a few of 300 topics, as embeddings of texts are."""
    topics = np.random.default_rng(9).normal(size=(300, d)) * np.geomspace(1, 0.2, d)
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=(n, 300)) * (rng.random((n, 300)) < 0.015)
    return (weights @ topics + 0.2 * rng.normal(size=(n, d))).astype(np.float32)


def test_refined_itq_keeps_more_neighbors_of_new_rows(tmp_path):
    train, test = make_sparse_rows(2000, 0), make_sparse_rows(1000, 1)
    hasher = ITQHash(32, random_state=0)
    plain = clone(hasher).fit(train)
    refined = clone(hasher).set_params(refine=100).fit(train)
    assert kept_neighbors(refined, test) > kept_neighbors(plain, test) + 0.05
    refined.save(tmp_path / "m")
    again = ITQHash.load(tmp_path / "m")
    np.testing.assert_array_equal(again.transform(test), refined.transform(test))
    one, three = (
        clone(hasher).set_params(refine=5, n_jobs=n_jobs).fit(train[:300]) for n_jobs in (1, 3)
    )
    np.testing.assert_array_equal(one.directions_, three.directions_)
    with pytest.raises(ValueError, match="refine must be a non-negative integer"):
        ITQHash(8, refine=-1).fit(train)
