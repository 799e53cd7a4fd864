"""Quantisation of embeddings as in sentence-transformers, by a hasher instead of by signs.

Neither sentence-transformers nor PyTorch is imported: tensors are recognised by their methods, and
NumPy arrays work as well.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..hashers import BaseHasher

Precision = Literal["ubinary", "binary", "float32"]
_PRECISIONS = ("ubinary", "binary", "float32")


def quantize_embeddings(
    embeddings: Any,
    precision: Precision = "ubinary",
    *,
    hasher: BaseHasher | str | os.PathLike[str],
) -> Any:
    """Return codes of embeddings, in the form of the function of sentence-transformers.

    A drop-in for ``sentence_transformers.quantize_embeddings(embeddings, precision)`` with
    binary precisions: the same types and order of bits, but the bits of a hasher instead of
    one sign for each number.

    Parameters
    ----------
    embeddings : float array or tensor of shape (n, d) or (d,), or a list of such rows or arrays
        What ``SentenceTransformer.encode`` returns: an array, a tensor (of any device and float
        type), a list of rows, or, for embeddings of tokens, a list of arrays of shape (m, d).
    precision : {"ubinary", "binary", "float32"}, default="ubinary"
        "ubinary" gives uint8 codes, packed as by `numpy.packbits`, as all of kdiffhash uses them.
        "binary" gives the same minus 128 as int8. "float32" gives the projections whose signs are
        the bits, for re-scoring.
    hasher : BaseHasher or path
        A fitted hasher for embeddings of d numbers, or its model file. A path is read at each call.

    Returns
    -------
    quantized : array of shape (n, ceil(n_bits / 8)), or (n, n_bits) for "float32"
        Without the first dimension for one embedding. A list of arrays for embeddings of tokens.

    Notes
    -----
    Functions of sentence-transformers that quantise queries themselves, such as
    ``semantic_search_faiss``, expect floats whose signs are the bits. Pass them the projections
    (precision "float32") as queries, and codes as the corpus: re-scoring then weights each bit by
    the projection of the query.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import ITQHash
    >>> from kdiffhash.engines.sentence_transformers import quantize_embeddings
    >>> embeddings = np.random.default_rng(0).normal(size=(500, 32))
    >>> hasher = ITQHash(16, random_state=0).fit(embeddings)
    >>> codes = quantize_embeddings(embeddings, precision="ubinary", hasher=hasher)
    >>> codes.dtype, codes.shape
    (dtype('uint8'), (500, 2))
    """
    if precision not in _PRECISIONS:
        raise ValueError(
            f"precision must be one of {', '.join(_PRECISIONS)}, got {precision!r}; other "
            "precisions need no hasher, so use sentence-transformers itself"
        )
    if not isinstance(hasher, BaseHasher):
        if not isinstance(hasher, str | os.PathLike):
            raise ValueError(
                f"hasher must be a fitted hasher or the path of a model file, got a "
                f"{type(hasher).__name__}; of a CrossDiffHash, pass x_ for queries or y_ for "
                "documents"
            )
        hasher = BaseHasher.load(hasher)
    if isinstance(embeddings, list) and embeddings and np.ndim(_as_array(embeddings[0])) == 2:
        parts = [_as_array(part) for part in embeddings]
        quantized = _quantize(np.concatenate(parts), precision, hasher)
        return np.split(quantized, np.cumsum([len(part) for part in parts])[:-1])
    if isinstance(embeddings, list):
        rows = np.array([_as_array(row) for row in embeddings])
    else:
        rows = _as_array(embeddings)
    if rows.ndim == 1 and len(rows):
        return _quantize(rows[None], precision, hasher)[0]
    return _quantize(rows, precision, hasher)


def _quantize(rows: NDArray[Any], precision: Precision, hasher: BaseHasher) -> NDArray[Any]:
    if rows.dtype.kind != "f":
        raise ValueError(
            f"embeddings must be floats, got {rows.dtype}; quantise what the model returns with "
            "precision='float32'"
        )
    if precision == "float32":
        return hasher.project(rows)
    codes = hasher.transform(rows)
    return codes if precision == "ubinary" else (codes ^ 128).view(np.int8)  # minus 128


def _as_array(values: Any) -> NDArray[Any]:
    """Return an array; a tensor is moved to memory, and made float32 if NumPy lacks its type."""
    if not hasattr(values, "detach"):
        return np.asarray(values)
    tensor = values.detach().cpu()
    try:
        return np.asarray(tensor.numpy())
    except TypeError:  # bfloat16
        return np.asarray(tensor.float().numpy())
