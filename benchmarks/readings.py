"""A number for every reading of the paper: what each open choice costs.

Trained on herz-jesus-p25 (100,000 positive and 200,000 negative pairs, one seed), tested on
boruszyn, the development scene, and on notredame-2007 (labels recovered), on which nothing is
chosen: the positives of the test list and a million negatives.
"""

# ruff: noqa: RUF001 (the paper's own symbols)

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from support.harness import arguments, log, report
from support.markdown import table

from kdiffhash import PAPER_SETTING, ConstantBitWarning, DiffHash, KernelDiffHash, pack, roc
from kdiffhash.codes import truncate
from kdiffhash.datasets import load_scene
from kdiffhash.evaluate.pair_distances import code_distances
from kdiffhash.learn.thresholds import find_thresholds

BITS = (32, 64, 128, 256, 512)
TESTS = ("boruszyn", "notredame-2007")
PAPER_DIF = {"moment": "cross", "alpha": 25.0}
ROOT = {"preprocess": "hellinger"}


class PlainDiffHash:
    """Linear diff-hash in NumPy, for the readings that the package does not offer."""

    def __init__(self, n_bits: int, *, literal: bool = False, scaled: bool = False) -> None:
        self.n_bits, self.literal, self.scaled = n_bits, literal, scaled

    def fit_pairs(self, X: np.ndarray, pairs: np.ndarray, similar: np.ndarray) -> PlainDiffHash:
        rows = np.asarray(X, np.float32)
        self.mean = np.zeros(rows.shape[1]) if self.literal else rows[pairs].mean(axis=(0, 1))
        centred = (rows - self.mean).astype(np.float32)
        moments = []
        for kind in (similar, ~similar):
            a, b = (centred[pairs[kind, side]].astype(np.float64) for side in (0, 1))
            # Literally, E{x x'} of the members of the pairs, whatever their partner is.
            product = a.T @ a + b.T @ b if self.literal else a.T @ b + b.T @ a
            moments.append(product / (2 * kind.sum()))
        values, vectors = np.linalg.eigh(moments[1] - 25.0 * moments[0])
        self.directions = vectors.T[: self.n_bits]
        if self.scaled:  # Algorithm 1 multiplies each eigenvector by its eigenvalue
            self.directions = self.directions * values[: self.n_bits, None]
        columns = np.ascontiguousarray((centred @ self.directions.T).T, np.float32)
        self.thresholds = find_thresholds(columns, pairs, similar).thresholds
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        rows = (np.asarray(X, np.float32) - self.mean).astype(np.float32)
        return pack((rows @ self.directions.T).astype(np.float32) > self.thresholds)


class Whitened:
    """The kernel with Sigma^-1 in place of Sigma^-1/2: rows are whitened fully beforehand."""

    def __init__(self, n_bits: int, **settings: Any) -> None:
        self.hasher = KernelDiffHash(n_bits, **settings)

    def fit_pairs(self, X: np.ndarray, pairs: np.ndarray, similar: np.ndarray) -> Whitened:
        rows = np.asarray(X, np.float64)
        values, vectors = np.linalg.eigh(np.cov(rows.T, bias=True))
        values = np.maximum(values, 1e-4 * values.max())
        self.map = (vectors * values**-0.5).astype(np.float32)
        self.hasher.fit_pairs(np.asarray(X, np.float32) @ self.map, pairs, similar)
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        return self.hasher.transform(np.asarray(X, np.float32) @ self.map)


def kernel(**changes: Any) -> KernelDiffHash:
    """kDIF in the paper's setting with the median bandwidth, with changes."""
    return KernelDiffHash(512, **{**PAPER_SETTING, "gamma": "median", **changes}, random_state=0)


def recommended(**changes: Any) -> KernelDiffHash:
    """kDIF with the defaults of the package on RootSIFT, with changes."""
    return KernelDiffHash(512, **{**ROOT, **changes}, random_state=0)


def readings() -> list[tuple[str, str, Any]]:
    """Question, setting, estimator; the first setting of a question is the one that is used."""
    alphas = (25.0, 1.0, 2.0, 5.0, 100.0, 1000.0, float("inf"))
    rows: list[tuple[str, str, Any]] = [
        ("Σ_P, Σ_N (DIF)", "moments of pairs, C_N − αC_P", DiffHash(128, **PAPER_DIF)),
        ("Σ_P, Σ_N (DIF)", "as printed, E{xxᵀ}", PlainDiffHash(128, literal=True)),
        ("Σ_P, Σ_N (DIF)", "differences, αD_P − D_N, α = 2", DiffHash(128)),
        ("eigenvectors (DIF)", "unit length", PlainDiffHash(128)),
        ("eigenvectors (DIF)", "multiplied by λ", PlainDiffHash(128, scaled=True)),
        ("threshold search (DIF)", "FNR + FPR", DiffHash(128, **PAPER_DIF)),
        (
            "threshold search (DIF)",
            "α FNR + FPR, α = 25",
            DiffHash(128, **PAPER_DIF, threshold_weight=25.0),
        ),
        ("kernel (kDIF)", "exponent Σ^−1/2, as printed", kernel()),
        (
            "kernel (kDIF)",
            "exponent Σ^−1",
            Whitened(512, **{**PAPER_SETTING, "gamma": "median", "kernel": "rbf"}, random_state=0),
        ),
        ("kernel (kDIF)", "plain Gaussian", kernel(kernel="rbf")),
        ("centring (kDIF)", "not centred", kernel()),
        ("centring (kDIF)", "centred", kernel(center=True)),
        ("norm of β (kDIF)", "‖β‖ = 1", kernel()),
        ("norm of β (kDIF)", "RKHS norm", kernel(norm="rkhs")),
        ("norm of β (kDIF)", "RKHS norm, centred", kernel(norm="rkhs", center=True)),
    ]
    factors = ("median", "median/30", "0.1*median", "0.3*median", "3*median")
    rows += [("bandwidth (kDIF)", f"γ = {text}", kernel(gamma=text)) for text in factors]
    rows += [
        ("basis rows (kDIF)", f"l = {n:,}", kernel(n_basis=n)) for n in (1000, 512, 2000, 3000)
    ]
    rows += [("α (kDIF, paper's setting)", f"α = {a:g}", kernel(alpha=a)) for a in alphas]
    rows += [
        ("α (kDIF, recommended)", f"α = {a:g}", recommended(alpha=a)) for a in (2.0, 1.0, 5.0, 25.0)
    ]
    rows += [
        ("kernel family (kDIF, recommended)", "Gaussian", recommended()),
        ("kernel family (kDIF, recommended)", "linear", recommended(kernel="linear")),
        ("kernel family (kDIF, recommended)", "polynomial, degree 3", recommended(kernel="poly")),
        ("kernel family (kDIF, recommended)", "Laplacian", recommended(kernel="laplacian")),
        (
            "kernel family (kDIF, recommended)",
            "exponential χ², on SIFT of sum 1",
            KernelDiffHash(512, kernel="chi2", random_state=0),
        ),
    ]
    return rows


def unit_sum(rows: np.ndarray) -> np.ndarray:
    """Scale rows to sum 1, the histograms that the chi-squared kernel compares."""
    plain = np.asarray(rows, np.float32)
    return plain / np.maximum(plain.sum(axis=1, keepdims=True), 1)


def readings_table(result: dict[str, Any]) -> str:
    note = (
        "Trained on herz-jesus-p25, one seed; FNR in percent at 0.1 % FPR at 32/64/128/256/512 "
        "bits. Labels of notredame-2007 are recovered, and nothing was chosen on it. "
        "(`python benchmarks/readings.py`)"
    )
    cells = []
    for row in result["rows"]:
        texts = ["/".join(f"{100 * value:.1f}" for value in row[test]) for test in TESTS]
        cells.append([row["reading"], row["setting"], *texts])
    return f"{note}\n\n{table(['reading', 'setting', *TESTS], cells)}"


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"readings": readings_table(result)}


def main() -> None:
    options = arguments(__doc__, only="")
    warnings.simplefilter("ignore", ConstantBitWarning)
    train = load_scene("herz-jesus-p25")
    pairs, similar = train.draw_pairs(random_state=0)
    tests = {}
    for name in TESTS:
        scene = load_scene(name)
        tests[name] = (scene, *scene.test_pairs(1_000_000, random_state=1))
    rows = []
    for reading, setting, estimator in readings():
        if options.only not in reading:
            continue
        is_chi2 = getattr(estimator, "kernel", None) == "chi2"
        prepare = unit_sum if is_chi2 else np.asarray
        try:
            estimator.fit_pairs(prepare(train.descriptors), pairs, similar)
        except ValueError as error:  # fewer usable directions than bits
            log(reading, setting, error)
            continue
        row: dict[str, Any] = {"reading": reading, "setting": setting}
        for name, (scene, test_pairs, flags) in tests.items():
            codes = estimator.transform(prepare(scene.descriptors))
            lengths = [n for n in BITS if n <= 8 * codes.shape[1]]
            row[name] = [
                roc(code_distances(truncate(codes, n), test_pairs), flags).fnr_at(1e-3)
                for n in lengths
            ]
        log(row)
        rows.append(row)
    report("readings", {"rows": rows, "bits": BITS}, options)


if __name__ == "__main__":
    main()
