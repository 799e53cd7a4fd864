"""Comparisons per second on one core: FAISS, numkong, usearch, and what the hardware allows.

A million random codes of 64 to 512 bits, batches of 100 queries and single queries, ten nearest
neighbours. numkong (`hammings_packed`) computes all distances but does not select neighbours. The
ceilings are XOR, popcount and add on 64-bit words in L1 cache, and reading all codes once from
memory. Bit-sliced counting needs fewer instructions than the former. CPU time is measured, so other
programs on the machine do not count.
"""

from __future__ import annotations

import time
from typing import Any

from search import measure
from support.code_sets import BITS, random_codes
from support.harness import arguments, report
from support.markdown import machine_note, table


def rates_table(result: dict[str, Any]) -> str:
    """Return comparisons per second on one core, beside what the hardware allows."""
    rows = []
    baselines = ("faiss", "numkong", "usearch")
    for case in result["cases"]:
        own = 1 / case["ns_per_comparison"]
        ratios = [case.get(f"ratio_to_{name}") for name in baselines]
        rates = [f"{own / ratio:.2f}" if ratio else "-" for ratio in ratios]
        words = case["n_bits"] // 64
        arithmetic = result["popcounts_per_s"] / words / 1e9
        memory = f"{own / case['fraction_of_limit']:.2f}" if case["batch"] == 1 else "-"
        sizes = [str(case["batch"]), str(case["n_bits"])]
        rows.append([*sizes, f"**{own:.2f}**", *rates, f"{arithmetic:.2f}", memory])
    rows.sort(key=lambda row: (-int(row[0]), int(row[1])))
    header = ["queries", "bits", "kdiffhash", "FAISS", "numkong, distances only", "usearch",
              "XOR, popcount, add", "reading the codes"]  # fmt: skip
    versions = result["machine"]["versions"]
    used = ", ".join(f"{name} {versions[name]}" for name in ("faiss-cpu", "numkong", "usearch"))
    note = (
        "Billions of comparisons per CPU second, one core, a million random codes. All but numkong "
        "also select the ten nearest codes of each query. The last two columns are ceilings: "
        "arithmetic on words in L1 cache, and, for one query, reading every code once from memory. "
        f"{used}. {machine_note(result)}. (`python benchmarks/comparison_rates.py`)"
    )
    return note + "\n\n" + table(header, rows)


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"rates": rates_table(result)}


def main() -> None:
    from support.hardware_ceiling import popcounts_per_s

    options = arguments(__doc__, n=1_000_000, repeats=5)
    codes, queries = random_codes(options.n, 100)
    cases = []
    for n_bits in BITS:
        for batch in (100, 1):
            repeats = options.repeats if batch > 1 else 3 * options.repeats
            case = measure(
                "random", codes, queries[:batch], n_bits, 10, 1, repeats, batch > 1,
                clock=time.process_time,
            )  # fmt: skip
            cases.append(case)
    report("comparison_rates", {"cases": cases, "popcounts_per_s": popcounts_per_s(1)}, options)


if __name__ == "__main__":
    main()
