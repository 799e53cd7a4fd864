"""Model files: arrays as safetensors, everything else as JSON in its header.

Reading a model runs nothing from the file. The header names the format version, the class (one of
those below), its parameters and the scalars it learned; a checksum over header and arrays tells an
edited or damaged file from a whole one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from abc import abstractmethod
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from .._util.errors import KdiffhashError
from .._util.files import replacing

FORMAT = 2  # 1 knows no float16; it is written where it is enough
_CLASSES = {  # the classes that a file may name, and the module of this package that has them
    "BoostedHash": "boosted",
    "CrossDiffHash": "cross",
    "DiffHash": "linear",
    "ITQHash": "itq",
    "KernelDiffHash": "kernel",
    "KernelLDAHash": "kernel",
    "LDAHash": "linear",
    "SequentialMatcher": "sequential_matcher",
}
_registered: dict[str, type[Model]] = {}  # classes of other packages, once they are imported
_HALVES = frozenset({"basis_", "directions_"})

Header = dict[str, Any]
Arrays = dict[str, NDArray[Any]]


class ModelFileError(KdiffhashError, ValueError):
    """The file is not a model that this version can read."""


class Model:
    """Base class of what is kept in model files."""

    def save(self, path: str | os.PathLike[str], *, half: Collection[str] = ()) -> None:
        """Write the model to a file (safetensors with a JSON header).

        Parameters
        ----------
        path : path
            An old file there is replaced only when all is written.
        half : collection of str
            Which of ``basis_`` and ``directions_`` to write as float16, which must hold them
            exactly; the model that is read is the same.
        """
        name = type(self).__name__
        if find_class(name) is not type(self):
            raise ValueError(f"{name} is not one of kdiffhash's own classes")
        write_model_file(path, *self._to_file(), half)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model file of this class; `kdiffhash.load` reads any class."""
        model = load(path)
        if not isinstance(model, cls):
            raise ValueError(
                f"{os.fspath(path)} holds a {type(model).__name__}, not a {cls.__name__}; "
                "kdiffhash.load reads any model"
            )
        return model

    @abstractmethod
    def _to_file(self) -> tuple[Header, Arrays]:
        """Header, with the name of the class, and arrays."""

    @classmethod
    @abstractmethod
    def _from_file(cls, header: Header, arrays: Arrays) -> Self:
        """The model that `_to_file` described; anything wrong with it is an error."""


AnyModel = TypeVar("AnyModel", bound=Model)


def load(path: str | os.PathLike[str]) -> Model:
    """Read a model file of any class.

    Raises
    ------
    ModelFileError
        If the file is truncated, edited, of a newer format or not a model.
    """
    header, arrays = read_model_file(path)
    try:
        return find_class(header["class"])._from_file(header, arrays)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ModelFileError(
            f"{os.fspath(path)} does not describe a model of this version: {error}"
        ) from error


def register(cls: type[AnyModel]) -> type[AnyModel]:
    """Let model files name a class that is defined outside of this package (a decorator)."""
    _registered[cls.__name__] = cls
    return cls


def find_class(name: str) -> type[Model]:
    """Return a class that a model file may name."""
    if name in _registered:
        return _registered[name]
    if name not in _CLASSES:
        raise ValueError(
            f"the class {name} is unknown; baselines are known after "
            "`import kdiffhash.study.baselines`"
        )
    found: type[Model] = getattr(import_module(f".{_CLASSES[name]}", __package__), name)
    return found


def write_model_file(
    path: str | os.PathLike[str], header: Header, arrays: Arrays, half: Collection[str] = ()
) -> None:
    """Write header and arrays with a checksum, what `half` names as float16."""
    from safetensors.numpy import save as to_bytes

    if isinstance(half, str) or not set(half) <= _HALVES:
        raise ValueError(f"half must be some of {', '.join(sorted(_HALVES))}, got {half!r}")
    header = {"format": 2 if half else 1, **header}
    arrays = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    for name in _HALVES & set(half) & arrays.keys():
        with np.errstate(over="ignore"):
            small = arrays[name].astype(np.float16)
        if not np.array_equal(small, arrays[name]):
            raise ValueError(f"{name} does not fit into float16; round it, and learn the rest")
        arrays[name] = small
    header["sha256"] = checksum(header, arrays)
    # One entry, since safetensors writes several in any order, and the same model should give the
    # same file.
    content = to_bytes(arrays, metadata={"kdiffhash": json.dumps(header, sort_keys=True)})
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_model_file(path: str | os.PathLike[str]) -> tuple[Header, Arrays]:
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
        version, found = header["format"], header.pop("sha256", None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelFileError(f"{name} has a damaged header; train or copy it again") from None
    if not isinstance(version, int) or version > FORMAT:
        raise ModelFileError(
            f"{name} has format {version}, this version reads up to {FORMAT}; upgrade kdiffhash"
        )
    if found != checksum(header, arrays):
        raise ModelFileError(f"{name} was damaged or edited: its checksum does not fit")
    halves = {name: arrays[name].astype(np.float32) for name in _halves_in(arrays)}
    return header, arrays | halves


def _halves_in(arrays: Arrays) -> list[str]:
    return [name for name in _HALVES & arrays.keys() if arrays[name].dtype == np.float16]


def checksum(header: Header, arrays: Arrays) -> str:
    """SHA-256 over header and arrays."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def to_json(name: str, value: Any) -> Any:
    """Plain JSON for a parameter; infinity, which JSON lacks, as text in an object."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {"dict": {str(key): to_json(name, item) for key, item in value.items()}}
    raise ValueError(
        f"{name}={value!r} cannot be stored in a model file; a kernel that is a function has to be "
        "set again by code, use one of the named kernels"
    )


def from_json(value: Any) -> Any:
    """The inverse of `to_json`."""
    if isinstance(value, dict):
        if "float" in value:
            return float(value["float"])
        return {key: from_json(item) for key, item in value["dict"].items()}
    return value
