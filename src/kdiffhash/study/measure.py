"""Measuring a method on the pairs of a test scene: rates, resampled rates, curves, times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import hamming, truncate
from ..datasets import load_scene
from ..metrics import Roc, resample_rates, roc
from ..preprocess import Preprocess, preprocess_rows
from .methods import Method
from .plan import Plan, TestSet
from .store import Arrays, Store, stamp
from .train import Trained, lengths_of

RATES: dict[str, Callable[[Roc], float]] = {
    "fnr_at_1e-2": lambda curve: curve.fnr_at(1e-2),
    "fnr_at_1e-3": lambda curve: curve.fnr_at(1e-3),
    "fnr_at_1e-4": lambda curve: curve.fnr_at(1e-4),
    "fpr95": lambda curve: curve.fpr95,
    "auc": lambda curve: curve.auc,
}
_CURVE_POINTS = 160
_TIMED_ROWS = 20_000


def measure(
    method: Method,
    trained: Trained | None,
    test: TestSet,
    plan: Plan,
    store: Store,
    train: str,
) -> Arrays:
    """Rates of a method at each of its lengths.

    Returns
    -------
    arrays : dict
        `n_bits` (l,), `is_code` (whether they are codes, not rows of numbers), `values` (l, rates),
        `samples` (n, l, rates), `fpr` and `tpr` (l, points) of the curves, `encode_ns` (a row of
        the longest code, on all cores).
    """
    depends_on = {
        "method": method.key,
        "descriptors": stamp(test.scene.path / f"{method.descriptor}.npy"),
        "trained": trained.key if trained else "",
        "test": [str(test.scene.path), test.digest],
        "lengths": [plan.lengths, plan.longest_slow],
        "n_resamples": plan.n_resamples,
        "seed": plan.seed,
    }
    path = store.path(f"{method.name}-{train or 'untrained'}-to-{test.name}", "npz", **depends_on)
    stored = store.read_arrays(path)
    if stored is not None:
        return stored
    distances, is_code, encode_ns = _distances(method, trained, test, plan)
    values, samples = resample_rates(
        list(RATES.values()),
        list(distances.values()),
        test.similar,
        test.things,
        n_resamples=plan.n_resamples,
        random_state=plan.seed,
    )
    at = np.geomspace(1e-5, 1, _CURVE_POINTS)
    curves = [roc(one, test.similar) for one in distances.values()]
    arrays: Arrays = {
        "n_bits": np.array(list(distances)),
        "is_code": np.array(is_code),
        "values": values,
        "samples": samples,
        "fpr": np.tile(at, (len(curves), 1)),
        "tpr": np.array([np.interp(at, curve.fpr, curve.tpr) for curve in curves]),
        "encode_ns": np.array(encode_ns),
    }
    store.write_arrays(path, arrays)
    return arrays


def _distances(
    method: Method, trained: Trained | None, test: TestSet, plan: Plan
) -> tuple[dict[int, NDArray[Any]], bool, float]:
    """Distances of the test pairs by length, whether of codes, and nanoseconds to encode a row."""
    if trained is None:
        scene = load_scene(test.scene.path, method.descriptor)
        rows = replace(scene, rows=test.scene.rows).descriptors
        size = 8 * rows.dtype.itemsize * rows.shape[1]
        return {size: euclidean(rows, test.pairs, method.preprocess)}, False, 0.0
    rows = np.asarray(test.scene.descriptors)
    out: dict[int, NDArray[Any]] = {}
    encode_ns = 0.0
    lengths = lengths_of(method, plan, rows.shape[1])
    for length, hasher in trained.hashers.items():
        codes = hasher.transform(rows)
        start = time.perf_counter()
        hasher.transform(rows[:_TIMED_ROWS])
        encode_ns = 1e9 * (time.perf_counter() - start) / len(rows[:_TIMED_ROWS])
        width = codes.shape[1]
        if codes.dtype != np.uint8:
            size = 8 * codes.dtype.itemsize * width
            return {size: euclidean(codes, test.pairs, None)}, False, encode_ns
        n_bits = length if 8 * width - 8 < length <= 8 * width else 8 * width
        n_bits = getattr(hasher, "n_bits_", n_bits)
        wanted = [n for n in lengths if n <= n_bits] if method.nested else []
        for n in wanted or [n_bits]:
            out[n] = code_distances(truncate(codes, n), test.pairs)
    return out, True, encode_ns


def code_distances(codes: NDArray[np.uint8], pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Hamming distances of pairs, in blocks."""
    out = np.empty(len(pairs), np.int64)
    for i in range(0, len(pairs), 200_000):
        a, b = pairs[i : i + 200_000].T
        out[i : i + 200_000] = hamming(codes[a], codes[b])
    return out


def euclidean(
    rows: NDArray[Any], pairs: NDArray[np.int64], kind: Preprocess
) -> NDArray[np.float32]:
    """Euclidean distances of pairs, in blocks."""
    plain = preprocess_rows(np.asarray(rows), kind)
    out = np.empty(len(pairs), np.float32)
    for i in range(0, len(pairs), 100_000):
        gap = plain[pairs[i : i + 100_000, 0]] - plain[pairs[i : i + 100_000, 1]]
        out[i : i + 100_000] = np.sqrt(np.einsum("ij,ij->i", gap, gap))
    return out
