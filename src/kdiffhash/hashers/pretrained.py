"""Models shipped with the package."""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files

from . import BaseHasher

# The preprocessing that turns each kind of input into RootSIFT.
_PREPROCESS = {"sift": "hellinger", "rootsift": "unit"}


def load_pretrained(name: str = "sift", n_bits: int | None = None) -> BaseHasher:
    """Load a model shipped with the package.

    Parameters
    ----------
    name : {"sift", "rootsift"}, default="sift"
        Kind of input: SIFT as computed by OpenCV, or RootSIFT as stored by COLMAP and hloc, 128
        numbers of any type and scale. Both give the same codes.
    n_bits : int or None, default=None
        Length of the codes, at most 512. None means 512.

    Returns
    -------
    hasher : KernelLDAHash
        The fitted hasher.

    Examples
    --------
    >>> import kdiffhash
    >>> hasher = kdiffhash.load_pretrained("sift", n_bits=128)
    >>> hasher.n_features_in_, hasher.n_bits_
    (128, 128)
    """
    if name not in _PREPROCESS:
        raise ValueError(f"there is no model named {name!r}; available: {', '.join(_PREPROCESS)}")
    whole = _load()
    hasher = whole.truncate(whole.n_bits_ if n_bits is None else n_bits)
    hasher.set_params(preprocess=_PREPROCESS[name])
    return hasher


@cache
def _load() -> BaseHasher:
    with as_file(files(__package__) / "models" / "sift.safetensors") as path:
        return BaseHasher.load(path)
