"""Hashers against plain NumPy on real descriptors; `examples/algorithm1.py` is the reference."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

from kdiffhash import (
    PAPER_SETTING,
    BoostedHash,
    DiffHash,
    KernelDiffHash,
    LDAHash,
    draw_pairs,
    unpack,
)

FILE = Path(__file__).parents[2] / "examples" / "algorithm1.py"
N_BITS = 24


def _import_example():
    spec = importlib.util.spec_from_file_location("algorithm1", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


plain = _import_example()


@pytest.fixture(scope="module")
def sample(views):
    """3,000 SIFT descriptors of real images, their pairs, and 1,000 others."""
    points = np.unique(views[0].points)
    few = np.flatnonzero(np.isin(views[0].points, points[:: max(1, len(points) // 900)]))[:3000]
    rows, labels = np.asarray(views[0].descriptors)[few], views[0].points[few]
    pairs, similar = draw_pairs(labels, 8000, 16_000, random_state=0)
    test = np.asarray(views[1].descriptors)[:1000]
    return rows.astype(np.float64), pairs, similar, test.astype(np.float64)


def bits_of(hasher, rows):
    return unpack(hasher.transform(rows), hasher.n_bits_).astype(bool)


def agreement(a, b):
    """Share of equal bits; a bit may be complemented as a whole, which changes no distance."""
    equal = (a == b).mean(axis=0)
    return np.maximum(equal, 1 - equal).mean()


def test_the_example_runs_and_tells_digits_apart():
    run = [sys.executable, str(FILE)]
    text = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    same, different, correct = map(float, re.findall(r"\d+\.\d", text))
    assert same < different
    assert correct > 80


def test_kernel_diff_hash_in_the_papers_setting_agrees_with_algorithm_1(sample):
    rows, pairs, similar, test = sample
    basis = rows[np.random.default_rng(0).choice(len(rows), 200, replace=False)]
    root = plain.inverse_fourth_root(rows)
    gamma = -1e-6 / np.median(np.log(plain.mahalanobis_kernel(rows[:500], basis, root, 1e-6)))
    setting = {**PAPER_SETTING, "basis": basis, "n_basis": len(basis), "gamma": gamma}
    hasher = KernelDiffHash(N_BITS, **setting).fit_pairs(rows, pairs, similar)
    encode = plain.kernel_diff_hash(rows, pairs, similar, N_BITS, basis, gamma)
    assert agreement(bits_of(hasher, rows), encode(rows)) >= 0.99
    assert agreement(bits_of(hasher, test), encode(test)) >= 0.99


def test_thresholds_reach_the_exhaustive_minimum(sample):
    rows, pairs, similar, _ = sample
    hasher = KernelDiffHash(3, **{**PAPER_SETTING, "n_basis": 100}, random_state=0)
    hasher.fit_pairs(rows, pairs, similar)
    features = plain.mahalanobis_kernel(
        rows, hasher.basis_.astype(np.float64), hasher.metric_.astype(np.float64), hasher.gamma_
    )
    bits = bits_of(hasher, rows)
    for bit, direction in enumerate(hasher.directions_):
        column = features @ direction.astype(np.float64)
        differ = bits[pairs[:, 0], bit] != bits[pairs[:, 1], bit]
        reached = differ[similar].mean() + (~differ[~similar]).mean()
        assert hasher.bit_fnr_[bit] + hasher.bit_fpr_[bit] == pytest.approx(reached)
        # Every distinct projection, one after the other, without the cumulative sums.
        every = [plain.objective(column, pairs, similar, at) for at in np.unique(column)]
        best = plain.objective(column, pairs, similar, plain.best_threshold(column, pairs, similar))
        assert best == pytest.approx(min(every), abs=1e-12)
        assert reached == pytest.approx(best, abs=2e-4)  # features in single precision


def test_linear_diff_hash_agrees_with_the_reference(sample):
    rows, pairs, similar, test = sample
    mean = (rows[pairs[similar]].sum(axis=(0, 1)) + rows[pairs[~similar]].sum(axis=(0, 1))) / (
        2 * len(pairs)
    )
    directions = plain.diff_hash(rows - mean, pairs, similar, N_BITS)
    columns = (rows - mean) @ directions.T
    thresholds = [plain.best_threshold(column, pairs, similar) for column in columns.T]
    hasher = DiffHash(N_BITS, moment="cross", alpha=25.0).fit_pairs(rows, pairs, similar)
    assert agreement(bits_of(hasher, test), (test - mean) @ directions.T > thresholds) >= 0.99


def test_lda_hash_agrees_with_the_reference(sample):
    rows, pairs, similar, test = sample
    gaps = rows[pairs[:, 0]] - rows[pairs[:, 1]]
    d_p, d_n = (gaps[kind].T @ gaps[kind] / kind.sum() for kind in (similar, ~similar))
    ridge = 1e-3 * np.trace(d_n) / len(d_n) * np.eye(len(d_n))
    directions = scipy.linalg.eigh(d_p + ridge, d_n + 0.1 * ridge)[1].T[:N_BITS]
    columns = rows @ directions.T
    thresholds = [plain.best_threshold(column, pairs, similar) for column in columns.T]
    hasher = LDAHash(N_BITS, ridge=1e-3).fit_pairs(rows, pairs, similar)
    assert agreement(bits_of(hasher, test), test @ directions.T > thresholds) >= 0.99


def test_boosted_hash_agrees_with_the_reference_beyond_one_bit(sample):
    """Eq. 1: the best direction for the weighted pairs, the best threshold, AdaBoost's weights."""
    rows, pairs, similar, test = sample
    used = np.unique(pairs)
    mean = rows[used].mean(axis=0)
    left, right = rows[pairs[:, 0]] - mean, rows[pairs[:, 1]] - mean
    sign = np.where(similar, 1.0, -1.0)
    weights = np.where(similar, 0.5 / similar.sum(), 0.5 / (~similar).sum())
    bits = np.empty((len(test), 8), bool)
    for bit in range(8):
        cross = (left * (weights * sign)[:, None]).T @ right
        direction = np.linalg.eigh(-(cross + cross.T))[1][:, 0]
        a, b = left @ direction, right @ direction
        values = np.unique(np.concatenate([a, b]))
        low = np.searchsorted(values, np.minimum(a, b))
        high = np.searchsorted(values, np.maximum(a, b))
        loss = np.bincount(low, weights * sign, len(values))
        loss -= np.bincount(high, weights * sign, len(values))
        at = np.argmin(np.cumsum(loss)[:-1])
        threshold = (values[at] + values[at + 1]) / 2
        wrong = ((a > threshold) == (b > threshold)) != similar
        error = weights[wrong].sum()
        weights = np.where(wrong, weights / (2 * error), weights / (2 * (1 - error)))
        bits[:, bit] = (test - mean) @ direction > threshold
    hasher = BoostedHash(8, weak="projection").fit_pairs(rows, pairs, similar)
    assert agreement(bits_of(hasher, test), bits) >= 0.99
