"""What every place for codes checks, with the same sentences, and the fingerprints of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import Codes, check_codes
from .segment import Ids

if TYPE_CHECKING:
    from ..hashers import BaseHasher

    Model: TypeAlias = BaseHasher | str  # a fitted hasher, or the fingerprint of one


def check_n_bits(n_bits: int, most: int) -> int:
    """Return a length of codes that a place can hold."""
    if not isinstance(n_bits, int | np.integer) or not 1 <= n_bits <= most:
        raise ValueError(f"n_bits must be a whole number from 1 to {most}, got {n_bits!r}")
    return int(n_bits)


def check_rows(codes: ArrayLike, n_bits: int | None = None) -> Codes:
    """Return codes as rows, shape (n, n_bytes)."""
    array = check_codes(codes, n_bits)
    if array.ndim != 2 or not array.shape[1]:
        raise ValueError(f"codes must be rows, shape (n, n_bytes), got shape {array.shape}")
    return array


def check_queries(queries: ArrayLike, n_bits: int) -> tuple[Codes, bool]:
    """Return queries as rows, and whether one code came alone, shape (n_bytes,)."""
    array = check_codes(queries, n_bits)
    return check_rows(np.atleast_2d(array), n_bits), array.ndim == 1


def check_ids(ids: ArrayLike) -> Ids:
    """Return ids as int64, shape (n,); one alone counts as a list of one."""
    array = np.asarray(ids)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim > 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"ids must be whole numbers, shape (n,), got {array.dtype} of shape {array.shape}"
        )
    if array.dtype.kind == "u" and array.size and array.max() > np.uint64(2**63 - 1):
        raise ValueError("ids must fit into 64 bits with sign")
    return np.atleast_1d(array).astype(np.int64)


def check_new_ids(ids: ArrayLike | None, n: int, next_id: int = 0) -> Ids:
    """Return ids for n new codes, each of which comes once; without any, from `next_id` on."""
    if ids is None:
        if next_id + n > 2**63 - 1:
            raise ValueError("there are no ids left above the highest; give ids")
        return np.arange(next_id, next_id + n, dtype=np.int64)
    chosen = check_ids(ids)
    if len(chosen) != n:
        raise ValueError(f"{n} codes came with {len(chosen)} ids; give one for each")
    if len(np.unique(chosen)) < n:
        raise ValueError("some ids came twice; give each code its own")
    if n and chosen.max() == 2**63 - 1:
        raise ValueError(f"ids must be below {2**63 - 1}")
    return chosen


def refuse_stored(ids: Ids) -> None:
    """Refuse new codes if these of their ids are stored already."""
    if len(ids):
        raise ValueError(
            f"{len(ids)} ids are stored already, among them {ids[0]}; remove them first, or leave "
            "ids out"
        )


def refuse_missing(ids: Ids) -> None:
    """Refuse what was asked for if these ids are not stored."""
    if len(ids):
        raise KeyError(f"{len(ids)} ids are not stored, among them {ids[0]}")


def check_k(k: int) -> int:
    """Return a number of neighbours as an int: small NumPy numbers would overflow."""
    if not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k must be a whole number above zero, got {k!r}")
    return int(k)


def check_radius(radius: int, n_bits: int) -> int:
    """Return a radius, at most the greatest distance there is."""
    if not isinstance(radius, int | np.integer) or radius < 0:
        raise ValueError(f"radius must be a whole number, zero or more, got {radius!r}")
    return min(int(radius), n_bits)


def sort_by_query(
    query_index: Ids, distances: NDArray[np.int32], ids: Ids, n_queries: int
) -> tuple[Ids, NDArray[np.int32], Ids]:
    """Return what a range search found as lims, distances and ids: by query, distance, id."""
    order = np.lexsort((ids, distances, query_index))
    lims = np.zeros(n_queries + 1, np.int64)
    np.cumsum(np.bincount(query_index, minlength=n_queries), out=lims[1:])
    return lims, distances[order], ids[order]


def fingerprint_of(model: Model | None, n_bits: int) -> str | None:
    """Return the fingerprint to store for codes of a model; a fingerprint is returned as it is."""
    if model is None:
        return None
    if isinstance(model, str):
        if not (1 <= len(model) <= 128 and model.isascii() and model.isprintable()):
            raise ValueError(f"{model!r} is not the fingerprint of a model")
        return model
    from ..hashers.stored import fingerprint

    if model.n_bits_ != n_bits:
        raise ValueError(
            f"the model makes codes of {model.n_bits_} bits, not {n_bits}; its truncate(n_bits) "
            "makes shorter ones"
        )
    return fingerprint(model)


def check_model(stored: str | None, model: Model | None, where: Any) -> None:
    """Refuse another model than the stored one; where either is not known, it is taken on trust."""
    if stored is None or model is None:
        return
    if isinstance(model, str):
        is_same = model == stored
    else:
        from ..hashers.stored import is_same_model

        is_same = is_same_model(model, stored)
    if not is_same:
        raise ValueError(
            f"{where} holds codes of another model; encode with the model that made them, or keep "
            "codes of this one elsewhere"
        )
