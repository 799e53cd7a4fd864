"""Ablations: error rates and training time when one choice of the method is changed at a time.

Trained on herz-jesus-p25, castle-p30 and caliterra, tested on boruszyn: the positives of its
longest test list and a million negatives. Closed-form variants are compared with
`KernelLDAHash()`, refined variants with 500 steps of refinement from there.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from support.harness import arguments, log, report
from support.held_out import code_rates, test_set, training_data
from support.markdown import table

import kdiffhash
from kdiffhash import KernelLDAHash, draw_pairs
from kdiffhash.datasets import load_scene
from kdiffhash.learn.encoder import Encoder, compute_features
from kdiffhash.learn.preprocess import preprocess_rows
from kdiffhash.learn.refinement import Hash, Refinement, refine
from kdiffhash.learn.thresholds import find_thresholds, rates_at

TEST = "boruszyn"
BITS = (32, 64, 128, 256, 512)
STEPS = 500


class Data:
    """The training scenes, and the pairs and rows that variants draw from them."""

    def __init__(self) -> None:
        data = training_data(TEST)
        self.rows = np.asarray(data.rows)
        self.labels = np.unique(data.labels, return_inverse=True)[1]
        self.pairs, self.similar = draw_pairs(self.labels, random_state=0)
        self.features = preprocess_rows(self.rows, "hellinger")
        names = ("herz-jesus-p25", "castle-p30", "caliterra")
        self.photos = np.concatenate([np.asarray(load_scene(name).photos) for name in names])
        self.scenes = np.repeat(np.arange(3), [len(load_scene(name).points) for name in names])

    def hard_negatives(self, n: int) -> np.ndarray:
        """Pair rows with the nearest row of another object among a thousand of the same scene."""
        rng, pairs = np.random.default_rng(0), []
        while sum(map(len, pairs)) < n:
            scene = np.flatnonzero(self.scenes == rng.integers(3))
            sample = rng.choice(scene, 1000, replace=False)
            similarity = self.features[sample] @ self.features[sample].T
            similarity[self.labels[sample][:, None] == self.labels[sample]] = -1
            pairs.append(np.stack([sample, sample[similarity.argmax(axis=1)]], axis=1))
        return np.concatenate(pairs)[:n]

    def wide_baseline_pairs(self, n: int) -> np.ndarray:
        """Draw positive pairs with weights that grow with the distance between photo ids."""
        pairs, similar = draw_pairs(self.labels, 4 * n, 1, random_state=0)
        pairs = pairs[similar]
        weights = np.abs(np.diff(self.photos[pairs], axis=1))[:, 0].astype(float) + 0.1
        chosen = np.random.default_rng(0).choice(len(pairs), n, False, weights / weights.sum())
        return pairs[chosen]

    def leverage_rows(self, n: int) -> np.ndarray:
        """Draw rows by their ridge leverage scores."""
        rng = np.random.default_rng(0)
        sample = self.features[rng.choice(len(self.features), 30_000, replace=False)]
        first = KernelLDAHash(8, n_basis=1000, preprocess="hellinger", random_state=1)
        first.fit_pairs(self.rows, self.pairs[::20], self.similar[::20])
        values = compute_features(sample, None, first._feature_map()).astype(np.float64)
        moment = values.T @ values / len(values)
        moment += 1e-6 * np.trace(moment) * np.eye(len(moment))
        scores = (values * np.linalg.solve(moment, values.T).T).sum(axis=1)
        return sample[rng.choice(len(sample), n, False, scores / scores.sum())]


def two_bandwidths(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Gaussian kernel with a small gamma for the first half of the basis, a large for the rest."""
    gamma = np.where(np.arange(len(b)) < len(b) // 2, 0.3, 1.4)
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T
    return np.exp(-gamma * np.maximum(squares, 0))


def closed_form(
    data: Data, pairs: Any = None, similar: Any = None, **settings: Any
) -> KernelLDAHash:
    """Fit the closed form, on the default pairs unless others are given."""
    hasher = KernelLDAHash(512, preprocess="hellinger", random_state=0, **settings)
    if pairs is None:
        pairs, similar = data.pairs, data.similar
    return hasher.fit_pairs(data.rows, pairs, similar)


def with_pairs(data: Data, positives: Any = None, negatives: Any = None) -> KernelLDAHash:
    """Fit the closed form with other positive or negative pairs."""
    positives = data.pairs[data.similar] if positives is None else positives
    negatives = data.pairs[~data.similar] if negatives is None else negatives
    pairs = np.concatenate([positives, negatives])
    return closed_form(data, pairs, np.arange(len(pairs)) < len(positives))


def half_hard(data: Data) -> KernelLDAHash:
    """Fit the closed form with hard negatives for half of the negative pairs."""
    easy = data.pairs[~data.similar][:100_000]
    return with_pairs(data, negatives=np.concatenate([easy, data.hard_negatives(100_000)]))


def projections(hasher: KernelLDAHash, rows: np.ndarray) -> np.ndarray:
    """Return the projections of rows, of shape (n_bits, n)."""
    return Encoder(hasher.preprocess, hasher._feature_map(), hasher.directions_).columns(rows)


def rotated(data: Data) -> KernelLDAHash:
    """Scale directions to equal noise and rotate them at random within each prefix's new bits."""
    hasher, rng = closed_form(data), np.random.default_rng(0)
    used_rows, positions = np.unique(data.pairs, return_inverse=True)
    positions = positions.reshape(-1, 2)
    columns = projections(hasher, data.rows[used_rows])
    left, right = positions[data.similar].T
    noise = np.sqrt(np.mean((columns[:, left] - columns[:, right]) ** 2, axis=1))
    directions = hasher.directions_ / noise[:, None]
    for low, high in zip((0, *BITS), BITS):
        rotation = np.linalg.qr(rng.standard_normal((high - low, high - low)))[0]
        directions[low:high] = rotation @ directions[low:high]
    hasher.directions_ = directions.astype(np.float32)
    columns = projections(hasher, data.rows[used_rows])
    hasher._take_bit_rates(find_thresholds(columns, positions, data.similar))
    return hasher


def balanced(data: Data) -> KernelLDAHash:
    """Put thresholds at the median, so that each bit has as many ones as zeros."""
    hasher = closed_form(data)
    sample = data.rows[:: len(data.rows) // 20_000]
    hasher.thresholds_ = np.median(projections(hasher, sample), axis=1).astype(np.float32)
    pairs, similar = draw_pairs(data.labels, 1000, 1000, random_state=0)
    hasher._take_bit_rates(
        rates_at(hasher.thresholds_, hasher.transform(data.rows), pairs, similar)
    )
    return hasher


def refined(
    data: Data, n_pairs: int = 0, start: dict[str, Any] | None = None, **changes: Any
) -> KernelLDAHash:
    """Refine a closed form, with changed settings of the refinement."""
    hasher = closed_form(data, **(start or {}))
    settings = Refinement(**({"steps": STEPS} | changes))
    n_pairs = n_pairs or settings.steps * settings.batch_size
    drawn, similar = draw_pairs(data.labels, n_pairs, 1, random_state=0)
    first = Hash(hasher._feature_map(), hasher.directions_, hasher.thresholds_)
    rng = np.random.default_rng(0)
    best = refine(first, data.features, drawn[similar], data.labels, settings, rng)
    hasher.basis_ = best.features.basis
    hasher.directions_, hasher.thresholds_ = best.directions, best.thresholds
    return hasher


VARIANTS: dict[str, Callable[[Data], KernelLDAHash]] = {
    "closed form": closed_form,
    "ridge 1e-3 for all bits": lambda data: closed_form(data, ridge=1e-3),
    "ridge 1e-4 for all bits": lambda data: closed_form(data, ridge=1e-4),
    "gamma = median": lambda data: closed_form(data, gamma="median"),
    "two bandwidths": lambda data: closed_form(data, kernel=two_bandwidths),
    "k-means basis": lambda data: closed_form(data, basis="kmeans"),
    "basis by leverage scores": lambda data: closed_form(data, basis=data.leverage_rows(1000)),
    "2000 basis rows": lambda data: closed_form(data, n_basis=2000),
    "half of the negative pairs hard": half_hard,
    "wide-baseline positive pairs": lambda data: with_pairs(
        data, data.wide_baseline_pairs(100_000)
    ),
    "random rotation of each block": rotated,
    "balanced bits": balanced,
    "refined, 500 steps": refined,
    "refined, fixed basis": lambda data: refined(data, basis_learning_rate=0.0),
    "refined, 2.7 times the learning rate for the basis": lambda data: refined(
        data, basis_learning_rate=4e-3
    ),
    "refined, batches of 256": lambda data: refined(data, batch_size=256, steps=2 * STEPS),
    "refined, slope 2": lambda data: refined(data, slope=2.0),
    "refined, margin 0.05": lambda data: refined(data, margin=0.05),
    "refined, 100,000 pairs": lambda data: refined(data, n_pairs=100_000),
    "refined, from ridge 1e-3 and gamma = median": lambda data: refined(
        data, start={"ridge": 1e-3, "gamma": "median"}
    ),
    "refined, from a k-means basis": lambda data: refined(data, start={"basis": "kmeans"}),
}


def ablations_table(result: dict[str, Any]) -> str:
    lengths = list(result["rows"][0]["fnr_at_1e-3"])
    lines = [
        [
            row["variant"],
            *(f"{100 * row['fnr_at_1e-3'][n]:.1f} ({100 * row['fpr95'][n]:.1f})" for n in lengths),
            f"{row['seconds']:.0f} s",
        ]
        for row in result["rows"]
    ]
    note = (
        f"Trained on the other three scenes, tested on {result['test']}: FNR in percent at 0.1 % "
        "FPR, with FPR95 in brackets, and the training time. Each row changes one setting: of the "
        "closed form in the rows above *refined, 500 steps*, and of that refinement in the rows "
        "below it. (`python benchmarks/ablations.py`)"
    )
    return (
        f"{note}\n\n{table(['variant', *(f'{n} bits' for n in lengths), 'training time'], lines)}"
    )


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"ablations": ablations_table(result)}


def main() -> None:
    options = arguments(__doc__, variants="")
    warnings.simplefilter("ignore", kdiffhash.ConstantBitWarning)
    data, test = Data(), test_set(TEST)
    rows = []
    for variant, fit in VARIANTS.items():
        if options.variants not in variant:
            continue
        start = time.perf_counter()
        hasher = fit(data)
        seconds = time.perf_counter() - start
        codes = hasher.transform(test["rows"])
        rates = {str(n): code_rates(codes, n, test) for n in BITS}
        rows.append(
            {
                "variant": variant,
                "fnr_at_1e-3": {n: rate[0] for n, rate in rates.items()},
                "fpr95": {n: rate[1] for n, rate in rates.items()},
                "seconds": seconds,
            }
        )
        log(rows[-1])
    report("ablations", {"test": TEST, "rows": rows}, options)


if __name__ == "__main__":
    main()
