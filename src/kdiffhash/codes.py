"""Packed binary codes: rows of uint8 in ``numpy.packbits`` order, with spare bits zero.

The first bit is the most significant bit of the first byte. OpenCV, FAISS, usearch and pgvector
accept this layout. Where the number of bits may not be a multiple of 8, it is passed as `n_bits`
along with the array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Codes = NDArray[np.uint8]


def n_bytes(n_bits: int) -> int:
    """Return the number of bytes of a code of `n_bits` bits."""
    return -(-n_bits // 8)


def pack(bits: ArrayLike) -> Codes:
    """Pack bits into codes.

    Parameters
    ----------
    bits : array of shape (..., n_bits)
        Booleans, or numbers that are all 0 or 1.

    Returns
    -------
    codes : uint8 array of shape (..., ceil(n_bits / 8))
        Codes; the first bit is the most significant bit of the first byte.

    Raises
    ------
    ValueError
        If there are no bits, or a number is neither 0 nor 1.

    Examples
    --------
    >>> from kdiffhash import pack
    >>> pack([[1, 0, 0, 0, 0, 0, 0, 1, 1]])
    array([[129, 128]], dtype=uint8)
    """
    array = np.asarray(bits)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ValueError(
            f"bits must have shape (..., n_bits) with at least one bit, got shape {array.shape}"
        )
    if array.dtype != np.bool_:
        if not np.all((array == 0) | (array == 1)):
            raise ValueError(
                "bits must be booleans, or numbers that are all 0 or 1; to binarise other numbers, "
                "compare them with a threshold"
            )
        array = array.astype(bool)
    return np.packbits(array, axis=-1)


def unpack(codes: ArrayLike, n_bits: int) -> NDArray[np.bool_]:
    """Unpack codes into booleans; the inverse of `pack`.

    Parameters
    ----------
    codes : uint8 array of shape (..., ceil(n_bits / 8))
        Packed codes.
    n_bits : int
        Length of the codes in bits.

    Returns
    -------
    bits : bool array of shape (..., n_bits)

    Raises
    ------
    ValueError
        If `codes` do not have `n_bits` bits.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import unpack
    >>> unpack(np.array([[129, 128]], np.uint8), 9).astype(int)
    array([[1, 0, 0, 0, 0, 0, 0, 1, 1]])
    """
    array = check_codes(codes, n_bits)
    return np.unpackbits(array, axis=-1, count=n_bits).astype(bool)


def hamming(a: ArrayLike, b: ArrayLike) -> NDArray[np.int64]:
    """Compute the Hamming distance of codes, the number of bits that differ.

    All axes but the last are broadcast. ``hamming(a, b)`` compares corresponding rows,
    ``hamming(a[:, None], b)`` all rows of `a` with all rows of `b`.

    Parameters
    ----------
    a : uint8 array of shape (..., n_bytes)
        Packed codes.
    b : uint8 array of shape (..., n_bytes)
        Packed codes of the same length.

    Returns
    -------
    distances : int64 array
        Its shape is the broadcast shape without the last axis.

    Raises
    ------
    ValueError
        If `a` or `b` are not packed codes, or their lengths differ.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import hamming
    >>> a = np.array([[0b11110000], [0b00000001]], np.uint8)
    >>> hamming(a[:, None], a)
    array([[0, 5],
           [5, 0]])
    """
    a, b = check_codes(a), check_codes(b)
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(
            f"codes of {a.shape[-1]} and {b.shape[-1]} bytes cannot be compared; encode both with "
            "the same model"
        )
    return np.asarray(np.bitwise_count(as_words(a) ^ as_words(b)).sum(axis=-1, dtype=np.int64))


def truncate(codes: ArrayLike, n_bits: int) -> Codes:
    """Return the prefix of `n_bits` bits of every code.

    Parameters
    ----------
    codes : uint8 array of shape (..., n_bytes)
        Packed codes.
    n_bits : int
        Length of the prefix, at most ``8 * n_bytes``.

    Returns
    -------
    codes : uint8 array of shape (..., ceil(n_bits / 8))
        Packed prefixes.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash.codes import truncate
    >>> truncate(np.array([[255, 255]], np.uint8), 10)
    array([[255, 192]], dtype=uint8)
    """
    array = check_codes(codes)
    if not 1 <= n_bits <= 8 * array.shape[-1]:
        raise ValueError(
            f"n_bits must lie in 1..{8 * array.shape[-1]} for these codes, got {n_bits}"
        )
    short = array[..., : n_bytes(n_bits)].copy()
    short[..., -1] &= 0xFF << (-n_bits % 8) & 0xFF
    return short


def check_codes(codes: ArrayLike, n_bits: int | None = None) -> Codes:
    """Return `codes` as an array, or raise ValueError if they are not packed codes."""
    array: NDArray[Any] = np.asarray(codes)
    if array.dtype != np.uint8 or array.ndim == 0:
        advice = (
            "encode rows of floats with hasher.transform, or kdiffhash encode on the command line"
            if array.dtype.kind == "f"
            else "pack bits with kdiffhash.pack"
        )
        raise ValueError(
            f"codes must be packed uint8 rows, got {array.dtype} of shape {array.shape}; {advice}"
        )
    if n_bits is not None:
        if array.shape[-1] != n_bytes(n_bits):
            raise ValueError(
                f"{n_bits} bits take {n_bytes(n_bits)} bytes per code, got {array.shape[-1]}; "
                "check n_bits"
            )
        if n_bits % 8 and np.any(array[..., -1] & (0xFF >> n_bits % 8)):
            raise ValueError(f"bits beyond n_bits={n_bits} must be zero; check n_bits")
    return array


def as_words(codes: Codes, width: int = 64) -> NDArray[Any]:
    """Return codes as little-endian unsigned words of `width` bits, padded with zeros.

    The result is a view if codes are aligned and fill whole words, otherwise a copy.
    """
    spare = -codes.shape[-1] % (width // 8)
    if spare:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], spare), np.uint8)], axis=-1)
    words = np.ascontiguousarray(codes).view(f"<u{width // 8}")
    if words.flags.aligned and words.dtype.isnative:
        return words
    return np.require(words, f"u{width // 8}", ["C", "A"])
