"""Conversion of fitted hashers to and from the header and arrays of a model file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .model_file import Arrays, Header, from_json, to_json
from .schema import NOT_STORED, check_fitted, check_params

if TYPE_CHECKING:
    from .base import BaseHasher

Hasher = TypeVar("Hasher", bound="BaseHasher")

#: Values of parameters that were renamed: (parameter, old value) -> new value.
RENAMED = {("gamma", "wide"): "median/3", ("ridge", "falling"): "decay"}
_PARAM = "param."  # prefix of parameters that are arrays


def to_file(hasher: BaseHasher) -> tuple[Header, Arrays]:
    """Return header and arrays of a fitted hasher."""
    arrays: Arrays = {}
    params: dict[str, Any] = {}
    scalars: dict[str, Any] = {"n_features_in_": int(hasher.n_features_in_)}
    for name, value in hasher.get_params(deep=False).items():
        if isinstance(value, np.ndarray | list):
            arrays[_PARAM + name] = np.asarray(value)
        elif name == "random_state" and not isinstance(value, int | np.integer):
            params[name] = None  # the state of a generator is not part of the model
        elif name not in NOT_STORED:
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
    """Return the hasher that a header and arrays describe, after comparing them with the schema."""
    params = params_from(header)
    for (name, old), new in RENAMED.items():
        if params.get(name) == old:
            params[name] = new
    given = {n.removeprefix(_PARAM): a for n, a in arrays.items() if n.startswith(_PARAM)}
    check_params(params, given, cls._get_param_names())
    hasher = cls(**{**params, **given})
    hasher._check_params()
    scalars = section(header, "scalars")
    numbers = {name: from_json(scalars[name]) for name in cls._fitted if name in scalars}
    n_features = scalars.get("n_features_in_")
    if type(n_features) is not int or n_features < 1:
        raise ValueError(f"n_features_in_ must be a positive integer, got {n_features!r}")
    check_fitted(cls._fitted, {**numbers, **arrays}, n_features)
    hasher.n_features_in_ = n_features
    if "feature_names_in_" in scalars:
        hasher.feature_names_in_ = _feature_names(scalars["feature_names_in_"], n_features)
    for name in cls._fitted:
        if name in arrays:
            setattr(hasher, name, arrays[name])
        elif name in numbers:
            setattr(hasher, name, float(numbers[name]))
    hasher._feature_map()  # raises if what this kernel needs is missing
    return hasher


def params_from(header: Header) -> dict[str, Any]:
    """Return the parameters in a header, converted from JSON."""
    return {name: from_json(value) for name, value in section(header, "params").items()}


def section(header: Header, name: str) -> dict[str, Any]:
    """Return a section of a header, an object with names as keys."""
    found = header.get(name)
    if not isinstance(found, dict):
        raise ValueError(f"its header has no section {name}")
    return found


def _feature_names(names: Any, n_features: int) -> NDArray[np.object_]:
    if (
        not isinstance(names, list)
        or len(names) != n_features
        or not all(isinstance(name, str) for name in names)
    ):
        raise ValueError(f"feature_names_in_ must be a list of {n_features} names")
    return np.array(names, object)
