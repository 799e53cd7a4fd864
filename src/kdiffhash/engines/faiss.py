"""Convert an index of codes to a binary FAISS index, and back."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._util.extras import need
from ..search import HammingIndex
from ..search.build_cells import MIN_CODES
from ..search.lookup_tables import cheapest_substrings

Kind = Literal["flat", "ivf", "hnsw", "multihash"]


_OPTIONS: dict[str, tuple[str, ...]] = {
    "flat": (),
    "ivf": ("n_lists",),
    "hnsw": ("m", "ef_construction", "ef_search"),
    "multihash": ("n_tables", "table_bits"),
}


class Recommendation(NamedTuple):
    """A search method, and the reason for it; returned by `recommend_index`.

    Attributes
    ----------
    method : "exact", "tables" or "cells"
        The method to use.
    reason : str
        Why this method, in one sentence.

    Examples
    --------
    >>> from kdiffhash.engines.faiss import recommend_index
    >>> method, reason = recommend_index(1_000, 64)
    >>> method
    'exact'
    """

    method: Literal["exact", "tables", "cells"]
    reason: str


def to_faiss(index: HammingIndex, kind: Kind = "flat", **options: int) -> Any:
    """Return a binary FAISS index with the codes and ids of an index.

    Parameters
    ----------
    index : HammingIndex
        The index to convert. FAISS accepts only lengths that are a multiple of 8 bits.
    kind : {"flat", "ivf", "hnsw", "multihash"}, default="flat"
        ``IndexBinaryFlat`` (exact), ``IndexBinaryIVF``, ``IndexBinaryHNSW`` or
        ``IndexBinaryMultiHash``.
    **options : int
        For "ivf": `n_lists`, the number of inverted lists (default: four times the square root of
        the number of codes). For "hnsw": `m`, the number of neighbours per node (default 32);
        `ef_construction` and `ef_search`, the size of the candidate list while building (default
        40) and while searching (default 16). For "multihash": `n_tables`, the number of hash tables
        (default 4), and `table_bits`, the bits of a key (default 16).

    Returns
    -------
    faiss.IndexBinary
        A search returns the ids of `index`. Every kind except IVF, which stores ids itself, is
        wrapped in an ``IndexBinaryIDMap2``.

    Raises
    ------
    ValueError
        If the length of the codes is not a multiple of 8, or an option does not fit `kind`.

    Examples
    --------
    >>> import numpy as np
    >>> from kdiffhash import HammingIndex
    >>> from kdiffhash.engines.faiss import to_faiss
    >>> codes = np.random.default_rng(0).integers(0, 256, (1000, 16), dtype=np.uint8)
    >>> graph = to_faiss(HammingIndex(codes), "hnsw", m=16, ef_search=64)
    >>> distances, ids = graph.search(codes[:3], 1)
    >>> ids.ravel().tolist()
    [0, 1, 2]
    """
    faiss = need("faiss", "faiss")
    _check_options(index, kind, options)
    ids = index.ids
    codes, bits = index.get(ids), index.n_bits
    if kind == "ivf":
        return _to_ivf(faiss, codes, ids, bits, options.get("n_lists"))
    if kind == "flat":
        inner = faiss.IndexBinaryFlat(bits)
    elif kind == "hnsw":
        inner = faiss.IndexBinaryHNSW(bits, options.get("m", 32))
        inner.hnsw.efConstruction = options.get("ef_construction", inner.hnsw.efConstruction)
        inner.hnsw.efSearch = options.get("ef_search", inner.hnsw.efSearch)
    else:
        tables, width = options.get("n_tables", 4), options.get("table_bits", 16)
        if tables * width > bits:
            raise ValueError(
                f"{tables} tables with keys of {width} bits need {tables * width} bits, but the "
                f"codes have {bits}; choose fewer tables or shorter keys"
            )
        inner = faiss.IndexBinaryMultiHash(bits, tables, width)
    result = faiss.IndexBinaryIDMap2(inner)
    result.own_fields = True
    inner.this.disown()
    result.add_with_ids(codes, ids)
    return result


def _check_options(index: HammingIndex, kind: str, options: dict[str, int]) -> None:
    if index.n_bits % 8:
        raise ValueError(
            f"FAISS needs a multiple of 8 bits, but the codes have {index.n_bits} bits; learn or "
            "truncate to another length"
        )
    if index.info()["ids"] != "integers":
        raise ValueError(
            "FAISS has integer ids only, but those of this index are strings; build it from "
            "HammingIndex(index.get(index.ids)) and look up results in index.ids"
        )
    if kind not in _OPTIONS:
        raise ValueError(f"kind must be one of {', '.join(_OPTIONS)}, got {kind!r}")
    if unknown := set(options) - set(_OPTIONS[kind]):
        accepted = ", ".join(_OPTIONS[kind]) or "none"
        raise ValueError(
            f"kind={kind!r} has no option {', '.join(sorted(unknown))}; accepted: {accepted}"
        )
    for name, value in options.items():
        least = 2 if name == "m" else 1
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def _to_ivf(
    faiss: Any, codes: NDArray[np.uint8], ids: NDArray[np.int64], bits: int, n_lists: int | None
) -> Any:
    if not len(ids):
        raise ValueError(
            "an IVF index is trained on its codes, but the index is empty; add codes first"
        )
    if n_lists is None:
        n_lists = min(len(ids), int(4 * len(ids) ** 0.5))
    if n_lists > len(ids):
        raise ValueError(f"n_lists must be at most the number of codes, {len(ids)}, got {n_lists}")
    quantizer = faiss.IndexBinaryFlat(bits)
    result = faiss.IndexBinaryIVF(quantizer, bits, n_lists)
    result.own_fields = True
    quantizer.this.disown()
    result.train(codes)
    result.add_with_ids(codes, ids)
    return result


def from_faiss(index: Any) -> HammingIndex:
    """Return a `HammingIndex` with the codes and ids of a binary FAISS index.

    Parameters
    ----------
    index : faiss.IndexBinary
        A flat, IVF, HNSW or MultiHash index, with or without an id map. Without ids, codes are
        numbered from 0.

    Returns
    -------
    HammingIndex
        An index in memory.

    Raises
    ------
    ValueError
        If the index is of a kind whose codes cannot be read.

    Examples
    --------
    >>> import faiss
    >>> import numpy as np
    >>> from kdiffhash.engines.faiss import from_faiss
    >>> flat = faiss.IndexBinaryFlat(64)
    >>> flat.add(np.zeros((5, 8), np.uint8))
    >>> from_faiss(flat)
    <HammingIndex of 5 codes of 64 bits>
    """
    faiss = need("faiss", "faiss")
    owner = index  # keeps the inner indexes alive
    index = faiss.downcast_IndexBinary(owner)
    ids: NDArray[np.int64] | None = None
    if isinstance(index, faiss.IndexBinaryIDMap):
        ids = faiss.vector_to_array(index.id_map)
        index = faiss.downcast_IndexBinary(index.index)
    width = index.d // 8
    if isinstance(index, faiss.IndexBinaryIVF):
        codes, stored_ids = _from_inverted_lists(faiss, index.invlists, width)
        ids = stored_ids if ids is None else ids[stored_ids]
    else:
        if isinstance(index, faiss.IndexBinaryHNSW | faiss.IndexBinaryMultiHash):
            index = faiss.downcast_IndexBinary(index.storage)
        if not isinstance(index, faiss.IndexBinaryFlat):
            raise ValueError(
                f"codes cannot be read from a {type(index).__name__}; accepted are flat, IVF, "
                "HNSW and MultiHash indexes"
            )
        codes = faiss.vector_to_array(index.xb).reshape(-1, width)
    return HammingIndex(codes, ids, n_bits=owner.d)


def _from_inverted_lists(
    faiss: Any, lists: Any, width: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    codes, ids = [np.empty((0, width), np.uint8)], [np.empty(0, np.int64)]
    for i in range(lists.nlist):
        if n := lists.list_size(i):
            codes.append(faiss.rev_swig_ptr(lists.get_codes(i), n * width).reshape(n, width).copy())
            ids.append(faiss.rev_swig_ptr(lists.get_ids(i), n).copy())
    return np.concatenate(codes), np.concatenate(ids)


def recommend_index(n: int, n_bits: int, radius: int | None = None) -> Recommendation:
    """Recommend a search method, from measured crossover points.

    Parameters
    ----------
    n : int
        Number of codes.
    n_bits : int
        Length of the codes.
    radius : int, default=None
        Radius of a range search. None recommends a method for nearest neighbours at any distance.

    Returns
    -------
    method : "exact", "tables" or "cells"
        ``"exact"``: scan all codes (`HammingIndex.search`). ``"tables"``: lookup tables for a small
        radius, also exact, which `HammingIndex.search_radius` builds when they are faster.
        ``"cells"``: `HammingIndex.build_cells` and `HammingIndex.search` with `recall`, which is
        approximate.
    reason : str
        Why this method, in one sentence.

    Examples
    --------
    >>> from kdiffhash.engines.faiss import recommend_index
    >>> recommend_index(10_000, 256).method
    'exact'
    >>> recommend_index(10_000_000, 256).method
    'cells'
    >>> recommend_index(10_000_000, 256, radius=8).method
    'tables'
    """
    if n < 0 or n_bits < 1 or (radius is not None and radius < 0):
        raise ValueError(
            f"n and radius must be at least 0 and n_bits at least 1, got n={n}, "
            f"n_bits={n_bits}, radius={radius}"
        )
    if radius is not None:
        if cheapest_substrings(n, n_bits, radius, n_queries=10_000):
            reason = f"at a radius of {radius} of {n_bits} bits, lookup tables leave few candidates"
            return Recommendation("tables", reason)
        return Recommendation(
            "exact", "lookup tables are faster only for a smaller radius or for more codes"
        )
    if n <= MIN_CODES:
        return Recommendation("exact", f"up to about {MIN_CODES:,} codes a scan is as fast")
    return Recommendation(
        "cells",
        f"above about {MIN_CODES:,} codes searching the nearest cells is faster than a scan; use "
        "exact search if every nearest neighbour must be found",
    )
