"""Codes for search benchmarks: random ones, and real ones encoded from scenes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from support.harness import log

from kdiffhash import KernelLDAHash, load_scene

TRAIN, TESTS = "herz-jesus-p25", ("boruszyn", "castle-p30", "caliterra")
BITS = (64, 128, 256, 512)


def random_codes(n: int, n_queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random codes and queries of 512 bits."""
    rng = np.random.default_rng(0)
    return tuple(
        np.frombuffer(rng.bytes(size * 64), np.uint8).reshape(size, 64) for size in (n, n_queries)
    )


def real_codes(n: int, n_queries: int) -> dict[str, Any] | None:
    """Return codes of 512 bits encoded from scenes that the hasher was not trained on.

    The descriptors are split into queries and database. The database is repeated up to `n` codes,
    with 2 % of the bits flipped in every repetition. Returns None if there are no scenes.
    """
    root = os.environ.get("KDIFFHASH_SCENES")
    if not root or not Path(root).is_dir():
        log("KDIFFHASH_SCENES is not set to a folder of scenes: real codes are skipped")
        return None
    train = load_scene(TRAIN)
    hasher = KernelLDAHash(512, preprocess="hellinger", random_state=0)
    hasher.fit(train.descriptors, train.points, groups=train.photos)
    scenes = [load_scene(name) for name in TESTS]
    rows = np.concatenate([scene.descriptors for scene in scenes])
    codes = hasher.transform(rows)
    rng = np.random.default_rng(1)
    order = rng.permutation(len(codes))
    queries = order[:n_queries]
    base = codes[order[n_queries:]]
    out = np.empty((n, 64), np.uint8)
    for start in range(0, n, len(base)):
        copied = base[: n - start]
        out[start : start + len(copied)] = copied
        if start:
            for i in range(0, len(copied), 10_000):
                chunk = out[start + i : start + min(i + 10_000, len(copied))]
                chunk ^= np.packbits(rng.random((len(chunk), 512)) < 0.02, axis=1)
    points = np.concatenate([scene.points + 10**6 * i for i, scene in enumerate(scenes)])
    points = np.unique(points, return_inverse=True)[1]
    return {"hasher": hasher, "rows": rows, "points": points, "order": order, "base": base,
            "codes": out, "queries": codes[queries]}  # fmt: skip
