"""Fingerprints of models: equal if two models produce equal codes."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from .model_file import checksum, to_json
from .serialization import RENAMED, to_file

if TYPE_CHECKING:
    from .base import BaseHasher

_UNIT_LENGTH = ("unit", "hellinger")  # preprocessing that yields rows of unit length
# Parameters that old fingerprints included although they do not affect the codes.
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


def fingerprint(hasher: BaseHasher) -> str:
    """Return the fingerprint of a fitted hasher, 32 hexadecimal digits.

    Only what determines the codes is hashed: class, preprocessing, kernel and fitted arrays. "unit"
    and "hellinger" count as equal, since a model that takes SIFT by "hellinger" and the same model
    that takes RootSIFT by "unit" produce equal codes.
    """
    unit = hasher.preprocess in _UNIT_LENGTH
    known: dict[str, Any] = {"class": type(hasher).__name__, "unit_length": unit}
    for name in ("kernel", "kernel_params"):
        if hasattr(hasher, name):
            value = getattr(hasher, name)
            if callable(value):
                value = f"{value.__module__}.{value.__qualname__}"
            known[name] = to_json(name, value or None)  # {} and None are equivalent
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode())
    for name in sorted(hasher._fitted):
        value = getattr(hasher, name, None)
        if value is not None and not name.startswith("bit_"):
            array = np.asarray(value)
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


def is_same_model(hasher: BaseHasher, stored: str) -> bool:
    """Return whether a stored fingerprint, of the current or the old form, is that of a hasher."""
    return stored == fingerprint(hasher) or stored in _old_fingerprints(hasher)


def _old_fingerprints(hasher: BaseHasher) -> list[str]:
    """Return the fingerprints of the old form, one for each equivalent preprocessing."""
    try:
        header, arrays = to_file(hasher)
    except ValueError:  # kernels that are functions never had one
        return []
    common = ("n_bits", "preprocess", "random_state")
    names = (*_OLD_PARAMETERS.get(header["class"], ()), *common)
    params = {name: value for name, value in header["params"].items() if name in names}
    for (name, old), new in RENAMED.items():
        if params.get(name) == new:
            params[name] = old
    same = _UNIT_LENGTH if hasher.preprocess in _UNIT_LENGTH else (hasher.preprocess,)
    headers = [
        {"format": 1, **header, "params": {**params, "preprocess": preprocess}}
        for preprocess in same
    ]
    return [checksum(header, arrays)[:32] for header in headers]
