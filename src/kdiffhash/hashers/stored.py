"""A hasher as header and arrays, as model files keep it, and its fingerprint."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..model_file import Arrays, Header, checksum, from_json, to_json

if TYPE_CHECKING:
    from .base import BaseHasher

Hasher = TypeVar("Hasher", bound="BaseHasher")

_PARAM = "param."  # prefix of arrays that were given as parameters
_UNIT_LENGTH = ("unit", "hellinger")  # preprocessing that gives rows of length 1
# Parameters that fingerprints were made of before they left out what does not change the codes.
_PAIRS = ("n_negatives", "n_positives")
_CLOSED_FORM = (*_PAIRS, "refine", "threshold_weight")
_KERNEL = (*_CLOSED_FORM, "basis", "gamma", "kernel", "kernel_params", "n_basis")
_OLD_PARAMETERS = {
    "BoostedHash": (*_PAIRS, "weak"),
    "DiffHash": (*_CLOSED_FORM, "alpha", "center", "moment"),
    "ITQHash": ("n_iter",),
    "KernelDiffHash": (*_KERNEL, "alpha", "center", "moment", "norm"),
    "KernelLDAHash": (*_KERNEL, "ridge"),
    "LDAHash": (*_CLOSED_FORM, "ridge"),
    "KSHHash": (*_PAIRS, "n_basis", "n_iter", "n_rows"),
    "SDHHash": (*_PAIRS, "n_basis", "n_iter", "n_rows", "nu", "ridge"),
}


def to_file(hasher: BaseHasher) -> tuple[Header, Arrays]:
    """Header and arrays of a fitted hasher."""
    arrays: Arrays = {}
    params: dict[str, Any] = {}
    scalars: dict[str, Any] = {"n_features_in_": int(hasher.n_features_in_)}
    for name, value in hasher.get_params(deep=False).items():
        if isinstance(value, np.ndarray | list):
            arrays[_PARAM + name] = np.asarray(value)
        elif name == "random_state" and not isinstance(value, int | np.integer):
            params[name] = None  # the state of a generator is not part of the model
        elif name not in ("n_jobs", "verbose"):  # matters of the machine, not of the model
            params[name] = to_json(name, value)
    for name in hasher._fitted:
        value = getattr(hasher, name, None)
        if isinstance(value, np.ndarray):
            arrays[name] = value
        elif value is not None:
            scalars[name] = to_json(name, value)
    if hasattr(hasher, "feature_names_in_"):
        scalars["feature_names_in_"] = [str(name) for name in hasher.feature_names_in_]
    return {"class": type(hasher).__name__, "params": params, "scalars": scalars}, arrays


def from_file(cls: type[Hasher], header: Header, arrays: Arrays) -> Hasher:
    """The hasher that a header and arrays describe, checked."""
    params = {name: from_json(value) for name, value in header["params"].items()}
    given = {n.removeprefix(_PARAM): a for n, a in arrays.items() if n.startswith(_PARAM)}
    hasher = cls(**params, **given)
    scalars = header["scalars"]
    n_features = scalars["n_features_in_"]
    if not isinstance(n_features, int) or n_features < 1:
        raise ValueError(f"{n_features!r} is not a number of features")
    hasher.n_features_in_ = n_features
    if "feature_names_in_" in scalars:
        hasher.feature_names_in_ = np.array(scalars["feature_names_in_"], object)
    for name in cls._fitted:
        if name in arrays:
            setattr(hasher, name, arrays[name])
        elif name in scalars:
            setattr(hasher, name, float(from_json(scalars[name])))
    _check(hasher)
    return hasher


def _check(hasher: BaseHasher) -> None:
    """Refuse arrays that do not fit together."""
    hasher._check_params()
    if not 0 < getattr(hasher, "gamma_", 1.0) < np.inf:
        raise ValueError(f"gamma_ must be above 0, got {hasher.gamma_}")
    for name in hasher._fitted:
        value = getattr(hasher, name, None)
        if isinstance(value, np.ndarray):
            wanted = np.float64 if name.startswith("bit_") else np.float32
            if value.dtype != wanted or (wanted == np.float32 and not np.isfinite(value).all()):
                raise ValueError(f"{name} must hold finite {np.dtype(wanted)} numbers")
    for name in ("directions_", "basis_"):
        if getattr(hasher, name, np.empty((0, 0))).ndim != 2:
            raise ValueError(f"{name} must be a matrix")
    n_bits, width = hasher.directions_.shape
    features = hasher._feature_map()
    metric = getattr(hasher, "metric_", None)
    n_inputs = hasher.n_features_in_
    if (
        any(len(getattr(hasher, name, hasher.directions_)) != n_bits for name in hasher._per_bit)
        or hasher.thresholds_.shape != (n_bits,)
        or features.width != width
        or features.input_width != n_inputs
        or (metric is not None and metric.shape != (n_inputs, n_inputs))
    ):
        raise ValueError("the shapes of its arrays do not fit together")


def fingerprint(hasher: BaseHasher) -> str:
    """A short name of the codes that a fitted hasher gives: equal for equal codes.

    It is made of what determines them: class, preprocessing, kernel and fitted arrays. "unit" and
    "hellinger" count as one, since a model that takes SIFT by "hellinger" and the same model that
    takes RootSIFT by "unit" give equal codes.
    """
    unit = hasher.preprocess in _UNIT_LENGTH
    known: dict[str, Any] = {"class": type(hasher).__name__, "unit_length": unit}
    for name in ("kernel", "kernel_params"):
        if hasattr(hasher, name):
            value = getattr(hasher, name)
            if callable(value):
                value = f"{value.__module__}.{value.__qualname__}"
            known[name] = to_json(name, value or None)  # no parameters are as good as none
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode())
    for name in sorted(hasher._fitted):
        value = getattr(hasher, name, None)
        if value is not None and not name.startswith("bit_"):
            array = np.asarray(value)
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


def is_same_model(hasher: BaseHasher, stored: str) -> bool:
    """Whether codes stored under a fingerprint, of today or an old one, are those of a hasher."""
    return stored == fingerprint(hasher) or stored in _old_fingerprints(hasher)


def _old_fingerprints(hasher: BaseHasher) -> list[str]:
    """Fingerprints that were made of all parameters, for each preprocessing with equal codes."""
    try:
        header, arrays = to_file(hasher)
    except ValueError:  # a kernel that is a function never had one
        return []
    common = ("n_bits", "preprocess", "random_state")
    names = (*_OLD_PARAMETERS.get(header["class"], ()), *common)
    params = {name: value for name, value in header["params"].items() if name in names}
    same = _UNIT_LENGTH if hasher.preprocess in _UNIT_LENGTH else (hasher.preprocess,)
    headers = [
        {"format": 1, **header, "params": {**params, "preprocess": preprocess}}
        for preprocess in same
    ]
    return [checksum(header, arrays)[:32] for header in headers]
