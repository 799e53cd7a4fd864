"""hloc's files: local features and matches in HDF5.

Features have a group for each image, with `keypoints` (n, 2) and `descriptors` (d, n). Matches have
a group for each pair, with `matches0`: for each keypoint of the first image the number of its match
in the second, or -1; and `matching_scores0`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..codes import Codes
from ..extras import need
from ..files import replacing
from ..hashers import BaseHasher
from ..hashers.stored import fingerprint, is_same_model
from ..search import match_codes
from ..shards.hdf5 import Hdf5Shard, image_rows, plain, reading
from .features import encode_rows
from .image_pairs import image_pairs
from .photos import RATIO

_MODEL, _BITS = "kdiffhash_model", "n_bits"  # attributes of descriptors that are codes


def encode_features(
    features: str | os.PathLike[str], out: str | os.PathLike[str], model: BaseHasher
) -> int:
    """Write a copy of a features file with codes in place of descriptors.

    Codes are `descriptors` too, uint8 of shape (n_bytes, n). What else there is of an image is
    copied as it is.

    Returns
    -------
    n : int
        Number of images.
    """
    with _reading(features) as (file, names), replacing(out) as temporary:
        h5py = need("h5py", "hdf5")
        with h5py.File(temporary, "w") as new:
            for name in names:
                group = new.require_group(name)
                for key, item in _rest(file, name):
                    file.copy(item, group, key)
                for key, value in file[name].attrs.items():
                    group.attrs[key] = value
                codes = group.create_dataset("descriptors", data=_codes(file, name, model).T)
                codes.attrs[_MODEL], codes.attrs[_BITS] = fingerprint(model), model.n_bits_
    return len(names)


def match_features(
    features: str | os.PathLike[str],
    out: str | os.PathLike[str],
    model: BaseHasher,
    pairs: str | os.PathLike[str] | None = None,
    *,
    ratio: float | None = RATIO,
    max_distance: int | None = None,
    n_jobs: int | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[tuple[str, str], int]:
    """Match images by Hamming distance, and write a matches file of hloc's.

    Parameters
    ----------
    features : path
        A features file, with descriptors or with codes of the same model.
    out : path
        The matches file, which takes the place of any that is there.
    model : fitted hasher
    pairs : path, optional
        A pairs file of hloc's; all pairs by default.
    ratio, max_distance, n_jobs
        See `match_codes`.
    advance : callable
        Told how many more pairs are done.

    Returns
    -------
    n_matches : dict
        By names.
    """
    with _reading(features) as (file, names), replacing(out) as temporary:
        wanted = image_pairs(names, pairs)
        _check_groups(names)
        codes = {name: _codes(file, name, model) for name in sorted({n for p in wanted for n in p})}
        found = {}
        with need("h5py", "hdf5").File(temporary, "w") as new:
            for a, b in wanted:
                matches = match_codes(
                    codes[a], codes[b], ratio=ratio, max_distance=max_distance, n_jobs=n_jobs
                )
                small = np.int16 if len(codes[b]) <= np.iinfo(np.int16).max else np.int32
                numbers = np.full(len(codes[a]), -1, small)
                scores = np.zeros(len(codes[a]), np.float16)
                numbers[matches.pairs[:, 0]] = matches.pairs[:, 1]
                scores[matches.pairs[:, 0]] = 1 - matches.distances / model.n_bits_
                group = new.create_group(f"{_group(a)}/{_group(b)}")
                group["matches0"], group["matching_scores0"] = numbers, scores
                found[a, b] = len(matches.pairs)
                advance(1)
    return found


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[tuple[Any, list[str]]]:
    """A features file and the names of its images."""
    shard = Hdf5Shard.open(Path(path))
    if not shard.images:
        raise ValueError(f"{os.fspath(path)} has rows, but no images: it is no file of hloc's")
    with need("h5py", "hdf5").File(path, "r") as file:
        yield file, [name for name, _ in shard.images]


def _rest(file: Any, name: str) -> list[tuple[str, Any]]:
    """What there is of an image beside its descriptors."""
    path = Path(file.filename)
    with reading(path):
        items = [(key, file[name][key]) for key in file[name] if key != "descriptors"]
        return [(key, plain(item, path)) for key, item in items if hasattr(item, "shape")]


def _group(name: str) -> str:
    return name.replace("/", "-")


def _check_groups(names: list[str]) -> None:
    """Refuse names that hloc's matches files cannot tell apart."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(_group(name), name)
        if other != name:
            raise ValueError(
                f"{other} and {name} have the same name in a matches file of hloc's; rename one"
            )


def _codes(file: Any, name: str, model: BaseHasher) -> Codes:
    """Codes of an image, encoded now or before."""
    with reading(Path(file.filename)):
        rows = image_rows(file, name, Path(file.filename))
        attributes = dict(file[name]["descriptors"].attrs)
    if _MODEL in attributes:
        if not is_same_model(model, attributes[_MODEL]):
            raise ValueError(
                f"{file.filename} has codes of another model or length "
                f"({attributes.get(_BITS)} bits); name that model, or start from its descriptors"
            )
        return rows
    return encode_rows(model, rows)
