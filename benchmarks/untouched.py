"""All methods on the untouched scenes, on which nothing was ever chosen.

Every method is trained once on the pairs of herz-jesus-p25, castle-p30, caliterra and boruszyn
together (100,000 positive, 200,000 negative) and tested on oxford-affine, sceaux and notredame-2007
(labels recovered): the positives of the test list and a million negatives. Settings come from a
validation set of training points. `--out` keeps finished steps, so that an interrupted run resumes.
`--methods NAMES` measures only these, separated by commas, and keeps the stored rows of the others.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from support.harness import arguments, report, stored_rows
from support.markdown import table

from kdiffhash.datasets import load_scene
from kdiffhash.study import run_study
from kdiffhash.study.methods import METHODS

TRAINED_ON = ("herz-jesus-p25", "castle-p30", "caliterra", "boruszyn")
UNTOUCHED = ("oxford-affine", "sceaux", "notredame-2007")
BITS = (32, 64, 128, 256, 512)
RATES = ("fnr_at_1e-3", "fnr_at_1e-4", "fpr95")


def join_scenes(folder: Path) -> str:
    """Write the descriptors and labels of the training scenes as one scene."""
    target = folder / "four-scenes"
    if not (target / "info.txt").is_file():
        target.mkdir(parents=True, exist_ok=True)
        scenes = [load_scene(name) for name in TRAINED_ON]
        np.save(target / "sift.npy", np.concatenate([np.asarray(s.descriptors) for s in scenes]))
        first = np.cumsum([0, *(scene.points.max() + 1 for scene in scenes[:-1])])
        points = np.concatenate([scene.points + n for scene, n in zip(scenes, first)])
        np.savetxt(target / "info.txt", np.column_stack([points, np.zeros_like(points)]), fmt="%d")
    return str(target)


def untouched_table(result: dict[str, Any]) -> str:
    parts = [
        "Trained on herz-jesus-p25, castle-p30, caliterra and boruszyn together, one seed; tested "
        "on scenes on which no parameter, default or method was ever chosen. FNR in percent at "
        "0.1 % FPR, at 0.01 % FPR in brackets; a dagger marks rates with too few objects behind "
        "the false positives for a reliable confidence interval. Labels of notredame-2007 are "
        "recovered. "
        "(`python benchmarks/untouched.py`)"
    ]
    for scene in UNTOUCHED:
        cells: dict[str, dict[int, str]] = {}
        for row in result["rows"]:
            if row["scene"] == scene:
                marks = ["" if row[f"{rate}_reliable"] else "†" for rate in RATES[:2]]
                text = f"{100 * row['fnr_at_1e-3']:.1f}{marks[0]} "
                text += f"({100 * row['fnr_at_1e-4']:.1f}{marks[1]})"
                size = row["n_bits"] if row["is_code"] else 0
                cells.setdefault(row["title"], {})[size] = text
        header = [f"tested on {scene}", "floats", *(f"{n} bits" for n in BITS)]
        rows = [[name, *(c.get(n, "") for n in (0, *BITS))] for name, c in cells.items()]
        parts.append(table(header, rows))
    return "\n\n".join(parts)


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"untouched": untouched_table(result)}


def main() -> None:
    options = arguments(__doc__, out="untouched-report", methods="")
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    shipped = out / "pretrained.safetensors"  # under a name that no method has
    shipped.write_bytes((files("kdiffhash.hashers") / "models" / "sift.safetensors").read_bytes())
    results = run_study(
        out,
        train_scenes=[join_scenes(out)],
        test_scenes=list(UNTOUCHED),
        methods=options.methods.split(",") if options.methods else [*METHODS, str(shipped)],
        n_seeds=1,
    )
    rows = []
    for row in results.table():
        arrays = results.measured[row["train"], row["test"], row["method"]]
        title = "model of the package" if row["method"] == shipped.stem else row["title"]
        kept = {key: row[key] for rate in RATES for key in (rate, f"{rate}_reliable")}
        which = {"method": row["method"], "title": title, "scene": row["test"]}
        rows.append({**which, "n_bits": row["n_bits"], "is_code": bool(arrays["is_code"]), **kept})
    if options.methods:
        measured = {row["method"] for row in rows}
        rows += stored_rows("untouched", lambda row: row["method"] not in measured)
        order = [*METHODS, shipped.stem]
        rows.sort(key=lambda row: order.index(row["method"]))
    report("untouched", {"rows": rows, "errors": results.errors}, options)


if __name__ == "__main__":
    main()
