"""Audit: recall of an approximate search compared with exact search over the same codes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..codes import Codes, hamming
from ..evaluate.bootstrap import Interval
from .index import HammingIndex

MAX_EXAMPLES = 5


@dataclass(frozen=True)
class Missed:
    """A query whose equal codes were not all found.

    Attributes
    ----------
    query : int
        Row of the query.
    ids : list
        Ids of some codes at distance 0 that were not among the results.

    Examples
    --------
    >>> from kdiffhash.search.search_audit import Missed
    >>> Missed(query=3, ids=["a.jpg"]).ids
    ['a.jpg']
    """

    query: int
    ids: list[object]


@dataclass(frozen=True)
class Audit:
    """What an approximate search finds of the exact results.

    Attributes
    ----------
    recall : Interval
        Recall@k with its 95 % confidence interval over queries: the share of results that are
        at most as far as the exact k-th nearest code, so any choice among ties is right.
    complete : float
        Share of the queries with a recall of 1.
    at_zero : int
        Number of queries that are equal to a stored code.
    missed_at_zero : int
        Number of these for which results at distance 0 are missing.
    examples : list of Missed
        Up to five of these queries.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import HammingIndex
    >>> from kdiffhash.search.search_audit import audit
    >>> codes = np.array([[0], [1], [3]], np.uint8)
    >>> result = audit(HammingIndex(codes), codes[:1], [np.array([0, 2])], k=2)
    >>> result.recall.value, result.complete, result.at_zero, result.missed_at_zero
    (0.5, 0.0, 1, 0)
    """

    recall: Interval
    complete: float
    at_zero: int
    missed_at_zero: int
    examples: list[Missed]


def audit(exact: HammingIndex, queries: Codes, found: list[NDArray[np.generic]], k: int) -> Audit:
    """Compare results with exact search.

    Parameters
    ----------
    exact : HammingIndex
        All codes that can be found, under the ids of the results.
    queries : uint8 array of shape (n, n_bytes)
        Packed codes.
    found : list of n arrays
        Ids that the search returned for each query. Those that are not stored, and repeated ones,
        count as missing.
    k : int
        Number of results that were asked for.

    Returns
    -------
    audit : Audit
        The comparison.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import HammingIndex
    >>> from kdiffhash.search.search_audit import audit
    >>> exact = HammingIndex(np.array([[0], [1], [3], [0]], np.uint8))
    >>> result = audit(exact, np.array([[0]], np.uint8), [np.array([0, 1])], k=2)
    >>> result.recall.value, result.missed_at_zero, result.examples
    (0.5, 1, [Missed(query=0, ids=[3])])
    """
    distances, nearest = exact.search(queries, k)
    m = distances.shape[1]
    if not len(queries) or not m:
        raise ValueError("an audit needs at least one query and one stored code")
    hits, n_zero, missed = np.zeros(len(queries)), 0, []
    for q, ids in enumerate(found):
        stored = [i for i in dict.fromkeys(ids.tolist()) if i in exact][:k]
        own = hamming(queries[q], exact.get(stored)) if stored else np.empty(0, np.int64)
        hits[q] = min(m, int(np.count_nonzero(own <= distances[q, -1])))
        zero = int(np.count_nonzero(distances[q] == 0))
        n_zero += zero > 0
        if np.count_nonzero(own == 0) < zero:
            absent = [i for i in nearest[q, :zero].tolist() if i not in set(stored)]
            missed.append(Missed(q, absent[:MAX_EXAMPLES]))
    low, high = mean_interval(hits / m, m)
    return Audit(
        recall=Interval(float(np.mean(hits / m)), low, high),
        complete=float(np.mean(hits == m)),
        at_zero=n_zero,
        missed_at_zero=len(missed),
        examples=missed[:MAX_EXAMPLES],
    )


def mean_interval(
    shares: NDArray[np.float64], m: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the confidence interval of a mean of shares of m that are measured per query.

    Korn and Graubard (1998): the exact interval of Clopper and Pearson for the effective number of
    independent trials, which is estimated from the variance between queries. If all shares are
    equal, this is the number of queries.
    """
    from scipy.stats import beta

    n, mean = len(shares), float(np.mean(shares))
    variance = float(np.var(shares, ddof=1)) / n if n > 1 else 0.0
    trials = mean * (1 - mean) / variance if variance else n
    trials = min(max(trials, 1.0), n * m)
    successes, tail = mean * trials, (1 - confidence) / 2
    low = beta.ppf(tail, successes, trials - successes + 1) if successes > 0 else 0.0
    high = beta.ppf(1 - tail, successes + 1, trials - successes) if mean < 1 else 1.0
    return float(low), float(high)
