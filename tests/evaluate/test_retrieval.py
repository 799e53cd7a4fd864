"""Retrieval measures against hand-worked cases, scikit-learn and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from kdiffhash import HammingIndex, hamming
from kdiffhash.evaluate import (
    Relevance,
    evaluate_ranking,
    evaluate_search,
    mean_over_queries,
    ndcg_at_k,
    nearest_by_cosine,
    overlap_at_k,
    recall_at_k,
    reciprocal_rank,
    relevance_from_labels,
)

IDS = np.array([[4, 7, 2, 9], [5, 1, 0, 8], [3, 6, 2, 1]])
RELEVANT = [[2, 4], [0], [11, 12, 3, 13]]


def test_hand_worked_values():
    assert recall_at_k(IDS, RELEVANT, 1).tolist() == [0.5, 0, 0.25]
    assert recall_at_k(IDS, RELEVANT, 3).tolist() == [1, 1, 0.25]
    assert reciprocal_rank(IDS, RELEVANT).tolist() == [1, 1 / 3, 1]
    second, third = 1 / np.log2(3), 0.5
    expected = [(1 + third) / (1 + second), third, 1 / (1 + second + third)]
    assert ndcg_at_k(IDS, RELEVANT, 3) == pytest.approx(expected)


def test_graded_gains_by_hand():
    # Gains 3 and 1 in the wrong order: (1 + 3 / log2(3)) / (3 + 1 / log2(3)).
    discount = 1 / np.log2(3)
    value = ndcg_at_k([[5, 6]], [[6, 5]], 2, gains=[[3, 1]])
    assert value == pytest.approx([(1 + 3 * discount) / (3 + discount)])


@pytest.mark.parametrize("k", [1, 3, 10, 40])
@pytest.mark.parametrize("graded", [False, True])
def test_ndcg_equals_that_of_scikit_learn(k, graded):
    rng = np.random.default_rng(k)
    scores = rng.permuted(np.tile(np.arange(40.0), (25, 1)), axis=1)
    gains = rng.integers(0, 4 if graded else 2, size=scores.shape) * (
        rng.random(scores.shape) < 0.3
    )
    gains[:, 0] = 1
    ids = np.argsort(-scores, axis=1)
    relevant = [np.flatnonzero(row) for row in gains]
    found = ndcg_at_k(ids, relevant, k, [row[row > 0] for row in gains])
    expected = [ndcg_score(gains[i, None], scores[i, None], k=k) for i in range(len(gains))]
    assert found == pytest.approx(expected)


def test_all_forms_of_relevance_agree():
    lims, flat = np.array([0, 2, 3, 7]), np.concatenate(RELEVANT)
    for k in (1, 2, 4):
        expected = recall_at_k(IDS, RELEVANT, k)
        assert recall_at_k(IDS, (lims, flat), k).tolist() == expected.tolist()
        assert recall_at_k(IDS, Relevance.of(RELEVANT), k).tolist() == expected.tolist()
    one = np.array([7, 0, 5])
    assert recall_at_k(IDS, one, 2).tolist() == recall_at_k(IDS, [[7], [0], [5]], 2).tolist()
    gains = [[1, 2], [3], [4, 5, 6, 7]]
    flat_gains = np.concatenate(gains)
    assert (
        ndcg_at_k(IDS, (lims, flat), 3, flat_gains).tolist()
        == ndcg_at_k(IDS, RELEVANT, 3, gains).tolist()
    )


def test_fewer_results_than_k():
    padded = np.array([[4, -1, -1], [-1, -1, -1]])
    assert recall_at_k(padded, [[4, 9], [1]], 3).tolist() == [0.5, 0]
    assert reciprocal_rank(padded, [4, 1]).tolist() == [1, 0]
    # The ideal ranking has both relevant documents, although only one result came back.
    assert ndcg_at_k(padded[:1], [[4, 9]], 3) == pytest.approx([1 / (1 + 1 / np.log2(3))])
    assert recall_at_k(np.empty((2, 0), int), [4, 1], 3).tolist() == [0, 0]
    assert reciprocal_rank(np.empty((2, 0), int), [4, 1]).tolist() == [0, 0]
    assert evaluate_ranking([[4]], [4], recall_at=[100], ndcg_at=[10]).ndcg[10].value == 1


def test_queries_without_relevant_documents():
    relevant = [[4], [], [3]]
    with pytest.raises(ValueError, match=r"1 of 3 queries have no relevant document .* query 1"):
        evaluate_ranking(IDS, relevant)
    quality = evaluate_ranking(IDS, relevant, without_relevant="skip", recall_at=[1])
    assert (quality.n_queries, quality.n_skipped, quality.recall[1].value) == (2, 1, 1.0)
    assert np.isnan(recall_at_k(IDS, relevant, 1)).tolist() == [False, True, False]
    assert np.isnan(ndcg_at_k(IDS, relevant, 1)).tolist() == [False, True, False]
    assert np.isnan(reciprocal_rank(IDS, relevant)).tolist() == [False, True, False]
    with pytest.raises(ValueError, match="none of the 2 queries"):
        evaluate_ranking(IDS[:2], [[], []], without_relevant="skip")
    # A gain of 0 means that the document is not relevant.
    skipped = evaluate_ranking(
        IDS[:2], [[4], [5]], gains=[[2], [0]], without_relevant="skip"
    ).n_skipped
    assert skipped == 1


def test_ties_count_in_the_order_of_the_store():
    """Codes 0 and 1 are at distance 1 of the query; the lower id comes first."""
    index = HammingIndex(np.array([[0b01], [0b10], [0b11]], np.uint8))
    query = np.array([[0b00]], np.uint8)
    assert evaluate_search(index, query, [0], recall_at=[1]).recall[1].value == 1
    assert evaluate_search(index, query, [1], recall_at=[1]).recall[1].value == 0
    assert evaluate_search(index, query, [1]).mrr.value == 0.5


def test_evaluate_search_equals_a_plain_loop():
    rng = np.random.default_rng(0)
    codes, queries = (rng.integers(0, 256, (n, 4), dtype=np.uint8) for n in (300, 40))
    relevant = rng.integers(0, 300, 40)
    quality = evaluate_search(HammingIndex(codes), queries, relevant, recall_at=[5], ndcg_at=[20])
    hits, ranks = [], []
    for query, wanted in zip(queries, relevant, strict=True):
        order = np.argsort(hamming(codes, query[None]), kind="stable")
        hits.append(wanted in order[:5])
        rank = 1 + order.tolist().index(wanted)
        ranks.append(1 / rank if rank <= 20 else 0)
    assert quality.recall[5].value == pytest.approx(np.mean(hits))
    assert quality.mrr.value == pytest.approx(np.mean(ranks))


def test_options_reach_the_store():
    class Store:
        def search(self, k, ids):
            return None, np.array(ids)[:, :k]

    quality = evaluate_search(Store(), None, [7, 1], recall_at=[1], ndcg_at=[2], ids=IDS[:2])
    assert quality.recall[1].value == 0
    assert quality.mrr.value == 0.5


def test_overlap():
    assert overlap_at_k(IDS[:1], [[2, 4, 7, 1]], 2).tolist() == [0.5]
    assert overlap_at_k(IDS[:1], [[2, 4, 7, 1]], 4).tolist() == [0.75]
    assert overlap_at_k(IDS[:1], [[4, -1, -1, -1]], 4).tolist() == [1]


def test_labels_give_the_relevant_documents():
    relevance = relevance_from_labels([5, 9, 3], [3, 5, 5, 3, 7])
    assert relevance.lims.tolist() == [0, 2, 2, 4]
    assert relevance.ids.tolist() == [1, 2, 0, 3]


def test_interval_covers_the_mean_as_the_normal_approximation_does():
    values = np.random.default_rng(1).random(2000) < 0.3
    interval = mean_over_queries(values, random_state=0)[0]
    error = 1.96 * np.sqrt(values.mean() * (1 - values.mean()) / len(values))
    assert interval.value == values.mean()
    assert interval.low == pytest.approx(values.mean() - error, abs=0.003)
    assert interval.high == pytest.approx(values.mean() + error, abs=0.003)


def test_groups_of_equal_queries_widen_the_interval():
    """Four copies of each query contain no more information than one."""
    values = np.random.default_rng(1).random(500)
    one = mean_over_queries(values, random_state=0)[0]
    four = mean_over_queries(
        np.repeat(values, 4), groups=np.repeat(np.arange(500), 4), random_state=0
    )
    assert (four[0].low, four[0].high) == pytest.approx((one.low, one.high))
    naive = mean_over_queries(np.repeat(values, 4), random_state=0)[0]
    assert naive.high - naive.low == pytest.approx((one.high - one.low) / 2, rel=0.15)


def test_share_of_a_reference_is_paired():
    """A method with half of the reference's value on every query keeps exactly half."""
    reference = np.random.default_rng(1).random(200)
    share = mean_over_queries(reference / 2, reference=reference, random_state=0)[0]
    assert (share.low, share.value, share.high) == pytest.approx((0.5, 0.5, 0.5))


def test_few_queries_are_marked():
    assert not mean_over_queries(np.ones(29))[0].is_reliable
    assert mean_over_queries(np.ones(30))[0].is_reliable


def test_exact_search_equals_sorting():
    rng = np.random.default_rng(0)
    queries, documents = rng.normal(size=(20, 6)), rng.normal(size=(50, 6))
    documents[10:14] = documents[9]  # ties
    queries[3] = documents[9]
    norms = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(documents, axis=1)
    similarity = np.round(queries @ documents.T / norms, 6)
    for k in (1, 3, 50, 70):
        expected = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        assert np.array_equal(nearest_by_cosine(queries, documents, k), expected)


def test_exact_search_of_unusual_rows():
    assert nearest_by_cosine([[1, 0]], np.empty((0, 2)), 3).shape == (1, 0)
    assert nearest_by_cosine(np.empty((0, 2)), [[1, 0]], 3).shape == (0, 1)
    # Rows of zeros have the similarity 0 to all; sizes do not matter, however large or small.
    documents = [[0, 0], [1e-300, 1e-300], [-1e300, 1e300], [3e200, 0]]
    assert nearest_by_cosine([[1e250, 1e249], [0, 0]], documents, 4).tolist() == [
        [3, 1, 0, 2],
        [0, 1, 2, 3],
    ]
    assert nearest_by_cosine(np.array([[100, 90]], np.int8), [[-9, 10], [9, 10]], 1) == [[1]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recall_at_k(IDS, [4, 1], 1), "3 queries, but relevant has 2"),
        (lambda: recall_at_k([[1, 1]], [1], 1), "query 0 contain a document twice"),
        (lambda: recall_at_k([1, 2], [1], 1), "integers of shape"),
        (lambda: recall_at_k([[1.5]], [1], 1), "integers of shape"),
        (lambda: recall_at_k([[1]], [[2, 2]], 1), "document 2 twice"),
        (lambda: recall_at_k([[1]], [[0.5]], 1), "must be integers"),
        (lambda: recall_at_k([[1]], [-1], 1), "stands for no result"),
        (lambda: recall_at_k([[1]], ([0, 2], [1]), 1), "must ascend from 0"),
        (lambda: recall_at_k([[1]], ([0], [1], [2]), 1), r"must be \(lims, ids\)"),
        (lambda: recall_at_k([[1]], [1], 0), "at least 1"),
        (lambda: ndcg_at_k([[1]], [[1]], 1, [[1, 2]]), "one number for each"),
        (lambda: ndcg_at_k([[1]], [[1]], 1, [[-1]]), "at least 0"),
        (lambda: mean_over_queries([[np.nan]]), "contain NaN"),
        (lambda: mean_over_queries([1.0], groups=[1, 2]), "one entry per query"),
        (lambda: mean_over_queries([1.0], reference=[1, 2]), "must have the shape"),
        (lambda: nearest_by_cosine([[1.0]], [[1.0, 2]], 1), "the same number"),
        (lambda: nearest_by_cosine([[1.0]], [[1.0]], 0), "at least 1, got 0"),
        (
            lambda: nearest_by_cosine([[1.0]], [[1.0], [np.nan]], 1),
            "documents contain NaN .* row 1",
        ),
        (
            lambda: nearest_by_cosine([1.0], [[1.0]], 1),
            r"queries must be numbers of shape \(n, d\)",
        ),
        (lambda: evaluate_ranking([[1]], [1], without_relevant="x"), "'raise' or 'skip'"),
    ],
)
def test_invalid_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
