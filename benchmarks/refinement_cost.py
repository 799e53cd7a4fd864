"""What refinement costs beside its own matrix products, and its memory.

The bare products of a step, in float32 by NumPy's BLAS on all threads: kernel values, projections,
inner products within the batch by prefix, and back: by directions, by kernel values, by basis rows,
and two with the whitening matrix. Five steps and five times the bare products take turns, with a
pause between them, in which the threads of BLAS go to sleep: they spin for a while in the hope of
more, and the steps, which use threads of their own, would have to share the cores with them. Memory
is the peak of a process that refines three scenes.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
from frontier import STEPS
from support.harness import arguments, report, say
from support.held_out import without
from support.markdown import machine_note

import kdiffhash
from kdiffhash import KernelLDAHash, draw_pairs
from kdiffhash._util.threads import one_blas_thread
from kdiffhash.learn.preprocess import preprocess_rows
from kdiffhash.learn.refinement import Hash, Refinement, _Descent

BURST, PAUSE = 5, 0.1
SETTINGS: dict[str, Any] = {"preprocess": "hellinger", "random_state": 0}


def bare_products(start: Hash, rows: np.ndarray, settings: Refinement) -> Any:
    n_bits, width = start.directions.shape
    rng = np.random.default_rng(0)
    n = 2 * settings.batch
    batch, basis = rows[:n], np.ascontiguousarray(start.features.basis)
    values, soft = rng.random((n, width), np.float32), rng.random((n, n_bits), np.float32)
    square = rng.random((width, width), np.float32)
    prefixes = [32, 64, 128, 256, 512]

    def work() -> None:
        batch @ basis.T
        values @ start.directions.T
        for low, high in zip([0, *prefixes], prefixes):
            soft[:, low:high] @ soft[:, low:high].T
        soft.T @ values
        soft @ start.directions
        values.T @ batch
        start.directions @ square
        start.directions @ square

    return work


def cost(repeats: int) -> dict[str, float]:
    data = without("boruszyn")
    pairs, similar = draw_pairs(data.labels, 50_000, 50_000, random_state=0)
    hasher = KernelLDAHash(512, **SETTINGS).fit_pairs(data.rows, pairs, similar)
    rows = preprocess_rows(np.asarray(data.rows), "hellinger")
    ids = np.unique(data.labels, return_inverse=True)[1]
    settings = Refinement(STEPS)
    start = Hash(hasher._feature_map(), hasher.directions_, hasher.thresholds_)
    rng = np.random.default_rng(0)
    with one_blas_thread():
        descending = _Descent(start, rows, settings, rng, None)
    positives = pairs[similar]
    number = iter(range(STEPS))

    def step() -> None:
        with one_blas_thread():
            chosen = rng.choice(len(positives), settings.batch, replace=False)
            descending.step(positives[chosen].T.ravel(), ids, next(number))

    bare = bare_products(start, rows, settings)
    times: dict[str, list[float]] = {"step": [], "bare": []}
    for _ in range(repeats):
        for name, work in (("step", step), ("bare", bare)):
            time.sleep(PAUSE)
            begun = time.perf_counter()
            for _ in range(BURST):
                work()
            times[name].append((time.perf_counter() - begun) / BURST)
    seconds = {name: float(np.median(found)) for name, found in times.items()}
    return {
        "ms_a_step": 1000 * seconds["step"],
        "ms_bare_products": 1000 * seconds["bare"],
        "ratio_to_products": seconds["step"] / seconds["bare"],
    }


def peak_memory() -> float:
    """Of a process that learns and refines as the frontier does, in MB."""
    data = without("boruszyn")
    pairs, similar = draw_pairs(data.labels, random_state=0)
    KernelLDAHash(512, refine=20, **SETTINGS).fit_pairs(data.rows, pairs, similar, data.labels)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def refine_text(found: dict[str, Any]) -> str:
    (row,) = found["rows"]
    return (
        f"A step takes {row['ms_a_step']:.0f} ms, its matrix products alone "
        f"{row['ms_bare_products']:.0f} ms: **{row['ratio_to_products']:.2f} x**. The peak of a "
        f"process that learns from three scenes is {row['peak_mb']:,.0f} MB. "
        f"{machine_note(found)}. (`python benchmarks/refinement_cost.py`)"
    )


def tables(found: dict[str, Any]) -> dict[str, str]:
    return {"refine": refine_text(found)}


def main() -> None:
    if sys.argv[1:] == ["--peak"]:
        print(peak_memory())
        return
    options = arguments(__doc__, repeats=15)
    warnings.simplefilter("ignore", kdiffhash.ConstantBitWarning)
    found = cost(options.repeats)
    command = [sys.executable, __file__, "--peak"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found["peak_mb"] = float(done.stdout)
    say(found)
    report("refinement_cost", {"rows": [found]}, options)


if __name__ == "__main__":
    main()
