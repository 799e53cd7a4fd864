"""What `kdiffhash eval` computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import hamming, truncate
from ..evaluate.bootstrap import bootstrap
from ..evaluate.pair_distances import euclidean
from ..evaluate.roc import RATES, Roc, roc
from ..hashers import BaseHasher
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
    """Rates of the codes, of their prefixes and of the Euclidean distance of the rows.

    Positives are those of a scene's test list, unless pairs are to be drawn.
    """
    if data.scene is None or drawn:
        pairs, similar = pairs_of(data, n_positives, n_negatives, False, seed)
    else:
        pairs, similar = data.scene.test_pairs(n_negatives, random_state=seed)
    used, members = np.unique(pairs, return_inverse=True)
    left, right = members.reshape(-1, 2).T
    rows = np.asarray(data.rows[used])
    codes = hasher.transform(rows)
    if bits and max(bits) > hasher.n_bits_:
        raise ValueError(f"--bits {max(bits)}: the model has {hasher.n_bits_} bits")
    distances: dict[tuple[str, int], NDArray[Any]] = {}
    for n_bits in sorted({*bits, hasher.n_bits_}):
        short = truncate(codes, n_bits)
        distances[type(hasher).__name__, n_bits] = hamming(short[left], short[right])
    kinds: list[Preprocess] = [None] if hasher.preprocess is None else [None, hasher.preprocess]
    for kind in kinds:
        name = "Euclidean" if kind is None else f"Euclidean, {kind}"
        size = 8 * data.rows.dtype.itemsize * data.rows.shape[1]
        distances[name, size] = euclidean(rows, members.reshape(-1, 2), kind)

    objects = None if data.labels is None else np.asarray(data.labels)[pairs]
    if objects is not None and np.any(objects[similar, 0] != objects[similar, 1]):
        objects = None  # pairs of the input's own, which labels do not explain
    table = []
    for (name, n_bits), values in distances.items():
        row: dict[str, Any] = {"method": name, "n_bits": n_bits}
        for rate_name, rate in _RATES.items():
            at = rate_name.removeprefix("fnr_at_")
            if at != rate_name and float(at) * (~similar).sum() < 3:
                row[rate_name] = None  # too few negatives to tell
            elif n_resamples and objects is not None and rate_name in ("fnr_at_1e-3", "fpr95"):
                interval = bootstrap(
                    rate, values, similar, objects, n_resamples=n_resamples, random_state=seed
                )
                row[rate_name] = interval.value
                row[f"{rate_name}_interval"] = [interval.low, interval.high]
            else:
                row[rate_name] = rate(roc(values, similar))
        table.append(row)
    return {"positives": int(similar.sum()), "negatives": int((~similar).sum()), "rows": table}


def readable(result: dict[str, Any]) -> dict[str, Any]:
    """The result with rates in percent and intervals beside their values, for people."""

    def percent(row: dict[str, Any], name: str) -> str:
        if row[name] is None:
            return "-"
        low_high = row.get(f"{name}_interval")
        extent = f" ({low_high[0]:.1%} to {low_high[1]:.1%})".replace("%", "") if low_high else ""
        return f"{100 * row[name]:.1f}{extent}"

    rows = [
        {
            "method": row["method"],
            "bits": row["n_bits"],
            "FNR % at 1 % FPR": percent(row, "fnr_at_1e-2"),
            "at 0.1 %": percent(row, "fnr_at_1e-3"),
            "at 0.01 %": percent(row, "fnr_at_1e-4"),
            "FPR95 %": percent(row, "fpr95"),
            "AUC": f"{row['auc']:.4f}",
        }
        for row in result["rows"]
    ]
    return {**result, "rows": rows}
