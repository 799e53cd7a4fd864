"""Limits of the machine: how fast it reads memory, and how fast it does xor, popcount and add."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from kdiffhash._numba.llvm import popcount
from numba import njit

from kdiffhash.parallel import run_plain


@njit(cache=True, nogil=True)
def read_all(words):
    total = np.uint64(0)
    for i in range(len(words)):
        total += words[i]
    return total


@njit(cache=True, nogil=True)
def count_again(words, query, times):
    total = np.uint64(0)
    for _ in range(times):
        for i in range(len(words)):
            total += popcount(words[i] ^ query)
        query += np.uint64(1)
    return total


def read_seconds(words: np.ndarray, threads: int) -> None:
    parts = np.array_split(words, threads)
    run_plain([partial(read_all, part) for part in parts])


def popcounts_per_s(threads: int) -> float:
    words, times = np.arange(2048, dtype=np.uint64), 20_000
    count_again(words, np.uint64(1), 1)
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        run_plain([partial(count_again, words.copy(), np.uint64(1), times)] * threads)
        best = min(best, time.perf_counter() - start)
    return threads * times * len(words) / best
