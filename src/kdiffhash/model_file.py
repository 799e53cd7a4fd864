"""Model files: arrays as safetensors, everything else as JSON in its header.

Reading a model runs nothing from the file. The header names the format version, the class (one of
the package's), its parameters and the scalars it learned; a checksum over header and arrays tells
an edited or damaged file from a whole one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import KdiffhashError
from .files import replacing
from .hashers import BaseHasher

FORMAT = 2  # 1 knows no float16; it is written where it is enough
_HALVES = frozenset({"basis_", "directions_"})
_PARAM = "param."  # prefix of arrays that were given as parameters


class ModelFileError(KdiffhashError, ValueError):
    """The file is not a model that this version can read."""


def _classes(parent: Any = BaseHasher) -> dict[str, type[BaseHasher]]:
    """The package's own hashers that have been imported, by name: those that a file may name."""
    found: dict[str, type[BaseHasher]] = {}
    for child in parent.__subclasses__():
        if child.__module__.startswith("kdiffhash."):
            found[child.__name__] = child
        found |= _classes(child)
    return found


def save(hasher: BaseHasher, path: str | os.PathLike[str], *, half: Collection[str] = ()) -> None:
    """Write a fitted hasher to `path`; an old file there is replaced only when all is written.

    What `half` names of ``basis_`` and ``directions_`` is written as float16, which must hold it
    exactly; the model that is read is the same.
    """
    from safetensors.numpy import save as to_bytes

    header, arrays = _contents(hasher)
    if half:
        for name in _HALVES & set(half) & arrays.keys():
            with np.errstate(over="ignore"):
                small = arrays[name].astype(np.float16)
            if not np.array_equal(small, arrays[name]):
                raise ValueError(f"{name} does not fit into float16; round it, and learn the rest")
            arrays[name] = small
        header["format"] = 2
        header["sha256"] = _checksum({k: header[k] for k in header if k != "sha256"}, arrays)
    # One entry, since safetensors writes several in any order, and the same model should give the
    # same file.
    content = to_bytes(arrays, metadata={"kdiffhash": json.dumps(header, sort_keys=True)})
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def fingerprint(hasher: BaseHasher) -> str:
    """A short name of what a fitted hasher learned; the same for the same model file."""
    return str(_contents(hasher)[0]["sha256"])[:32]


def _contents(hasher: BaseHasher) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header, with the checksum, and arrays of a model file."""
    arrays: dict[str, NDArray[Any]] = {}
    header: dict[str, Any] = {
        "format": 1,
        "class": type(hasher).__name__,
        "params": {},
        "scalars": {"n_features_in_": int(hasher.n_features_in_)},
    }
    if _classes().get(type(hasher).__name__) is not type(hasher):
        raise ValueError(f"{type(hasher).__name__} is not one of kdiffhash's own classes")
    for name, value in hasher.get_params(deep=False).items():
        if isinstance(value, np.ndarray | list):
            arrays[_PARAM + name] = np.asarray(value)
        elif name == "random_state" and not isinstance(value, int | np.integer):
            header["params"][name] = None  # the state of a generator is not part of the model
        elif name != "n_jobs":  # a matter of the machine
            header["params"][name] = _to_json(name, value)
    for name in hasher._fitted:
        value = getattr(hasher, name, None)
        if isinstance(value, np.ndarray):
            arrays[name] = value
        elif value is not None:
            header["scalars"][name] = _to_json(name, value)
    if hasattr(hasher, "feature_names_in_"):
        header["scalars"]["feature_names_in_"] = [str(name) for name in hasher.feature_names_in_]

    arrays = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    header["sha256"] = _checksum(header, arrays)
    return header, arrays


def load(path: str | os.PathLike[str]) -> BaseHasher:
    """Read a model file of any hasher.

    Raises
    ------
    ModelFileError
        If the file is truncated, edited, of a newer format or not a model.
    """
    header, arrays = read_model_file(path)
    try:
        if header["class"] not in (classes := _classes()):
            raise ValueError(
                f"the class {header['class']} is unknown; if it is a baseline, import "
                "kdiffhash.study.baselines first"
            )
        hasher_class = classes[header["class"]]
        params = {name: _from_json(value) for name, value in header["params"].items()}
        given = {n.removeprefix(_PARAM): a for n, a in arrays.items() if n.startswith(_PARAM)}
        hasher = hasher_class(**params, **given)
        scalars = header["scalars"]
        hasher.n_features_in_ = _whole_number(scalars["n_features_in_"])
        if "feature_names_in_" in scalars:
            hasher.feature_names_in_ = np.array(scalars["feature_names_in_"], object)
        for name in hasher_class._fitted:
            if name in arrays:
                is_half = name in _HALVES and arrays[name].dtype == np.float16
                setattr(hasher, name, arrays[name].astype(np.float32) if is_half else arrays[name])
            elif name in scalars:
                setattr(hasher, name, float(scalars[name]))
        _check(hasher)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(
            f"{os.fspath(path)} does not describe a model of this version: {error}"
        ) from error
    return hasher


def read_model_file(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and arrays of a model file, checked against its checksum."""
    from safetensors import SafetensorError, safe_open

    name = os.fspath(path)
    if Path(path).is_dir():
        raise ModelFileError(f"{name} is a folder, not a model file")
    try:
        with safe_open(name, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, TypeError) as error:
        raise ModelFileError(
            f"{name} is not a model file, or is damaged ({error}); train or copy it again"
        ) from error
    text = metadata.get("kdiffhash")
    if text is None:
        raise ModelFileError(f"{name} is a safetensors file, but not of kdiffhash")
    try:
        header = json.loads(text)
        version, checksum = header["format"], header.pop("sha256", None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelFileError(f"{name} has a damaged header; train or copy it again") from None
    if not isinstance(version, int) or version > FORMAT:
        raise ModelFileError(
            f"{name} has format {version}, this version reads up to {FORMAT}; upgrade kdiffhash"
        )
    if checksum != _checksum(header, arrays):
        raise ModelFileError(f"{name} was damaged or edited: its checksum does not fit")
    return header, arrays


def _check(hasher: BaseHasher) -> None:
    """Refuse arrays that do not fit together: the hot loops do not check them again."""
    hasher._check_params()
    for name in hasher._fitted:
        value = getattr(hasher, name, None)
        if isinstance(value, np.ndarray):
            wanted = np.float64 if name.startswith("bit_") else np.float32
            if value.dtype != wanted or (wanted == np.float32 and not np.isfinite(value).all()):
                raise ValueError(f"{name} must hold finite {np.dtype(wanted)} numbers")
    n_bits, width = hasher.directions_.shape
    features = hasher._feature_map()
    metric = getattr(features, "metric", None)
    n_inputs = hasher.n_features_in_
    if (
        hasher.thresholds_.shape != (n_bits,)
        or features.width != width
        or features.input_width != n_inputs
        or (metric is not None and metric.shape != (n_inputs, n_inputs))
    ):
        raise ValueError("the shapes of its arrays do not fit together")


def _whole_number(value: Any) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is not a number of features")
    return value


def _checksum(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _to_json(name: str, value: Any) -> Any:
    """Plain JSON for a parameter; infinity, which JSON lacks, as text in an object."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {"dict": {str(key): _to_json(name, item) for key, item in value.items()}}
    raise ValueError(
        f"{name}={value!r} cannot be stored in a model file; a kernel that is a function has to be "
        "set again by code, use one of the named kernels"
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if "float" in value:
            return float(value["float"])
        return {key: _from_json(item) for key, item in value["dict"].items()}
    return value
