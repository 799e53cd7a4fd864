"""What a model file may contain: tables of parameters, of fitted arrays and of fitted numbers.

A checksum does not protect against a file that was made to do harm. Everything in a file is
therefore compared with these tables before it becomes part of a model. Dimensions have names, and
equal names must have equal lengths throughout a model. `n_jobs` and `verbose` are not in the
tables, because they are settings of the run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAX_INTEGER = 2**63 - 1
_MAX_FLOAT32 = float(np.finfo(np.float32).max)
_MAX_FLOAT64 = float(np.finfo(np.float64).max)
NOT_STORED = ("n_jobs", "verbose")  # settings of the run, not of the model


@dataclass(frozen=True)
class Value:
    """A number in a closed range, one of some words, or any text."""

    low: float = -math.inf
    high: float = math.inf
    positive: bool = False
    whole: bool = False
    words: tuple[str | bool | None, ...] = ()
    text: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless a value from a file is allowed."""
        if self.text and isinstance(value, str):
            return
        if value is None or isinstance(value, bool | str):
            valid = value in self.words
        else:
            valid = isinstance(value, int if self.whole else int | float)
            valid = valid and (not isinstance(value, int) or abs(value) <= _MAX_INTEGER)
            valid = valid and self.low <= value <= self.high and (value > 0 or not self.positive)
        if not valid:
            raise ValueError(f"{name} must be {self}, got {str(value)[:80]!r}")

    def __str__(self) -> str:
        kinds = [repr(word) for word in self.words] + (["a text"] if self.text else [])
        if self.low <= self.high:
            noun = "an integer" if self.whole else "a number"
            low = "above 0, up" if self.positive else f"from {self.low:g}"
            kinds.append(f"{noun} {low} to {self.high:g}")
        return " or ".join(kinds)


@dataclass(frozen=True)
class Array:
    """An array with named dimensions, without NaN, and with values in a closed range."""

    dtype: type[np.generic]
    shape: tuple[str, ...]
    low: float = -_MAX_FLOAT32
    high: float = _MAX_FLOAT32
    required: bool = True

    def check(self, name: str, value: NDArray[Any], sizes: dict[str, int]) -> None:
        """Raise ValueError unless an array fits; add its dimensions to `sizes`."""
        shape = dict(zip(self.shape, value.shape))
        expected = tuple(sizes.get(dimension, dimension) for dimension in self.shape)
        if (
            value.dtype != self.dtype
            or value.ndim != len(self.shape)
            or any(sizes.setdefault(key, size) != size for key, size in shape.items())
            or tuple(shape[key] for key in self.shape) != value.shape
            or value.size == 0
        ):
            raise ValueError(
                f"{name} must hold {np.dtype(self.dtype)} numbers in the shape "
                f"({', '.join(map(str, expected))}), got {value.dtype} in the shape {value.shape}"
            )
        if not (value.min() >= self.low and value.max() <= self.high):  # also false for NaN
            raise ValueError(f"{name} must have values from {self.low:g} to {self.high:g}")


_NONE = math.nan  # as a bound: no number is allowed
_COUNT = Value(0, _MAX_INTEGER, whole=True)
_TINY, _HUGE = 1e-80, 1e76  # bandwidths whose root is a float32 number
_RATE = Array(np.float64, ("bits",), 0.0, 1.0, required=False)

PARAMS: Mapping[str, Value] = {
    "alpha": Value(positive=True, words=(None,)),
    "basis": Value(_NONE, words=("random", "kmeans")),
    "center": Value(0, 1, whole=True, words=(True, False)),
    "fnr": Value(0, 1, words=(None,)),
    "fpr": Value(0, 1),
    "gamma": Value(high=_HUGE, positive=True, text=True),
    "kernel": Value(_NONE, text=True),
    "moment": Value(_NONE, words=("difference", "cross")),
    "n_basis": Value(1, _MAX_INTEGER, whole=True),
    "n_bits": Value(1, _MAX_INTEGER, whole=True, words=(None,)),
    "n_iter": _COUNT,
    "n_negatives": _COUNT,
    "n_positives": _COUNT,
    "nested": Value(_NONE, words=(True, False)),
    "norm": Value(_NONE, words=("rkhs", "euclidean")),
    "preprocess": Value(_NONE, words=(None, "unit", "hellinger")),
    "random_state": Value(-_MAX_INTEGER, _MAX_INTEGER, whole=True, words=(None,)),
    "refine": _COUNT,
    "ridge": Value(0, _MAX_FLOAT64, words=("decay",)),
    "threshold_weight": Value(high=_MAX_FLOAT64, positive=True),
    "weak": Value(_NONE, words=("axis", "projection")),
}
_OTHER_PARAM = Value(words=(None, True, False), text=True)  # of classes outside of this package
_KERNEL_PARAM = Value(-_MAX_FLOAT32, _MAX_FLOAT32)

#: Fitted attributes; "columns" is `n_features_in_`, and equals "features" if there is no basis.
FITTED: Mapping[str, Array | Value] = {
    "basis_": Array(np.float32, ("features", "columns")),
    "bit_fnr_": _RATE,
    "bit_fpr_": _RATE,
    "bit_ones_": _RATE,
    "bit_spread_": Array(np.float64, ("bits",), 0.0, _MAX_FLOAT64, required=False),
    "bit_weights_": Array(np.float64, ("bits",), 0.0, math.inf, required=False),
    "directions_": Array(np.float32, ("bits", "features")),
    "gamma_": Value(_TINY, _HUGE),
    "metric_": Array(np.float32, ("columns", "columns"), required=False),
    "offset_": Array(np.float32, ("columns",)),
    "thresholds_": Array(np.float32, ("bits",)),
}


def check_params(
    params: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], known: Collection[str]
) -> None:
    """Raise ValueError unless a file may give a class these parameters, and these as arrays."""
    for name in (*params, *arrays):
        if name not in known or name in NOT_STORED:
            raise ValueError(f"the parameter {name} is unknown, or is not stored in model files")
    for name in arrays:
        if name != "basis" or arrays[name].ndim != 2:
            raise ValueError(f"the parameter {name} must not be an array of {arrays[name].shape}")
    for name, value in params.items():
        if name == "kernel_params":
            _check_kernel_params(value)
        else:
            PARAMS.get(name, _OTHER_PARAM).check(name, value)


def _check_kernel_params(params: Any) -> None:
    if params is None:
        return
    if not isinstance(params, dict):
        raise ValueError(f"kernel_params must be numbers by name, got {str(params)[:80]!r}")
    for name, value in params.items():
        _KERNEL_PARAM.check(f"kernel_params[{name!r}]", value)


def check_fitted(names: Collection[str], found: Mapping[str, Any], n_features: int) -> None:
    """Raise ValueError unless the fitted attributes of a class are valid and fit together.

    Parameters
    ----------
    names : collection of str
        Fitted attributes of the class.
    found : mapping
        Those in the file: arrays and numbers.
    n_features : int
        Number of columns of the rows that the model encodes.
    """
    sizes = {"columns": n_features}
    if "basis_" not in names:
        sizes["features"] = n_features
    for name in names:
        spec, value = FITTED[name], found.get(name)
        if isinstance(spec, Value):
            spec.check(name, value)
        elif isinstance(value, np.ndarray):
            spec.check(name, value, sizes)
        elif spec.required or value is not None:
            raise ValueError(f"the array {name} is missing")
