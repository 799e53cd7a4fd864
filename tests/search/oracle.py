"""Brute-force search in plain NumPy."""

from __future__ import annotations

import numpy as np


def random_codes(rng, n, n_bits, alphabet=None):
    """Return codes of random bits; a small alphabet produces many ties."""
    bits = rng.integers(0, 2, (n if alphabet is None else alphabet, n_bits), dtype=np.uint8)
    codes = np.packbits(bits, axis=1)
    return codes if alphabet is None else codes[rng.integers(0, alphabet, n)]


def distances_of(queries, codes):
    table = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)
    return table[queries[:, None] ^ codes[None]].sum(axis=-1, dtype=np.int64)


def nearest(queries, codes, ids, k):
    """Return distances and ids of the k nearest codes, ordered by distance, then id."""
    distances = distances_of(queries, codes)
    columns = min(k, len(codes))
    order = np.array([np.lexsort((ids, line))[:k] for line in distances], np.int64)
    order = order.reshape(len(queries), columns)
    return np.take_along_axis(distances, order, axis=1), ids[order]


def range_search(queries, codes, ids, radius):
    """Return, per query, the sorted (distance, id) of all codes within a radius."""
    distances = distances_of(queries, codes)
    return [
        sorted((int(d), int(i)) for d, i in zip(line, ids) if d <= radius) for line in distances
    ]


def duplicates(codes, ids, radius):
    """Return the sorted (lower id, higher id, distance) of all pairs within a radius."""
    distances = distances_of(codes, codes)
    a, b = np.nonzero(np.triu(distances <= radius, 1))
    return sorted(
        (int(min(ids[i], ids[j])), int(max(ids[i], ids[j])), int(distances[i, j]))
        for i, j in zip(a, b)
    )


def weighted_distances_of(projections, codes):
    """Return sums of |projection| over differing bits, in float64 from first to last."""
    bits = np.unpackbits(codes, axis=1, count=projections.shape[1]).astype(bool)
    sums = []
    for row in projections.astype(np.float32):
        weights = np.where(bits != (row > 0), np.abs(row), 0).astype(np.float64)
        sums.append(np.cumsum(weights, axis=1)[:, -1])
    return np.array(sums).reshape(len(projections), len(codes)).astype(np.float32)
