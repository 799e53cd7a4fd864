"""Encode and match the local features of hloc, which are stored in HDF5 files.

A features file has one group per image, with `keypoints` (n, 2) and `descriptors` (d, n). A matches
file has one group per pair: `matches0` holds for each keypoint of the first image the index of its
match in the second image or -1, and `matching_scores0` the score of each match.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .._util.extras import need
from .._util.files import replacing
from ..codes import Codes, check_codes
from ..hashers import BaseHasher
from ..hashers.fingerprint import fingerprint, is_same_model
from ..search import match_codes
from ..shards.hdf5 import Hdf5Shard, image_rows, plain, reading
from .features import encode_descriptors
from .image_pairs import image_pairs
from .photo_matching import RATIO

_MODEL, _BITS, _CHECKSUM = "kdiffhash_model", "n_bits", "crc"  # attributes of a dataset of codes


def encode_features(
    features: str | os.PathLike[str], out: str | os.PathLike[str], model: BaseHasher
) -> int:
    """Write a copy of a features file in which the descriptors are replaced by codes.

    The codes are stored as `descriptors`, uint8 of shape (n_bytes, n). All other data of an image
    is copied unchanged.

    Parameters
    ----------
    features : path
        Features file written by hloc's ``extract_features``.
    out : path
        File to write; an existing one is replaced.
    model : fitted hasher
        Model for these descriptors. The one in the package is for SIFT only, as hloc stores it:
        ``load_pretrained("rootsift")``.

    Returns
    -------
    n_images : int
        Number of images in the file.

    Examples
    --------
    >>> import tempfile
    >>> import h5py, numpy as np
    >>> from kdiffhash import load_pretrained
    >>> from kdiffhash.vision.hloc import encode_features
    >>> path = tempfile.mkdtemp() + "/features.h5"
    >>> with h5py.File(path, "w") as file:
    ...     for name in ("a.jpg", "b.jpg"):
    ...         file[f"{name}/keypoints"] = np.zeros((50, 2))
    ...         file[f"{name}/descriptors"] = np.random.default_rng(0).random((128, 50))
    >>> encode_features(path, path + ".codes", load_pretrained("rootsift", n_bits=128))
    2
    """
    with _reading(features) as (file, names), replacing(out) as temporary:
        h5py = need("h5py", "hdf5")
        with h5py.File(temporary, "w") as new:
            for name in names:
                group = new.require_group(name)
                _copy_other_data(file, name, group)
                codes = _image_codes(file, name, model)
                stored = group.create_dataset("descriptors", data=codes.T)
                stored.attrs[_MODEL], stored.attrs[_BITS] = fingerprint(model), model.n_bits_
                stored.attrs[_CHECKSUM] = _checksum(name, codes)
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
        Model for these descriptors.
    pairs : path, optional
        Pairs file with two image names per line; all pairs by default.
    ratio : float or None, default=0.74
        Largest ratio of the nearest to the second-nearest Hamming distance; None skips the test.
    max_distance : int, optional
        Largest Hamming distance of a match; unlimited by default.
    n_jobs : int, optional
        Number of threads; by default all cores available to the process.
    advance : callable, optional
        Called with the number of pairs completed since the last call.

    Returns
    -------
    n_matches : dict
        Number of matches for each pair of image names.

    Examples
    --------
    >>> import tempfile
    >>> import h5py, numpy as np
    >>> from kdiffhash import load_pretrained
    >>> from kdiffhash.vision.hloc import match_features
    >>> path = tempfile.mkdtemp() + "/features.h5"
    >>> with h5py.File(path, "w") as file:
    ...     for name in ("a.jpg", "b.jpg"):
    ...         file[f"{name}/keypoints"] = np.zeros((50, 2))
    ...         file[f"{name}/descriptors"] = np.random.default_rng(0).random((128, 50))
    >>> match_features(path, path + ".matches", load_pretrained("rootsift", n_bits=128))
    {('a.jpg', 'b.jpg'): 50}
    """
    with _reading(features) as (file, names), replacing(out) as temporary:
        selected = image_pairs(names, pairs)
        _check_group_names(names)
        codes = {
            name: _image_codes(file, name, model)
            for name in sorted({n for p in selected for n in p})
        }
        n_matches = {}
        with need("h5py", "hdf5").File(temporary, "w") as new:
            for a, b in selected:
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
                n_matches[a, b] = len(matches.pairs)
                advance(1)
    return n_matches


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[tuple[Any, list[str]]]:
    """Open a features file and list its images."""
    shard = Hdf5Shard.open(Path(path))
    if not shard.images:
        raise ValueError(
            f"{os.fspath(path)} has rows, but no images: it is not a features file written by hloc"
        )
    with need("h5py", "hdf5").File(path, "r") as file:
        yield file, [name for name, _ in shard.images]


def _copy_other_data(file: Any, name: str, to: Any) -> None:
    """Copy the attributes of an image, and its datasets apart from the descriptors."""
    path = Path(file.filename)
    with reading(path):
        items = [(key, file[name][key]) for key in file[name] if key != "descriptors"]
        items = [(key, plain(item, path)) for key, item in items if hasattr(item, "shape")]
        attributes = dict(file[name].attrs)
    for key, value in attributes.items():
        to.attrs[key] = value
    for key, item in items:
        try:
            file.copy(item, to, key)
        except (RuntimeError, KeyError) as error:
            raise ValueError(f"{path}: {name}/{key} cannot be copied: {error}") from error


def _group_name(name: str) -> str:
    """Return the name that hloc gives the group of an image in a matches file."""
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


def _checksum(name: str, codes: Codes) -> int:
    """Return the checksum of an image's name and codes; HDF5 does not detect changed bytes."""
    return zlib.crc32(codes.tobytes(), zlib.crc32(name.encode(errors="surrogateescape")))


def _image_codes(file: Any, name: str, model: BaseHasher) -> Codes:
    """Return the codes of an image, encoding its descriptors if they are not codes yet."""
    with reading(Path(file.filename)):
        descriptors = image_rows(file, name, Path(file.filename))
        attributes = dict(file[name]["descriptors"].attrs)
        keypoints = file[name].get("keypoints")
        n_keypoints = len(descriptors) if keypoints is None else keypoints.shape[0]
    if n_keypoints != len(descriptors):
        raise ValueError(
            f"{file.filename}: {name} has {n_keypoints} keypoints, but {len(descriptors)} "
            "descriptors; extract its features again"
        )
    if _MODEL in attributes:
        stored = attributes[_MODEL]
        if not isinstance(stored, str) or not is_same_model(model, stored):
            raise ValueError(
                f"{file.filename} has codes of another model or length "
                f"({attributes.get(_BITS)} bits); use the model that made them, or the features "
                "file with the original descriptors"
            )
        if not np.array_equal(attributes.get(_CHECKSUM, -1), _checksum(name, descriptors)):
            raise ValueError(
                f"{file.filename}: codes of {name} are damaged: their checksum does not match; "
                "encode the features again"
            )
        return check_codes(descriptors, model.n_bits_)
    where = f"{file.filename}: descriptors of {name}"
    if len(descriptors) and descriptors.shape[1] != model.n_features_in_:
        raise ValueError(
            f"{where} have {descriptors.shape[1]} values, but the model expects "
            f"{model.n_features_in_}; the model in the package is for SIFT only: for other "
            "features, train one (kdiffhash train) and pass it with --model (model=)"
        )
    try:
        return encode_descriptors(model, descriptors)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
