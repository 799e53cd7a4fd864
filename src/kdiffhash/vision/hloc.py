"""hloc's files: local features and matches in HDF5.

A features file has one group per image, with `keypoints` (n, 2) and `descriptors` (d, n). A matches
file has one group per pair, with `matches0`, which holds for each keypoint of the first image the
index of its match in the second or -1, and `matching_scores0`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .._util.extras import need
from .._util.files import replacing
from ..codes import Codes
from ..hashers import BaseHasher
from ..hashers.fingerprint import fingerprint, is_same_model
from ..search import match_codes
from ..shards.hdf5 import Hdf5Shard, image_rows, plain, reading
from .features import encode_descriptors
from .image_pairs import image_pairs
from .photo_matching import RATIO

_MODEL, _BITS = "kdiffhash_model", "n_bits"  # attributes of descriptors that are codes


def encode_features(
    features: str | os.PathLike[str], out: str | os.PathLike[str], model: BaseHasher
) -> int:
    """Write a copy of a features file in which the descriptors are replaced by codes.

    The codes are stored as `descriptors`, uint8 of shape (n_bytes, n). All other data of an image
    is copied unchanged.

    Parameters
    ----------
    features : path
        Features file as hloc's ``extract_features`` writes it.
    out : path
        File to write; an existing one is replaced.
    model : fitted hasher
        For example ``load_pretrained("rootsift")`` for hloc's SIFT.

    Returns
    -------
    n_images : int
    """
    with _reading(features) as (file, names), replacing(out) as temporary:
        h5py = need("h5py", "hdf5")
        with h5py.File(temporary, "w") as new:
            for name in names:
                group = new.require_group(name)
                for key, item in _other_datasets(file, name):
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
    """Match images by Hamming distance and write a matches file for hloc.

    Parameters
    ----------
    features : path
        Features file with descriptors, or with codes of the same model.
    out : path
        Matches file to write; an existing one is replaced.
    model : fitted hasher
    pairs : path, optional
        Pairs file with two image names per line; all pairs by default.
    ratio : float or None, default=0.74
        Largest ratio of the nearest to the second-nearest distance; None skips the test.
    max_distance : int, optional
        Largest Hamming distance of a match.
    n_jobs : int, optional
        Number of threads; by default all cores available to the process.
    advance : callable
        Called with the number of pairs completed since the last call.

    Returns
    -------
    n_matches : dict
        Number of matches for each pair of image names.
    """
    with _reading(features) as (file, names), replacing(out) as temporary:
        wanted = image_pairs(names, pairs)
        _check_group_names(names)
        codes = {name: _codes(file, name, model) for name in sorted({n for p in wanted for n in p})}
        found = {}
        with need("h5py", "hdf5").File(temporary, "w") as new:
            for a, b in wanted:
                matches = match_codes(
                    codes[a], codes[b], ratio=ratio, max_distance=max_distance, n_jobs=n_jobs
                )
                dtype = np.int16 if len(codes[b]) <= np.iinfo(np.int16).max else np.int32
                indices = np.full(len(codes[a]), -1, dtype)
                scores = np.zeros(len(codes[a]), np.float16)
                indices[matches.pairs[:, 0]] = matches.pairs[:, 1]
                scores[matches.pairs[:, 0]] = 1 - matches.distances / model.n_bits_
                group = new.create_group(f"{_group_name(a)}/{_group_name(b)}")
                group["matches0"], group["matching_scores0"] = indices, scores
                found[a, b] = len(matches.pairs)
                advance(1)
    return found


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[tuple[Any, list[str]]]:
    """Open a features file and list its images."""
    shard = Hdf5Shard.open(Path(path))
    if not shard.images:
        raise ValueError(
            f"{os.fspath(path)} has rows, but no images: it is not a features file of hloc"
        )
    with need("h5py", "hdf5").File(path, "r") as file:
        yield file, [name for name, _ in shard.images]


def _other_datasets(file: Any, name: str) -> list[tuple[str, Any]]:
    """Return the datasets of an image apart from its descriptors."""
    path = Path(file.filename)
    with reading(path):
        items = [(key, file[name][key]) for key in file[name] if key != "descriptors"]
        return [(key, plain(item, path)) for key, item in items if hasattr(item, "shape")]


def _group_name(name: str) -> str:
    return name.replace("/", "-")


def _check_group_names(names: list[str]) -> None:
    """Raise if two images would have the same group in a matches file."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(_group_name(name), name)
        if other != name:
            raise ValueError(
                f"{other} and {name} have the same group name in hloc's matches file; rename one "
                "of the images"
            )


def _codes(file: Any, name: str, model: BaseHasher) -> Codes:
    """Return the codes of an image, encoding its descriptors if they are not codes yet."""
    with reading(Path(file.filename)):
        descriptors = image_rows(file, name, Path(file.filename))
        attributes = dict(file[name]["descriptors"].attrs)
    if _MODEL in attributes:
        if not is_same_model(model, attributes[_MODEL]):
            raise ValueError(
                f"{file.filename} has codes of another model or length "
                f"({attributes.get(_BITS)} bits); use that model, or the original descriptors"
            )
        return descriptors
    return encode_descriptors(model, descriptors)
