"""Hamming distances of one query to 256 codes at once, counted bit by bit.

A slab of 256 codes is turned into planes: plane b holds bit b of all 256 codes, in one vector. A
distance is then a sum over planes, and sums are made by full adders, five logical operations (two
where the CPU has a logical operation of three operands) for 256 lanes, on counters that are planes
themselves. That takes fewer instructions than counting the ones of each code in turn.

Three bits go together. Their part of the distance is a number from 0 to 3, two planes, and depends
on the query by its own three bits only, so all eight cases are tabulated once for a slab and all
queries look theirs up: no comparison with the query is left, and a third of the adders is saved.

A counter starts at ``2**p - limit``; its top plane is then set where a distance has reached the
limit. Bits are counted in chunks, one or two words at a time. A query whose 256 lanes have all
reached the limit needs no further chunk: codes whose first bits tell most are soon done with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from .llvm import WORD, Memory, broadcast, call, has

SLAB = 256  # codes that are counted together
LANES = 4  # 64-bit words of a plane
ENTRY = 16 * LANES  # words of a table for three bits: two planes in each of eight cases

_PLANE = ir.VectorType(WORD, LANES)
_HAS_TERNARY = has("avx512f") and has("avx512vl")
_HALVES = (  # how rows and columns of bits change places, in halves of halves
    (32, 0x00000000FFFFFFFF),
    (16, 0x0000FFFF0000FFFF),
    (8, 0x00FF00FF00FF00FF),
    (4, 0x0F0F0F0F0F0F0F0F),
    (2, 0x3333333333333333),
    (1, 0x5555555555555555),
)


def chunk_words(n_words: int) -> int:
    """Words that are counted at a time."""
    return 1 if n_words % 2 else 2


def chunk_entries(words: int) -> int:
    """Tables for a chunk: three bits each."""
    return -(-64 * words // 3)


def n_planes(n_words: int) -> int:
    """Planes of a counter: enough for all bits, and one that tells that the limit is reached."""
    return (64 * n_words).bit_length() + 1


def _constant(value: int) -> Any:
    return ir.Constant(_PLANE, [value] * LANES)


def _inverted(builder: Any, plane: Any) -> Any:
    return builder.xor(plane, _constant(2**64 - 1))


def _add_three(builder: Any, a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """Sum and carry of three planes."""
    if _HAS_TERNARY:
        name, i32 = "llvm.x86.avx512.pternlog.q.256", ir.IntType(32)
        total = call(builder, name, _PLANE, a, b, c, ir.Constant(i32, 0x96))
        return total, call(builder, name, _PLANE, a, b, c, ir.Constant(i32, 0xE8))
    half = builder.xor(a, b)
    carry = builder.or_(builder.and_(a, b), builder.and_(half, c))
    return builder.xor(half, c), carry


class _Counter:
    """Planes that wait to be added, by weight; three of a weight become one and a carry."""

    def __init__(self, builder: Any, planes: list[Any]) -> None:
        self._builder, self._waiting = builder, [[plane] for plane in planes]

    def add(self, plane: Any, weight: int) -> None:
        waiting = self._waiting[weight]
        waiting.append(plane)
        if len(waiting) == 3:
            if weight == len(self._waiting) - 1:  # what has reached the limit stays so
                self._waiting[weight] = [
                    self._builder.or_(self._builder.or_(*waiting[:2]), waiting[2])
                ]
            else:
                total, carry = _add_three(self._builder, *waiting)
                self._waiting[weight] = [total]
                self.add(carry, weight + 1)

    def planes(self) -> list[Any]:
        """One plane a weight, with all carries done."""
        top = len(self._waiting) - 1
        for weight, waiting in enumerate(self._waiting[:-1]):
            if len(waiting) == 2:
                a, b = waiting
                self._waiting[weight] = [self._builder.xor(a, b)]
                self.add(self._builder.and_(a, b), weight + 1)
        if len(self._waiting[top]) == 2:
            self._waiting[top] = [self._builder.or_(*self._waiting[top])]
        return [waiting[0] for waiting in self._waiting]


@intrinsic
def _turn_word(
    typing_context: Any, blocks: Any, start: Any, stride: Any, planes: Any, at: Any
) -> Any:
    """Write the 64 planes of one word of a slab.

    The word of codes 8i to 8i+7 lies at ``blocks[start + i * stride]``. Vector i of the slab has
    codes 4i to 4i+3, so bit i of lane l of a plane belongs to code 4i + l.
    """
    signature = types.void(blocks, types.intp, types.intp, planes, types.intp)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source = Memory(context, builder, sig, args, 0, args[1], 8)
        target = Memory(context, builder, sig, args, 3, args[4], 8)
        room = builder.ptrtoint(cgutils.alloca_once(builder, ir.ArrayType(_PLANE, 64)), WORD)

        def between(i: int) -> Any:
            place = builder.add(room, WORD(i * LANES * 8))
            return builder.inttoptr(place, _PLANE.as_pointer())

        def exchange(vectors: dict[int, Any], halves: Any) -> None:
            for distance, mask in halves:
                shift = _constant(distance)
                for i in [i for i in vectors if not i & distance]:
                    low, high = vectors[i], vectors[i | distance]
                    moved = builder.xor(builder.lshr(low, shift), high)
                    moved = builder.and_(moved, _constant(mask))
                    vectors[i | distance] = builder.xor(high, moved)
                    vectors[i] = builder.xor(low, builder.shl(moved, shift))

        for first in range(8):
            vectors = {}
            for i in range(first, 64, 8):
                offset = builder.mul(args[2], WORD(i // 2))
                vectors[i] = source.load(builder.add(offset, WORD(i % 2 * LANES)), _PLANE)
            exchange(vectors, _HALVES[:3])
            for i, vector in vectors.items():
                builder.store(vector, between(i)).align = 8
        for first in range(0, 64, 8):
            vectors = {}
            for i in range(first, first + 8):
                vectors[i] = builder.load(between(i))
                vectors[i].align = 8
            exchange(vectors, _HALVES[3:])
            for i, vector in vectors.items():
                target.store(vector, WORD(i * LANES))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _tabulate(typing_context: Any, planes: Any, at: Any, tables: Any, entry: Any) -> Any:
    """Write the two planes that three bits add to a distance, for the query's eight cases."""
    signature = types.void(planes, types.intp, tables, types.intp)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source = Memory(context, builder, sig, args, 0, args[1], 8)
        target = Memory(context, builder, sig, args, 2, args[3], 8)
        bits = [source.load(WORD(i * LANES), _PLANE) for i in range(3)]
        for case in range(8):
            differing = [
                _inverted(builder, bit) if case >> i & 1 else bit for i, bit in enumerate(bits)
            ]
            for i, plane in enumerate(_add_three(builder, *differing)):
                target.store(plane, WORD((2 * case + i) * LANES))
        return context.get_dummy_value()

    return signature, generate


def _add_chunk(
    context: Any, builder: Any, sig: Any, args: Any, entries: int, start: list[Any]
) -> Any:
    """Add a chunk to planes of a counter and store it; not zero if a lane is below the limit.

    The first six arguments are those of `_count_on`.
    """
    base = Memory(context, builder, sig, args, 0, args[1], 8)
    which = Memory(context, builder, sig, args, 2, args[3], 1)
    own = Memory(context, builder, sig, args, 4, args[5], 8)
    counter = _Counter(builder, start)
    for i in range(entries):
        chosen = builder.zext(which.load(WORD(i), ir.IntType(8)), WORD)
        place = builder.add(chosen, WORD(i * ENTRY))
        counter.add(base.load(place, _PLANE), 0)
        counter.add(base.load(builder.add(place, WORD(LANES)), _PLANE), 1)
    planes = counter.planes()
    for i, plane in enumerate(planes):
        own.store(plane, WORD(i * LANES))
    below = _inverted(builder, planes[-1])
    index = ir.IntType(32)
    some = builder.extract_element(below, ir.Constant(index, 0))
    for i in range(1, LANES):
        some = builder.or_(some, builder.extract_element(below, ir.Constant(index, i)))
    return some


@intrinsic
def _count_first(
    typing_context: Any,
    tables: Any,
    entry: Any,
    cases: Any,
    case: Any,
    counters: Any,
    at: Any,
    starts: Any,
    start: Any,
    entries: Any,
    planes: Any,
) -> Any:
    """Count the first chunk, from the planes (all ones or all zeros) at ``starts[start]``.

    `entries` and `planes` are tuples whose lengths say how many there are.
    """
    signature = types.uint64(
        *(tables, types.intp, cases, types.intp, counters, types.intp),
        *(starts, types.intp, entries, planes),
    )

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source = Memory(context, builder, sig, args, 6, args[7], 8)
        start = [broadcast(builder, source.load(WORD(i), WORD), LANES) for i in range(planes.count)]
        return _add_chunk(context, builder, sig, args, entries.count, start)

    return signature, generate


@intrinsic
def _count_on(
    typing_context: Any,
    tables: Any,
    entry: Any,
    cases: Any,
    case: Any,
    counters: Any,
    at: Any,
    entries: Any,
    planes: Any,
) -> Any:
    """Count a further chunk."""
    signature = types.uint64(
        tables, types.intp, cases, types.intp, counters, types.intp, entries, planes
    )

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        own = Memory(context, builder, sig, args, 4, args[5], 8)
        start = [own.load(WORD(i * LANES), _PLANE) for i in range(planes.count)]
        return _add_chunk(context, builder, sig, args, entries.count, start)

    return signature, generate


@njit(cache=True, nogil=True, boundscheck=False)
def find_starts(n_words: int, height: int) -> NDArray[np.uint64]:
    """What counters of `height` planes start with, for each limit from 0 to one above all bits."""
    starts = np.zeros((64 * n_words + 2) * height, np.uint64)
    for limit in range(64 * n_words + 2):
        value = (1 << (height - 1)) - limit
        for i in range(height):
            if value >> i & 1:
                starts[limit * height + i] = ~np.uint64(0)
    return starts


@njit(cache=True, nogil=True, boundscheck=False)
def find_cases(queries: NDArray[np.uint64], words: int, entries: int) -> NDArray[np.uint8]:
    """Where each three bits of a query find their two planes in a table, in chunks of `words`."""
    n_chunks = queries.shape[1] // words
    cases = np.zeros(len(queries) * n_chunks * entries, np.uint8)
    for i in range(len(queries)):
        for j in range(queries.shape[1]):
            start = (i * n_chunks + j // words) * entries
            for b in range(64):
                place = j % words * 64 + b
                bit = queries[i, j] >> np.uint64(b) & np.uint64(1)
                cases[start + place // 3] |= np.uint8(bit << np.uint64(place % 3)) * np.uint8(
                    2 * LANES
                )
    return cases


@njit(cache=True, nogil=True, boundscheck=False)
def tabulate_slab(
    blocks: NDArray[np.uint64],
    base: int,
    last: int,
    n_words: int,
    words: int,
    entries: int,
    padded: NDArray[np.uint64],
    planes: NDArray[np.uint64],
    tables: NDArray[np.uint64],
) -> None:
    """Fill the tables of the slab of rows from `base` on; spare planes are zero.

    Where `last`, the end of the last block, comes before that of the slab, what is read beyond it
    are zeros, from `padded`, room for a slab that is zero at first.
    """
    start = base * n_words
    if base + SLAB > last:
        left = (last - base) * n_words
        padded[:left] = blocks[start : start + left]
        blocks, start = padded, 0
    for j in range(n_words):
        plane = j // words * 3 * entries + j % words * 64
        _turn_word(blocks, start + 8 * j, 8 * n_words, planes, plane * LANES)
    for entry in range(n_words // words * entries):
        _tabulate(planes, 3 * entry * LANES, tables, entry * ENTRY)


@njit(cache=True, nogil=True, boundscheck=False)
def find_below(
    tables: NDArray[np.uint64],
    cases: NDArray[np.uint8],
    first: int,
    limits: NDArray[np.int64],
    starts: NDArray[np.uint64],
    n_chunks: int,
    counters: NDArray[np.uint64],
    found: NDArray[np.int64],
    entries: tuple[int, ...],
    planes: tuple[int, ...],
) -> int:
    """Queries ``first + found[i]`` that have a code of the slab below their limit; how many.

    There is one limit for each query of a group, and room for as many counters.
    """
    size, width, n = len(planes) * LANES, len(entries), 0
    for i in range(len(limits)):
        case = (first + i) * n_chunks * width
        start = limits[i] * len(planes)
        below = _count_first(
            tables, 0, cases, case, counters, i * size, starts, start, entries, planes
        )
        found[n] = i
        n += below != np.uint64(0)
    for chunk in range(1, n_chunks):
        entry, left = chunk * width * ENTRY, 0
        for j in range(n):
            i = found[j]
            case = ((first + i) * n_chunks + chunk) * width
            below = _count_on(tables, entry, cases, case, counters, i * size, entries, planes)
            found[left] = i
            left += below != np.uint64(0)
        n = left
    return n
