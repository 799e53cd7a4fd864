"""Evaluation of distances on pairs and of ranked results, with confidence intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._util.lazy import lazy_names

if TYPE_CHECKING:
    from .exact_search import nearest_by_cosine as nearest_by_cosine
    from .relevance import Relevance as Relevance
    from .relevance import relevance_from_labels as relevance_from_labels
    from .retrieval import Retrieval as Retrieval
    from .retrieval import evaluate_ranking as evaluate_ranking
    from .retrieval import evaluate_search as evaluate_search
    from .retrieval import mean_over_queries as mean_over_queries
    from .retrieval import ndcg_at_k as ndcg_at_k
    from .retrieval import overlap_at_k as overlap_at_k
    from .retrieval import recall_at_k as recall_at_k
    from .retrieval import reciprocal_rank as reciprocal_rank

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "exact_search": ["nearest_by_cosine"],
        "relevance": ["Relevance", "relevance_from_labels"],
        "retrieval": [
            "Retrieval",
            "evaluate_ranking",
            "evaluate_search",
            "mean_over_queries",
            "ndcg_at_k",
            "overlap_at_k",
            "recall_at_k",
            "reciprocal_rank",
        ],
    },
)
