"""The memory that a search for many neighbours takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

PEAK = """
import resource
import numpy as np
from kdiffhash.search import scan
from kdiffhash.search.index import HammingIndex

codes = np.random.default_rng(0).integers(0, 256, (6000, 8), dtype=np.uint8)
codes = codes[np.argsort(-np.bitwise_count(codes).sum(axis=1, dtype=int))]
index = HammingIndex(codes)  # the nearest rows come last, so that all rows are hits for a while
queries = np.zeros((2500, 8), np.uint8)
index.search(queries[:100], 5)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
distances, ids = index.search(queries, 2900, n_jobs=1)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((1024 * (after - before) - distances.nbytes - ids.nbytes) / scan._STATE_BYTES)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count other units")
def test_intermediate_results_stay_within_their_limit():
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.7
