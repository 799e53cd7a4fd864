"""Gram matrices of whole numbers, exact: the sums over pairs behind the moments.

Numbers of 13 bits with sign are kept as int16, two rows side by side, so that one instruction
multiplies and adds both (pmaddwd on x86): four times the speed of float64, twice that of float32,
and the sum is exact, so it does not depend on order, threads or machines.

The rows of a block lie in panels of 16 columns: [panel][couple of rows][column][row of the couple].
A micro-kernel keeps 4 x 16 sums of 32 bits in registers for 64 couples, which cannot overflow, and
adds them to 64-bit sums.
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

_HAS_AVX2 = has("avx2")

LIMIT = 4095  # largest size of a number; 64 couples of squares then stay below 2**31
PANEL = 16  # columns of a panel
BLOCK = 1024  # rows of a block
_ROWS = 4  # rows of a register block
_LANES = 8
_COUPLES = 64  # couples between two transfers to the 64-bit sums


@intrinsic
def _micro_kernel(
    typing_context: Any,
    panels: Any,
    a_start: Any,
    b_start: Any,
    out: Any,
    out_start: Any,
    stride: Any,
) -> Any:
    """``out[r, c] += sum over 64 couples of a[couple, r] . b[couple, c]`` for 4 x 16 entries.

    `panels` is a flat int32 array of couples, `out` a flat int64 array.
    """
    signature = types.void(panels, types.intp, types.intp, out, types.intp, types.intp)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = ir.VectorType(ir.IntType(32), _LANES)
        left = Memory(context, builder, sig, args, 0, args[1], 4)
        right = Memory(context, builder, sig, args, 0, args[2], 4)
        result = Memory(context, builder, sig, args, 3, args[4], 8)
        entries = [(r, v) for r in range(_ROWS) for v in range(PANEL // _LANES)]
        sums = {entry: cgutils.alloca_once(builder, wide) for entry in entries}
        for entry in entries:
            builder.store(ir.Constant(wide, [0] * _LANES), sums[entry])
        with cgutils.for_range(builder, WORD(_COUPLES), intp=WORD) as loop:
            at = builder.mul(loop.index, WORD(PANEL))
            columns = [right.load(builder.add(at, WORD(v)), wide) for v in range(0, PANEL, _LANES)]
            rows = [
                broadcast(builder, left.load(builder.add(at, WORD(r)), ir.IntType(32)), _LANES)
                for r in range(_ROWS)
            ]
            for r, v in entries:
                product = _multiply_couples(builder, rows[r], columns[v])
                builder.store(builder.add(builder.load(sums[r, v]), product), sums[r, v])
        for r, v in entries:
            place = builder.add(builder.mul(WORD(r), args[5]), WORD(v * _LANES))
            total = builder.sext(builder.load(sums[r, v]), ir.VectorType(WORD, _LANES))
            result.store(builder.add(result.load(place, total.type), total), place)
        return context.get_dummy_value()

    return signature, generate


def _multiply_couples(builder: Any, a: Any, b: Any) -> Any:
    """``a[2i] * b[2i] + a[2i+1] * b[2i+1]`` of int16 couples, as int32."""
    wide = ir.VectorType(ir.IntType(32), _LANES)
    shorts = ir.VectorType(ir.IntType(16), 2 * _LANES)
    a, b = builder.bitcast(a, shorts), builder.bitcast(b, shorts)
    if _HAS_AVX2:
        return call(builder, "llvm.x86.avx2.pmadd.wd", wide, a, b)
    products = []
    for side in range(2):
        lanes = ir.Constant(wide, [2 * i + side for i in range(_LANES)])
        none = ir.Constant(shorts, ir.Undefined)
        x, y = (builder.sext(builder.shuffle_vector(v, none, lanes), wide) for v in (a, b))
        products.append(builder.mul(x, y))
    return builder.add(*products)


def empty_panels(width: int) -> NDArray[np.int16]:
    """Room for a block of rows; spare columns and rows are zero."""
    return np.zeros((-(-width // PANEL), BLOCK // 2, PANEL, 2), np.int16)


@njit(cache=True, nogil=True, boundscheck=False)
def fill_panels(
    features: NDArray[np.int16],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    sign: int,
    shift: int,
    panels: NDArray[np.int16],
) -> None:
    """Write the rows ``features[left] + sign * features[right] - shift`` into panels."""
    width, n = features.shape[1], len(left)
    for i in range(BLOCK):
        couple, side = i // 2, i % 2
        if i < n:
            a, b = features[left[i]], features[right[i]]
            for j in range(width):
                panels[j // PANEL, couple, j % PANEL, side] = a[j] + sign * b[j] - shift
        else:
            for j in range(width):
                panels[j // PANEL, couple, j % PANEL, side] = 0


@njit(cache=True, nogil=True, boundscheck=False)
def add_gram(panels: NDArray[np.int16], n_rows: int, out: NDArray[np.int64]) -> None:
    """``out += rows.T @ rows`` for the rows in panels; only blocks on and above the diagonal.

    `out` has one row and column for each column of the panels, spare ones too.
    """
    n_panels = len(panels)
    flat, sums = panels.reshape(-1).view(np.int32), out.reshape(-1)
    stride, size = out.shape[1], BLOCK // 2 * PANEL
    n_parts = (n_rows + 2 * _COUPLES - 1) // (2 * _COUPLES)
    for p in range(n_panels):
        for q in range(p, n_panels):
            for r in range(0, PANEL, _ROWS):
                for part in range(n_parts):
                    start = part * _COUPLES * PANEL
                    _micro_kernel(
                        flat,
                        p * size + start + r,
                        q * size + start,
                        sums,
                        (p * PANEL + r) * stride + q * PANEL,
                        stride,
                    )


@njit(cache=True, nogil=True, boundscheck=False)
def add_rows(
    features: NDArray[np.int16], weights: NDArray[np.int64], out: NDArray[np.int64]
) -> None:
    """``out += weights @ features``."""
    for i in range(len(weights)):
        for j in range(features.shape[1]):
            out[j] += weights[i] * np.int64(features[i, j])
