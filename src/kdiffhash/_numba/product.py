"""A matrix product whose rows do not know their neighbours.

BLAS rounds an entry differently depending on where its row stands in the block, on the height of
the block and on the number of threads. Here every entry is the same chain of multiply-adds over k,
so a row gives the same bits alone, in any batch, on any thread, and it costs nothing to be alone.

The right-hand factor is packed beforehand into panels of a few vectors' width. A micro-kernel keeps
a block of ROWS x (2 vectors) sums in registers while it runs down a panel; it is written as LLVM
vector code, since no loop vectoriser finds this form by itself.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from .llvm import WORD, Memory, broadcast

_HAS_512 = not config.CPU_NAME and llvmlite.binding.get_host_cpu_features().get("avx512f", False)

ROWS = 6  # rows of a register block: with two vectors each, 12 sums, enough to hide the latency
LANES = 16 if _HAS_512 else 8  # floats in a vector; split by LLVM where the CPU has shorter ones
PANEL = 2 * LANES  # columns of a panel
_DEPTH = 256  # part of a panel that stays in the first-level cache


def pack_panels(columns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Pack the right-hand factor, given as one row per column, shape (n, k), into panels.

    Returns shape (ceil(n / PANEL), k, PANEL), with zeros in the spare columns.
    """
    n, k = columns.shape
    panels = np.zeros((-(-n // PANEL), k, PANEL), np.float32)
    for p in range(len(panels)):
        part = columns[p * PANEL : (p + 1) * PANEL]
        panels[p, :, : len(part)] = part.T
    return panels


def empty_result(n_rows: int, panels: NDArray[np.float32]) -> NDArray[np.float32]:
    """An array for the product of `n_rows` rows with these panels; n_rows is a multiple of ROWS."""
    return np.empty((n_rows, len(panels) * PANEL), np.float32)


@intrinsic
def _micro_kernel(
    typing_context: Any,
    a: Any,
    a_start: Any,
    a_stride: Any,
    b: Any,
    b_start: Any,
    depth: Any,
    c: Any,
    c_start: Any,
    c_stride: Any,
) -> Any:  # numba looks at the names and types of the arguments
    """``c[r, :] += sum_k a[r, k] * b[k, :]`` for ROWS rows and one panel; arrays are flat."""
    signature = types.void(
        a, types.intp, types.intp, b, types.intp, types.intp, c, types.intp, types.intp
    )

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        single = ir.FloatType()
        vector = ir.VectorType(single, LANES)
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{LANES}f32"
        )
        left = Memory(context, builder, sig, args, 0, args[1], 4)
        panel = Memory(context, builder, sig, args, 3, args[4], 4)
        result = Memory(context, builder, sig, args, 6, args[7], 4)
        a_rows = [builder.mul(WORD(r), args[2]) for r in range(ROWS)]
        c_rows = [builder.mul(WORD(r), args[8]) for r in range(ROWS)]
        places = {
            (r, v): builder.add(c_rows[r], WORD(v * LANES)) for r in range(ROWS) for v in range(2)
        }
        sums = {key: cgutils.alloca_once(builder, vector) for key in places}
        for key, place in places.items():
            builder.store(result.load(place, vector), sums[key])
        with cgutils.for_range(builder, args[5], intp=WORD) as loop:
            at = builder.mul(loop.index, WORD(PANEL))
            columns = [panel.load(builder.add(at, WORD(v * LANES)), vector) for v in range(2)]
            for r in range(ROWS):
                scalar = left.load(builder.add(a_rows[r], loop.index), single)
                row = broadcast(builder, scalar, LANES)
                for v in range(2):
                    total = builder.call(fma, [row, columns[v], builder.load(sums[r, v])])
                    builder.store(total, sums[r, v])
        for key, place in places.items():
            result.store(builder.load(sums[key]), place)
        return context.get_dummy_value()

    return signature, generate


@njit(cache=True, nogil=True, boundscheck=False)
def multiply(
    a: NDArray[np.float32], panels: NDArray[np.float32], n_rows: int, out: NDArray[np.float32]
) -> None:
    """``out[:n_rows] = a[:n_rows] @ right``, with `right` packed by `pack_panels`.

    `a` is (padded rows, k or more), `out` (padded rows, n_panels * PANEL), both contiguous; what
    stands in rows beyond `n_rows` does not matter.
    """
    n_panels, k, _ = panels.shape
    stride, width = a.shape[1], out.shape[1]
    a_flat, b_flat, c_flat = a.reshape(-1), panels.reshape(-1), out.reshape(-1)
    rows = (n_rows + ROWS - 1) // ROWS * ROWS
    c_flat[: rows * width] = np.float32(0)
    for start in range(0, k, _DEPTH):
        depth = min(_DEPTH, k - start)
        for p in range(n_panels):
            for r in range(0, rows, ROWS):
                _micro_kernel(
                    a_flat,
                    r * stride + start,
                    stride,
                    b_flat,
                    (p * k + start) * PANEL,
                    depth,
                    c_flat,
                    r * width + p * PANEL,
                    width,
                )
