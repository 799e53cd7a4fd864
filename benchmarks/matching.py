"""Correct matches, precision and speed of matching photographs with known cameras.

All descriptors are computed at the same SIFT keypoints of herz-jesus-p8 and matched by mutual
nearest neighbours with a ratio test, on pairs at most three photographs apart. A match is correct
if each of its two points lies within 2 pixels of the epipolar line of the other. Methods are
compared at a precision of 0.90, interpolated between ratios. Besides the pretrained model there is
one trained with the same settings on one scene more, castle-p30; neither has seen herz-jesus-p25,
which shows the same façade.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import venv
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from pretrained_model import OPEN, train
from support.harness import arguments, interleaved, log, report
from support.markdown import machine_note, table

from kdiffhash import HammingIndex, load_pretrained, match_codes
from kdiffhash.learn.preprocess import preprocess_rows

N_PHOTOS, APART, TOLERANCE, PRECISION = 8, 3, 2.0, 0.90
N_FEATURES = 8000
RATIOS = np.arange(0.40, 1.001, 0.01)
LENGTHS = (64, 128, 256, 512)
NAMES = {"beblid": "BEBLID", "teblid": "TEBLID", "binboost": "BinBoost", "latch": "LATCH"}


def photo_folder() -> Path:
    """Return the folder of the photographs."""
    return Path(os.environ["KDIFFHASH_PHOTOS"]) / "herz-jesus-p8"


def camera(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return calibration at half the size, rotation from world to camera, and centre."""
    values = np.array((photo_folder() / f"{number:04d}.camera").read_text().split(), float)
    half = np.diag([0.5, 0.5, 1.0])
    return half @ values[:9].reshape(3, 3), values[12:21].reshape(3, 3).T, values[21:24]


def fundamental(a: int, b: int) -> np.ndarray:
    """Return the fundamental matrix of two photographs."""
    (k1, r1, c1), (k2, r2, c2) = camera(a), camera(b)
    x, y, z = r2 @ (c1 - c2)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.linalg.inv(k2).T @ cross @ r2 @ r1.T @ np.linalg.inv(k1)


def epipolar(f: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the distance to the epipolar line in pixels, the larger of both photographs."""
    left, right = (np.column_stack([points, np.ones(len(points))]) for points in (left, right))
    lines, back = left @ f.T, right @ f
    error = np.abs((right * lines).sum(axis=1))
    return np.maximum(error / np.hypot(*lines[:, :2].T), error / np.hypot(*back[:, :2].T))


def detect(number: int, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return keypoints (x, y, size, angle, response, octave) and SIFT of a photograph."""
    import cv2

    image = cv2.imread(str(photo_folder() / f"{number:04d}.jpg"), cv2.IMREAD_GRAYSCALE)
    keypoints, descriptors = cv2.SIFT_create(nfeatures=N_FEATURES, **options).detectAndCompute(
        image, None
    )
    values = [[*p.pt, p.size, p.angle, p.response, p.octave] for p in keypoints]
    return np.array(values), descriptors.astype(np.uint8)


def two_nearest(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the nearest row of b and the two smallest distances, and the nearest row of a."""
    if a.dtype == np.uint8:
        distances, ids = HammingIndex(b).search(a, 2)
        return ids[:, 0], distances.astype(float), HammingIndex(a).search(b, 1)[1][:, 0]
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T
    two = np.argpartition(squares, 1, axis=1)[:, :2]
    values = np.take_along_axis(squares, two, 1)
    order = np.argsort(values, axis=1)
    two, values = np.take_along_axis(two, order, 1), np.take_along_axis(values, order, 1)
    return two[:, 0], np.sqrt(np.maximum(values, 0)), squares.argmin(axis=0)


def correct_matches(points: list[np.ndarray], descriptors: list[np.ndarray]) -> dict[str, Any]:
    """Return the number of correct matches at a precision of `PRECISION`."""
    correct, total = np.zeros(len(RATIOS)), np.zeros(len(RATIOS))
    for a, b in combinations(range(N_PHOTOS), 2):
        if b - a > APART:
            continue
        nearest, values, back = two_nearest(descriptors[a], descriptors[b])
        mutual = back[nearest] == np.arange(len(nearest))
        error = epipolar(fundamental(a, b), points[a], points[b][nearest])
        for i, ratio in enumerate(RATIOS):
            passed = mutual & (values[:, 0] < ratio * values[:, 1])
            correct[i] += (passed & (error < TOLERANCE)).sum()
            total[i] += passed.sum()
    precision = correct / np.maximum(total, 1)
    reached = precision >= PRECISION
    if not reached.any():
        best = int(precision.argmax())
        return {"correct": int(correct[best]), "precision": float(precision[best])}
    last = int(np.flatnonzero(reached)[-1])  # precision falls as the ratio rises
    following = min(last + 1, len(RATIOS) - 1)
    span = precision[last] - precision[following]
    share = (precision[last] - PRECISION) / span if span > 0 else 0.0
    interpolated = correct[last] + share * (correct[following] - correct[last])
    return {"correct": int(interpolated), "precision": PRECISION}


def baselines(keypoints: list[np.ndarray]) -> dict[tuple[str, int], list[tuple[Any, Any]]]:
    """Return the codes of OpenCV contrib and the rows of their keypoints, by method and length."""
    environment = Path(tempfile.gettempdir()) / "kdiffhash-contrib"
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    install = [python, "-m", "pip", "install", "-q", "opencv-contrib-python-headless>=4.10"]
    subprocess.run(install, check=True)
    with tempfile.TemporaryDirectory() as scratch:
        inputs, out = Path(scratch) / "in.npz", Path(scratch) / "out.npz"
        arrays = {f"keypoints{i}": rows for i, rows in enumerate(keypoints)}
        paths = [str(photo_folder() / f"{i:04d}.jpg") for i in range(N_PHOTOS)]
        np.savez(inputs, paths=paths, **arrays)
        script = Path(__file__).parent / "support" / "opencv_contrib.py"
        subprocess.run([python, script, inputs, out], check=True)
        computed = dict(np.load(out))
    names = {tuple(key.split("-")[:2]) for key in computed}
    return {
        (name, int(bits)): [
            (computed[f"{name}-{bits}-{i}"], computed[f"{name}-{bits}-{i}-rows"])
            for i in range(N_PHOTOS)
        ]
        for name, bits in sorted(names)
    }


def bench_time() -> list[dict[str, Any]]:
    """Time matching in both directions with two neighbours, 8,000 features per photograph."""
    import cv2

    a, b = (detect(i, contrastThreshold=0.01)[1][:N_FEATURES] for i in (2, 3))
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
            match_codes(*codes, ratio=0.76)  # warm up
            functions[f"binary {n_bits}"] = lambda c=codes: match_with_opencv(cv2.NORM_HAMMING, *c)
            functions[f"kdiffhash {n_bits}"] = lambda c=codes, t=threads: match_codes(
                *c, ratio=0.76, n_jobs=t
            )
            functions[f"encode {n_bits}"] = lambda s=short: (s.transform(a), s.transform(b))
        seconds = interleaved(functions, 9)
        for n_bits in LENGTHS:
            ours = seconds[f"kdiffhash {n_bits}"]
            rows.append(
                {
                    "threads": threads,
                    "n_bits": n_bits,
                    "ms": 1000 * ours,
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
    rows = sorted(result["rows"], key=lambda row: -row["correct"])
    cells = [
        [
            row["method"],
            str(row["n_bits"]),
            str(row["bytes_per_feature"]),
            f"{row['correct']:,}",
            f"{row['precision']:.2f}",
        ]
        for row in rows
    ]
    header = ["method", "bits", "bytes per feature", "correct matches", "precision"]
    return table(header, cells) + "\n\n(`python benchmarks/matching.py`)"


def time_table(result: dict[str, Any]) -> str:
    rows = [
        [
            str(row["n_bits"]),
            str(row["threads"]),
            f"{row['ms']:.0f} ms",
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
        "encoding and `match_codes`",
        "BFMatcher, float SIFT",
        "BFMatcher, float SIFT / `match_codes`",
        "BFMatcher, same codes",
        "BFMatcher, same codes / `match_codes`",
    ]
    note = (
        "Time of matching one pair of photographs with 8,000 features each, in both directions, "
        f"two neighbours per feature. {machine_note(result)}. (`python benchmarks/matching.py`)"
    )
    return note + "\n\n" + table(header, rows)


def tables(result: dict[str, Any]) -> dict[str, str]:
    return {"matching": matching_table(result), "matching-time": time_table(result)}


def main() -> None:
    options = arguments(__doc__, baselines=1)
    detected = [detect(i) for i in range(N_PHOTOS)]
    keypoints, sift = [k for k, _ in detected], [d for _, d in detected]
    points = [k[:, :2] for k in keypoints]
    timing = bench_time()
    ms = {row["n_bits"]: row for row in timing if row["threads"] == 2}
    rows: list[dict[str, Any]] = []

    def add(
        method: str, n_bits: int, matches: dict[str, Any], ms_per_pair: float, **more: Any
    ) -> None:
        row = {"method": method, "n_bits": n_bits, **matches, "ms_per_pair": ms_per_pair}
        rows.append({**row, "bytes_per_feature": n_bits // 8, **more})
        log(rows[-1])

    float_ms = ms[256]["ms_opencv_float"]
    for method, preprocess in (("SIFT", None), ("RootSIFT", "hellinger")):
        floats = [preprocess_rows(d, preprocess) for d in sift]
        add(method, 1024, correct_matches(points, floats), float_ms)
    assert "herz-jesus-p25" not in OPEN  # it shows the same façade
    models = {
        "kdiffhash, pretrained model": load_pretrained("sift"),
        "kdiffhash, trained with castle-p30 too": train((*OPEN, "castle-p30")),
    }
    for name, model in models.items():
        for n_bits in LENGTHS:
            short = model.truncate(n_bits)
            codes = [short.transform(d) for d in sift]
            with_encoding = ms[n_bits]["ms_with_encoding"]
            add(
                name,
                n_bits,
                correct_matches(points, codes),
                ms[n_bits]["ms"],
                ms_with_encoding=with_encoding,
            )
    if options.baselines:
        for (method, n_bits), photos in baselines(keypoints).items():
            described = [points[i][indices] for i, (_, indices) in enumerate(photos)]
            matches = correct_matches(described, [codes for codes, _ in photos])
            add(NAMES[method], n_bits, matches, ms[n_bits]["ms_opencv_binary"])
    report("matching", {"rows": rows, "timing": timing, "pairs": "at most 3 apart"}, options)


if __name__ == "__main__":
    main()
