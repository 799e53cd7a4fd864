"""What `kdiffhash eval` computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import hamming, truncate
from ..hashers import BaseHasher
from ..metrics import Roc, bootstrap, roc
from ..pairs import Pairs, Similar
from ..preprocess import Preprocess
from ..study.measure import euclidean
from .inputs import Data, pairs_of

_RATES: dict[str, tuple[Callable[[Roc], float], float]] = {
    "fnr_at_1e-2": (lambda r: r.fnr_at(1e-2), 1e-2),
    "fnr_at_1e-3": (lambda r: r.fnr_at(1e-3), 1e-3),
    "fnr_at_1e-4": (lambda r: r.fnr_at(1e-4), 1e-4),
    "fpr95": (lambda r: r.fpr95, 0),
    "auc": (lambda r: r.auc, 0),
    "eer": (lambda r: r.eer, 0),
}


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
    """Rates of the codes, of their prefixes and of the Euclidean distance of the rows."""
    pairs, similar = _test_pairs(data, n_positives, n_negatives, drawn, seed)
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

    things = _things(data, pairs, similar)
    table = []
    for (name, n_bits), values in distances.items():
        row: dict[str, Any] = {"method": name, "n_bits": n_bits}
        for rate_name, (rate, wanted_fpr) in _RATES.items():
            if wanted_fpr * (~similar).sum() < 3 and wanted_fpr:
                row[rate_name] = None  # too few negatives to tell
            elif n_resamples and things is not None and rate_name in ("fnr_at_1e-3", "fpr95"):
                interval = bootstrap(
                    rate, values, similar, things, n_resamples=n_resamples, random_state=seed
                )
                row[rate_name] = interval.value
                row[f"{rate_name}_interval"] = [interval.low, interval.high]
            else:
                row[rate_name] = rate(roc(values, similar))
        table.append(row)
    return {
        "positives": int(similar.sum()),
        "negatives": int((~similar).sum()),
        "rows": table,
    }


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


def _test_pairs(
    data: Data, n_positives: int, n_negatives: int, drawn: bool, seed: int
) -> tuple[Pairs, Similar]:
    """The positives of a scene's test list with drawn negatives, or pairs drawn from labels."""
    if data.scene is None or drawn:
        return pairs_of(data, n_positives, n_negatives, False, seed)
    return data.scene.test_pairs(n_negatives, random_state=seed)


def _things(data: Data, pairs: Pairs, similar: Similar) -> NDArray[Any] | None:
    if data.labels is None:
        return None
    things = np.asarray(data.labels)[pairs]
    return things if np.all(things[similar, 0] == things[similar, 1]) else None
