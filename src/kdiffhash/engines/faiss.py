"""FAISS: hand codes over with their ids, and take them back."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..extras import need
from ..search import HammingIndex
from ..search.tables import cheapest_parts

Kind = Literal["flat", "ivf", "hnsw", "multihash"]

#: About so many codes make FAISS's HNSW, finding 95 % of the ten nearest, as quick in batches as
#: exact search, on real codes of 64 to 512 bits (benchmarks/crossover.py).
HNSW_PAYS = 100_000


class Recommendation(NamedTuple):
    """What to search with."""

    method: Literal["exact", "tables", "hnsw"]
    why: str


def to_faiss(index: HammingIndex, kind: Kind = "flat", **options: int) -> Any:
    """An index of FAISS with the codes and ids of this one.

    Parameters
    ----------
    index : HammingIndex
        The length of its codes must be a multiple of 8.
    kind : "flat", "ivf", "hnsw" or "multihash"
        ``IndexBinaryFlat`` (exact), ``IndexBinaryIVF`` (option `n_lists`, by default four times
        the root of the number of codes), ``IndexBinaryHNSW`` (`m`, 32) or
        ``IndexBinaryMultiHash`` (`n_tables`, 4, and `table_bits`, 16).
    **options : int
        See `kind`.

    Returns
    -------
    faiss.IndexBinary
        Gives the ids of this index. All but IVF, which keeps ids itself, are wrapped in an
        ``IndexBinaryIDMap2``.
    """
    faiss = need("faiss", "faiss")
    if index.n_bits % 8:
        raise ValueError(f"FAISS takes codes of whole bytes, these have {index.n_bits} bits")
    known: dict[str, tuple[str, ...]] = {
        "flat": (),
        "ivf": ("n_lists",),
        "hnsw": ("m",),
        "multihash": ("n_tables", "table_bits"),
    }
    if kind not in known:
        raise ValueError(f"kind must be one of {', '.join(known)}, got {kind!r}")
    if wrong := set(options) - set(known[kind]):
        raise ValueError(f"{kind} has no option {', '.join(sorted(wrong))}")
    if any(value < 2 - (name != "m") for name, value in options.items()):
        raise ValueError(f"options must be above zero, m above one, got {options}")
    ids = index.ids
    codes, bits = index.get(ids), index.n_bits
    if kind == "ivf":
        if not len(ids):
            raise ValueError("an IVF index learns its lists from codes, and there are none")
        n_lists = options.get("n_lists", min(len(ids), int(4 * len(ids) ** 0.5)))
        if n_lists > len(ids):
            raise ValueError(f"{n_lists} lists cannot be learned from {len(ids)} codes")
        quantizer = faiss.IndexBinaryFlat(bits)
        made = faiss.IndexBinaryIVF(quantizer, bits, n_lists)
        made.own_fields = True
        quantizer.this.disown()
        made.train(codes)
        made.add_with_ids(codes, ids)
        return made
    if kind == "flat":
        plain = faiss.IndexBinaryFlat(bits)
    elif kind == "hnsw":
        plain = faiss.IndexBinaryHNSW(bits, options.get("m", 32))
    else:
        tables, width = options.get("n_tables", 4), options.get("table_bits", 16)
        if tables * width > bits:
            raise ValueError(f"{tables} tables of {width} bits need more than {bits} bits")
        plain = faiss.IndexBinaryMultiHash(bits, tables, width)
    made = faiss.IndexBinaryIDMap2(plain)
    made.own_fields = True
    plain.this.disown()
    made.add_with_ids(codes, ids)
    return made


def from_faiss(index: Any) -> HammingIndex:
    """A `HammingIndex` with the codes and ids of an index of FAISS.

    Parameters
    ----------
    index : faiss.IndexBinary
        Flat, IVF, HNSW or MultiHash, with or without a map of ids.
    """
    faiss = need("faiss", "faiss")
    owner = index  # what is inside lives as long as this
    index = faiss.downcast_IndexBinary(owner)
    ids: NDArray[np.int64] | None = None
    if isinstance(index, faiss.IndexBinaryIDMap):
        ids = faiss.vector_to_array(index.id_map)
        index = faiss.downcast_IndexBinary(index.index)
    width = index.d // 8
    if isinstance(index, faiss.IndexBinaryIVF):
        lists = index.invlists
        parts = [
            (
                faiss.rev_swig_ptr(lists.get_codes(i), n * width).reshape(n, width).copy(),
                faiss.rev_swig_ptr(lists.get_ids(i), n).copy(),
            )
            for i in range(lists.nlist)
            if (n := lists.list_size(i))
        ]
        codes = np.concatenate([np.empty((0, width), np.uint8), *(part for part, _ in parts)])
        own = np.concatenate([np.empty(0, np.int64), *(own for _, own in parts)])
        ids = own if ids is None else ids[own]
    else:
        if isinstance(index, faiss.IndexBinaryHNSW | faiss.IndexBinaryMultiHash):
            index = faiss.downcast_IndexBinary(index.storage)
        if not isinstance(index, faiss.IndexBinaryFlat):
            raise ValueError(f"codes cannot be taken out of a {type(index).__name__}")
        codes = faiss.vector_to_array(index.xb).reshape(-1, width)
    return HammingIndex(codes, ids, n_bits=owner.d)


def recommend_index(n: int, n_bits: int, radius: int | None = None) -> Recommendation:
    """What to search with, from measured crossovers.

    Parameters
    ----------
    n : int
        Number of codes.
    n_bits : int
    radius : int, optional
        How far away what you look for may be; by default the nearest are wanted, however far.

    Returns
    -------
    method : "exact", "tables" or "hnsw"
        A pass over all codes (`HammingIndex.search`); tables for all within a small radius, exact,
        too (`HammingIndex.search_radius` makes them by itself); or FAISS's HNSW (`to_faiss`), which
        finds most of the nearest, not all.
    why : str

    Examples
    --------
    >>> from kdiffhash.engines.faiss import recommend_index
    >>> recommend_index(100_000, 256).method
    'exact'
    >>> recommend_index(10_000_000, 256, radius=8).method
    'tables'
    """
    if n < 0 or n_bits < 1 or (radius is not None and radius < 0):
        raise ValueError(f"n, n_bits and radius must not be negative, got {n}, {n_bits}, {radius}")
    if radius is not None:
        if cheapest_parts(n, n_bits, radius, n_queries=10_000):
            return Recommendation("tables", f"few rows share a part at {radius} of {n_bits} bits")
        return Recommendation("exact", "tables pay for smaller radii or more codes only")
    if n <= HNSW_PAYS:
        return Recommendation(
            "exact", f"up to some {HNSW_PAYS:,} codes a graph gains little or nothing"
        )
    return Recommendation(
        "hnsw",
        f"above some {HNSW_PAYS:,} codes a graph answers sooner than a pass over all, after it was "
        "built; stay with exact search where none of the nearest may be missed",
    )
