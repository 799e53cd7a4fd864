"""Hardware ceilings of search: the rate of reading memory, and of XOR, popcount and add.

Both are a few lines of C, compiled on first use for the CPU at hand.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from functools import cache, partial
from pathlib import Path

import numpy as np

from kdiffhash._util.threads import run_concurrently

SOURCE = """
#include <stdint.h>
uint64_t sum_words(const uint64_t* words, int64_t n) {
  uint64_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += words[i];
  return total;
}
uint64_t count_bits(const uint64_t* words, int64_t n, uint64_t query, int64_t repeats) {
  uint64_t total = 0;
  for (int64_t r = 0; r < repeats; ++r, ++query)
    for (int64_t i = 0; i < n; ++i) total += __builtin_popcountll(words[i] ^ query);
  return total;
}
"""


@cache
def _loops() -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp())
    (folder / "ceiling.c").write_text(SOURCE)
    options = ["-O3", "-march=native", "-funroll-loops", "-shared", "-fPIC"]
    target = folder / "ceiling.so"
    subprocess.run(["cc", *options, "-o", target, folder / "ceiling.c"], check=True)
    loops = ctypes.CDLL(str(target))
    for function in (loops.sum_words, loops.count_bits):
        function.restype = ctypes.c_uint64
    return loops


def _sum_words(words: np.ndarray) -> None:
    _loops().sum_words(words.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(len(words)))


def _count_bits(words: np.ndarray, repeats: int) -> None:
    n, pointer = ctypes.c_int64(len(words)), words.ctypes.data_as(ctypes.c_void_p)
    _loops().count_bits(pointer, n, ctypes.c_uint64(1), ctypes.c_int64(repeats))


def read_memory(words: np.ndarray, threads: int) -> None:
    """Read all words once, for the caller to time."""
    run_concurrently([partial(_sum_words, chunk) for chunk in np.array_split(words, threads)])


def popcounts_per_s(threads: int) -> float:
    """Return how many 64-bit words in L1 cache are XORed, counted and summed per second."""
    words, repeats = np.arange(2048, dtype=np.uint64), 20_000
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        run_concurrently([partial(_count_bits, words.copy(), repeats)] * threads)
        best = min(best, time.perf_counter() - start)
    return threads * repeats * len(words) / best
