"""Quality of ranked results: recall@k, nDCG@k, MRR and overlap@k, with confidence intervals.

Each measure has one value per query. Its mean over queries gets a bootstrap confidence interval,
which accounts for other queries of the same kind; it does not account for other documents or for
another training seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .bootstrap import Interval, interval_of
from .relevance import NO_RESULT, Relevance, Relevant

Values = NDArray[np.float64]

_BATCH = 2**22  # random numbers per batch of resamples
_MIN_QUERIES = 30  # with fewer queries or groups, intervals are marked as unreliable


@dataclass(frozen=True)
class Retrieval:
    """Measures of ranked results, as means over queries.

    Attributes
    ----------
    recall : dict of int to Interval
        Recall@k by k: share of the relevant documents that are among the first k.
    ndcg : dict of int to Interval
        nDCG@k by k.
    mrr : Interval
        Mean reciprocal rank of the first relevant document; 0 for queries whose results contain
        none.
    n_queries : int
        Number of queries with relevant documents, over which the means are taken.
    n_skipped : int
        Number of queries without relevant documents.

    Examples
    --------
    >>> from kdiffhash.evaluate import evaluate_ranking
    >>> quality = evaluate_ranking([[4, 7], [5, 1]], [4, 1], recall_at=[1], ndcg_at=[2])
    >>> quality.recall[1].value, quality.mrr.value
    (0.5, 0.75)
    """

    recall: dict[int, Interval]
    ndcg: dict[int, Interval]
    mrr: Interval
    n_queries: int
    n_skipped: int


def recall_at_k(ids: ArrayLike, relevant: Relevant, k: int) -> Values:
    """Compute the share of the relevant documents that are among the first k results.

    Parameters
    ----------
    ids : int array of shape (n, m)
        Ids of the results of each query, best first; -1 stands for no result.
    relevant : int array of shape (n,), list of n arrays, or tuple (lims, ids)
        Relevant documents of each query, see `Relevance.of`.
    k : int
        Number of results to count. If there are fewer, all are counted.

    Returns
    -------
    recall : float64 array of shape (n,)
        NaN for queries without relevant documents.

    Examples
    --------
    >>> from kdiffhash.evaluate import recall_at_k
    >>> recall_at_k([[4, 7, 2], [5, 1, 0]], [[4, 2], [1]], k=2)
    array([0.5, 1. ])
    """
    relevance = Relevance.of(relevant)
    found = relevance.gains_of(_checked_ids(ids, len(relevance))[:, : _checked_k(k)]) > 0
    return _ratio(found.sum(axis=1), relevance.counts)


def ndcg_at_k(ids: ArrayLike, relevant: Relevant, k: int, gains: Any = None) -> Values:
    """Compute the normalised discounted cumulative gain of the first k results.

    The result at rank r (from 1) counts its gain divided by log2(r + 1); the sum is divided by that
    of the best possible ranking. Gains enter linearly, as in scikit-learn's ``ndcg_score``.

    Parameters
    ----------
    ids : int array of shape (n, m)
        Ids of the results of each query, best first; -1 stands for no result.
    relevant : int array of shape (n,), list of n arrays, or tuple (lims, ids)
        Relevant documents of each query, see `Relevance.of`.
    k : int
        Number of results to count, also in the best possible ranking.
    gains : array, list of arrays or None, default=None
        How relevant each of these documents is; None means 1 for all.

    Returns
    -------
    ndcg : float64 array of shape (n,)
        NaN for queries without relevant documents.

    Examples
    --------
    >>> from kdiffhash.evaluate import ndcg_at_k
    >>> ndcg_at_k([[4, 7], [7, 4]], [4, 4], k=2).round(3)
    array([1.   , 0.631])
    """
    relevance = Relevance.of(relevant, gains)
    found = relevance.gains_of(_checked_ids(ids, len(relevance))[:, : _checked_k(k)])
    discounts = 1 / np.log2(np.arange(2, max(k, found.shape[1]) + 2))
    order = np.lexsort((-relevance.gains, relevance.queries))
    ranks = np.arange(len(order)) - np.repeat(relevance.lims[:-1], relevance.counts)
    counted = ranks < k
    ideal = np.bincount(
        relevance.queries[counted],
        relevance.gains[order][counted] * discounts[ranks[counted]],
        minlength=len(relevance),
    )
    return _ratio(found @ discounts[: found.shape[1]], ideal)


def reciprocal_rank(ids: ArrayLike, relevant: Relevant) -> Values:
    """Compute 1 / rank of the first relevant document; its mean over queries is the MRR.

    Parameters
    ----------
    ids : int array of shape (n, m)
        Ids of the results of each query, best first; -1 stands for no result.
    relevant : int array of shape (n,), list of n arrays, or tuple (lims, ids)
        Relevant documents of each query, see `Relevance.of`.

    Returns
    -------
    values : float64 array of shape (n,)
        0 if no result is relevant, NaN for queries without relevant documents.

    Examples
    --------
    >>> from kdiffhash.evaluate import reciprocal_rank
    >>> reciprocal_rank([[4, 7], [7, 4], [1, 2]], [4, 4, 4])
    array([1. , 0.5, 0. ])
    """
    relevance = Relevance.of(relevant)
    found = relevance.gains_of(_checked_ids(ids, len(relevance))) > 0
    if not found.shape[1]:
        return _ratio(np.zeros(len(found)), relevance.counts)
    first = np.where(found.any(axis=1), 1 / (1.0 + found.argmax(axis=1)), 0.0)
    return np.where(relevance.counts > 0, first, np.nan)


def overlap_at_k(ids: ArrayLike, reference: ArrayLike, k: int) -> Values:
    """Compute the share of the first k results of a reference that are among the first k results.

    With an exact search on float rows as the reference, this is the share of the float's k nearest
    neighbours that codes find.

    Parameters
    ----------
    ids : int array of shape (n, m)
        Ids of the results of each query, best first; -1 stands for no result.
    reference : int array of shape (n, r)
        Ids of the results of the reference for the same queries, best first.
    k : int
        Number of results to compare.

    Returns
    -------
    overlap : float64 array of shape (n,)
        NaN for queries for which the reference has no result.

    Examples
    --------
    >>> from kdiffhash.evaluate import overlap_at_k
    >>> overlap_at_k([[4, 7, 2]], [[7, 1, 2]], k=2)
    array([0.5])
    """
    wanted = _checked_ids(reference, None, "reference")[:, : _checked_k(k)]
    return recall_at_k(ids, [row[row != NO_RESULT] for row in wanted], k)


def evaluate_ranking(
    ids: ArrayLike,
    relevant: Relevant,
    *,
    gains: Any = None,
    recall_at: Sequence[int] = (1, 10, 100),
    ndcg_at: Sequence[int] = (10,),
    without_relevant: Literal["raise", "skip"] = "raise",
    groups: ArrayLike | None = None,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    random_state: int | np.random.Generator | None = None,
) -> Retrieval:
    """Compute recall@k, nDCG@k and MRR of ranked results, with confidence intervals over queries.

    Parameters
    ----------
    ids : int array of shape (n, m)
        Ids of the results of each query, best first; -1 stands for no result. Documents at equal
        distance count in the order given (stores put the lower id first).
    relevant : int array of shape (n,), list of n arrays, or tuple (lims, ids)
        Relevant documents of each query, see `Relevance.of`.
    gains : array, list of arrays or None, default=None
        How relevant each of these documents is, for nDCG; None means 1 for all.
    recall_at : sequence of int, default=(1, 10, 100)
        Values of k for recall@k.
    ndcg_at : sequence of int, default=(10,)
        Values of k for nDCG@k.
    without_relevant : {"raise", "skip"}, default="raise"
        Whether queries without relevant documents are an error, or are left out and counted.
    groups : array of shape (n,) or None, default=None
        Queries of one group are resampled together, since they are not independent.
    n_resamples : int, default=1000
        Number of resamples; 0 gives intervals without width.
    confidence : float, default=0.95
        Level of the confidence intervals.
    random_state : int, numpy.random.Generator or None, default=None
        Seed of the resamples.

    Returns
    -------
    quality : Retrieval

    Examples
    --------
    >>> from kdiffhash.evaluate import evaluate_ranking
    >>> quality = evaluate_ranking([[4, 7], [5, 1]], [[4], [1, 5]], recall_at=[1], ndcg_at=[2])
    >>> quality.recall[1].value, quality.ndcg[2].value, quality.n_queries
    (0.75, 1.0, 2)
    """
    relevance = Relevance.of(relevant, gains)
    results = _checked_ids(ids, len(relevance))
    used = relevance.counts > 0
    if without_relevant not in ("raise", "skip"):
        raise ValueError(f"without_relevant must be 'raise' or 'skip', got {without_relevant!r}")
    if not used.all() and without_relevant == "raise":
        raise ValueError(
            f"{(~used).sum()} of {len(used)} queries have no relevant document (the first is query "
            f"{int(np.argmin(used))}); leave them out, or set without_relevant='skip'"
        )
    if not used.any():
        raise ValueError(f"none of the {len(used)} queries has a relevant document")
    values = [
        *(recall_at_k(results, relevance, k) for k in recall_at),
        *(ndcg_at_k(results, relevance, k) for k in ndcg_at),
        reciprocal_rank(results, relevance),
    ]
    clusters = None if groups is None else _checked_groups(groups, len(used))[used]
    intervals = mean_over_queries(
        np.stack(values)[:, used],
        groups=clusters,
        n_resamples=n_resamples,
        confidence=confidence,
        random_state=random_state,
    )
    n = len(recall_at)
    return Retrieval(
        dict(zip(recall_at, intervals[:n])),
        dict(zip(ndcg_at, intervals[n:-1])),
        intervals[-1],
        int(used.sum()),
        int((~used).sum()),
    )


def evaluate_search(
    store: Any,
    queries: ArrayLike | None,
    relevant: Relevant,
    *,
    gains: Any = None,
    recall_at: Sequence[int] = (1, 10, 100),
    ndcg_at: Sequence[int] = (10,),
    without_relevant: Literal["raise", "skip"] = "raise",
    groups: ArrayLike | None = None,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    random_state: int | np.random.Generator | None = None,
    **options: Any,
) -> Retrieval:
    """Search a store for each query, and compute recall@k, nDCG@k and MRR of the results.

    Parameters
    ----------
    store : object with a method `search`
        A `HammingIndex` (for codes in an array ``HammingIndex(codes)``) or another store.
    queries : array of shape (n, n_bytes) or None
        Packed codes of the queries; None if `options` contain what to search for.
    relevant : int array of shape (n,), list of n arrays, or tuple (lims, ids)
        Relevant documents of each query, see `Relevance.of`.
    gains : array, list of arrays or None, default=None
        How relevant each of these documents is, for nDCG; None means 1 for all.
    recall_at : sequence of int, default=(1, 10, 100)
        Values of k for recall@k. The largest k, also of `ndcg_at`, is the number of results that
        are searched for, and the depth of the MRR.
    ndcg_at : sequence of int, default=(10,)
        Values of k for nDCG@k.
    without_relevant : {"raise", "skip"}, default="raise"
        Whether queries without relevant documents are an error, or are left out and counted.
    groups : array of shape (n,) or None, default=None
        Queries of one group are resampled together, since they are not independent.
    n_resamples : int, default=1000
        Number of resamples; 0 gives intervals without width.
    confidence : float, default=0.95
        Level of the confidence intervals.
    random_state : int, numpy.random.Generator or None, default=None
        Seed of the resamples.
    **options : any
        Further arguments of `search`, for instance ``rerank_projections``.

    Returns
    -------
    quality : Retrieval

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import HammingIndex
    >>> from kdiffhash.evaluate import evaluate_search
    >>> codes = np.array([[0], [3], [255]], np.uint8)
    >>> queries = np.array([[1], [254]], np.uint8)  # nearest: rows 0 and 1 (a tie), and row 2
    >>> quality = evaluate_search(HammingIndex(codes), queries, [1, 2], recall_at=[1, 2])
    >>> quality.recall[1].value, quality.recall[2].value, quality.mrr.value
    (0.5, 1.0, 0.75)
    """
    k = max((*recall_at, *ndcg_at), default=0)
    given = () if queries is None else (queries,)
    _, ids = store.search(*given, k=_checked_k(k), **options)
    return evaluate_ranking(
        np.atleast_2d(ids),
        relevant,
        gains=gains,
        recall_at=recall_at,
        ndcg_at=ndcg_at,
        without_relevant=without_relevant,
        groups=groups,
        n_resamples=n_resamples,
        confidence=confidence,
        random_state=random_state,
    )


def mean_over_queries(
    values: ArrayLike,
    *,
    reference: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    random_state: int | np.random.Generator | None = None,
) -> list[Interval]:
    """Compute means over queries with bootstrap confidence intervals.

    Parameters
    ----------
    values : array of shape (m, n), or (n,)
        Values of m measures for n queries.
    reference : array of the same shape or None, default=None
        If given, the result is the ratio of the mean of `values` to the mean of `reference`, with
        both resampled together: the share of the reference's quality that is kept.
    groups : array of shape (n,) or None, default=None
        Queries of one group are resampled together.
    n_resamples : int, default=1000
        Number of resamples; 0 gives intervals without width.
    confidence : float, default=0.95
        Level of the confidence intervals.
    random_state : int, numpy.random.Generator or None, default=None
        Seed of the resamples.

    Returns
    -------
    intervals : list of m Interval
        ``is_reliable`` is False with fewer than 30 queries, or groups of queries.

    Examples
    --------
    >>> from kdiffhash.evaluate import mean_over_queries
    >>> mean_over_queries([[1, 0, 1, 1]], n_resamples=0)[0].value
    0.75
    >>> mean_over_queries([1, 0, 1], reference=[1, 1, 1], n_resamples=0)[0].value.__round__(3)
    0.667
    """
    own = np.atleast_2d(np.asarray(values, np.float64))
    other = None if reference is None else np.atleast_2d(np.asarray(reference, np.float64))
    if own.ndim != 2 or not own.shape[1] or (other is not None and other.shape != own.shape):
        raise ValueError(
            f"values and reference must have the shape (measures, queries) with at least one "
            f"query, got {own.shape}{'' if other is None else f' and {other.shape}'}"
        )
    stacked = own if other is None else np.concatenate([own, other])
    if not np.isfinite(stacked).all():
        raise ValueError(
            "values contain NaN, as of queries without relevant documents; leave these queries out"
        )
    n = own.shape[1]
    _, clusters = np.unique(
        np.arange(n) if groups is None else _checked_groups(groups, n), return_inverse=True
    )
    n_groups = int(clusters.max()) + 1
    # One row per measure, and a last one with the number of queries of each group.
    rows = (*stacked, np.ones(n))
    sums: Values = np.stack([np.bincount(clusters, row, n_groups) for row in rows]).astype(float)

    def estimate(weighted: Values) -> Values:
        means = weighted[:-1] / weighted[-1]
        if other is None:
            return np.asarray(means)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(means[: len(own)] / means[len(own) :])

    rng = np.random.default_rng(random_state)
    samples = [estimate(sums.sum(axis=1, keepdims=True))]
    for start in range(0, n_resamples, step := max(1, _BATCH // n_groups)):
        size = (min(step, n_resamples - start), n_groups)
        drawn = rng.integers(n_groups, size=size) + n_groups * np.arange(size[0])[:, None]
        times = np.bincount(drawn.reshape(-1), minlength=size[0] * n_groups).reshape(size)
        samples.append(estimate(sums @ times.T.astype(np.float64)))
    resampled = np.concatenate(samples, axis=1)
    is_reliable = n_groups >= _MIN_QUERIES
    return [
        interval_of(
            float(row[0]),
            row[1:] if n_resamples else row,
            confidence,
            is_reliable=bool(is_reliable),
        )
        for row in resampled
    ]


def _ratio(amounts: NDArray[Any], totals: NDArray[Any]) -> Values:
    """Return the quotients, NaN where the total is 0."""
    out = np.full(len(totals), np.nan)
    np.divide(amounts, totals, out=out, where=totals > 0)
    return out


def _checked_k(k: int) -> int:
    if not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k must be an integer of at least 1, got {k!r}")
    return int(k)


def _checked_groups(groups: ArrayLike, n: int) -> NDArray[Any]:
    array = np.asarray(groups)
    if array.shape != (n,):
        raise ValueError(f"groups must have one entry per query ({n}), got {array.shape}")
    return array


def _checked_ids(ids: ArrayLike, n_queries: int | None, name: str = "ids") -> NDArray[np.int64]:
    """Return results as int64, shape (n, k), after checking them for repeated ids."""
    array = np.asarray(ids)
    if array.ndim != 2 or (array.dtype.kind not in "iu" and array.size):
        raise ValueError(
            f"{name} must be integers of shape (queries, results), got {array.dtype} of shape "
            f"{array.shape}"
        )
    if n_queries is not None and len(array) != n_queries:
        raise ValueError(
            f"{name} has results of {len(array)} queries, but relevant has {n_queries}; give one "
            "entry per query"
        )
    ordered = np.sort(array, axis=1)
    repeated = (np.diff(ordered, axis=1) == 0) & (ordered[:, 1:] != NO_RESULT)
    if repeated.any():
        query = int(np.argmax(repeated.any(axis=1)))
        raise ValueError(f"{name} of query {query} contain a document twice; give each once")
    return array.astype(np.int64)
