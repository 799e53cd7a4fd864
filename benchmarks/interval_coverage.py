"""Coverage of confidence intervals of the FNR at 0.1 % FPR, on simulated heavy-tailed objects.

How many of the 95 % intervals contain the rate of the population, and how many are marked because
too few objects are behind the false positives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from support import heavy_tails
from support.harness import arguments, log, report
from support.markdown import table

from kdiffhash import bootstrap
from kdiffhash.evaluate.roc import Roc

CASES = ((600, 50_000), (2000, 50_000), (600, 200_000), (4000, 200_000))


def fnr(curve: Roc) -> float:
    return float(curve.fnr_at(heavy_tails.FPR))


def measure(n_objects: int, n_negatives: int, samples: int) -> dict[str, Any]:
    threshold, covered, marked = heavy_tails.threshold(), 0, 0
    for seed in range(samples):
        rng = np.random.default_rng(seed)
        case = heavy_tails.simulate(n_objects, n_negatives, threshold, rng)
        interval = bootstrap(fnr, *case, n_resamples=100, random_state=seed)
        covered += interval.low <= heavy_tails.FNR <= interval.high
        marked += not interval.is_reliable
    row = {
        "n_objects": n_objects,
        "n_negatives": n_negatives,
        "samples": samples,
        "covered": covered / samples,
        "marked": marked / samples,
    }
    log(row)
    return row


def tables(result: dict[str, Any]) -> dict[str, str]:
    rows = [
        [
            *(f"{row[key]:,}" for key in ("n_objects", "n_negatives", "samples")),
            *(f"{100 * row[key]:.0f} %" for key in ("covered", "marked")),
        ]
        for row in result["rows"]
    ]
    header = ["objects", "negative pairs", "samples", "intervals that cover", "marked"]
    note = (
        "95 % intervals of the FNR at 0.1 % FPR with heavy-tailed objects: how many contain the "
        "rate of the population, and how many are marked because of too few objects. "
        "(`python benchmarks/interval_coverage.py`)"
    )
    return {"interval-coverage": table(header, rows) + "\n\n" + note}


def main() -> None:
    options = arguments(__doc__, samples=150)
    rows = [measure(*case, options.samples) for case in CASES]
    report("interval_coverage", {"rows": rows}, options)


if __name__ == "__main__":
    main()
