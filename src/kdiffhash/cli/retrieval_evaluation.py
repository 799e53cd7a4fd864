"""The measurements of `kdiffhash eval --retrieval`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.files import open_npy
from .._util.text import read_csv
from ..codes import Codes, check_codes, pack, truncate
from ..evaluate.exact_search import nearest_by_cosine
from ..evaluate.relevance import Relevance, relevance_from_labels
from ..evaluate.retrieval import mean_over_queries, ndcg_at_k, recall_at_k, reciprocal_rank
from ..search import HammingIndex
from .code_files import bits_and_model
from .evaluation import describe_shift
from .guard import check_writable
from .inputs import Data, read_data
from .retrieval_plot import FORMATS, KEPT, draw_kept

Values = NDArray[np.float64]

_DEPTH = 100  # results per query
MEASURES = ("recall_at_1", "recall_at_10", "recall_at_100", "ndcg_at_10", "mrr")


def evaluate_retrieval(
    model: Path | None,
    documents: Path,
    queries: Path,
    relevant: Path | None,
    bits: list[int],
    plot: Path | None,
    n_resamples: int,
    descriptor: str,
    seed: int,
    jobs: int | None,
) -> dict[str, Any]:
    """Measure recall, nDCG and MRR of codes, of their prefixes, and of the float rows.

    Without a model, `documents` and `queries` are codes.
    """
    if plot is not None:
        if model is None:
            raise ValueError("--plot compares codes with floats; give MODEL and rows, not codes")
        if plot.suffix not in FORMATS:
            raise ValueError(f"--plot must end in {', '.join(FORMATS)}, got {plot}")
        check_writable(plot, model, documents, queries, relevant, option="--plot")
    sides = [read_data(path, descriptor=descriptor) for path in (queries, documents)]
    relevance = _relevance(relevant, *sides)
    asked, stored = (np.asarray(side.rows[np.arange(len(side.rows))]) for side in sides)
    found: dict[tuple[str, int], NDArray[np.int64]]
    head: dict[str, Any] = {"queries": len(asked), "documents": len(stored)}
    if model is None:
        n_bits, _ = bits_and_model([documents, queries], None, None)
        lengths = _lengths(bits, n_bits, False)
        codes = [check_codes(rows, n_bits) for rows in (asked, stored)]
        found = {("codes", n): _search(codes, n) for n in lengths}
    else:
        hashers = _hashers(model, jobs)
        head = {"model": str(model), **head}
        shifts = {
            name: describe_shift(hasher, rows)
            for name, hasher, rows in zip(("queries", "documents"), hashers, (asked, stored))
        }
        head["domain_shift"] = {name: shift for name, shift in shifts.items() if shift}
        lengths = _lengths(bits, hashers[0].n_bits_, plot is not None)
        found = _of_floats(asked, stored)
        codes = [hasher.transform(rows) for hasher, rows in zip(hashers, (asked, stored))]
        projections = hashers[0].project(asked)
        for n in lengths:
            found["bits", n] = _search(codes, n)
            found["bits, float query", n] = _search(codes, n, projections)
    used = relevance.counts > 0
    if not used.any():
        raise ValueError("no query has a relevant document; see --relevant")
    values = {name: _measure(ids, relevance)[:, used] for name, ids in found.items()}
    reference = next((v for (name, _), v in values.items() if name == "floats"), None)
    rows = [
        {"method": name, "bits": n, **_row(own, reference, n_resamples, seed)}
        for (name, n), own in values.items()
    ]
    result = {**head, "queries_without_relevant": int((~used).sum()), "rows": rows}
    if plot is not None:
        draw_kept(rows, plot)
        result = {"plot": str(plot), **result}
    return result


def _hashers(model: Path, jobs: int | None) -> list[Any]:
    """Return the hashers of queries and of documents."""
    from .. import BaseHasher, CrossDiffHash, load

    loaded = load(model)
    if isinstance(loaded, CrossDiffHash):
        hashers: list[Any] = [loaded.x_, loaded.y_]
    elif isinstance(loaded, BaseHasher):
        hashers = [loaded, loaded]
    else:
        raise ValueError(f"{model} holds a {type(loaded).__name__}, which produces no codes")
    for hasher in hashers:
        hasher.n_jobs = jobs
    return hashers


def _lengths(bits: list[int], n_bits: int, plotted: bool) -> list[int]:
    """Return the lengths to measure; a plot without `--bits` shows powers of two."""
    if bits and max(bits) > n_bits:
        raise ValueError(f"--bits {max(bits)} is longer than the codes, which have {n_bits} bits")
    if plotted and not bits:
        bits = [2**i for i in range(4, 13) if 2**i < n_bits]
    return sorted({*bits, n_bits})


def _of_floats(queries: NDArray[Any], documents: NDArray[Any]) -> dict[tuple[str, int], Any]:
    """Search by cosine similarity, and by sign bits if there are numbers of both signs."""
    size = 8 * documents.dtype.itemsize * documents.shape[1]
    found = {("floats", size): nearest_by_cosine(queries, documents, _DEPTH)}
    if (documents < 0).any():
        signs = [pack(rows > 0) for rows in (queries, documents)]
        found["sign bits", documents.shape[1]] = _search(signs, documents.shape[1])
    return found


def _search(
    codes: list[Codes], n_bits: int, projections: NDArray[np.float32] | None = None
) -> NDArray[np.int64]:
    """Return the ids of the nearest documents by the first bits of codes, or of projections."""
    queries, documents = (truncate(side, n_bits) for side in codes)
    index = HammingIndex(documents, n_bits=n_bits)
    if projections is None:
        return index.search(queries, _DEPTH)[1]
    return index.search(queries_float=projections[:, :n_bits], k=_DEPTH)[1]


def _measure(ids: NDArray[np.int64], relevance: Relevance) -> Values:
    """Return the value of each measure for each query, in the order of `MEASURES`."""
    recalls = [recall_at_k(ids, relevance, k) for k in (1, 10, 100)]
    return np.stack([*recalls, ndcg_at_k(ids, relevance, 10), reciprocal_rank(ids, relevance)])


def _row(values: Values, reference: Values | None, n_resamples: int, seed: int) -> dict[str, Any]:
    """Return the mean of each measure, and the share of the floats' quality that is kept."""
    options: dict[str, Any] = {"n_resamples": n_resamples, "random_state": seed}
    named = dict(zip(MEASURES, mean_over_queries(values, **options)))
    if reference is not None:
        chosen = [MEASURES.index(name) for name in KEPT]
        if reference[chosen].mean(axis=1).all():
            kept = mean_over_queries(values[chosen], reference=reference[chosen], **options)
            named |= {f"kept_{name}": interval for name, interval in zip(KEPT, kept)}
    row: dict[str, Any] = {}
    for name, interval in named.items():
        row[name] = interval.value
        if n_resamples:
            row[f"{name}_interval"] = [interval.low, interval.high]
    return row


# -- relevance ---------------------------------------------------------------------------------


def _relevance(path: Path | None, queries: Data, documents: Data) -> Relevance:
    """Return which documents are relevant, from a file, from labels, or by row number."""
    n, m = len(queries.rows), len(documents.rows)
    if path is not None:
        relevance = _read_relevance(path, n)
        if len(relevance.ids) and not 0 <= relevance.ids.min() <= relevance.ids.max() < m:
            raise ValueError(
                f"{path} names documents {relevance.ids.min()} to {relevance.ids.max()}, but "
                f"documents are numbered from 0 to {m - 1}"
            )
        return relevance
    if queries.labels is not None and documents.labels is not None:
        return relevance_from_labels(np.asarray(queries.labels), np.asarray(documents.labels))
    if n != m:
        raise ValueError(
            f"there are {n} queries and {m} documents; say which documents are relevant by "
            "--relevant FILE, or give labels for both"
        )
    return Relevance.of(np.arange(n))


def _read_relevance(path: Path, n_queries: int) -> Relevance:
    gains = None
    if path.suffix == ".csv":
        pairs, gains = _read_csv(path)
    elif path.suffix == ".npy":
        pairs = np.asarray(open_npy(path))
        if pairs.dtype.kind not in "iu" or pairs.ndim not in (1, 2):
            raise ValueError(f"{path} must hold row numbers, got {pairs.dtype} in {pairs.shape}")
        if pairs.ndim == 1:
            if len(pairs) != n_queries:
                raise ValueError(
                    f"{path} has {len(pairs)} documents for {n_queries} queries; give one for "
                    "each query, or pairs (query, document)"
                )
            return Relevance.of(pairs)
        if pairs.shape[1] != 2:
            raise ValueError(f"{path} must have 2 columns (query, document), got {pairs.shape[1]}")
    else:
        raise ValueError(f"--relevant must end in .csv or .npy, got {path}")
    if len(pairs) and not 0 <= pairs[:, 0].min() <= pairs[:, 0].max() < n_queries:
        raise ValueError(
            f"{path} names queries {pairs[:, 0].min()} to {pairs[:, 0].max()}, but queries are "
            f"numbered from 0 to {n_queries - 1}"
        )
    order = np.argsort(pairs[:, 0], kind="stable")
    counts = np.bincount(pairs[:, 0], minlength=n_queries)
    lims = np.concatenate([[0], np.cumsum(counts)])
    return Relevance.of((lims, pairs[order, 1]), None if gains is None else gains[order])


def _read_csv(path: Path) -> tuple[NDArray[np.int64], Values]:
    """Return pairs (query, document) and their gains (1 by default), without a line of names."""
    pairs: list[tuple[int, int]] = []
    gains: list[float] = []
    for line, cells in read_csv(path):
        try:
            query, document, *rest = cells
            (gain,) = rest or ["1"]
            numbers = int(query), int(document), float(gain)
        except ValueError:
            is_header = line == 1 and not any(c in "0123456789" for c in "".join(cells))
            if is_header or not any(cell.strip() for cell in cells):
                continue
            raise ValueError(
                f"{path}, line {line}: expected query,document or query,document,gain as "
                f"numbers, got {','.join(cells)[:80]!r}"
            ) from None
        if max(map(abs, numbers[:2])) >= 2**63:
            raise ValueError(f"{path}, line {line}: {','.join(cells)[:80]!r} is no pair of rows")
        if not 0 <= numbers[2] < math.inf:
            raise ValueError(
                f"{path}, line {line}: a gain must be finite and not negative, got {rest[0][:80]!r}"
            )
        pairs.append(numbers[:2])
        gains.append(numbers[2])
    return np.array(pairs, np.int64).reshape(-1, 2), np.array(gains, np.float64)


def readable(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result with measures in percent, above their confidence intervals."""

    def percent(row: dict[str, Any], name: str, *, interval: bool = True) -> str:
        if name not in row:
            return "-"
        bounds = row.get(f"{name}_interval") if interval else None
        suffix = f"\n({100 * bounds[0]:.1f}-{100 * bounds[1]:.1f})" if bounds else ""
        return f"{100 * row[name]:.1f}{suffix}"

    rows = [
        {
            "method": row["method"].replace(", ", ",\n"),
            "size": f"{-(-row['bits'] // 8)} B",
            "recall\n@1, %": percent(row, "recall_at_1", interval=False),
            "recall\n@10, %": percent(row, "recall_at_10"),
            "recall\n@100, %": percent(row, "recall_at_100", interval=False),
            "nDCG\n@10, %": percent(row, "ndcg_at_10", interval=False),
            "MRR,\n%": percent(row, "mrr", interval=False),
            "of floats'\nrecall@10, %": percent(row, "kept_recall_at_10"),
        }
        for row in result["rows"]
    ]
    head = {name: value for name, value in result.items() if name != "domain_shift"}
    return {**head, "rows": rows}
