"""Write the tables of README.md and docs/results.md from benchmarks/results/*.json.

With --check nothing is written; it fails where a table does not fit the results.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

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
        f"`sift_patches` describes {speed_row['n']:,} patches on two cores "
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


BLOCKS = {
    "docs/study.md": {"study": study, "across": across},
    "README.md": {"accuracy": accuracy_short},
    "docs/results.md": {"accuracy": accuracy_full, "speed": speed, "patches": patches},
    "docs/data.md": {"views": views, "build": build},
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
