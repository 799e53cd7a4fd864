"""A million codes to search: random ones, and real ones encoded from scenes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from support.harness import say

from kdiffhash import KernelLDAHash, load_scene

TRAIN, OTHERS = "herz-jesus-p25", ("boruszyn", "castle-p30", "caliterra")
BITS = (64, 128, 256, 512)


def random_codes(n: int, n_queries: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return tuple(
        np.frombuffer(rng.bytes(size * 64), np.uint8).reshape(size, 64) for size in (n, n_queries)
    )


def real_codes(n: int, n_queries: int) -> dict[str, Any] | None:
    """Codes of scenes, repeated with one bit of 50 flipped; queries are other views."""
    root = os.environ.get("KDIFFHASH_SCENES")
    if not root or not Path(root).is_dir():
        say("KDIFFHASH_SCENES is not set to a folder of scenes: real codes are left out")
        return None
    train = load_scene(TRAIN)
    hasher = KernelLDAHash(512, preprocess="hellinger", random_state=0)
    hasher.fit(train.descriptors, train.points, groups=train.photos)
    scenes = [load_scene(name) for name in OTHERS]
    rows = np.concatenate([scene.descriptors for scene in scenes])
    codes = hasher.transform(rows)
    rng = np.random.default_rng(1)
    order = rng.permutation(len(codes))
    queries = order[:n_queries]
    base = codes[order[n_queries:]]
    out = np.empty((n, 64), np.uint8)
    for start in range(0, n, len(base)):
        some = base[: n - start]
        out[start : start + len(some)] = some
        if start:
            for i in range(0, len(some), 10_000):
                part = out[start + i : start + min(i + 10_000, len(some))]
                part ^= np.packbits(rng.random((len(part), 512)) < 0.02, axis=1)
    points = np.concatenate([scene.points + 10**6 * i for i, scene in enumerate(scenes)])
    points = np.unique(points, return_inverse=True)[1]
    return {"hasher": hasher, "rows": rows, "points": points, "order": order, "base": base,
            "codes": out, "queries": codes[queries]}  # fmt: skip
