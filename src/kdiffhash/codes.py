"""Packed binary codes: uint8 rows in ``numpy.packbits`` order, spare bits zero.

The first bit is the top bit of the first byte. OpenCV, FAISS, usearch and pgvector take these rows
as they are. The number of bits travels beside the array wherever it is not a multiple of 8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Codes = NDArray[np.uint8]


def n_bytes(n_bits: int) -> int:
    """Bytes that a code of `n_bits` takes."""
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

    Examples
    --------
    >>> from kdiffhash import pack
    >>> pack([[1, 0, 0, 0, 0, 0, 0, 1, 1]])
    array([[129, 128]], dtype=uint8)
    """
    array = np.asarray(bits)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ValueError(f"bits must have at least one bit per code, got shape {array.shape}")
    if array.dtype != np.bool_:
        if not np.all((array == 0) | (array == 1)):
            raise ValueError("bits must be booleans, or numbers that are all 0 or 1")
        array = array.astype(bool)
    return np.packbits(array, axis=-1)


def unpack(codes: ArrayLike, n_bits: int) -> NDArray[np.bool_]:
    """Unpack codes into booleans; the inverse of `pack`.

    Parameters
    ----------
    codes : uint8 array of shape (..., ceil(n_bits / 8))
    n_bits : int

    Returns
    -------
    bits : bool array of shape (..., n_bits)

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
    """Number of bits in which codes differ, with NumPy's broadcasting over all axes but the last.

    Parameters
    ----------
    a, b : uint8 arrays of shapes (..., n_bytes)
        ``hamming(a, b)`` compares row by row, ``hamming(a[:, None], b)`` each with each.

    Returns
    -------
    distances : int64 array of the broadcast shape without its last axis

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
            f"codes of {a.shape[-1]} and {b.shape[-1]} bytes cannot be compared; "
            "encode both with the same model and n_bits"
        )
    return np.asarray(np.bitwise_count(as_words(a) ^ as_words(b)).sum(axis=-1, dtype=np.int64))


def truncate(codes: ArrayLike, n_bits: int) -> Codes:
    """The first `n_bits` of every code, as codes.

    Parameters
    ----------
    codes : uint8 array of shape (..., n_bytes)
    n_bits : int
        At most ``8 * n_bytes``.

    Returns
    -------
    codes : uint8 array of shape (..., ceil(n_bits / 8))

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
    """Return `codes` as a uint8 array, or say what is wrong with them."""
    array: NDArray[Any] = np.asarray(codes)
    if array.dtype != np.uint8 or array.ndim == 0:
        raise ValueError(
            f"codes must be packed uint8 rows, got {array.dtype} of shape {array.shape}; "
            "use kdiffhash.pack on bits"
        )
    if n_bits is not None:
        if array.shape[-1] != n_bytes(n_bits):
            raise ValueError(
                f"{n_bits} bits take {n_bytes(n_bits)} bytes per code, got {array.shape[-1]}"
            )
        if n_bits % 8 and np.any(array[..., -1] & (0xFF >> n_bits % 8)):
            raise ValueError(f"bits beyond n_bits={n_bits} must be zero; is n_bits right?")
    return array


def as_words(codes: Codes, width: int = 64) -> NDArray[Any]:
    """Return codes as unsigned words of `width` bits, the first byte lowest, padded with zeros.

    It is a view where the codes are aligned and fill whole words, else a copy.
    """
    spare = -codes.shape[-1] % (width // 8)
    if spare:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], spare), np.uint8)], axis=-1)
    words = np.ascontiguousarray(codes).view(f"<u{width // 8}")
    return np.require(words, f"u{width // 8}", ["C", "A"])
