"""All codes within a radius: tables of multi-index hashing beside a pass, on a million codes.

One thread, batches of 1,000 queries; the tables are there before the clock starts. Shows up to
which radius tables pay, which `HammingIndex` decides by itself.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from support.code_sets import random_codes, real_codes
from support.harness import arguments, interleaved, report, say
from support.markdown import machine_note, table

from kdiffhash import HammingIndex
from kdiffhash.codes import truncate
from kdiffhash.search import lookup_tables as lookup

SHARES = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.15)


def radius_table(found: dict[str, Any]) -> str:
    rows = [
        [
            row["data"],
            str(row["n_bits"]),
            str(row["radius"]),
            f"{row['pass_us']:.0f}",
            f"{row['tables_us']:.1f}" if "tables_us" in row else "",
            "tables" if row["chosen"] else "pass",
        ]
        for row in found["rows"]
    ]
    header = ["codes", "bits", "radius", "pass, µs a query", "tables", "chosen for many queries"]
    return table(header, rows) + f"\n\n{machine_note(found)}. (`python benchmarks/range_search.py`)"


def tables(found: dict[str, Any]) -> dict[str, str]:
    return {"radius": radius_table(found)}


def main() -> None:
    options = arguments(__doc__, n=1_000_000)
    sets: dict[str, Any] = {"random": random_codes(options.n, 1000)}
    if real := real_codes(options.n, 1000):
        sets["real"] = (real["codes"], real["queries"])
    choose, rows = lookup.choose_substrings, []
    for data, (codes, queries) in sets.items():
        for n_bits in (64, 128, 256):
            index, asked = HammingIndex(truncate(codes, n_bits)), truncate(queries, n_bits)
            segment = index._segments[0]
            for share in SHARES:
                radius = int(share * n_bits)
                n_parts = lookup.cheapest_substrings(
                    options.n, n_bits, radius, 10**9, frozenset(range(1, 99))
                )
                chosen = choose(segment, radius, n_bits, 10**6)

                def find(parts: int, radius=radius, index=index, asked=asked) -> int:
                    lookup.choose_substrings = lambda *_: parts
                    return len(index.search_radius(asked, radius, n_jobs=1)[2])

                found, made = find(0), None
                functions = {"pass": partial(find, 0)}
                if n_parts:
                    start = time.perf_counter()
                    assert find(n_parts) == found
                    made = time.perf_counter() - start
                    functions["tables"] = partial(find, n_parts)
                seconds = interleaved(functions, 3)
                row = {"data": data, "n_bits": n_bits, "radius": radius, "found": found / 1000}
                row |= {f"{name}_us": 1000 * value for name, value in seconds.items()}
                rows.append({**row, "parts": n_parts, "made_s": made, "chosen": bool(chosen)})
                say(rows[-1])
                lookup.choose_substrings = choose
    report("range_search", {"n": options.n, "batch": 1000, "threads": 1, "rows": rows}, options)


if __name__ == "__main__":
    main()
