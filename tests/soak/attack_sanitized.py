"""The compiled core, built with sanitizers: forged models, damaged files of rows and odd sizes.

`make sanitized` builds the package that this attack runs; without it the attack is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from attack_data_files import KINDS, check_rows, write_rows
from attack_index import HAS_CELLS, check_mutated
from attack_models import check_insides, write_models
from common import CRASHED, Tally, attack, outcome_of

import kdiffhash
from kdiffhash import HammingIndex, hamming

PACKAGE = Path(__file__).parents[2] / "build" / "sanitize" / "package"
LIBRARIES = ("libasan.so", "libstdc++.so")


def check_encoding(rng: np.random.Generator) -> bool:
    """Codes of models of any size are those of plain arithmetic, apart from ambiguous bits."""
    n_bits, n_features, width, n = (int(rng.integers(1, top)) for top in (140, 75, 40, 600))
    X = rng.random((n, width)).astype(rng.choice(["u1", "i2", "f4", "f8"])) * 3
    if rng.random() < 0.5:
        hasher: kdiffhash.BaseHasher = kdiffhash.LDAHash()
        n_features = width
        hasher.offset_ = rng.random(width).astype(np.float32)
        features = X.astype(np.float64) - hasher.offset_
    else:
        hasher = kdiffhash.KernelLDAHash()
        hasher.basis_ = rng.random((n_features, width)).astype(np.float32)
        hasher.gamma_ = float(rng.random() + 0.01)
        squares = (X[:, None].astype(np.float64) - hasher.basis_[None]) ** 2
        features = np.exp(-hasher.gamma_ * squares.sum(axis=2))
    hasher.directions_ = rng.normal(size=(n_bits, n_features)).astype(np.float32)
    hasher.thresholds_ = rng.normal(size=n_bits).astype(np.float32)
    hasher.n_features_in_ = width
    hasher.n_jobs = int(rng.integers(1, 3))
    projections = features @ hasher.directions_.T.astype(np.float64) - hasher.thresholds_
    bits = np.unpackbits(hasher.transform(X), axis=1)
    is_certain = np.abs(projections) > 1e-3
    expected = (projections > 0)[is_certain]
    return bool(
        np.array_equal(bits[:, :n_bits][is_certain], expected) and not bits[:, n_bits:].any()
    )


def check_search(rng: np.random.Generator) -> bool:
    """Neighbours among any number of codes of any length are those of brute force."""
    n_bits, n, n_queries = (int(rng.integers(1, top)) for top in (300, 1500, 40))
    unused = 0xFF << (-n_bits % 8) & 0xFF
    codes, queries = (
        rng.integers(256, size=(rows, -(-n_bits // 8)), dtype=np.uint8) for rows in (n, n_queries)
    )
    codes[:, -1] &= unused
    queries[:, -1] &= unused
    index = HammingIndex(n_bits=n_bits)
    cut = int(rng.integers(n + 1))
    for part in (codes[:cut], codes[cut:]):
        if len(part):
            index.add(part)
    k = int(rng.integers(1, min(n, 60) + 1))
    distances, ids = index.search(queries, k)
    table = np.stack([hamming(codes, np.broadcast_to(query, codes.shape)) for query in queries])
    order = np.argsort(table, axis=1, kind="stable")[:, :k]
    expected = np.take_along_axis(table, order, axis=1)
    return bool(np.array_equal(ids, order) and np.array_equal(distances, expected))


def check_float_queries(rng: np.random.Generator) -> bool:
    """Results of float queries are those of sums in double precision, rounded once."""
    n_bits, n, n_queries = (int(rng.integers(1, top)) for top in (300, 900, 20))
    bits = rng.random((n, n_bits)) < rng.random()
    scale = float(rng.choice([1e-44, 1e-38, 1e-3, 1, 1e30, 3e38 / n_bits / 9]))
    queries = (rng.normal(size=(n_queries, n_bits)) * scale).astype(np.float32)
    if rng.random() < 0.5:  # ties, and bits without weight
        queries = (np.round(queries / scale) * scale).astype(np.float32)
    index = HammingIndex(np.packbits(bits, axis=1), n_bits=n_bits)
    if rng.random() < 0.5:
        index.remove(np.flatnonzero(rng.random(n) < 0.3))
    ids = index.ids
    k = int(rng.integers(1, len(ids) + 2)) if len(ids) else 1
    weights = np.abs(queries).astype(np.float64)
    differing = bits[ids][None] != (queries > 0)[:, None]
    table = np.zeros((n_queries, len(ids)))
    for bit in range(n_bits):  # in this order, as the distance is defined
        table += differing[:, :, bit] * weights[:, None, bit]
    table = table.astype(np.float32)
    order = np.argsort(table, axis=1, kind="stable")[:, :k]
    options = {"n_jobs": int(rng.integers(1, 3))}
    found = [index.search(queries_float=queries, k=k, **options)]
    if len(ids):
        signs = np.packbits(queries > 0, axis=1)
        many = {"rerank_projections": queries, "rerank_factor": len(ids)}
        found.append(index.search(signs, k, **many, **options))
    expected = np.take_along_axis(table, order, axis=1), ids[order]
    return all(
        np.array_equal(a, b) for result in found for a, b in zip(result, expected, strict=True)
    )


def check(folder: Path, seed: int) -> bool:
    """Run one of the checks; the paths of its files are found in the folder."""
    rng = np.random.default_rng(seed)
    kind = int(rng.integers(6))
    if kind == 4:
        return check_float_queries(rng)
    if kind == 5:
        size = "cells" if HAS_CELLS and rng.random() < 0.7 else "strings"
        return check_mutated((size, seed))
    if kind == 0:
        return check_encoding(rng)
    if kind == 1:
        return check_search(rng)
    if kind == 2:
        models = sorted(folder.glob("*.safetensors"))
        return check_insides((models[int(rng.integers(len(models)))], seed))
    rows = KINDS[int(rng.integers(len(KINDS)))]
    return check_rows((folder / f"{rows}.{rows.partition('-')[0]}", seed))


def sanitized_environment() -> dict[str, str]:
    """Return the variables that make Python load the sanitized package."""
    paths = [
        subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip()
        for name in LIBRARIES
    ]
    return {
        **os.environ,
        "PYTHONPATH": str(PACKAGE),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "LD_PRELOAD": " ".join(paths),
    }


@attack("compiled core under sanitizers: files and odd sizes", 2_000, pieces=2)
def sanitized(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Neither sanitizer reports anything, and results are right."""
    if not (PACKAGE / "kdiffhash").is_dir():
        print(f"    skipped: {PACKAGE} is missing; `make sanitized` builds it", flush=True)
        return
    write_models(folder)
    for kind in KINDS:
        write_rows(folder, kind)
    seeds = [int(seed) for seed in rng.integers(2**62, size=tries)]
    while seeds:
        with tempfile.TemporaryFile("w+") as errors:
            done = subprocess.run(
                [sys.executable, __file__, str(folder)],
                input=json.dumps(seeds),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=sanitized_environment(),
                check=False,
            )
            errors.seek(0)
            report = errors.read()[-1500:]
        outcomes = [json.loads(line) for line in done.stdout.splitlines()]
        for seed, (outcome, note) in zip(seeds, outcomes, strict=False):
            tally.count(outcome, f"seed {seed}: {note}")
        seeds = seeds[len(outcomes) :]
        if seeds:
            tally.count(CRASHED, f"seed {seeds.pop(0)}: exit code {done.returncode}: {report}")


def work(folder: Path) -> None:
    """Check each seed on standard input; print an outcome per line."""
    assert PACKAGE in Path(kdiffhash.__file__).parents, kdiffhash.__file__
    for seed in json.load(sys.stdin):
        print(json.dumps(outcome_of(lambda seed=seed: check(folder, seed))), flush=True)  # type: ignore[misc]


if __name__ == "__main__":
    work(Path(sys.argv[1]))
