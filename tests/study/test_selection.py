"""The choice of settings on held-out pairs."""

from __future__ import annotations

import numpy as np

from kdiffhash.study.selection import choose_setting


class Bytes:
    """Codes are the rows themselves, with some bits flipped at random."""

    def __init__(self, share):
        self.share = share

    def transform(self, rows):
        flipped = np.random.default_rng(0).random((len(rows), 64)) < self.share
        return rows ^ np.packbits(flipped, axis=1)


def test_the_setting_with_the_lowest_rate_is_chosen_and_the_first_of_equal_ones():
    rng = np.random.default_rng(1)
    rows = np.repeat(rng.integers(0, 256, (200, 8), np.uint8), 2, axis=0)
    positives = np.arange(400).reshape(-1, 2)
    negatives = np.stack([rng.permutation(400), rng.permutation(400)], axis=1)
    negatives = negatives[negatives[:, 0] // 2 != negatives[:, 1] // 2]
    pairs = np.concatenate([positives, negatives])
    similar = np.arange(len(pairs)) < 200
    grid = {"share": (0.4, 0.01, 0.2), "name": ("a", "b")}
    fitted = []

    def fit(setting):
        fitted.append(setting)
        return Bytes(setting["share"])

    best, table = choose_setting(grid, fit, rows, pairs, similar, [32, 64])
    assert best == {"share": 0.01, "name": "a"}
    assert [row["settings"] for row in table] == fitted
    assert len(fitted) == 6
    rates = [row["fnr_at_1e-3"] for row in table]
    assert rates[2] == rates[3] == min(rates) < rates[4] < rates[0]
