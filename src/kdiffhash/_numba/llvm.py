"""Short names for the LLVM code that the micro-kernels are written in."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

WORD = ir.IntType(64)


class Memory:
    """One flat array argument of an intrinsic, read and written at element offsets."""

    def __init__(
        self, context: Any, builder: Any, sig: Any, args: Any, number: int, start: Any, size: int
    ) -> None:
        data = context.make_array(sig.args[number])(context, builder, args[number]).data
        self._builder, self._size = builder, size
        self._base = builder.add(builder.ptrtoint(data, WORD), builder.mul(start, WORD(size)))

    def load(self, offset: Any, of: Any) -> Any:
        """A value of LLVM type `of` from element `offset` on, with the element's alignment."""
        value = self._builder.load(self._pointer(offset, of))
        value.align = self._size
        return value

    def store(self, value: Any, offset: Any) -> None:
        """Write a value from element `offset` on."""
        self._builder.store(value, self._pointer(offset, value.type)).align = self._size

    def _pointer(self, offset: Any, of: Any) -> Any:
        at = self._builder.add(self._base, self._builder.mul(offset, WORD(self._size)))
        return self._builder.inttoptr(at, of.as_pointer())


def broadcast(builder: Any, scalar: Any, lanes: int) -> Any:
    """A vector that has `scalar` in all lanes."""
    vector, index = ir.VectorType(scalar.type, lanes), ir.IntType(32)
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(index, 0))
    zeros = ir.Constant(ir.VectorType(index, lanes), [0] * lanes)
    return builder.shuffle_vector(first, undefined, zeros)
