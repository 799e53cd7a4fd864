"""Model files: arrays in safetensors format, everything else as JSON in the header.

Reading a model never executes code from the file. The header contains the format version, the name
of the class (one of those below), its parameters and the fitted scalars. A checksum over header and
arrays detects files that were damaged or edited.
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
from .._util.files import check_regular, replacing

FORMAT = 2  # format 1 has no float16; it is still written if no array is stored as float16
_CLASSES = {  # classes that a file may name, and their modules in this package
    "BoostedHash": "boosted",
    "CrossDiffHash": "cross",
    "DiffHash": "linear",
    "ITQHash": "itq",
    "KernelDiffHash": "kernel",
    "KernelLDAHash": "kernel",
    "LDAHash": "linear",
    "SequentialMatcher": "sequential_matcher",
}
_registered: dict[str, type[Model]] = {}  # classes from other packages, see `register`
_HALVES = frozenset({"basis_", "directions_"})  # arrays that may be stored as float16
_TYPES = {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "F32", "F64"}

Header = dict[str, Any]
Arrays = dict[str, NDArray[Any]]


class ModelFileError(KdiffhashError, ValueError):
    """Error raised if a file is not a model that this version can read.

    Examples
    --------
    >>> import tempfile
    >>> import kdiffhash
    >>> path = tempfile.mkdtemp() + "/notes.txt"
    >>> with open(path, "w") as file:
    ...     _ = file.write("not a model")
    >>> try:
    ...     kdiffhash.load(path)
    ... except kdiffhash.ModelFileError as error:
    ...     print("not a model file" in str(error))
    True
    """


class Model:
    """Base class of everything that can be saved to a model file.

    Examples
    --------
    >>> import tempfile
    >>> from kdiffhash import KernelLDAHash, load_pretrained
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> load_pretrained("sift", n_bits=64).save(path)
    >>> KernelLDAHash.load(path).n_bits_
    64
    """

    def save(self, path: str | os.PathLike[str], *, half: Collection[str] = ()) -> None:
        """Write the model to a file (safetensors with a JSON header).

        Parameters
        ----------
        path : path
            File to write. An existing file is replaced atomically.
        half : collection of str, default=()
            Which of ``"basis_"`` and ``"directions_"`` to store as float16. All their values must
            be exactly representable, so that the model read back is the same.
        """
        name = type(self).__name__
        if find_class(name) is not type(self):
            raise ValueError(
                f"{name} cannot be saved: a model file can only name classes of kdiffhash"
            )
        header, arrays = self._to_file()
        self._from_file(header, arrays)  # raises for what `load` would refuse
        write_model_file(path, header, arrays, half)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model file of this class; `kdiffhash.load` reads any class.

        Parameters
        ----------
        path : path
            File written by `save`.

        Returns
        -------
        model : object
            The fitted model, an instance of this class.
        """
        model = load(path)
        if not isinstance(model, cls):
            raise ValueError(
                f"{os.fspath(path)} holds a {type(model).__name__}, not a {cls.__name__}; "
                "kdiffhash.load reads any model"
            )
        return model

    @abstractmethod
    def _to_file(self) -> tuple[Header, Arrays]:
        """Return header (including the name of the class) and arrays."""

    @classmethod
    @abstractmethod
    def _from_file(cls, header: Header, arrays: Arrays) -> Self:
        """Return the model described by header and arrays; raise an error if they are invalid."""


AnyModel = TypeVar("AnyModel", bound=Model)


def load(path: str | os.PathLike[str]) -> Model:
    """Read a model file of any class.

    Parameters
    ----------
    path : path
        File written by the `save` method of a model.

    Returns
    -------
    model : object
        The fitted model, for instance a `KernelLDAHash`.

    Raises
    ------
    ModelFileError
        If the file is truncated, edited, of a newer format or not a model.

    Examples
    --------
    >>> import tempfile
    >>> import kdiffhash
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> kdiffhash.load_pretrained("sift", n_bits=64).save(path)
    >>> kdiffhash.load(path).n_bits_
    64
    """
    header, arrays = read_model_file(path)
    try:
        return find_class(header.get("class"))._from_file(header, arrays)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ModelFileError(
            f"{os.fspath(path)} does not describe a model that this version can read: {error}"
        ) from error


def register(cls: type[AnyModel]) -> type[AnyModel]:
    """Allow model files to name a class defined outside of this package (a class decorator)."""
    _registered[cls.__name__] = cls
    return cls


def find_class(name: object) -> type[Model]:
    """Return a class that a model file may name."""
    if isinstance(name, str) and name in _registered:
        return _registered[name]
    if not isinstance(name, str) or name not in _CLASSES:
        raise ValueError(
            f"the class {str(name)[:80]} is unknown; to load a baseline, first "
            "`import kdiffhash.study.baselines`"
        )
    cls: type[Model] = getattr(import_module(f".{_CLASSES[name]}", __package__), name)
    return cls


def write_model_file(
    path: str | os.PathLike[str], header: Header, arrays: Arrays, half: Collection[str] = ()
) -> None:
    """Write header and arrays with a checksum; arrays named in `half` are stored as float16."""
    from safetensors.numpy import save as to_bytes

    if isinstance(half, str) or not set(half) <= _HALVES:
        raise ValueError(
            f"half must be a collection of names among {', '.join(sorted(_HALVES))}, got {half!r}"
        )
    header = {"format": 2 if half else 1, **header}
    arrays = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    for name in _HALVES & set(half) & arrays.keys():
        with np.errstate(over="ignore"):
            small = arrays[name].astype(np.float16)
        if not np.array_equal(small, arrays[name]):
            raise ValueError(
                f"{name} has values that float16 cannot represent exactly; round it before the "
                "remaining steps of training, or leave it out of half"
            )
        arrays[name] = small
    header["sha256"] = checksum(header, arrays)
    # A single entry, because safetensors writes several in arbitrary order, and equal models should
    # give equal files.
    content = to_bytes(arrays, metadata={"kdiffhash": json.dumps(header, sort_keys=True)})
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_model_file(path: str | os.PathLike[str]) -> tuple[Header, Arrays]:
    """Return header and arrays of a model file after verifying its checksum."""
    from safetensors import SafetensorError, safe_open

    name = os.fspath(path)
    if Path(path).is_dir():
        raise ModelFileError(f"{name} is a folder, not a model file")
    check_regular(path)
    try:
        with safe_open(name, framework="numpy") as file:
            metadata = file.metadata() or {}
            for key in file.keys():  # noqa: SIM118
                kind = file.get_slice(key).get_dtype()
                if kind not in _TYPES:
                    raise TypeError(f"{key} has the type {kind}, which no model has")
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, TypeError, ValueError, MemoryError) as error:
        raise ModelFileError(
            f"{name} is not a model file or is damaged ({error}); copy or train it again"
        ) from error
    text = metadata.get("kdiffhash")
    if text is None:
        raise ModelFileError(f"{name} is a safetensors file, but was not written by kdiffhash")
    try:
        header = json.loads(text)
        version, stored = header["format"], header.pop("sha256", None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelFileError(f"{name} has a damaged header; copy or train it again") from None
    if type(version) is not int or not 1 <= version <= FORMAT:
        raise ModelFileError(
            f"{name} has format {str(version)[:80]}, but this version reads formats 1 to "
            f"{FORMAT}; upgrade kdiffhash"
        )
    if stored != checksum(header, arrays):
        raise ModelFileError(
            f"{name} was damaged or edited: its checksum does not match; copy or train it again"
        )
    for key in _HALVES & arrays.keys():
        if arrays[key].dtype == np.float16:
            arrays[key] = arrays[key].astype(np.float32)
    return header, arrays


def checksum(header: Header, arrays: Arrays) -> str:
    """Return the SHA-256 digest of header and arrays in hexadecimal."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def to_json(name: str, value: Any) -> Any:
    """Convert a parameter to JSON; infinity, which JSON lacks, becomes text in an object."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {"dict": {str(key): to_json(name, item) for key, item in value.items()}}
    raise ValueError(
        f"{name}={value!r} cannot be stored in a model file; functions are not saved, so use a "
        "kernel that has a name"
    )


def from_json(value: Any) -> Any:
    """Convert JSON back to a parameter; the inverse of `to_json`."""
    if isinstance(value, dict):
        if "float" in value:
            return float(value["float"])
        if not isinstance(value.get("dict"), dict):
            raise ValueError("its header has an object that is neither a number nor parameters")
        return {key: _plain(item) for key, item in value["dict"].items()}
    return value


def _plain(value: Any) -> Any:
    """Convert a value within an object, which may be a number but not another object."""
    return float(value["float"]) if isinstance(value, dict) and "float" in value else value
