"""Correct matches, precision and speed of matching photographs with known cameras.

All descriptors are computed at the same SIFT keypoints and matched by mutual nearest neighbours, on
pairs at most three photographs apart. A match is correct if each of its two points lies within 2
pixels of the epipolar line of the other. Every method gets the same test: two-way ratio, at the
threshold at which its precision on the set is 0.90. Intervals are over resamples of the pairs of
photographs. The test itself was chosen on herz-jesus-p8; castle-p30 is only reported on. The
pretrained model has seen photographs of neither.
"""

from __future__ import annotations

import subprocess
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from support.harness import arguments, interleaved, load, log, machine, report
from support.markdown import machine_note, table
from support.match_scores import (
    LEARNED,
    TESTS,
    MutualMatches,
    Quality,
    learned_scores,
    mutual_matches,
    relative_quality,
    two_way,
)
from support.photo_sets import (
    N_FEATURES,
    SETS,
    detect,
    epipolar,
    fundamental,
    pairs_of,
    photos_of,
)

from kdiffhash import load_pretrained, match_codes
from kdiffhash.learn.preprocess import preprocess_rows
from kdiffhash.vision.photo_matching import RATIO

LENGTHS = (64, 128, 256, 512)
NAMES = {"beblid": "BEBLID", "teblid": "TEBLID", "binboost": "BinBoost", "latch": "LATCH"}
TESTED = (("RootSIFT", 1024), ("kdiffhash", 128), ("kdiffhash", 256), ("kdiffhash", 512))
REPEATS = 3
Method = tuple[str, int]


def contrib_codes(
    photos: list[Path], keypoints: list[np.ndarray]
) -> Iterator[tuple[Method, list[tuple[np.ndarray, np.ndarray]]]]:
    """Yield methods of OpenCV contrib with codes and rows of keypoints, for each photograph."""
    environment = Path(tempfile.gettempdir()) / "kdiffhash-contrib"
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    install = [python, "-m", "pip", "install", "-q", "opencv-contrib-python-headless>=4.10"]
    subprocess.run(install, check=True)
    with tempfile.TemporaryDirectory() as scratch:
        inputs, out = Path(scratch) / "in.npz", Path(scratch) / "out.npz"
        arrays = {f"keypoints{i}": rows for i, rows in enumerate(keypoints)}
        np.savez(inputs, paths=[str(path) for path in photos], **arrays)
        script = Path(__file__).parent / "support" / "opencv_contrib.py"
        subprocess.run([python, script, inputs, out], check=True)
        computed = dict(np.load(out))
    for name, bits in sorted({tuple(key.split("-")[:2]) for key in computed}):
        keys = [f"{name}-{bits}-{i}" for i in range(len(photos))]
        yield (NAMES[name], int(bits)), [(computed[k], computed[f"{k}-rows"]) for k in keys]


def match_set(name: str, with_contrib: bool) -> tuple[dict[Method, MutualMatches], int]:
    """Return the mutual matches of each method on a set, and the number of pairs."""
    photos = photos_of(name)
    detected = [detect(photo) for photo in photos]
    keypoints, sift = [k for k, _ in detected], [d for _, d in detected]
    points, pairs = [k[:, :2] for k in keypoints], list(pairs_of(photos))
    matches: dict[Method, MutualMatches] = {}

    def error(a: int, b: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return epipolar(fundamental(photos[a], photos[b]), left, right)

    def add(method: Method, positions: list[np.ndarray], descriptors: list[np.ndarray]) -> None:
        matches[method] = mutual_matches(pairs, positions, descriptors, error)
        log(name, *method, f"{len(matches[method].pair):,} mutual matches")

    for method, preprocess in (("SIFT", None), ("RootSIFT", "hellinger")):
        add((method, 1024), points, [preprocess_rows(d, preprocess) for d in sift])
    model = load_pretrained("sift")
    for n_bits in LENGTHS:
        short = model.truncate(n_bits)
        add(("kdiffhash", n_bits), points, [short.transform(d) for d in sift])
    for method, described in contrib_codes(photos, keypoints) if with_contrib else ():
        positions = [points[i][rows] for i, (_, rows) in enumerate(described)]
        add(method, positions, [codes for codes, _ in described])
    return matches, len(pairs)


def method_rows(
    matches: list[dict[Method, MutualMatches]], n_pairs: list[int]
) -> list[dict[str, Any]]:
    """Return, for each method, its correct matches on each set and the ratio to RootSIFT."""
    quality = {
        method: [Quality(one[method], two_way(one[method])) for one in matches]
        for method in matches[0]
    }
    rows = []
    for (method, n_bits), ours in quality.items():
        ratios = relative_quality(ours, quality["RootSIFT", 1024], n_pairs)
        low, high = np.quantile(ratios[1:], [0.025, 0.975], axis=0)
        row: dict[str, Any] = {"method": method, "n_bits": n_bits, "sets": {}}
        for i, name in enumerate(SETS):
            correct, precision = ours[i].correct_at_precision(np.ones(n_pairs[i], int))
            threshold = [float(ratios[0, i]), float(low[i]), float(high[i])]
            row["sets"][name] = {"correct": correct, "precision": precision, "ratio": threshold}
        row["mean_ratio"] = [float(ratios[0, -1]), float(low[-1]), float(high[-1])]
        rows.append(row)
        log(row)
    return rows


def test_rows(matches: list[dict[Method, MutualMatches]]) -> list[dict[str, Any]]:
    """Return the correct matches of each test; learned scores are learned on the first set."""
    rows = []
    for method in TESTED:
        train = matches[0][method]
        for test in (*TESTS, *LEARNED):
            row: dict[str, Any] = {"method": method[0], "n_bits": method[1], "test": test}
            for name, one in zip(SETS, matches):
                found = one[method]
                scores = TESTS[test](found) if test in TESTS else learned_scores(test, train, found)
                counts = np.ones(int(found.pair.max()) + 1, int)
                row[name] = Quality(found, scores).correct_at_precision(counts)[0]
            rows.append(row)
            log(row)
    return rows


def bench_time() -> list[dict[str, Any]]:
    """Time matching in both directions with two neighbours, 8,000 features per photograph."""
    import cv2

    photos = photos_of("herz-jesus-p8")[2:4]
    a, b = (detect(photo, contrastThreshold=0.01)[1][:N_FEATURES] for photo in photos)
    assert len(a) == len(b) == N_FEATURES
    model, rows = load_pretrained("sift"), []
    for threads in (1, 2):
        cv2.setNumThreads(threads)
        model.n_jobs = threads

        def match_with_opencv(norm: int, left: np.ndarray, right: np.ndarray) -> None:
            matcher = cv2.BFMatcher(norm)
            matcher.knnMatch(left, right, 2)
            matcher.knnMatch(right, left, 2)

        left, right = a.astype(np.float32), b.astype(np.float32)
        functions: dict[str, Any] = {
            "float": lambda le=left, ri=right: match_with_opencv(cv2.NORM_L2, le, ri)
        }
        for n_bits in LENGTHS:
            short = model.truncate(n_bits)
            codes = short.transform(a), short.transform(b)
            match_codes(*codes, ratio=RATIO)  # warm up
            functions[f"binary {n_bits}"] = lambda c=codes: match_with_opencv(cv2.NORM_HAMMING, *c)
            for name, both in (("kdiffhash", True), ("one-way", False)):
                functions[f"{name} {n_bits}"] = lambda c=codes, t=threads, w=both: match_codes(
                    *c, ratio=RATIO, two_way=w, n_jobs=t
                )
            functions[f"encode {n_bits}"] = lambda s=short: (s.transform(a), s.transform(b))
        seconds = interleaved(functions, REPEATS)
        for n_bits in LENGTHS:
            ours = seconds[f"kdiffhash {n_bits}"]
            rows.append(
                {
                    "threads": threads,
                    "n_bits": n_bits,
                    "ms": 1000 * ours,
                    "ms_one_way": 1000 * seconds[f"one-way {n_bits}"],
                    "ms_with_encoding": 1000 * (ours + seconds[f"encode {n_bits}"]),
                    "ms_opencv_float": 1000 * seconds["float"],
                    "ms_opencv_binary": 1000 * seconds[f"binary {n_bits}"],
                    "times_float": seconds["float"] / ours,
                    "times_binary": seconds[f"binary {n_bits}"] / ours,
                }
            )
            log(rows[-1])
    return rows


def matching_table(result: dict[str, Any]) -> str:
    def ratio(values: list[float]) -> str:
        return "{:.2f} ({:.2f} to {:.2f})".format(*values)

    cells = []
    for row in sorted(result["rows"], key=lambda row: -row["mean_ratio"][0]):
        sets = [row["sets"][name] for name in SETS]
        cells.append(
            [
                row["method"],
                str(row["n_bits"]),
                str(row["n_bits"] // 8),
                *(_count(one) for one in sets),
                *(ratio(one["ratio"]) for one in sets),
                f"**{ratio(row['mean_ratio'])}**",
            ]
        )
    header = ["method", "bits", "bytes per feature"]
    header += [f"correct matches, {name}" for name in SETS]
    header += [f"relative to RootSIFT, {name}" for name in SETS]
    pairs = " and ".join(f"{n} pairs of {name}" for name, n in result["pairs"].items())
    note = (
        f"Matches at a precision of 0.90, on {pairs}; the two-way test for every method. Ratios "
        "with 95 % confidence intervals over pairs of photographs; bold: the mean of both sets. A "
        "set on which a method does not reach that precision is marked with its highest."
    )
    return f"{note}\n\n{table([*header, 'mean'], cells)}\n\n(`python benchmarks/matching.py`)"


def _count(one: dict[str, Any]) -> str:
    reached = "" if one["precision"] >= 0.9 else f" (precision {one['precision']:.2f})"
    return f"{one['correct']:,.0f}{reached}"


def tests_table(result: dict[str, Any]) -> str:
    rows = result["tests"]
    names = list(dict.fromkeys(row["test"] for row in rows))
    cells = []
    for method, n_bits in TESTED:
        for name in SETS:
            found = {
                row["test"]: row[name]
                for row in rows
                if (row["method"], row["n_bits"]) == (method, n_bits)
            }
            values = [
                f"{found[test]:,.0f} ({100 * (found[test] / found['one-way'] - 1):+.1f} %)"
                for test in names
            ]
            cells.append([f"{method}, {n_bits} bits", name, *values])
    note = (
        "Correct matches at a precision of 0.90. The likelihood ratio and the logistic regression "
        "are learned on `herz-jesus-p8`, and cross-validated over its pairs there."
    )
    header = ["method", "photographs", *names]
    return f"{note}\n\n{table(header, cells)}\n\n(`python benchmarks/matching.py`)"


def time_table(result: dict[str, Any]) -> str:
    rows = [
        [
            str(row["n_bits"]),
            str(row["threads"]),
            f"{row['ms']:.0f} ms",
            f"{row['ms'] / row['ms_one_way']:.2f}x" if "ms_one_way" in row else "-",
            f"{row['ms_with_encoding']:.0f} ms",
            f"{row['ms_opencv_float']:.0f} ms",
            f"**{row['times_float']:.0f}x**",
            f"{row['ms_opencv_binary']:.0f} ms",
            f"**{row['times_binary']:.0f}x**",
        ]
        for row in result["timing"]
    ]
    header = [
        "bits",
        "threads",
        "`match_codes`",
        "`match_codes` / the same with the one-way test",
        "encoding and `match_codes`",
        "BFMatcher, float SIFT",
        "BFMatcher, float SIFT / `match_codes`",
        "BFMatcher, same codes",
        "BFMatcher, same codes / `match_codes`",
    ]
    measured = machine_note({"machine": result["timing_machine"]})
    note = (
        "Time of matching one pair of photographs with 8,000 features each, in both directions, "
        f"two neighbours per feature, median of {REPEATS}. {measured}. "
        "(`python benchmarks/matching.py`)"
    )
    return note + "\n\n" + table(header, rows)


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {
        "matching": matching_table(result),
        "matching-tests": tests_table(result),
        "matching-time": time_table(result),
    }


def main() -> None:
    options = arguments(__doc__, baselines=1, quality=1, timing=1)
    result = {} if options.quality and options.timing else load("matching")
    for name in ("benchmark", "machine"):
        result.pop(name, None)
    if options.quality:
        found = [match_set(name, bool(options.baselines)) for name in SETS]
        matches, n_pairs = [one for one, _ in found], [n for _, n in found]
        result["rows"] = method_rows(matches, n_pairs)
        result["tests"] = test_rows(matches)
        result["pairs"] = dict(zip(SETS, n_pairs))
    if options.timing:
        result["timing"], result["timing_machine"] = bench_time(), machine()
    report("matching", result, options)


if __name__ == "__main__":
    main()
