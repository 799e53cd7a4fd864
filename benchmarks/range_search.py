"""Range search on a million codes: lookup tables (multi-index hashing) against a full scan.

One thread, batches of 1,000 queries; the time to build the tables is not included. The result shows
up to which radius tables are faster, and which of the two `HammingIndex` chooses.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from support.code_sets import random_codes, real_codes
from support.harness import arguments, interleaved, log, report
from support.markdown import machine_note, table

from kdiffhash import HammingIndex
from kdiffhash.codes import truncate
from kdiffhash.search import lookup_tables as lookup

RADII = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.15)  # as a fraction of the code length


def radius_table(result: dict[str, Any]) -> str:
    rows = [
        [
            row["data"],
            str(row["n_bits"]),
            str(row["radius"]),
            f"{row['scan_us']:.0f}",
            f"{row['tables_us']:.1f}" if "tables_us" in row else "",
            "tables" if row["chosen"] else "scan",
        ]
        for row in result["rows"]
    ]
    header = [
        "codes",
        "bits",
        "radius",
        "scan, µs per query",
        "tables, µs per query",
        "chosen for many queries",
    ]
    note = f"{machine_note(result)}. (`python benchmarks/range_search.py`)"
    return f"{table(header, rows)}\n\n{note}"


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"radius": radius_table(result)}


def main() -> None:
    options = arguments(__doc__, n=1_000_000)
    sets: dict[str, Any] = {"random": random_codes(options.n, 1000)}
    if real := real_codes(options.n, 1000):
        sets["real"] = (real["codes"], real["queries"])
    choose, rows = lookup.choose_substrings, []
    for data, (codes, queries) in sets.items():
        for n_bits in (64, 128, 256):
            index, short = HammingIndex(truncate(codes, n_bits)), truncate(queries, n_bits)
            segment = index._segments[0]
            for fraction in RADII:
                radius = int(fraction * n_bits)
                n_substrings = lookup.cheapest_substrings(
                    options.n, n_bits, radius, 10**9, frozenset(range(1, 99))
                )
                chosen = choose(segment, radius, n_bits, 10**6)

                def count(substrings: int, radius=radius, index=index, short=short) -> int:
                    lookup.choose_substrings = lambda *_: substrings
                    return len(index.search_radius(short, radius, n_jobs=1)[2])

                n_results, build_seconds = count(0), None
                functions = {"scan": partial(count, 0)}
                if n_substrings:
                    start = time.perf_counter()
                    assert count(n_substrings) == n_results
                    build_seconds = time.perf_counter() - start
                    functions["tables"] = partial(count, n_substrings)
                seconds = interleaved(functions, 3)
                row = {"data": data, "n_bits": n_bits, "radius": radius}
                row["results_per_query"] = n_results / 1000
                row |= {f"{name}_us": 1000 * value for name, value in seconds.items()}
                row |= {"substrings": n_substrings, "build_seconds": build_seconds}
                rows.append({**row, "chosen": bool(chosen)})
                log(rows[-1])
                lookup.choose_substrings = choose
    report("range_search", {"n": options.n, "batch": 1000, "threads": 1, "rows": rows}, options)


if __name__ == "__main__":
    main()
