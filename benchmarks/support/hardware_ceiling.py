"""Limits of the machine: how fast it reads memory, and how fast it does xor, popcount and add.

Both loops are a few lines of C that the machine's own compiler makes the best of.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from functools import cache, partial
from pathlib import Path

import numpy as np

from kdiffhash._util.threads import run_plain

SOURCE = """
#include <stdint.h>
uint64_t read_all(const uint64_t* words, int64_t n) {
  uint64_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += words[i];
  return total;
}
uint64_t count_again(const uint64_t* words, int64_t n, uint64_t query, int64_t times) {
  uint64_t total = 0;
  for (int64_t t = 0; t < times; ++t, ++query)
    for (int64_t i = 0; i < n; ++i) total += __builtin_popcountll(words[i] ^ query);
  return total;
}
"""


@cache
def _loops() -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp())
    (folder / "limits.c").write_text(SOURCE)
    options = ["-O3", "-march=native", "-funroll-loops", "-shared", "-fPIC"]
    target = folder / "limits.so"
    subprocess.run(["cc", *options, "-o", target, folder / "limits.c"], check=True)
    loops = ctypes.CDLL(str(target))
    for function in (loops.read_all, loops.count_again):
        function.restype = ctypes.c_uint64
    return loops


def _read_all(words: np.ndarray) -> None:
    _loops().read_all(words.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(len(words)))


def _count_again(words: np.ndarray, times: int) -> None:
    n, pointer = ctypes.c_int64(len(words)), words.ctypes.data_as(ctypes.c_void_p)
    _loops().count_again(pointer, n, ctypes.c_uint64(1), ctypes.c_int64(times))


def read_seconds(words: np.ndarray, threads: int) -> None:
    run_plain([partial(_read_all, part) for part in np.array_split(words, threads)])


def popcounts_per_s(threads: int) -> float:
    words, times = np.arange(2048, dtype=np.uint64), 20_000
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        run_plain([partial(_count_again, words.copy(), times)] * threads)
        best = min(best, time.perf_counter() - start)
    return threads * times * len(words) / best
