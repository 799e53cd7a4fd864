"""Measure a method on the pairs of a test scene: rates, resampled rates, curves, times."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import truncate
from ..datasets import load_scene
from ..evaluate.bootstrap import combine_seeds, enough_objects_each, resample_rates
from ..evaluate.pair_distances import code_distances, euclidean
from ..evaluate.roc import RATES, roc
from .cache import Arrays, Store, stamp
from .methods import Method
from .plan import Plan, TestSet
from .train import Trained, lengths_of

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
    """Measure the rates of a method at each of its lengths, trained with one seed.

    Returns
    -------
    arrays : dict
        `n_bits` (l,), `is_code` (False for floats, which have one size), `values` (l, rates),
        `samples` (n, l, rates), `reliable` (l, rates: the rule of enough objects), `fpr` and `tpr`
        (l, points) of the curves, `encode_ns` (one descriptor, longest code, all cores).
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
        test.objects,
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
        "reliable": enough_objects_each(
            list(RATES.values()), list(distances.values()), test.similar, test.objects
        ),
        "fpr": np.tile(at, (len(curves), 1)),
        "tpr": np.array([np.interp(at, curve.fpr, curve.tpr) for curve in curves]),
        "encode_ns": np.array(encode_ns),
    }
    store.write_arrays(path, arrays)
    return arrays


def over_seeds(by_seed: list[Arrays], seed: int) -> Arrays:
    """Average the measurements of several training seeds, and resample the seeds.

    The same `seed` draws the same training seeds for every method, so differences between methods
    stay paired. `seed_values` (s, l, rates) keeps the rates of each training seed.
    """
    values, samples = combine_seeds(
        np.array([one["values"] for one in by_seed]),
        np.array([one["samples"] for one in by_seed]),
        random_state=seed,
    )
    return {
        **by_seed[0],
        "values": values,
        "samples": samples,
        "seed_values": np.array([one["values"] for one in by_seed]),
        "reliable": np.all([one["reliable"] for one in by_seed], axis=0),
        "tpr": np.mean([one["tpr"] for one in by_seed], axis=0),
    }


def _distances(
    method: Method, trained: Trained | None, test: TestSet, plan: Plan
) -> tuple[dict[int, NDArray[Any]], bool, float]:
    """Return distances by size in bits, whether the size can be chosen, and encoding time in ns."""
    if trained is None:
        scene = load_scene(test.scene.path, method.descriptor)
        rows = replace(scene, rows=test.scene.rows).descriptors
        size = 8 * rows.dtype.itemsize * rows.shape[1]
        return {size: euclidean(rows, test.pairs, method.preprocess)}, False, 0.0
    rows = np.asarray(test.scene.descriptors)
    out: dict[int, NDArray[Any]] = {}
    is_code, encode_ns = True, 0.0
    lengths = lengths_of(method, plan, rows.shape[1])
    for length, hasher in trained.hashers.items():
        codes = hasher.transform(rows)
        start = time.perf_counter()
        hasher.transform(rows[:_TIMED_ROWS])
        encode_ns = 1e9 * (time.perf_counter() - start) / len(rows[:_TIMED_ROWS])
        if codes.dtype != np.uint8:
            size = getattr(hasher, "n_bits_", 8 * codes.dtype.itemsize * codes.shape[1])
            out[size] = euclidean(codes, test.pairs, None)
            is_code = size == length
            continue
        fits = 8 * codes.shape[1] - 8 < length <= 8 * codes.shape[1]
        n_bits = getattr(hasher, "n_bits_", length if fits else 8 * codes.shape[1])
        shorter = [n for n in lengths if n <= n_bits] if method.nested else []
        for n in shorter or [n_bits]:
            out[n] = code_distances(truncate(codes, n), test.pairs)
    return out, is_code, encode_ns
