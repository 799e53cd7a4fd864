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

from .llvm import WORD, Memory, broadcast, call, popcount

BLOCK = 8  # codes of a block, lanes of a vector
_VECTOR = ir.VectorType(WORD, BLOCK)
_UNROLLED = 8  # words up to which a query lies in registers


def blocks_at_once(n_words: int) -> int:
    """Blocks whose lanes make one mask; short codes need more of them to keep the CPU busy."""
    return {1: 8, 2: 4, 3: 2, 4: 2}.get(n_words, 1)


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
    """Bits of the lanes, over `together` blocks, whose codes are closer than `limit`.

    `together` and `unrolled` are tuples whose lengths count blocks and words; with no unrolled
    words the loop over `n_words` stays one.
    """
    signature = types.uint64(
        blocks, types.intp, queries, types.intp, types.intp, types.uint64, together, unrolled
    )

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        codes = Memory(context, builder, sig, args, 0, args[1], 8)
        words = Memory(context, builder, sig, args, 2, args[3], 8)

        def differing(block: int, word: Any) -> Any:
            """Differing bits in one word of the lanes of a block."""
            start = builder.mul(WORD(block), builder.mul(args[4], WORD(BLOCK)))
            code = codes.load(builder.add(start, builder.mul(word, WORD(BLOCK))), _VECTOR)
            query = broadcast(builder, words.load(word, WORD), BLOCK)
            return call(builder, f"llvm.ctpop.v{BLOCK}i64", _VECTOR, builder.xor(code, query))

        sums = []
        for block in range(together.count):
            if unrolled.count:
                total = differing(block, WORD(0))
                for word in range(1, unrolled.count):
                    total = builder.add(total, differing(block, WORD(word)))
            else:
                room = cgutils.alloca_once(builder, _VECTOR)
                builder.store(ir.Constant(_VECTOR, [0] * BLOCK), room)
                with cgutils.for_range(builder, args[4], intp=WORD) as loop:
                    more = builder.add(builder.load(room), differing(block, loop.index))
                    builder.store(more, room)
                total = builder.load(room)
            sums.append(total)
        limit = broadcast(builder, args[5], BLOCK)
        mask = WORD(0)
        for block, total in enumerate(sums):
            below = builder.bitcast(builder.icmp_unsigned("<", total, limit), ir.IntType(BLOCK))
            mask = builder.or_(mask, builder.shl(builder.zext(below, WORD), WORD(BLOCK * block)))
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
    bound, size, step = np.uint64(limit), n_words * BLOCK, len(together)
    while block < stop:
        mask = _mask_below(
            blocks, block * size, queries, query * n_words, n_words, bound, together, unrolled
        )
        if mask != np.uint64(0):
            return block, mask
        block += step
    return stop, np.uint64(0)


@njit(cache=True, nogil=True, boundscheck=False)
def distance(
    blocks: NDArray[np.uint64], row: int, queries: NDArray[np.uint64], query: int, n_words: int
) -> np.int64:
    """Hamming distance of one code to one query."""
    start, total = row // BLOCK * n_words * BLOCK + row % BLOCK, np.uint64(0)
    for j in range(n_words):
        total += popcount(blocks[start + BLOCK * j] ^ queries[query * n_words + j])
    return np.int64(total)
