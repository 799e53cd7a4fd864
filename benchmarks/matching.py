"""Matching real photographs whose cameras are known: what is found, how often rightly, how fast.

All descriptors are taken at the same SIFT keypoints of herz-jesus-p8, matched by mutual nearest
neighbours and ratio test, on pairs at most three photographs apart. A match is right when both of
its points lie within 2 pixels of each other's epipolar lines. Methods are compared at precision
0.90, interpolated over their ratios. `hash` is the recipe of the package's model trained without
herz-jesus-p25, which shows the same facade; `hash, shipped` is the model of the package.
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
from support.harness import arguments, interleaved, report, say
from support.markdown import machine_note, table

from kdiffhash import HammingIndex, load_pretrained, match_codes
from kdiffhash.learn.preprocess import preprocess_rows

N_PHOTOS, APART, TOLERANCE, PRECISION = 8, 3, 2.0, 0.90
N_FEATURES = 8000
RATIOS = np.arange(0.40, 1.001, 0.01)
LENGTHS = (64, 128, 256, 512)
SEEN = "herz-jesus-p25" in OPEN


def folder() -> Path:
    return Path(os.environ["KDIFFHASH_PHOTOS"]) / "herz-jesus-p8"


def camera(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Calibration at half the size, rotation world to camera, centre."""
    values = np.array((folder() / f"{number:04d}.camera").read_text().split(), float)
    half = np.diag([0.5, 0.5, 1.0])
    return half @ values[:9].reshape(3, 3), values[12:21].reshape(3, 3).T, values[21:24]


def fundamental(a: int, b: int) -> np.ndarray:
    (k1, r1, c1), (k2, r2, c2) = camera(a), camera(b)
    x, y, z = r2 @ (c1 - c2)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.linalg.inv(k2).T @ cross @ r2 @ r1.T @ np.linalg.inv(k1)


def epipolar(f: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Pixels from the epipolar line, in the photograph in which it is more."""
    left, right = (np.column_stack([points, np.ones(len(points))]) for points in (left, right))
    lines, back = left @ f.T, right @ f
    error = np.abs((right * lines).sum(axis=1))
    return np.maximum(error / np.hypot(*lines[:, :2].T), error / np.hypot(*back[:, :2].T))


def detect(number: int, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Keypoints (x, y, size, angle, response, octave) and SIFT of a photograph."""
    import cv2

    image = cv2.imread(str(folder() / f"{number:04d}.jpg"), cv2.IMREAD_GRAYSCALE)
    points, rows = cv2.SIFT_create(nfeatures=N_FEATURES, **options).detectAndCompute(image, None)
    keep = [[*p.pt, p.size, p.angle, p.response, p.octave] for p in points]
    return np.array(keep), rows.astype(np.uint8)


def two_nearest(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nearest row of b, the two least distances, and the way back."""
    if a.dtype == np.uint8:
        distances, ids = HammingIndex(b).search(a, 2)
        return ids[:, 0], distances.astype(float), HammingIndex(a).search(b, 1)[1][:, 0]
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T
    two = np.argpartition(squares, 1, axis=1)[:, :2]
    values = np.take_along_axis(squares, two, 1)
    order = np.argsort(values, axis=1)
    two, values = np.take_along_axis(two, order, 1), np.take_along_axis(values, order, 1)
    return two[:, 0], np.sqrt(np.maximum(values, 0)), squares.argmin(axis=0)


def curve(points: list[np.ndarray], descriptors: list[np.ndarray]) -> dict[str, Any]:
    """Right matches and precision by ratio, and right matches at the wanted precision."""
    right, total = np.zeros(len(RATIOS)), np.zeros(len(RATIOS))
    for a, b in combinations(range(N_PHOTOS), 2):
        if b - a > APART:
            continue
        nearest, values, back = two_nearest(descriptors[a], descriptors[b])
        mutual = back[nearest] == np.arange(len(nearest))
        error = epipolar(fundamental(a, b), points[a], points[b][nearest])
        for i, ratio in enumerate(RATIOS):
            kept = mutual & (values[:, 0] < ratio * values[:, 1])
            right[i] += (kept & (error < TOLERANCE)).sum()
            total[i] += kept.sum()
    precision = right / np.maximum(total, 1)
    reached = precision >= PRECISION
    if not reached.any():
        best = int(precision.argmax())
        return {"correct": int(right[best]), "precision": float(precision[best])}
    last = int(np.flatnonzero(reached)[-1])  # precision falls as the ratio rises
    following = min(last + 1, len(RATIOS) - 1)
    span = precision[last] - precision[following]
    part = (precision[last] - PRECISION) / span if span > 0 else 0.0
    correct = right[last] + part * (right[following] - right[last])
    return {"correct": int(correct), "precision": PRECISION}


def peers(keypoints: list[np.ndarray]) -> dict[tuple[str, int], list[tuple[Any, Any]]]:
    """Codes of OpenCV contrib, and which keypoints they belong to."""
    home = Path(tempfile.gettempdir()) / "kdiffhash-contrib"
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
    install = [python, "-m", "pip", "install", "-q", "opencv-contrib-python-headless>=4.10"]
    subprocess.run(install, check=True)
    with tempfile.TemporaryDirectory() as scratch:
        given, out = Path(scratch) / "in.npz", Path(scratch) / "out.npz"
        arrays = {f"keypoints{i}": rows for i, rows in enumerate(keypoints)}
        np.savez(given, paths=[str(folder() / f"{i:04d}.jpg") for i in range(N_PHOTOS)], **arrays)
        script = Path(__file__).parent / "support" / "opencv_contrib.py"
        subprocess.run([python, script, given, out], check=True)
        found = dict(np.load(out))
    names = {tuple(key.split("-")[:2]) for key in found}
    return {
        (name, int(bits)): [
            (found[f"{name}-{bits}-{i}"], found[f"{name}-{bits}-{i}-kept"]) for i in range(N_PHOTOS)
        ]
        for name, bits in sorted(names)
    }


def bench_time() -> list[dict[str, Any]]:
    """Two ways with the two nearest, 8,000 features in both photographs, on the same threads."""
    import cv2

    a, b = (detect(i, contrastThreshold=0.01)[1][:N_FEATURES] for i in (2, 3))
    assert len(a) == len(b) == N_FEATURES
    model, rows = load_pretrained("sift"), []
    for threads in (1, 2):
        cv2.setNumThreads(threads)
        model.n_jobs = threads

        def by_opencv(norm: int, left: np.ndarray, right: np.ndarray) -> None:
            matcher = cv2.BFMatcher(norm)
            matcher.knnMatch(left, right, 2)
            matcher.knnMatch(right, left, 2)

        left, right = a.astype(np.float32), b.astype(np.float32)
        work: dict[str, Any] = {"float": lambda le=left, ri=right: by_opencv(cv2.NORM_L2, le, ri)}
        for n_bits in LENGTHS:
            short = model.truncate(n_bits)
            codes = short.transform(a), short.transform(b)
            match_codes(*codes, ratio=0.76)  # warm up
            work[f"binary {n_bits}"] = lambda c=codes: by_opencv(cv2.NORM_HAMMING, *c)
            work[f"hash {n_bits}"] = lambda c=codes, t=threads: match_codes(
                *c, ratio=0.76, n_jobs=t
            )
            work[f"encode {n_bits}"] = lambda s=short: (s.transform(a), s.transform(b))
        seconds = interleaved(work, 9)
        for n_bits in LENGTHS:
            ours = seconds[f"hash {n_bits}"]
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
            say(rows[-1])
    return rows


def matching_table(found: dict[str, Any]) -> str:
    rows = sorted(found["rows"], key=lambda row: -row["correct"])
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


def time_table(found: dict[str, Any]) -> str:
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


def tables(found: dict[str, Any]) -> dict[str, str]:
    return {"matching": matching_table(found), "matching-time": time_table(found)}


def main() -> None:
    options = arguments(__doc__, peers=1)
    detected = [detect(i) for i in range(N_PHOTOS)]
    keypoints, sift = [k for k, _ in detected], [d for _, d in detected]
    points = [k[:, :2] for k in keypoints]
    timing = bench_time()
    ms = {row["n_bits"]: row for row in timing if row["threads"] == 2}
    rows: list[dict[str, Any]] = []

    def add(method: str, n_bits: int, found: dict[str, Any], taken: float, **more: Any) -> None:
        what = {"method": method, "n_bits": n_bits, **found, "ms_per_pair": taken}
        rows.append({**what, "bytes_per_feature": n_bits // 8, **more})
        say(rows[-1])

    float_ms = ms[256]["ms_opencv_float"]
    for method, preprocess in (("sift", None), ("rootsift", "hellinger")):
        plain = [preprocess_rows(d, preprocess) for d in sift]
        add(method, 1024, curve(points, plain), float_ms)
    trained = train((*OPEN, "castle-p30"))
    for method, model, seen in (("hash", trained, False), ("hash, shipped", None, SEEN)):
        for n_bits in LENGTHS:
            short = load_pretrained("sift", n_bits) if model is None else model.truncate(n_bits)
            codes = [short.transform(d) for d in sift]
            name = f"{method}, {'seen' if seen else 'unseen'}" if model is None else method
            with_encoding = ms[n_bits]["ms_with_encoding"]
            add(
                name, n_bits, curve(points, codes), ms[n_bits]["ms"], ms_with_encoding=with_encoding
            )
    if options.peers:
        for (method, n_bits), photos in peers(keypoints).items():
            kept = [points[i][which] for i, (_, which) in enumerate(photos)]
            found = curve(kept, [codes for codes, _ in photos])
            add(method, n_bits, found, ms[n_bits]["ms_opencv_binary"])
    report("matching", {"rows": rows, "timing": timing, "pairs": "at most 3 apart"}, options)


if __name__ == "__main__":
    main()
