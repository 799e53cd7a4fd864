"""Models that come with the package."""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files

from .hashers import BaseHasher

# What a name takes, and what makes it RootSIFT.
_PREPROCESS = {"sift": "hellinger", "rootsift": "unit"}


def load_pretrained(name: str = "sift", n_bits: int | None = None) -> BaseHasher:
    """A model that comes with the package.

    Parameters
    ----------
    name : {"sift", "rootsift"}
        What it takes: SIFT as OpenCV makes it, or RootSIFT as COLMAP and hloc keep it, 128 numbers
        of any type and scale. Both give the same codes.
    n_bits : int, optional
        Take the first bits only, of 512.

    Returns
    -------
    hasher : KernelLDAHash

    Examples
    --------
    >>> import kdiffhash
    >>> hasher = kdiffhash.load_pretrained("sift", n_bits=128)
    >>> hasher.n_features_in_, hasher.n_bits_
    (128, 128)
    """
    if name not in _PREPROCESS:
        raise ValueError(f"there is no model called {name!r}; known are {', '.join(_PREPROCESS)}")
    whole = _load()
    hasher = whole.truncate(whole.n_bits_ if n_bits is None else n_bits)
    hasher.set_params(preprocess=_PREPROCESS[name])
    return hasher


@cache
def _load() -> BaseHasher:
    with as_file(files(__package__) / "models" / "sift.safetensors") as path:
        return BaseHasher.load(path)
