"""What the loops promise, in plain NumPy, and the sizes that they are tested with."""

from __future__ import annotations

import numpy as np

ROWS = (0, 1, 7, 8, 255, 256, 257, 511, 513)
BITS = (1, 31, 63, 64, 65, 128, 192, 256, 300, 512, 1024, 4096)


def random_words(rng, n, n_bits, n_different=None):
    """Codes as words of 64 bits, with zeros beyond their length; few different ones make ties."""
    bits = rng.integers(0, 2, (n_different or n, n_bits), dtype=np.uint8)
    if n_different:
        bits = bits[rng.integers(0, n_different, n)]
    packed = np.zeros((n, -(-n_bits // 64) * 8), np.uint8)
    packed[:, : -(-n_bits // 8)] = np.packbits(bits, axis=1, bitorder="little")
    return packed.view(np.uint64)


def to_blocks(words):
    """Words in blocks of eight codes, as one line: [block][word][code]."""
    n, width = words.shape
    padded = np.zeros((-(-n // 8) * 8, width), np.uint64)
    padded[:n] = words
    return np.ascontiguousarray(padded.reshape(-1, 8, width).transpose(0, 2, 1)).reshape(-1)


def to_mask(kept):
    """One bit for each row, lowest first."""
    return np.packbits(kept, bitorder="little")


def distances_of(queries, words):
    ones = np.bitwise_count(queries[:, None] ^ words[None])
    return ones.sum(axis=-1, dtype=np.int64)


def nearest(distances, counted, limits, k):
    """For each query (distance, row) of the k nearest rows that count and are below its limit."""
    return [
        sorted((int(d), i) for i, d in enumerate(line) if counted[i] and d < limit)[:k]
        for line, limit in zip(distances, limits)
    ]


def within(distances, counted, limits):
    """Sorted (query, row, distance) of all rows that count and are below the query's limit."""
    q, rows = np.nonzero((distances < limits[:, None]) & counted)
    return list(zip(q.tolist(), rows.tolist(), distances[q, rows].tolist()))


def part_of(words, begin, width):
    """Bits from `begin` on of each code, the first one lowest."""
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, begin : begin + width]
    return bits.astype(np.int64) @ (1 << np.arange(width))


def exp2_below_one(values):
    """2^t, for t from -126 to 0."""
    return np.exp2(np.clip(values.astype(float), -126, 0))
