"""Compare hashers with each other and with the Euclidean distance on handwritten digits.

Each of the 1,797 images in scikit-learn's digits is an object. Six rows are made from it by small
rotations, changes of scale, shifts and noise. The hashers are trained on half of the objects and
tested on pairs of rows of the other half.
"""

from __future__ import annotations

import csv
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.ndimage import affine_transform
from sklearn.datasets import load_digits

import kdiffhash as kh
from kdiffhash.study.baselines import RandomHyperplaneHash


def distort(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a randomly distorted copy of an 8x8 image as a row of 64 values."""
    angle, scale, shift = rng.normal(0, 0.08), rng.normal(1, 0.04), rng.normal(0, 0.25, 2)
    matrix = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    centre = np.full(2, 3.5)
    warped = affine_transform(image, matrix, centre - matrix @ centre + shift, order=1)
    return np.clip(rng.normal(1, 0.1) * warped + rng.normal(0, 0.7, (8, 8)), 0, 16).ravel()


rng = np.random.default_rng(0)
images = load_digits().images
y = np.repeat(np.arange(len(images)), 6)
X = np.array([distort(images[label], rng) for label in y], np.float32)
train, test = y % 2 == 0, y % 2 == 1
pairs, similar = kh.draw_pairs(y[test], 13_000, 200_000, random_state=1)
left, right = pairs.T

rows = []


def measure(name: str, n_bits: int, distances: np.ndarray, seconds: float) -> None:
    curve = kh.roc(distances, similar)
    rows.append(
        {
            "method": name,
            "bits": n_bits,
            "FNR % at 1 % FPR": round(100 * curve.fnr_at(0.01), 1),
            "FPR95 %": round(100 * curve.fpr95, 2),
            "training, s": round(seconds, 2),
        }
    )


distances = np.linalg.norm(X[test][left] - X[test][right], axis=1)
measure("pixels, Euclidean", 64 * 8, distances, 0.0)
for n_bits in (32, 64, 128):
    hashers = [
        RandomHyperplaneHash(n_bits, random_state=0),
        kh.BoostedHash(n_bits, random_state=0, n_positives=10_000, n_negatives=10_000),
        kh.KernelDiffHash(n_bits, n_basis=800, random_state=0),
        kh.KernelLDAHash(n_bits, n_basis=800, random_state=0),
    ]
    if n_bits <= X.shape[1]:  # these methods give at most one bit per feature
        hashers[1:1] = [kh.ITQHash(n_bits, random_state=0)]
        hashers[3:3] = [kh.DiffHash(n_bits, random_state=0), kh.LDAHash(n_bits, random_state=0)]
    for hasher in hashers:
        start = time.perf_counter()
        hasher.fit(X[train], y[train])
        seconds = time.perf_counter() - start
        codes = hasher.transform(X[test])
        measure(type(hasher).__name__, n_bits, kh.hamming(codes[left], codes[right]), seconds)

table = Table(*rows[0], title="Error rates on test objects", header_style="bold")
for row in rows:
    table.add_row(*map(str, row.values()))
Console().print(table)

folder = Path("demo-report")
folder.mkdir(exist_ok=True)
with (folder / "digits.csv").open("w", newline="") as file:
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    writer.writerows(rows)
hasher.save(folder / "digits.safetensors")
print(f"table: {folder / 'digits.csv'}\nmodel: {folder / 'digits.safetensors'}")
