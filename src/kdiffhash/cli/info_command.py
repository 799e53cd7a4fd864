"""`kdiffhash info`: describe a model file, or this installation.

The description comes from the file alone, so that scikit-learn is not imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Json

if TYPE_CHECKING:
    from ..hashers.model_file import Arrays, Header


def info(
    model: Annotated[
        Path | None,
        typer.Argument(help="Model file written by [bold]kdiffhash train[/].", metavar="MODEL"),
    ] = None,
    system: Annotated[
        bool,
        typer.Option("--system", help="Print versions, platform, CPU instruction set and threads."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Describe a model file, or this installation."""
    from .output import show

    if model is None and not system:
        raise ValueError("nothing to describe; give a model file, or --system")
    result = {} if model is None else describe_file(model)
    show(result | (describe_system() if system else {}), as_json)


def describe_file(path: Path) -> dict[str, Any]:
    """Return class, size and parameters of the model in a file."""
    from ..hashers.model_file import ModelFileError, read_model_file

    header, arrays = read_model_file(path)
    try:
        described = _describe(header, arrays)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelFileError(
            f"{path} does not hold a model that this version of kdiffhash can describe: {error}"
        ) from error
    return {"model": str(path), **described, "bytes_on_disk": path.stat().st_size}


def _describe(header: Header, arrays: Arrays) -> dict[str, Any]:
    from ..codes import n_bytes
    from ..hashers.model_file import from_json

    prefix = "param."  # of parameters that are arrays
    parameters = {name: from_json(value) for name, value in header["params"].items()}
    parameters |= {name.removeprefix(prefix): "array" for name in arrays if name.startswith(prefix)}
    result: dict[str, Any] = {"class": header["class"]}
    if header["class"] == "SequentialMatcher":
        bits = header["scalars"]["n_bits_"]
    elif header["class"] == "CrossDiffHash":
        bits = len(arrays["x.directions_"])
        sides = header["sides"]
        result["input_features"] = {s: sides[s]["scalars"]["n_features_in_"] for s in ("x", "y")}
        result["preprocess"] = {s: sides[s]["params"]["preprocess"] for s in ("x", "y")}
    else:
        bits = len(arrays["directions_"])
        result["input_features"] = header["scalars"]["n_features_in_"]
        result["preprocess"] = header["params"]["preprocess"]
    result |= {"bits": bits, "bytes_per_code": n_bytes(bits), "format": header["format"]}
    for rate in ("fnr", "fpr"):
        if f"bit_{rate}_" in arrays:
            result[f"mean_bit_{rate}"] = float(arrays[f"bit_{rate}_"].mean())
    return result | {"parameters": dict(sorted(parameters.items()))}


def describe_system() -> dict[str, Any]:
    """Return versions, platform, instruction set and number of threads."""
    import platform

    import numpy as np

    from .. import __version__, _core
    from .._util.threads import n_threads

    return {
        "kdiffhash": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "instruction_set": _core.level,
        "threads": n_threads(None),
    }
