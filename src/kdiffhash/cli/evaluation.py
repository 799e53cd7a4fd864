"""The measurements of `kdiffhash eval`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.progress import progress, waiting
from ..codes import hamming, truncate
from ..evaluate.bootstrap import bootstrap
from ..evaluate.pair_distances import euclidean
from ..evaluate.roc import RATES, Roc, roc
from ..hashers import BaseHasher
from ..hashers.domain import domain_shift
from ..learn.preprocess import Preprocess
from .inputs import Data, pairs_of

_RATES: dict[str, Callable[[Roc], float]] = {**RATES, "eer": lambda curve: curve.eer}


def evaluate_model(
    hasher: BaseHasher,
    data: Data,
    bits: list[int],
    n_positives: int,
    n_negatives: int,
    drawn: bool,
    n_resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Measure the error rates of codes, of their prefixes and of Euclidean distance on the rows.

    The positive pairs of a scene are those of its test list, unless `drawn` is set.
    """
    if data.scene is None or drawn:
        pairs, similar = pairs_of(data, n_positives, n_negatives, False, seed)
    else:
        pairs, similar = data.scene.test_pairs(n_negatives, random_state=seed)
    used, members = np.unique(pairs, return_inverse=True)
    left, right = members.reshape(-1, 2).T
    with waiting("encoding"):
        rows = np.asarray(data.rows[used])
        codes = hasher.transform(rows)
    if bits and max(bits) > hasher.n_bits_:
        raise ValueError(
            f"--bits {max(bits)} is longer than the codes: the model has {hasher.n_bits_} bits"
        )
    distances: dict[tuple[str, int], NDArray[Any]] = {}
    for n_bits in sorted({*bits, hasher.n_bits_}):
        prefixes = truncate(codes, n_bits)
        distances[type(hasher).__name__, n_bits] = hamming(prefixes[left], prefixes[right])
    kinds: list[Preprocess] = [None] if hasher.preprocess is None else [None, hasher.preprocess]
    for kind in kinds:
        name = "Euclidean" if kind is None else f"Euclidean, {kind}"
        size = 8 * data.rows.dtype.itemsize * data.rows.shape[1]
        distances[name, size] = euclidean(rows, members.reshape(-1, 2), kind)

    objects = None if data.labels is None else np.asarray(data.labels)[pairs]
    if objects is not None and np.any(objects[similar, 0] != objects[similar, 1]):
        objects = None  # explicit pairs that contradict the labels
    bootstrapped = {"fnr_at_1e-3", "fpr95"} if n_resamples and objects is not None else set()
    work = {name: n_resamples / 2 if name in bootstrapped else 1 for name in _RATES}
    table = []
    with progress(len(distances) * int(sum(work.values())), "measuring") as advance:
        for (name, n_bits), values in distances.items():
            row: dict[str, Any] = {"method": name, "n_bits": n_bits}
            for rate_name, rate in _RATES.items():
                fpr = rate_name.removeprefix("fnr_at_")
                if fpr != rate_name and float(fpr) * (~similar).sum() < 3:
                    row[rate_name] = None  # too few negative pairs to measure it
                elif objects is not None and rate_name in bootstrapped:
                    interval = bootstrap(
                        rate, values, similar, objects, n_resamples=n_resamples, random_state=seed
                    )
                    row[rate_name] = interval.value
                    row[f"{rate_name}_interval"] = [interval.low, interval.high]
                else:
                    row[rate_name] = rate(roc(values, similar))
                advance(work[rate_name])
            table.append(row)
    shift = describe_shift(hasher, rows)
    result = {"positives": int(similar.sum()), "negatives": int((~similar).sum())}
    return {**result, "domain_shift": {"rows": shift} if shift else {}, "rows": table}


def describe_shift(hasher: BaseHasher, rows: NDArray[Any]) -> dict[str, Any] | None:
    """Return how far rows are from the training rows of a model; None if that is unknown."""
    shift = domain_shift(hasher, rows)
    return None if shift is None else {**asdict(shift), "is_far": shift.is_far}


def readable(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result with rates in percent, above their confidence intervals."""

    def percent(row: dict[str, Any], name: str) -> str:
        if row[name] is None:
            return "-"
        interval = row.get(f"{name}_interval")
        suffix = f"\n({100 * interval[0]:.1f}-{100 * interval[1]:.1f})" if interval else ""
        return f"{100 * row[name]:.1f} %{suffix}"

    rows = [
        {
            "method": row["method"],
            "bits": row["n_bits"],
            "FNR at\n1 % FPR": percent(row, "fnr_at_1e-2"),
            "at\n0.1 %": percent(row, "fnr_at_1e-3"),
            "at\n0.01 %": percent(row, "fnr_at_1e-4"),
            "FPR95": percent(row, "fpr95"),
            "AUC": f"{row['auc']:.4f}",
        }
        for row in result["rows"]
    ]
    head = {name: value for name, value in result.items() if name != "domain_shift"}
    return {**head, "rows": rows}
