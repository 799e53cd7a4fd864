"""Short names for the LLVM code that the micro-kernels are written in."""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

WORD = ir.IntType(64)


@cache
def has(feature: str) -> bool:
    """Whether the code is compiled for a CPU that has an instruction set, by LLVM's name for it."""
    if config.CPU_NAME:  # chosen by hand, as NUMBA_CPU_NAME=generic
        return f"+{feature}" in (config.CPU_FEATURES or "").split(",")
    return bool(llvmlite.binding.get_host_cpu_features().get(feature, False))


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
        value = self._builder.load(self.pointer(offset, of))
        value.align = self._size
        return value

    def store(self, value: Any, offset: Any) -> None:
        """Write a value from element `offset` on."""
        self._builder.store(value, self.pointer(offset, value.type)).align = self._size

    def pointer(self, offset: Any, of: Any) -> Any:
        """Where a value of type `of` lies."""
        at = self._builder.add(self._base, self._builder.mul(offset, WORD(self._size)))
        return self._builder.inttoptr(at, of.as_pointer())


def broadcast(builder: Any, scalar: Any, lanes: int) -> Any:
    """A vector that has `scalar` in all lanes."""
    vector, index = ir.VectorType(scalar.type, lanes), ir.IntType(32)
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(index, 0))
    zeros = ir.Constant(ir.VectorType(index, lanes), [0] * lanes)
    return builder.shuffle_vector(first, undefined, zeros)


def call(builder: Any, name: str, of: Any, *args: Any) -> Any:
    """Call one of LLVM's own functions that returns a value of type `of`."""
    kind = ir.FunctionType(of, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


@intrinsic
def popcount(typing_context: Any, word: Any) -> Any:
    """Number of ones in a 64-bit word."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), generate


@intrinsic
def lowest_one(typing_context: Any, word: Any) -> Any:
    """Place of the lowest one in a 64-bit word that is not zero."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.intp(types.uint64), generate


@intrinsic
def prefetch(typing_context: Any, array: Any, start: Any) -> Any:
    """Ask for the cache line of one element of a flat array of 64-bit words, to be read soon."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        memory, i32 = Memory(context, builder, sig, args, 0, args[1], 8), ir.IntType(32)
        address = memory.pointer(WORD(0), ir.IntType(8))
        kind = ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, i32(0), i32(2), i32(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate
