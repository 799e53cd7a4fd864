"""Codes for benchmarks of approximate search; real ones are cached, because encoding takes time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from support.embeddings import load_debian
from support.harness import log

from kdiffhash import ITQHash, load_pretrained, load_scene
from kdiffhash._util.files import make_cache_folder
from kdiffhash.codes import truncate

SCENES = (
    *("boruszyn", "brighton-beach", "caliterra", "castle-p30", "herz-jesus-p25"),
    *("notredame-2007", "oxford-affine", "sceaux"),
)
OTHER = "castle-p30"  # the scene that is left out of an index to search for its codes
N_QUERIES = 2000
DATA = ("real", "big", "random", "text")


class CodeSet(NamedTuple):
    """Codes to store, and queries that are not among them."""

    codes: np.ndarray
    queries: np.ndarray


def folder() -> Path:
    """Return the folder for codes and graphs that take long to compute."""
    path = make_cache_folder() / "benchmarks"
    path.mkdir(exist_ok=True)
    return path


def scene_codes(name: str, n_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes and the labels of a scene, encoded by the pretrained model."""
    root = os.environ.get("KDIFFHASH_SCENES")
    if not root or not (Path(root) / name).is_dir():
        raise SystemExit(f"KDIFFHASH_SCENES is {root!r}; set it to the folder that contains {name}")
    path = folder() / f"{name}-256.npz"
    if not path.exists():
        scene = load_scene(name)
        codes = load_pretrained("sift", 256).transform(scene.descriptors)
        np.savez(path, codes=codes, points=scene.points)
        log(f"encoded {len(codes):,} descriptors of {name}")
    with np.load(path) as stored:
        return truncate(stored["codes"], n_bits), stored["points"]


def split(codes: np.ndarray, n_queries: int = N_QUERIES) -> CodeSet:
    """Hold some codes out as queries."""
    order = np.random.default_rng(0).permutation(len(codes))
    return CodeSet(codes[order[n_queries:]], codes[order[:n_queries]])


def load(data: str, n_bits: int) -> CodeSet:
    """Return the codes of a kind of data."""
    if data == "real":
        return split(np.concatenate([scene_codes(name, n_bits)[0] for name in SCENES]))
    if data == "big":
        return with_variants(n_bits, 5_000_000)
    if data == "random":
        rng = np.random.default_rng(0)
        return split(np.frombuffer(rng.bytes(10**6 * n_bits // 8), np.uint8).reshape(10**6, -1))
    if data == "text":
        rows = load_debian().rows
        return split(ITQHash(n_bits, random_state=0).fit(rows[::4]).transform(rows))
    raise SystemExit(f"--data must be one of {', '.join(DATA)}, got {data!r}")


def with_variants(n_bits: int, n: int) -> CodeSet:
    """Return real codes, and variants of them up to n."""
    parts, queries = variants(n_bits, n)
    return CodeSet(np.concatenate(list(parts)), queries)


def variants(n_bits: int, n: int) -> tuple[Iterator[np.ndarray], np.ndarray]:
    """Return an iterator over parts of real codes and variants, n in total, and queries.

    A variant lies between the codes of two views of the same point: each bit in which they differ
    is taken from either view at random.
    """
    all_codes, labels, first = [], [], 0
    for name in SCENES:
        codes, points = scene_codes(name, n_bits)
        all_codes.append(codes)
        labels.append(points + first)
        first += int(points.max()) + 1
    real, queries = split_with_labels(np.concatenate(all_codes), np.concatenate(labels))
    return _parts(*real, n), queries


def _parts(codes: np.ndarray, points: np.ndarray, n: int) -> Iterator[np.ndarray]:
    """Yield codes, then variants of them."""
    rng = np.random.default_rng(1)
    order = np.argsort(points, kind="stable")
    following = np.empty_like(order)
    following[order] = np.roll(order, -1)  # another view of the same point, if there is one
    views = np.flatnonzero(points == points[following])
    yield codes[:n]
    n_missing = n - len(codes)
    while n_missing > 0:
        own = views[:n_missing]
        taken = rng.integers(0, 256, (len(own), codes.shape[1]), dtype=np.uint8)
        a, b = codes[own], codes[following[own]]
        yield a ^ ((a ^ b) & taken)
        n_missing -= len(own)


def split_with_labels(
    codes: np.ndarray, points: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Hold some codes out as queries; variants are made of the others only."""
    order = np.random.default_rng(0).permutation(len(codes))
    kept = order[N_QUERIES:]
    return (codes[kept], points[kept]), codes[order[:N_QUERIES]]
