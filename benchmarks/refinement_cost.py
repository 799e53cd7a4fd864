"""Time of a refinement step relative to its matrix products, and peak memory of refinement.

The products of a step are computed in float32 by NumPy's BLAS on all threads. Forward: kernel
values, projections, inner products within the batch for each prefix. Backward: with respect to
directions, kernel values and basis rows, and two products with the whitening matrix. Five steps
alternate with five repetitions of the products, with a pause in between: BLAS threads spin for a
while after their work, and the steps, which have their own threads, would have to share the cores
with them. Memory is the peak of a process that trains on three scenes.
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
from support.harness import arguments, log, report
from support.held_out import training_data
from support.markdown import machine_note

import kdiffhash
from kdiffhash import KernelLDAHash, draw_pairs
from kdiffhash._util.threads import one_blas_thread
from kdiffhash.learn.preprocess import preprocess_rows
from kdiffhash.learn.refinement import Hash, Refinement, _Optimizer

BURST, PAUSE = 5, 0.1
SETTINGS: dict[str, Any] = {"preprocess": "hellinger", "random_state": 0}


def matrix_products(start: Hash, rows: np.ndarray, settings: Refinement) -> Any:
    """Return a function that computes the matrix products of one step."""
    n_bits, width = start.directions.shape
    rng = np.random.default_rng(0)
    n = 2 * settings.batch_size
    batch, basis = rows[:n], np.ascontiguousarray(start.features.basis)
    values, soft = rng.random((n, width), np.float32), rng.random((n, n_bits), np.float32)
    square = rng.random((width, width), np.float32)
    prefixes = [32, 64, 128, 256, 512]

    def products() -> None:
        batch @ basis.T
        values @ start.directions.T
        for low, high in zip([0, *prefixes], prefixes):
            soft[:, low:high] @ soft[:, low:high].T
        soft.T @ values
        soft @ start.directions
        values.T @ batch
        start.directions @ square
        start.directions @ square

    return products


def step_cost(repeats: int) -> dict[str, float]:
    """Return the time of a step, of its products, and their ratio."""
    data = training_data("boruszyn")
    pairs, similar = draw_pairs(data.labels, 50_000, 50_000, random_state=0)
    hasher = KernelLDAHash(512, **SETTINGS).fit_pairs(data.rows, pairs, similar)
    rows = preprocess_rows(np.asarray(data.rows), "hellinger")
    labels = np.unique(data.labels, return_inverse=True)[1]
    settings = Refinement(STEPS)
    start = Hash(hasher._feature_map(), hasher.directions_, hasher.thresholds_)
    rng = np.random.default_rng(0)
    with one_blas_thread():
        optimizer = _Optimizer(start, rows, settings, rng, None)
    positives = pairs[similar]
    number = iter(range(STEPS))

    def step() -> None:
        with one_blas_thread():
            chosen = rng.choice(len(positives), settings.batch_size, replace=False)
            optimizer.step(positives[chosen].T.ravel(), labels, next(number))

    products = matrix_products(start, rows, settings)
    times: dict[str, list[float]] = {"step": [], "products": []}
    for _ in range(repeats):
        for name, function in (("step", step), ("products", products)):
            time.sleep(PAUSE)
            begin = time.perf_counter()
            for _ in range(BURST):
                function()
            times[name].append((time.perf_counter() - begin) / BURST)
    seconds = {name: float(np.median(values)) for name, values in times.items()}
    return {
        "ms_per_step": 1000 * seconds["step"],
        "ms_products": 1000 * seconds["products"],
        "ratio_to_products": seconds["step"] / seconds["products"],
    }


def peak_memory() -> float:
    """Return the peak memory of this process, in MB, after training as `frontier.py` does."""
    data = training_data("boruszyn")
    pairs, similar = draw_pairs(data.labels, random_state=0)
    KernelLDAHash(512, refine=20, **SETTINGS).fit_pairs(data.rows, pairs, similar, data.labels)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def refine_text(result: dict[str, Any]) -> str:
    (row,) = result["rows"]
    return (
        f"A step takes {row['ms_per_step']:.0f} ms, **{row['ratio_to_products']:.2f}x** the time "
        f"of its matrix products ({row['ms_products']:.0f} ms). The peak memory of a process that "
        f"trains on three scenes is {row['peak_mb']:,.0f} MB. {machine_note(result)}. "
        "(`python benchmarks/refinement_cost.py`)"
    )


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"refine": refine_text(result)}


def main() -> None:
    if sys.argv[1:] == ["--peak"]:
        print(peak_memory())
        return
    options = arguments(__doc__, repeats=15)
    warnings.simplefilter("ignore", kdiffhash.ConstantBitWarning)
    row = step_cost(options.repeats)
    command = [sys.executable, __file__, "--peak"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    row["peak_mb"] = float(done.stdout)
    log(row)
    report("refinement_cost", {"rows": [row]}, options)


if __name__ == "__main__":
    main()
