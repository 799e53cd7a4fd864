"""Model files: damaged bytes, and files with a right checksum but wrong insides."""

from __future__ import annotations

import functools
import json
import math
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from bounded import limit_memory
from common import Tally, attack, mutate, run_isolated

import kdiffhash
from kdiffhash.hashers import model_file

N_ROWS = 60
HOSTILE = [
    *(None, True, False, 0, -1, 1, 2, 7, 10**6, 2**31, 2**63, 10**400, -(10**30), 0.0, -0.5, 1e308),
    *(math.nan, math.inf, 1e-320, "", "abc", "1", "median", "rbf", "poly", "linear", "chi2"),
    *("mahalanobis", "unit", [], [1], {}, {"a": 1}, {"float": "inf"}, {"float": "nan"}),
    *({"dict": {}}, {"dict": {"degree": 2}}, {"dict": {"degree": 10**400}}, {"float": []}),
    *({"dict": {"n_jobs": 3}}, {"dict": {"gamma": -1}}, {"dict": {"dict": {}}}, "LDAHash"),
    *("KernelDiffHash", "BoostedHash", "CrossDiffHash", "SequentialMatcher", "BaseHasher", "os"),
]
NAMES = ["n_jobs", "verbose", "kernel_params", "gamma", "kernel", "transform", "__class__", "basis"]
KINDS = ["F8_E4M3", "F8_E5M2", "BF16", "F4", "C64", "BOOL", "U8", "I64", "F16", "F64", "F32", "X"]


def rows(width: int) -> np.ndarray:
    """Rows that the models of the attack are asked to encode."""
    return np.random.default_rng(width).random((N_ROWS, width)).astype(np.float32)


def write_models(folder: Path) -> list[Path]:
    """Write one small model of every class and kernel."""
    rng = np.random.default_rng(0)
    y = np.arange(N_ROWS) // 4
    X = (rng.random((N_ROWS, 6))[y] + 0.1 * rng.random((N_ROWS, 6))).astype(np.float32)
    some = {"n_positives": 60, "n_negatives": 90, "random_state": 0}
    kernel = functools.partial(kdiffhash.KernelDiffHash, 9, n_basis=17, **some)
    models = [
        *(kernel(), kernel(kernel="mahalanobis"), kernel(kernel="laplacian", basis=X[:13])),
        kernel(kernel="poly", kernel_params={"degree": 2, "coef0": 0.5}, preprocess="unit"),
        kdiffhash.KernelLDAHash(11, n_basis=20, preprocess="hellinger", **some),
        kdiffhash.LDAHash(5, **some),
        kdiffhash.BoostedHash(6, **some),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = [model.fit(X, y) for model in models]
        models.append(kdiffhash.ITQHash(4, random_state=0).fit(X))
        cross = kdiffhash.CrossDiffHash(4, x=kernel(), n_negatives=90, random_state=0)
        models.append(cross.fit(X, X[:, :5]))
    codes = rng.integers(256, size=(4000, 9), dtype=np.uint8)
    pairs = np.stack([np.arange(4000), np.arange(4000) // 2 * 2], axis=1)
    pairs = np.concatenate([pairs[::2], np.roll(pairs, 1, axis=0)[1::2] + [[0, 2]] * 2000]) % 4000
    similar = (codes[pairs[:, 0]] == codes[pairs[:, 1]]).all(axis=1)
    models.append(kdiffhash.SequentialMatcher(fpr=1e-2).fit(codes, pairs, similar))
    paths = [folder / f"{number}.safetensors" for number in range(len(models))]
    for model, path in zip(models, paths, strict=True):
        model.save(path)
    return paths


def answers(model: Any) -> list[np.ndarray]:
    """What a model says about some input."""
    if isinstance(model, kdiffhash.SequentialMatcher):
        codes = np.random.default_rng(1).integers(256, size=(90, -(-model.n_bits_ // 8)))
        codes = (codes & (0xFF << (-model.n_bits_ % 8))).astype(np.uint8)
        pairs = np.random.default_rng(2).integers(90, size=(300, 2))
        return list(model.decide(codes, codes, pairs))
    sides = [model.x_, model.y_] if isinstance(model, kdiffhash.CrossDiffHash) else [model]
    return [side.transform(rows(side.n_features_in_)) for side in sides]


@functools.cache
def original(path: Path) -> tuple[bytes, dict[str, Any], dict[str, np.ndarray]]:
    """Content, header and arrays of an undamaged file."""
    return path.read_bytes(), *model_file.read_model_file(path)


def check_bytes(case: tuple[Path, int]) -> bool:
    """A file with damaged bytes is refused, or nothing that matters was damaged."""
    limit_memory()
    path, seed = case
    damaged = path.with_suffix(".damaged")
    damaged.write_bytes(mutate(original(path)[0], np.random.default_rng(seed)))
    header, arrays = model_file.read_model_file(damaged)
    model = kdiffhash.load(damaged)
    _, old_header, old_arrays = original(path)
    same = header == old_header and arrays.keys() == old_arrays.keys()
    return (
        same
        and model is not None
        and all(np.array_equal(arrays[name], old_arrays[name]) for name in arrays)
    )


def check_insides(case: tuple[Path, int]) -> bool:
    """A forged file is refused, or gives a model that works like any other."""
    limit_memory()
    path, seed = case
    forged = path.with_suffix(".forged")
    forged.write_bytes(forge(path, np.random.default_rng(seed)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kdiffhash.load(forged)
        if getattr(model, "n_jobs", None) is not None or getattr(model, "verbose", False):
            return False
        first = answers(model)
        model.save(forged)
        again = answers(kdiffhash.load(forged))
    return all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def forge(path: Path, rng: np.random.Generator) -> bytes:
    """Change header and arrays, and give the file a right checksum."""
    _, header, arrays = original(path)
    header, arrays = json.loads(json.dumps(header)), dict(arrays)
    kinds: dict[str, str] = {}
    for _ in range(int(rng.integers(1, 3))):
        if rng.random() < 0.5:
            change_header(header, rng)
        else:
            change_array(arrays, kinds, rng)
    return to_bytes(header, arrays, kinds)


def change_header(header: dict[str, Any], rng: np.random.Generator) -> None:
    """Replace, add or remove a value somewhere in the header."""
    place: Any = header
    while True:
        keys = list(place)
        key = keys[int(rng.integers(len(keys)))]
        inner = place[key]
        if not isinstance(inner, dict) or not inner or rng.random() < 0.05:
            break
        place = inner
    value = HOSTILE[int(rng.integers(len(HOSTILE)))]
    how = rng.integers(6)
    if how == 0:
        del place[key]
    elif how == 1:
        place[NAMES[int(rng.integers(len(NAMES)))]] = value
    elif how == 2 and isinstance(inner, int):
        place[key] = inner + int(rng.integers(-2, 3))
    else:
        place[key] = value


def change_array(
    arrays: dict[str, np.ndarray], kinds: dict[str, str], rng: np.random.Generator
) -> None:
    """Change shape, type, values or name of an array."""
    name = sorted(arrays)[int(rng.integers(len(arrays)))] if arrays else ""
    if not name:
        return
    array = arrays[name]
    extreme = [np.nan, np.inf, -np.inf, 3e38, -1.0, 0.0, 1e-40][int(rng.integers(7))]
    how = int(rng.integers(12))
    if how == 0:
        del arrays[name]
    elif how == 1:
        arrays[name] = array.ravel()
    elif how == 2:
        arrays[name] = array[None]
    elif how == 3:
        arrays[name] = array.T.copy()
    elif how == 4:
        arrays[name] = array[: int(rng.integers(len(array) + 1))] if array.ndim else array
    elif how == 5:
        arrays[name] = np.empty((int(rng.choice([0, 1, 10**12])), 0), array.dtype)
    elif how == 6:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arrays[name] = array.astype(rng.choice(["f2", "f4", "f8", "i4", "i8", "u1", "?"]))
    elif how == 7 and array.dtype.kind == "f" and array.size:
        arrays[name] = array.copy()
        arrays[name].flat[int(rng.integers(array.size))] = extreme
    elif how == 8 and array.dtype.kind == "f":
        arrays[name] = np.full_like(array, extreme)
    elif how == 9:
        other = sorted(arrays)[int(rng.integers(len(arrays)))]
        arrays[name], arrays[other] = arrays[other], array
    elif how == 10:
        arrays[str(rng.choice(["param.n_jobs", "param.basis", "param.gamma", "extra"]))] = array
    else:
        kinds[name] = KINDS[int(rng.integers(len(KINDS)))]


def to_bytes(header: dict[str, Any], arrays: dict[str, np.ndarray], kinds: dict[str, str]) -> bytes:
    """Write a safetensors file; `kinds` are types that the file claims instead of the true ones."""
    names = {"f2": "F16", "f4": "F32", "f8": "F64", "i4": "I32", "i8": "I64", "u1": "U8"}
    header["sha256"] = model_file.checksum(header, arrays)
    outer: dict[str, Any] = {"__metadata__": {"kdiffhash": json.dumps(header)}}
    content = b""
    for name, array in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        kind = kinds.get(name, names.get(array.dtype.str[1:], "BOOL"))
        shape = list(array.shape)
        if kind.startswith("F8"):
            shape = [len(data)]
        outer[name] = {
            "dtype": kind,
            "shape": shape,
            "data_offsets": [len(content), len(content) + len(data)],
        }
        content += data
    text = json.dumps(outer).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + content


def cases_of(rng: np.random.Generator, tries: int, paths: list[Path]) -> list[tuple[Path, int]]:
    """Return pairs of a file and a seed."""
    return [
        (paths[int(i)], int(seed)) for i, seed in rng.integers([len(paths), 2**62], size=(tries, 2))
    ]


@attack("model files: damaged bytes", 12_000)
def damage(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Damaged model files are refused."""
    run_isolated(check_bytes, cases_of(rng, tries, write_models(folder)), tally)


@attack("model files: right checksum, wrong insides", 12_000)
def insides(rng: np.random.Generator, tries: int, folder: Path, tally: Tally) -> None:
    """Forged model files are refused, or give models that work."""
    run_isolated(check_insides, cases_of(rng, tries, write_models(folder)), tally)
