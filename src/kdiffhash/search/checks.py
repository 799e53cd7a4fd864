"""Checks and error messages that all code stores share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codes import Codes, check_codes
from ..hashers.fingerprint import fingerprint, is_same_model
from .segment import Ids
from .string_ids import MAX_BYTES

if TYPE_CHECKING:
    from ..hashers import BaseHasher

    Model: TypeAlias = BaseHasher | str  # a fitted hasher or its fingerprint


def check_n_bits(n_bits: int, max_bits: int) -> int:
    """Return the code length as an int, after checking its range."""
    if not isinstance(n_bits, int | np.integer) or not 1 <= n_bits <= max_bits:
        raise ValueError(f"n_bits must be an integer from 1 to {max_bits}, got {n_bits!r}")
    return int(n_bits)


def check_rows(codes: ArrayLike, n_bits: int | None = None) -> Codes:
    """Return codes as a two-dimensional array, shape (n, n_bytes)."""
    array = check_codes(codes, n_bits)
    if array.ndim != 2 or not array.shape[1]:
        raise ValueError(f"codes must have shape (n, n_bytes), got {array.shape}")
    return array


def check_queries(queries: ArrayLike, n_bits: int) -> tuple[Codes, bool]:
    """Return queries with shape (n, n_bytes), and whether a single code was given."""
    array = check_codes(queries, n_bits)
    if array.ndim == 1:
        return array[None], True
    return check_rows(array, n_bits), False


def check_ids(ids: ArrayLike) -> Ids:
    """Return ids as an int64 array of shape (n,); a single id becomes an array of one."""
    array = np.asarray(ids)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim > 1 or array.dtype.kind not in "iu":
        hint = "; SQLiteStore and PostgresStore keep names in data" if are_strings(ids) else ""
        raise ValueError(
            f"ids must be integers of shape (n,), got {array.dtype} of shape {array.shape}{hint}"
        )
    if array.dtype.kind == "u" and array.size and array.max() > np.uint64(2**63 - 1):
        raise ValueError(f"ids must fit into a signed 64-bit integer, got {array.max()}")
    return np.atleast_1d(array).astype(np.int64)


def check_new_ids(ids: ArrayLike | None, n: int, next_id: int = 0) -> Ids:
    """Return n distinct ids for new codes; without `ids`, consecutive ones from `next_id`."""
    if ids is None:
        if next_id + n > 2**63 - 1:
            raise ValueError(f"no ids are left above {next_id - 1}; pass ids explicitly")
        return np.arange(next_id, next_id + n, dtype=np.int64)
    chosen = check_ids(ids)
    _refuse_repeated(len(chosen), len(np.unique(chosen)), n)
    if n and chosen.max() == 2**63 - 1:
        raise ValueError(f"ids must be below {2**63 - 1}")
    return chosen


def are_strings(ids: ArrayLike | None) -> bool:
    """Return whether ids are strings: one, a sequence or an array of them."""
    if ids is None or isinstance(ids, str):
        return ids is not None
    if isinstance(ids, np.ndarray):
        return ids.dtype.kind in "UT" or (ids.dtype == object and _has_string(ids.flat))
    if isinstance(ids, Sequence):
        return _has_string(ids)
    array = np.asarray(ids)
    return array.dtype.kind in "UT" or (array.dtype == object and _has_string(array.flat))


def _has_string(values: Any) -> bool:
    return any(isinstance(value, str) for value in values)


def is_single(ids: ArrayLike) -> bool:
    """Return whether one id was given, without converting a list of strings to an array."""
    return isinstance(ids, str) or (not isinstance(ids, Sequence) and np.ndim(ids) == 0)


def is_empty(ids: ArrayLike | None) -> bool:
    """Return whether no ids were given, without converting a list of strings to an array."""
    return ids is None or (not is_single(ids) and len(ids) == 0)  # type: ignore[arg-type]


def check_strings(ids: ArrayLike) -> list[str]:
    """Return string ids as a list; a single string becomes a list of one."""
    if isinstance(ids, str):
        values: list[Any] = [ids]
    else:
        if isinstance(ids, np.ndarray) and ids.ndim > 1:
            raise ValueError(f"ids must be strings of shape (n,), got shape {ids.shape}")
        values = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)  # type: ignore[arg-type]
    for value in values:
        if not isinstance(value, str):
            raise ValueError(
                f"ids must be all strings or all integers, got {value!r} among strings"
            )
        if not value:
            raise ValueError("ids must not be empty strings; give each code a name")
        if not is_encodable(value):
            raise ValueError(
                f"the id {value!r} is not valid Unicode text; for names of files that are not, "
                "use os.fsencode(name).decode('latin-1')"
            )
        if len(value) > MAX_BYTES // 4 and (n := len(value.encode())) > MAX_BYTES:
            raise ValueError(
                f"the id {value[:40]!r}... has {n} bytes as UTF-8; at most {MAX_BYTES} are accepted"
            )
    return values


def check_new_strings(ids: ArrayLike, n: int) -> list[str]:
    """Return n distinct string ids for new codes as a list."""
    strings = check_strings(ids)
    _refuse_repeated(len(strings), len(set(strings)), n)
    return strings


def is_encodable(value: str) -> bool:
    """Return whether a string is valid Unicode, without lone surrogates."""
    try:
        value.encode()
        return True
    except UnicodeEncodeError:
        return False


def _refuse_repeated(n_ids: int, n_distinct: int, n: int) -> None:
    """Raise unless there is one distinct id for each of n codes."""
    if n_ids != n:
        raise ValueError(f"got {n} codes but {n_ids} ids; pass one id per code")
    if n_distinct < n:
        raise ValueError("ids contain duplicates; pass a distinct id for each code")


def refuse_stored(ids: NDArray[Any]) -> None:
    """Raise if any ids are given: those of new codes that are already stored."""
    if len(ids):
        raise ValueError(
            f"{len(ids)} of the ids are already stored, for example {ids[0]}; remove them first, "
            "or omit ids to have new ones assigned"
        )


def refuse_missing(ids: NDArray[Any]) -> None:
    """Raise if any ids are given: those requested that are not stored."""
    if len(ids):
        raise KeyError(f"{len(ids)} of the ids are not stored, for example {ids[0]}")


def check_k(k: int) -> int:
    """Return k as a Python int, because small NumPy integers would overflow."""
    if not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k must be an integer of at least 1, got {k!r}")
    return int(k)


def check_count(number: int, name: str) -> int:
    """Return a number of cells as a Python int."""
    if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {number!r}")
    return int(number)


def check_radius(radius: int, n_bits: int) -> int:
    """Return the radius, clipped to the largest possible distance."""
    if not isinstance(radius, int | np.integer) or radius < 0:
        raise ValueError(f"radius must be an integer of at least 0, got {radius!r}")
    return min(int(radius), n_bits)


def sort_by_query(
    query_index: Ids, distances: NDArray[np.int32], ids: Ids, n_queries: int
) -> tuple[Ids, NDArray[np.int32], Ids]:
    """Return range search results as lims, distances, ids, sorted by query, distance, id."""
    order = np.lexsort((ids, distances, query_index))
    lims = np.zeros(n_queries + 1, np.int64)
    np.cumsum(np.bincount(query_index, minlength=n_queries), out=lims[1:])
    return lims, distances[order], ids[order]


def fingerprint_of(model: Model | None, n_bits: int) -> str | None:
    """Return the fingerprint to store for codes of a model; a fingerprint is returned unchanged."""
    if model is None:
        return None
    if isinstance(model, str):
        if not (1 <= len(model) <= 128 and model.isascii() and model.isprintable()):
            raise ValueError(
                f"{model!r} is not the fingerprint of a model; pass a fitted hasher instead"
            )
        return model
    if model.n_bits_ != n_bits:
        raise ValueError(
            f"the model produces codes of {model.n_bits_} bits, not {n_bits}; "
            "model.truncate(n_bits) produces shorter ones"
        )
    return fingerprint(model)


def check_model(stored: str | None, model: Model | None, where: Any) -> None:
    """Raise if codes of a different model are stored; an unknown model is not checked."""
    if stored is None or model is None:
        return
    is_same = model == stored if isinstance(model, str) else is_same_model(model, stored)
    if not is_same:
        raise ValueError(
            f"{where} holds codes of another model; encode with that model, or keep these codes in "
            "a separate place"
        )
