"""Change of domain: trained on each scene, tested on each other one, linear and kernel codes.

Every scene that is both trained and tested on is split into halves, by photographs where they are
known and in blocks otherwise, so the diagonal is not measured on training data. One seed, 100,000
positive and 200,000 negative training pairs, a million negative test pairs. `--out` keeps finished
steps; `--methods NAMES` measures only these, separated by commas, and keeps the rows of the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.harness import arguments, report, stored_rows
from support.markdown import table

from kdiffhash.study import run_study

SCENES = ("herz-jesus-p25", "castle-p30", "boruszyn", "caliterra", "notredame-2007")
BITS = (64, 128, 256, 512)
METHODS = ("sift", "rootsift", "dif", "lda", "kdif", "kernel-lda")


def domain_table(result: dict[str, Any]) -> str:
    rates = {
        (row["train"], row["test"], row["method"], row["n_bits"]): 100 * row["fnr_at_1e-3"]
        for row in result["rows"]
    }

    def texts(train: str, test: str, method: str) -> str:
        found = [rates.get((train, test, method, n)) for n in BITS]
        return "/".join(f"{rate:.1f}" for rate in found if rate is not None)

    parts = [
        "FNR in percent at 0.1 % FPR at 64/128/256/512 bits (linear codes: 64/128), on RootSIFT. "
        "Rows are training scenes, columns test scenes; a scene in both is split into halves. "
        "Labels of notredame-2007 are recovered. (`python benchmarks/domains.py`)"
    ]
    for method, title in (("lda", "LDA-hash (linear)"), ("kernel-lda", "kernel LDA-hash")):
        rows = [[train, *(texts(train, test, method) for test in SCENES)] for train in SCENES]
        if method == "lda":
            floats = [f"{rates[SCENES[0], test, 'rootsift', 1024]:.1f}" for test in SCENES]
            rows.append(["RootSIFT itself", *floats])
        parts.append(table([f"{title}, trained on", *SCENES], rows))
    counts = []
    for n in (64, 128):
        others = [(a, b) for a in SCENES for b in SCENES if a != b]
        wins = sum(rates[a, b, "kernel-lda", n] < rates[a, b, "lda", n] for a, b in others)
        counts.append(f"{wins} of {len(others)} at {n} bits")
    same = [
        f"{sum(rates[a, a, 'kernel-lda', n] < rates[a, a, 'lda', n] for a in SCENES)} of "
        f"{len(SCENES)} at {n} bits"
        for n in (64, 128)
    ]
    parts.append(
        "At equal length the kernel code has the lower FNR than the linear one in "
        f"{' and '.join(counts)} of the cases with another training scene, and in "
        f"{' and '.join(same)} when trained on the other half of the test scene."
    )
    return "\n\n".join(parts)


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"domains": domain_table(result)}


def main() -> None:
    options = arguments(__doc__, out="domains-report", methods=",".join(METHODS))
    results = run_study(
        Path(options.out),
        train_scenes=list(SCENES),
        test_scenes=list(SCENES),
        methods=options.methods.split(","),
        lengths=BITS,
        n_seeds=1,
    )
    keys = ("train", "test", "method", "n_bits", "fnr_at_1e-3", "fnr_at_1e-4", "fpr95")
    rows = [{key: row[key] for key in keys} for row in results.table()]
    measured = {row["method"] for row in rows}
    if measured != set(METHODS):
        rows += stored_rows("domains", lambda row: row["method"] not in measured)
        rows.sort(key=lambda row: METHODS.index(row["method"]))
    report("domains", {"rows": rows, "errors": results.errors}, options)


if __name__ == "__main__":
    main()
