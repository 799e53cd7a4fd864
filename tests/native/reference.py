"""Simple NumPy versions of the loops, and the sizes that they are tested with."""

from __future__ import annotations

import numpy as np

ROWS = (0, 1, 7, 8, 255, 256, 257, 511, 513)
BITS = (1, 31, 63, 64, 65, 128, 192, 256, 300, 512, 1024, 4096)


def random_words(rng, n, n_bits, n_distinct=None):
    """Return random codes as zero-padded 64-bit words; few distinct codes produce ties."""
    bits = rng.integers(0, 2, (n_distinct or n, n_bits), dtype=np.uint8)
    if n_distinct:
        bits = bits[rng.integers(0, n_distinct, n)]
    packed = np.zeros((n, -(-n_bits // 64) * 8), np.uint8)
    packed[:, : -(-n_bits // 8)] = np.packbits(bits, axis=1, bitorder="little")
    return packed.view(np.uint64)


def to_blocks(words):
    """Return words in blocks of eight codes, as a flat array: [block][word][code]."""
    n, width = words.shape
    padded = np.zeros((-(-n // 8) * 8, width), np.uint64)
    padded[:n] = words
    return np.ascontiguousarray(padded.reshape(-1, 8, width).transpose(0, 2, 1)).reshape(-1)


def to_mask(kept):
    """Return one bit per row, lowest first."""
    return np.packbits(kept, bitorder="little")


def distances_of(queries, words):
    """Return the Hamming distances of all queries to all codes."""
    ones = np.bitwise_count(queries[:, None] ^ words[None])
    return ones.sum(axis=-1, dtype=np.int64)


def weighted_distances_of(projections, words):
    """Return the sums of |projection| over the bits of all codes that differ from its sign.

    Sums are in double precision, from the first bit to the last, and rounded to float32.
    """
    bits = np.unpackbits(words.view(np.uint8), axis=1)[:, : projections.shape[1]]
    result = np.empty((len(projections), len(words)), np.float32)
    for q, row in enumerate(projections):
        weights = np.where(bits != (row > 0), np.abs(row), 0).astype(np.float64)
        result[q] = np.cumsum(weights, axis=1)[:, -1]
    return result


def nearest(distances, kept, bounds, k):
    """Return, per query, (distance, row) of the k nearest kept rows below its bound."""
    return [
        sorted((d, i) for i, d in enumerate(row.tolist()) if kept[i] and d < bound)[:k]
        for row, bound in zip(distances, bounds)
    ]


def range_search(distances, kept, bounds):
    """Return sorted (query, row, distance) of all kept rows below the bound of the query."""
    q, rows = np.nonzero((distances < bounds[:, None]) & kept)
    return list(zip(q.tolist(), rows.tolist(), distances[q, rows].tolist()))


def substring(words, begin, width):
    """Return `width` bits of each code, from bit `begin` on, as integers."""
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, begin : begin + width]
    return bits.astype(np.int64) @ (1 << np.arange(width))


def exp2_nonpositive(values):
    """Return 2^t, for t clipped to -126 to 0."""
    return np.exp2(np.clip(values.astype(float), -126, 0))
