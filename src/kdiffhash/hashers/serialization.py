"""Conversion of fitted hashers to and from the header and arrays of a model file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .model_file import Arrays, Header, from_json, to_json

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
        elif name not in ("n_jobs", "verbose"):  # settings of the run, not of the model
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
    """Return the checked hasher that a header and arrays describe."""
    params = {name: from_json(value) for name, value in header["params"].items()}
    for (name, old), new in RENAMED.items():
        if params.get(name) == old:
            params[name] = new
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
