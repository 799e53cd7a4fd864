"""Hamming distances of one query to eight codes at once, a lane for each.

Codes lie in blocks of eight, word by word: ``blocks[block, word, lane]``. One vector holds the same
word of eight codes, so their distances grow side by side in one register and no sum across lanes
is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from .llvm import WORD, Memory, broadcast, call, has, prefetch

BLOCK = 8  # codes of a block, lanes of a vector
_VECTOR = ir.VectorType(WORD, BLOCK)
_BYTES = ir.VectorType(ir.IntType(8), 8 * BLOCK)
_BY_BYTES = has("avx2") and not has("avx512vpopcntdq")
_AHEAD = 256  # words ahead of which memory is asked for


def blocks_at_once(n_words: int) -> int:
    """Blocks whose lanes make one mask; short codes need more of them to keep the CPU busy."""
    return 4 if n_words == 1 else 2


class _Distances:
    """LLVM code for the distances of one query to the lanes of some blocks.

    The first five arguments of the intrinsic are ``blocks, start, queries, query, n_words``. With
    no unrolled words the loop over `n_words` stays one.
    """

    def __init__(self, context: Any, builder: Any, sig: Any, args: Any, unrolled: int) -> None:
        self._builder, self._n_words, self._unrolled = builder, args[4], unrolled
        self._codes = Memory(context, builder, sig, args, 0, args[1], 8)
        self._words = Memory(context, builder, sig, args, 2, args[3], 8)

    def of(self, block: int) -> Any:
        """A vector with the distances of one block."""
        builder = self._builder
        if self._unrolled:
            total = self._count(block, WORD(0))
            for word in range(1, self._unrolled):
                total = builder.add(total, self._count(block, WORD(word)))
            return self._across_bytes(total)
        room = cgutils.alloca_once(builder, _VECTOR)
        builder.store(ir.Constant(_VECTOR, [0] * BLOCK), room)
        with cgutils.for_range(builder, self._n_words, intp=WORD) as loop:
            more = self._across_bytes(self._count(block, loop.index))
            builder.store(builder.add(builder.load(room), more), room)
        return builder.load(room)

    def _count(self, block: int, word: Any) -> Any:
        """Differing bits in one word of a block: for each lane, or for each byte if that is all
        that the CPU can do quickly. Bytes hold the sum of up to 31 words.
        """
        builder = self._builder
        start = builder.mul(WORD(block), builder.mul(self._n_words, WORD(BLOCK)))
        code = self._codes.load(builder.add(start, builder.mul(word, WORD(BLOCK))), _VECTOR)
        query = broadcast(builder, self._words.load(word, WORD), BLOCK)
        differing = builder.xor(code, query)
        if not _BY_BYTES:
            return call(builder, "llvm.ctpop.v8i64", _VECTOR, differing)
        return call(builder, "llvm.ctpop.v64i8", _BYTES, builder.bitcast(differing, _BYTES))

    def _across_bytes(self, counts: Any) -> Any:
        """The sums of the eight bytes of each lane."""
        if not _BY_BYTES:
            return counts
        builder, index = self._builder, ir.IntType(32)
        half, lanes = ir.VectorType(ir.IntType(8), 32), ir.VectorType(WORD, 4)
        sums = []
        for first in (0, 32):
            places = ir.Constant(ir.VectorType(index, 32), [*range(first, first + 32)])
            some = builder.shuffle_vector(counts, ir.Constant(_BYTES, ir.Undefined), places)
            zeros = ir.Constant(half, [0] * 32)
            sums.append(call(builder, "llvm.x86.avx2.psad.bw", lanes, some, zeros))
        return builder.shuffle_vector(*sums, ir.Constant(ir.VectorType(index, 8), [*range(8)]))


@intrinsic
def _any_below(
    typing_context: Any,
    blocks: Any,
    start: Any,
    queries: Any,
    query: Any,
    n_words: Any,
    limit: Any,
    together: Any,
    unrolled: Any,
) -> Any:
    """Whether a code of some blocks is closer than `limit`.

    `together` and `unrolled` are tuples whose lengths count blocks and words.
    """
    signature = types.boolean(
        blocks, types.intp, queries, types.intp, types.intp, types.intp, together, unrolled
    )

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        distances = _Distances(context, builder, sig, args, unrolled.count)
        limit = broadcast(builder, args[5], BLOCK)
        below = [builder.icmp_signed("<", distances.of(i), limit) for i in range(together.count)]
        for more in below[1:]:
            below[0] = builder.or_(below[0], more)
        return call(builder, "llvm.vector.reduce.or.v8i1", ir.IntType(1), below[0])

    return signature, generate


@intrinsic
def _mask_below(
    typing_context: Any,
    blocks: Any,
    start: Any,
    queries: Any,
    query: Any,
    n_words: Any,
    limit: Any,
    together: Any,
    unrolled: Any,
) -> Any:
    """A bit for each lane of some blocks whose code is closer than `limit`."""
    signature = types.uint64(
        blocks, types.intp, queries, types.intp, types.intp, types.intp, together, unrolled
    )

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        distances = _Distances(context, builder, sig, args, unrolled.count)
        limit = broadcast(builder, args[5], BLOCK)
        mask = WORD(0)
        for i in range(together.count):
            below = builder.icmp_signed("<", distances.of(i), limit)
            bits = builder.zext(builder.bitcast(below, ir.IntType(BLOCK)), WORD)
            mask = builder.or_(mask, builder.shl(bits, WORD(BLOCK * i)))
        return mask

    return signature, generate


@njit(cache=True, nogil=True, boundscheck=False)
def find_block(
    blocks: NDArray[np.uint64],
    block: int,
    stop: int,
    queries: NDArray[np.uint64],
    query: int,
    n_words: int,
    limit: int,
    together: tuple[int, ...],
    unrolled: tuple[int, ...],
) -> tuple[int, np.uint64]:
    """The first blocks from `block` on with a code closer than `limit`, and the mask of those.

    Steps of ``len(together)`` blocks; ``stop - block`` is a multiple of it.
    """
    size, step = n_words * BLOCK, len(together)
    start, query = block * size, query * n_words
    while block < stop:
        for line in range(start + _AHEAD, start + _AHEAD + step * size, 8):
            prefetch(blocks, line)
        if _any_below(blocks, start, queries, query, n_words, limit, together, unrolled):
            mask = _mask_below(blocks, start, queries, query, n_words, limit, together, unrolled)
            return block, mask
        block += step
        start += step * size
    return stop, np.uint64(0)
