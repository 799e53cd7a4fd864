"""Write the tables of README.md and of the pages in docs from benchmarks/results/*.json.

With --check nothing is written; it fails where a table does not fit the results.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
from fanout import Costs, simulate

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SCENES = {"boruszyn": "boruszyn (rural)", "castle-p30": "castle-p30 (architecture)"}


def load(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def accuracy_cells(test: str) -> dict[str, dict[int, str]]:
    """Cells "FNR (FPR95)" in percent, by method and length; the best FNR of a length is bold."""
    rows = [row for row in load("accuracy")["rows"] if row["test"] == test]
    best: dict[int, float] = {}
    for row in rows:
        length = row["n_bits"]
        best[length] = min(best.get(length, 1), row["fnr_at_1e-3"])
    cells: dict[str, dict[int, str]] = {}
    for row in rows:
        text = f"{100 * row['fnr_at_1e-3']:.1f} ({100 * row['fpr95']:.1f})"
        if row["fnr_at_1e-3"] == best[row["n_bits"]] and row["n_bits"] < 1024:
            text = f"**{text}**"
        cells.setdefault(row["method"], {})[row["n_bits"]] = text
    return cells


def accuracy_full() -> str:
    lengths = [32, 64, 128, 256, 512]
    parts = []
    for test, title in SCENES.items():
        rows = []
        for method, cells in accuracy_cells(test).items():
            if 1024 in cells:
                rows.append([f"{method} (1024 bits)", *[""] * 4, cells[1024]])
            else:
                rows.append([method, *[cells.get(n, "-") for n in lengths]])
        header = [f"tested on {title}", *[f"{n} bits" for n in lengths]]
        parts.append(table(header, rows))
    return "\n\n".join(parts)


def accuracy_short() -> str:
    wanted = {
        "SIFT, Euclidean": 1024,
        "RootSIFT, Euclidean": 1024,
        "random hyperplanes, RootSIFT": 256,
        "ITQ, RootSIFT": 128,
        "boosted SSH, projection, RootSIFT": 256,
        "DIF, difference, RootSIFT": 128,
        "LDA-hash, RootSIFT": 128,
        "kDIF, difference, RootSIFT": 256,
        "kernel LDA-hash, RootSIFT": 256,
        "kernel LDA-hash, refined, RootSIFT": 256,
    }
    cells = {test: accuracy_cells(test) for test in SCENES}
    rows = [
        [method, str(n), *[cells[test][method][n].replace("*", "") for test in SCENES]]
        for method, n in wanted.items()
    ]
    return table(["method", "bits", *SCENES.values()], rows)


def speed() -> str:
    encode, fit, memory = load("encode"), load("fit"), load("memory")
    rows = [
        [
            f"encode, {case['n_basis']} basis rows, {case['n_bits']} bits, "
            f"{case['threads']} thread{'s' if case['threads'] > 1 else ''}",
            f"{100 * case['fraction_of_sgemm']:.0f} % of the speed of its bare matrix products",
            f"{case['vectors_per_s']:,.0f} vectors/s",
        ]
        for case in encode["cases"]
    ]
    rows += [
        [
            f"fit, {case['n_basis']} basis rows, {case['n_bits']} bits, 300,000 pairs",
            f"{case['ratio_to_matmul']:.2f}x the time of its bare matrix products",
            f"{case['seconds']:.1f} s, peak {case['peak_mb']:.0f} MB",
        ]
        for case in fit["cases"]
    ]
    rows += [
        [
            f"encode {case['n']:,} memory-mapped descriptors",
            f"adds {case['added_mb']:.0f} MB, {case['codes_mb']:.0f} MB of them codes",
            f"{case['ns_per_vector'] / 1000:.2f} µs a descriptor",
        ]
        for case in memory["cases"]
    ]
    cpu = encode["machine"]
    note = f"Measured on {cpu['cpu']}, {cpu['cores']} cores, {cpu['memory_gb']} GB."
    return table(["task", "beside its limit", "absolute"], rows) + "\n\n" + note


def data_rows(what: str) -> list[dict]:
    return [row for row in load("data")["rows"] if row["what"] == what]


def views() -> str:
    size, *methods = data_rows("views")
    rows = []
    for row in methods:
        gap = "-"
        if "codes_minus_this" in row:
            value, low, high = (100 * number for number in row["codes_minus_this"])
            gap = f"{value:.1f} ({low:.1f} to {high:.1f})"
        rate = f"{100 * row['fnr_at_1e-3']:.1f} ({100 * row['fpr95']:.1f})"
        rows.append([row["method"], str(row["n_bits"]), rate, gap])
    header = [
        "on the test pictures",
        "bits",
        "FNR % at 0.1 % FPR (FPR95 %)",
        "codes minus this, 95 %",
    ]
    note = (
        f"{size['n_patches']:,} patches of {size['n_points']:,} points, made in "
        f"{size['seconds']:.0f} s on two cores. Learned from the training pictures; a million "
        "negatives."
    )
    return note + "\n\n" + table(header, rows)


def build() -> str:
    (row,) = data_rows("build")
    return (
        f"On the {row['photos_given']} photographs of `{row['photos']}`, 1536 pixels wide: "
        f"{row['photos_placed']} placed, {row['n_points']:,} points, {row['n_patches']:,} patches, "
        f"{100 * row['share_added']:.0f} % of them added by projection, in {row['seconds']:.0f} s "
        f"on two cores. {100 * row['share_within_2_px']:.1f} % of its positive pairs lie within 2 "
        "pixels of the epipolar lines of the published cameras. FPR95 of SIFT on it is "
        f"{100 * row['sift_fpr95']:.1f} %. COLMAP's threads make these figures vary a little from "
        "run to run. (`python benchmarks/data.py`)"
    )


def patches() -> str:
    (speed_row,) = data_rows("SIFT of patches")
    rows = [
        [
            row["scene"],
            row["sheets"],
            f"{100 * row['equal_rows']:.0f} %",
            f"{row['median_distance']:.1f}",
        ]
        for row in data_rows("SIFT of a scene")
    ]
    note = (
        f"`describe_patches` describes {speed_row['n']:,} patches on two cores "
        f"{speed_row['ratio_to_plain_loop']:.2f} times as quickly as a plain loop over OpenCV."
    )
    header = ["scene", "sheets", "rows equal to `sift.npy`", "median distance (length 512)"]
    return note + "\n\n" + table(header, rows)


def study() -> str:
    found = load("study")
    claims = [[claim["claim"], claim["verdict"], claim["found"]] for claim in found["claims"]]
    parts = [table(["claim", "verdict", "what was found"], claims)]
    for test in dict.fromkeys(row["test"] for row in found["rows"]):
        rows: dict[str, dict[int, str]] = {}
        for row in found["rows"]:
            if row["test"] == test:
                cell = f"{100 * row['fnr_at_1e-3']:.1f} ({100 * row['fpr95']:.1f})"
                rows.setdefault(row["title"], {})[row["n_bits"]] = cell
        lengths = [32, 64, 128, 256, 512, 1024]
        header = [f"tested on {test}", *[f"{n} bits" for n in lengths]]
        parts.append(
            table(header, [[t, *[c.get(n, "") for n in lengths]] for t, c in rows.items()])
        )
        case = f"herz-jesus-p25-to-{test}"
        parts.append(f"![ROC curves on {test}](study/roc-{case}.svg)")
        parts.append(f"![Error against size on {test}](study/size-{case}.svg)")
    parts.append("![Rates against alpha](study/alpha.svg)")
    return "\n\n".join(parts)


def across() -> str:
    found = load("study")["across"]
    rates = {
        (row["train"], row["test"], row["method"]): f"{100 * row['fnr_at_1e-3']:.1f}"
        for row in found["rows"]
        if row["n_bits"] in (512, 1024)
    }
    scenes = list(dict.fromkeys(train for train, _, _ in rates))
    rows = [[f"kDIF, learned on {a}", *[rates[a, b, "kdif"] for b in scenes]] for a in scenes]
    rows.append(["SIFT", *[rates[scenes[0], b, "sift"] for b in scenes]])
    claims = [
        [claim["claim"], claim["verdict"], claim["found"]]
        for claim in found["claims"]
        if claim["claim"].startswith(("what was learned", "it generalises", "for architecture"))
    ]
    matrix = table(["FNR % at 0.1 % FPR, 512 bits", *[f"on {scene}" for scene in scenes]], rows)
    return matrix + "\n\n" + table(["claim", "verdict", "what was found"], claims)


def machine_note(found: dict) -> str:
    machine = found["machine"]
    return f"Measured on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB"


def search() -> str:
    found = load("search")
    rows = []
    for case in found["cases"]:
        if case["batch"] == 100 and case["threads"] == 1:
            of = [c for c in found["cases"] if c["n_bits"] == case["n_bits"]]
            of = [c for c in of if c["data"] == case["data"]]
            alone = next(c for c in of if c["batch"] == 1 and c["threads"] == 1)
            both = next(c for c in of if c["batch"] == 100 and c["threads"] == 2)
            many = next(c for c in of if c["batch"] > 100)
            peers = [f"{case[f'ratio_to_{name}']:.0f} x" for name in ("opencv", "usearch", "numpy")]
            rows.append(
                [
                    str(case["n_bits"]),
                    case["data"],
                    f"{case['queries_per_s']:,.0f}",
                    f"**{case['ratio_to_faiss']:.1f} x**",
                    *peers,
                    f"{case['fraction_of_limit']:.2f}",
                    f"{both['ratio_to_faiss']:.1f} x",
                    f"{many['ratio_to_faiss']:.1f} x",
                    f"{alone['ratio_to_faiss']:.1f} x, {100 * alone['fraction_of_limit']:.0f} %",
                ]
            )
    header = [
        "bits",
        "codes",
        "queries/s",
        "FAISS",
        "OpenCV",
        "usearch",
        "NumPy",
        "xor, popcount, add",
        "2 threads, FAISS",
        "batch of 10,000, 2 threads, FAISS",
        "one query: FAISS, share of reading",
    ]
    growth = max(row["ratio"] for row in found["growth"])
    note = (
        f"{machine_note(found)}. A million codes, the ten nearest of a batch of 100 queries, one "
        "thread where nothing else is said; how many times as quick as each peer (FAISS "
        "`IndexBinaryFlat` in its best of four settings, in its default one for the batch of "
        "10,000), and beside the machine's limits: the "
        "rate of xor, popcount and add in the first cache, and for one query the time to read "
        "the codes once. At ten million codes a comparison takes at most "
        f"{growth:.2f} times as long as at one million. (`python benchmarks/search.py`)"
    )
    return note + "\n\n" + table(header, rows)


def search_short() -> str:
    found = load("search")
    cases = [c for c in found["cases"] if c["batch"] == 100 and c["threads"] == 1]
    cases = [c for c in cases if c["data"] == "real"]
    rows = [
        ["kdiffhash, queries/s", *[f"{c['queries_per_s']:,.0f}" for c in cases]],
        ["beside FAISS", *[f"**{c['ratio_to_faiss']:.1f} x**" for c in cases]],
        ["beside OpenCV's BFMatcher", *[f"{c['ratio_to_opencv']:.0f} x" for c in cases]],
        ["beside NumPy", *[f"{c['ratio_to_numpy']:.0f} x" for c in cases]],
    ]
    note = f"{machine_note(found)}. (`python benchmarks/search.py`)"
    return table(["", *[f"{c['n_bits']} bits" for c in cases]], rows) + "\n\n" + note


def early() -> str:
    cases = {(c["data"], c["k"]): c for c in load("search")["early_stop"]}
    rows = []
    for k in (1, 2):
        random, real = cases["random", k], cases["real", k]
        gain = real["queries_per_s"] / random["queries_per_s"]
        speeds = [
            f"{c['queries_per_s']:,.0f} ({c['ratio_to_faiss']:.1f} x)" for c in (random, real)
        ]
        rows.append([str(k), *speeds, f"{gain:.2f} x"])
    header = ["512 bits, k", "random codes, queries/s (FAISS)", "real codes", "gain"]
    return table(header, rows)


def recall() -> str:
    floats, *rows = load("search")["recall"]
    cells = [
        [
            str(row["n_bits"]),
            f"{100 * row['float']:.1f}",
            f"{100 * row['hash']:.1f}",
            f"{100 * row['reranked']:.1f}",
            f"{100 * row['recovered']:.0f} %",
        ]
        for row in rows
    ]
    header = ["bits", "real projections", "codes", "re-ranked, factor 10", "of the loss recovered"]
    note = (
        "Other views of a descriptor that are among its ten nearest, in percent, on scenes that "
        f"were not learned from (RootSIFT, Euclidean: {100 * floats['float']:.1f}). The stored "
        "side is bits only, and with few bits that is where most is lost: the query's "
        "projections cannot bring it back."
    )
    return note + "\n\n" + table(header, cells)


def crossover() -> str:
    found = load("crossover")
    rows = [
        [
            str(row["n_bits"]),
            f"{row['n']:,}",
            f"{1000 * row['exact_ms']:.0f}",
            f"{1000 * row['hnsw_ms']:.0f}",
            f"{100 * row['recall']:.0f} %",
        ]
        for row in found["rows"]
    ]
    header = ["bits", "real codes", "exact, µs a query", "FAISS HNSW", "found by HNSW"]
    note = f"{machine_note(found)}, one thread, batches of 100. (`python benchmarks/crossover.py`)"
    return table(header, rows) + "\n\n" + note


def radius() -> str:
    found = load("radius")
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
    return table(header, rows) + f"\n\n{machine_note(found)}. (`python benchmarks/radius.py`)"


def postgres() -> str:
    found = load("postgres")
    loading, _, searching = found["rows"]
    return (
        f"{found['n']:,} codes of {found['n_bits']} bits are loaded in {loading['seconds']:.1f} s, "
        f"at {100 * loading['ratio_to_copy']:.0f} % of the speed of a bare `COPY` of the same "
        "bytes into the same kind of table; an exact search takes "
        f"{searching['seconds']:.2f} s a query. {machine_note(found)}. "
        "(`python benchmarks/postgres.py`)"
    )


def disk() -> str:
    found = load("index")
    rows = [
        [row["what"], f"{row['seconds']:.3g} s", f"{row['added_mb']:.0f} MB"]
        for row in found["rows"]
    ]
    note = (
        f"{found['n']:,} codes of {found['n_bits']} bits, {found['bytes'] / 1e9:.2f} GB. "
        f"{machine_note(found)}. (`python benchmarks/index.py`)"
    )
    return note + "\n\n" + table(["step", "time", "anonymous memory added"], rows)


def scale() -> str:
    found = load("scale")
    names = {
        "encode": "encode, 128 bits, 1,000 basis rows",
        "search": f"{found['n_queries']:,} queries, the ten nearest",
        "fit": "learn from 300,000 pairs",
    }
    rows = []
    for task, name in names.items():
        one, two = (case for case in found["cases"] if case["task"] == task)
        rows.append(
            [
                name,
                f"{one['n'] / 1e6:.0f} million",
                f"{one['plain_seconds']:.1f} s",
                f"{one['seconds']:.1f} s ({100 * one['overhead']:+.0f} %)",
                f"{two['seconds']:.1f} s",
                f"**{two['speedup']:.2f} x**",
            ]
        )
    header = [
        "task",
        "rows or codes",
        "plain call, one thread",
        "one worker",
        "two workers",
        "gain",
    ]
    memory = max(found["worker_mb_while_encoding"].values())
    note = (
        f"{machine_note(found)}. Scheduler and workers are processes on this machine, one thread "
        f"a worker. Encoding {found['n_shards']} shards, a worker held at most "
        f"{memory:.0f} MB. Learning on a cluster computes features three times, where one machine "
        "computes them twice, and some of it (directions, the choice of thresholds) is not "
        "shared. (`python benchmarks/scale.py`)"
    )
    return note + "\n\n" + table(header, rows)


def duration(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{0 if seconds >= 10 * size else 1}f} {unit}"
    return f"{1000 * seconds:.0f} ms"


def size(n_bytes: float) -> str:
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= one:
            return f"{n_bytes / one:.{0 if n_bytes >= 10 * one else 1}f} {unit}"
    return f"{n_bytes:.0f} B"


def unit_costs() -> dict[str, float]:
    """Seconds for a descriptor or code, on one thread; bytes in PostgreSQL."""
    found, pg, index = load("scale"), load("postgres"), load("index")
    encode = next(case for case in found["cases"] if case["task"] == "encode")
    fit = next(case for case in found["cases"] if case["task"] == "fit")
    return {
        "encode": encode["plain_seconds"] / encode["n"],
        "fit": fit["plain_seconds"],
        "scan": found["simulation"]["costs"]["scan"],
        "load": pg["rows"][0]["seconds"] / pg["n"],
        "pg_bytes": pg["rows"][1]["bytes_per_code"],
        "build": index["rows"][0]["seconds"] / index["n"],
    }


def costs() -> str:
    cost, found = unit_costs(), load("scale")
    rows = [
        ["learn, 300,000 pairs, 1,000 basis rows", f"{cost['fit']:.0f} s in all", "`scale.py`"],
        ["encode, 128 bits", f"{1e6 * cost['encode']:.1f} µs", "`scale.py`"],
        ["put into an index file", f"{1e6 * cost['build']:.2f} µs", "`index.py`"],
        [
            "load into PostgreSQL, 256 bits",
            f"{1e6 * cost['load']:.1f} µs, {cost['pg_bytes']:.0f} bytes on disk",
            "`postgres.py`",
        ],
        ["compare with a query, 128 bits", f"{1e9 * cost['scan']:.2f} ns", "`scale.py`"],
    ]
    note = f"{machine_note(found)}; one thread, but PostgreSQL and index files use more."
    return note + "\n\n" + table(["step", "cost", "measured by `benchmarks/`"], rows)


def worked() -> str:
    cost = unit_costs()
    measured = Costs(**load("scale")["simulation"]["costs"])
    rows = []
    for n in (1e7, 1e8, 1e9):
        for workers in (1, 8, 64):
            search = simulate(measured, n, workers, 1000)
            rows.append(
                [
                    f"10{'⁷⁸⁹'[len(str(int(n))) - 8]}",
                    str(workers),
                    size(128 * n),
                    size(16 * n),
                    size(16 * n / workers),
                    duration(cost["encode"] * n / workers),
                    duration(float(np.median(search))),
                    f"{duration(cost['load'] * n)}, {size(cost['pg_bytes'] * n)}",
                ]
            )
    header = [
        "descriptors",
        "workers of one thread",
        "128-byte rows on disk",
        "128-bit codes",
        "codes a worker",
        "encode",
        "1,000 queries",
        "into one PostgreSQL, 256 bits",
    ]
    return table(header, rows)


def fanout() -> str:
    found = load("scale")["simulation"]
    measured = Costs(**found["costs"])
    tried = [
        [
            f"{row['workers']}",
            f"{row['predicted']:.2f} s",
            f"{row['measured']:.2f} s",
            f"{100 * row['error']:+.0f} %",
        ]
        for row in found["rows"]
    ]
    n = next(case["n"] for case in load("scale")["cases"] if case["task"] == "search")
    first = (
        f"{found['rows'][0]['n_queries']:,} queries against {n / 1e6:.0f} million codes of 128 "
        "bits: predicted from plain scans of half the codes, the round trip of an empty task, the "
        "bandwidth and the merge, and measured as a whole.\n\n"
        + table(["workers", "simulated", "measured", "difference"], tried)
    )
    rows = []
    for workers in (1, 8, 64):
        cells = []
        for slow in (0.0, 0.02):
            seconds = simulate(measured, 1e9, workers, 1000, slow_share=slow, slow_factor=3.0)
            low, high = np.quantile(seconds, (0.5, 0.99))
            cells += [duration(float(low)), duration(float(high))]
        few = simulate(measured, 1e7, workers, 1)
        rows.append([str(workers), *cells, duration(float(np.median(few)))])
    header = [
        "workers",
        "10⁹ codes, 1,000 queries: median",
        "99 % of the times",
        "one worker in fifty slow, threefold: median",
        "99 %",
        "10⁷ codes, one query",
    ]
    return first + "\n\nSimulated:\n\n" + table(header, rows)


def pretrained() -> str:
    rows: dict[tuple[str, int], dict[str, dict]] = {}
    for row in load("pretrained")["rows"]:
        rows.setdefault((row["method"], row["n_bits"]), {})[row["test"]] = row
    scenes = list(next(iter(rows.values())))
    names = {"open scenes": "codes, from open scenes", "all scenes": "codes, from all others"}

    def cell(row: dict) -> str:
        low, high = (100 * number for number in row["interval"])
        return f"{100 * row['fnr_at_1e-3']:.1f} ({low:.1f} to {high:.1f})"

    lines = []
    for (method, n_bits), cells in rows.items():
        mean = 100 * np.mean([row["fnr_at_1e-3"] for row in cells.values()])
        found = [cell(cells[scene]) for scene in scenes]
        lines.append([names.get(method, method), str(n_bits), *found, f"**{mean:.1f}**"])
    note = (
        "Similar pairs missed at 0.1 % false positives, in percent, with 95 % intervals; a million "
        "negatives. No scene is tested with a model that has seen it: an open scene is left out of "
        "the open ones too. (`python benchmarks/pretrained.py`)"
    )
    return note + "\n\n" + table(["descriptor", "bits", *scenes, "mean"], lines)


def matching() -> str:
    rows = sorted(load("matching")["rows"], key=lambda row: -row["correct"])
    lines = [
        [
            row["method"],
            str(row["n_bits"]),
            str(row["bytes_per_feature"]),
            f"{row['correct']:,}",
            f"{row['precision']:.2f}",
        ]
        for row in rows
    ]
    header = ["method", "bits", "bytes a feature", "correct matches", "precision"]
    return table(header, lines) + "\n\n(`python benchmarks/matching.py`)"


def matching_time() -> str:
    found = load("matching")
    lines = [
        [
            str(row["n_bits"]),
            str(row["threads"]),
            f"{row['ms']:.0f} ms",
            f"{row['ms_with_encoding']:.0f} ms",
            f"{row['ms_opencv_float']:.0f} ms",
            f"**{row['times_float']:.0f} x**",
            f"{row['ms_opencv_binary']:.0f} ms",
            f"**{row['times_binary']:.0f} x**",
        ]
        for row in found["timing"]
    ]
    header = [
        "bits",
        "threads",
        "`match_codes`",
        "with encoding",
        "BFMatcher, float SIFT",
        "times as fast",
        "BFMatcher, same codes",
        "times as fast",
    ]
    note = (
        "One pair of photographs with 8,000 features each, both ways with the two nearest. "
        f"{machine_note(found)}. (`python benchmarks/matching.py`)"
    )
    return note + "\n\n" + table(header, lines)


def colmap() -> str:
    found = load("colmap")
    whole = found["rows"][0]["descriptor_bytes"]
    lines = [
        [
            f"{row['method']}, {row['n_bits']} bits",
            f"{row['registered']} of {found['photos']}",
            f"{row['points']:,}",
            f"{row['reprojection_error']:.3f} px",
            f"{row['ms_per_pair']:.0f} ms",
            f"**{row['times_faster']:.1f} x**",
            f"{row['encoding_seconds']:.1f} s" if row["encoding_seconds"] else "-",
            f"{size(row['descriptor_bytes'])} ({whole / row['descriptor_bytes']:.0f} x smaller)",
        ]
        for row in found["rows"]
    ]
    header = [
        "matching",
        "registered",
        "points",
        "mean reprojection error",
        "matching a pair",
        "times as fast",
        "encoding, once",
        "descriptors",
    ]
    mean = np.mean(found["features"])
    note = (
        f"{mean:,.0f} features a photograph, all {found['pairs']} pairs, both ways, without "
        f"verification, on both cores. {machine_note(found)}. (`python benchmarks/colmap.py`)"
    )
    return note + "\n\n" + table(header, lines)


def frontier() -> str:
    found = load("frontier")
    lengths = [32, 64, 128, 256, 512]
    cells: dict[str, dict[int, dict]] = {}
    for row in found["rows"]:
        cells.setdefault(row["method"], {})[row["n_bits"]] = row
    best = {n: min(c[n]["fnr_at_1e-3"] for c in cells.values() if n in c) for n in lengths}
    lines = []
    for method, by_length in cells.items():
        line = [method]
        for n in lengths:
            if n not in by_length:
                line.append("-")
                continue
            row = by_length[n]
            text = f"{100 * row['fnr_at_1e-3']:.1f} ({100 * row['fpr95']:.1f})"
            line.append(f"**{text}**" if row["fnr_at_1e-3"] == best[n] else text)
        lines.append([*line, f"{max(row['fit_seconds'] for row in by_length.values()):.0f} s"])
    gaps = []
    for row in found["recommended_less_closed_form"]:
        low, high = (100 * number for number in row["interval"])
        text = f"{100 * row['difference']:.1f} ({low:.1f} to {high:.1f})"
        gaps.append((row["test"], row["n_bits"], text))
    scenes = list(dict.fromkeys(test for test, _, _ in gaps))
    by_place = {(test, n): text for test, n, text in gaps}
    more = [[scene, *(by_place[scene, n] for n in lengths)] for scene in scenes]
    note = (
        "Learned from three of herz-jesus-p25, castle-p30, caliterra and boruszyn, tested on the "
        "fourth, all four in turn, on RootSIFT: mean percent of similar pairs missed at 0.1 % "
        "false positives, in brackets false positives where 95 % are found. Best of a length in "
        "bold. "
        "KSH takes its time for each length and was learned up to 128 bits. KSH and SDH take the "
        "best of two settings, KSH of 1,000 or 3,000 rows, SDH of nu = 1e-5 or 1e-2. "
        "(`python benchmarks/frontier.py`)"
    )
    header = [f"{n} bits" for n in lengths]
    title = f"Difference in points, {found['recommended']} less closed form, paired, 95 %:"
    return "\n\n".join(
        [
            note,
            table(["method", *header, "longest fit"], lines),
            title,
            table(["tested on", *header], more),
        ]
    )


def refine() -> str:
    found = load("refine")
    (row,) = found["rows"]
    return (
        f"A step takes {row['ms_a_step']:.0f} ms, its matrix products alone "
        f"{row['ms_bare_products']:.0f} ms: **{row['ratio_to_products']:.2f} x**. The peak of a "
        f"process that learns from three scenes is {row['peak_mb']:,.0f} MB. "
        f"{machine_note(found)}. (`python benchmarks/refine.py`)"
    )


def levers() -> str:
    found = load("levers")
    lengths = list(found["rows"][0]["fnr_at_1e-3"])
    lines = [
        [
            row["lever"],
            *(f"{100 * row['fnr_at_1e-3'][n]:.1f} ({100 * row['fpr95'][n]:.1f})" for n in lengths),
            f"{row['seconds']:.0f} s",
        ]
        for row in found["rows"]
    ]
    note = (
        f"Learned from the other three scenes, tested on {found['test']}: percent missed at 0.1 % "
        "false positives, in brackets false positives where 95 % are found, and the time to learn. "
        "Each line changes one thing: down to *refined* beside the closed form, then beside 500 "
        "steps of refinement. (`python benchmarks/levers.py`)"
    )
    return f"{note}\n\n{table(['lever', *(f'{n} bits' for n in lengths), 'time'], lines)}"


def nesting() -> str:
    rows = load("nesting")["rows"]
    for n in dict.fromkeys(row["n_bits"] for row in rows):
        same = [row for row in rows if row["n_bits"] == n]
        means = {key: sum(row[key] for row in same) / len(same) for key in ("nested", "alone")}
        rows = [*rows, {"test": "mean", "n_bits": n, **means}]
    lines = [
        [
            row["test"],
            str(row["n_bits"]),
            f"{100 * row['nested']:.1f}",
            f"{100 * row['alone']:.1f}",
            f"{100 * (row['nested'] - row['alone']):+.1f}",
        ]
        for row in rows
    ]
    note = (
        "Percent missed at 0.1 % false positives by prefixes of 512 bits, and by codes that were "
        "refined for one length alone; learned from the other three scenes. "
        "(`python benchmarks/nesting.py`)"
    )
    header = ["tested on", "bits", "prefix", "alone", "difference"]
    return f"{note}\n\n{table(header, lines)}"


def cross() -> str:
    found = load("cross")
    lines = [
        [
            row["method"],
            str(row["n_bits"]),
            f"{row['map_sift_to_pixels']:.3f}",
            f"{row['map_pixels_to_sift']:.3f}",
        ]
        for row in found["rows"]
    ]
    note = (
        "SIFT on one side, 16 x 16 pixels of the same patches on the other; learned from "
        f"{found['train']}, {found['n_queries']:,} queries among {found['n_database']:,} patches "
        f"of {found['test']}. Mean average precision. (`python benchmarks/cross.py`)"
    )
    header = ["method", "bits", "SIFT finds pixels", "pixels find SIFT"]
    return note + "\n\n" + table(header, lines)


def sequential() -> str:
    found = load("sequential")
    lines = []
    for row in found["rows"]:
        low, high = (100 * number for number in row["whole_fnr_interval"])
        lines.append(
            [
                row["test"],
                f"{100 * row['wanted_fpr']:g} %",
                f"{100 * row['fpr']:.2f} %",
                f"{100 * row['fnr']:.1f} %",
                f"{100 * row['whole_fnr_at_fpr']:.1f} % ({low:.1f} to {high:.1f})",
                f"{row['bits_similar']:.0f}",
                f"{row['bits_dissimilar']:.0f}",
                f"**{100 * row['share_read']:.0f} %**",
                f"{row['times_as_fast']:.1f} x",
            ]
        )
    note = (
        f"Codes of {found['n_bits']} bits learned from {found['trained_on']}; when to stop is "
        "learned from two scenes, and tested on a third. Whole codes are compared at the "
        "false-positive rate that the sequential test had there, with 95 % intervals. The share of "
        "bits read is that of as many similar pairs as others; time is that of decisions beside "
        "that of distances of whole codes. (`python benchmarks/sequential.py`)"
    )
    header = [
        "tested on",
        "wanted FPR",
        "FPR",
        "FNR",
        "FNR of whole codes",
        "bits read, similar",
        "bits read, others",
        "share of bits",
        "times as fast",
    ]
    return note + "\n\n" + table(header, lines)


def onnx() -> str:
    found = load("onnx_graphs")
    lines = []
    for row in found["rows"]:
        unlike, plain = row["unlike_in_a_million"], row["float32_unlike_in_a_million"]
        time = f"{row['times_float32']:.2f} x" if plain != unlike else "-"  # linear: all the same
        lines.append([row["model"], str(row["n_bits"]), f"**{unlike:.2g}**", f"{plain:.3g}", time])
    note = (
        "On the descriptors of castle-p30: bits in a million in which graph and `transform` "
        "differ, how many it would be by float32 alone, and the time of `transform` beside that. "
        "(`python benchmarks/onnx_graphs.py`)"
    )
    header = ["model", "bits", "differ, in a million", "by float32 alone", "time"]
    return f"{note}\n\n{table(header, lines)}"


BLOCKS = {
    "docs/frontier.md": {
        "frontier": frontier,
        "refine": refine,
        "nesting": nesting,
        "levers": levers,
        "cross": cross,
        "sequential": sequential,
        "onnx": onnx,
    },
    "docs/search.md": {
        "search": search,
        "early": early,
        "recall": recall,
        "crossover": crossover,
        "radius": radius,
        "disk": disk,
    },
    "docs/study.md": {"study": study, "across": across},
    "README.md": {"accuracy": accuracy_short, "search": search_short},
    "docs/results.md": {"accuracy": accuracy_full, "speed": speed, "patches": patches},
    "docs/postgres.md": {"postgres": postgres},
    "docs/data.md": {"views": views, "build": build},
    "docs/dask.md": {"scale": scale},
    "docs/photos.md": {
        "colmap": colmap,
        "matching": matching,
        "matching-time": matching_time,
        "pretrained": pretrained,
    },
    "docs/billion.md": {"costs": costs, "worked": worked, "fanout": fanout},
}


def main() -> None:
    stale = []
    for name, blocks in BLOCKS.items():
        path = ROOT / name
        text = old = path.read_text()
        for block, make in blocks.items():
            start, end = f"<!-- table: {block} -->", f"<!-- end of {block} -->"
            pattern = re.escape(start) + ".*?" + re.escape(end)
            replacement = f"{start}\n{make()}\n{end}"
            text = re.sub(pattern, lambda _, new=replacement: new, text, flags=re.DOTALL)
        if text != old and "--check" in sys.argv:
            stale.append(name)
        elif text != old:
            path.write_text(text)
            print(f"wrote the tables of {name}")
    if stale:
        sys.exit(f"{', '.join(stale)}: run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
