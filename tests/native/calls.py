"""Valid calls of every function of the core, and wrong ones made from them."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import plain

from kdiffhash import _core

DTYPES = (
    *(np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64),
    *(np.float16, np.float32, np.float64, np.complex64, object, "S4", "U3", "M8[s]"),
)
INTS = (-1, -(2**31), -(2**63), 2**31, 2**32, 2**59, 2**60, 2**61, 2**62, 2**63 - 1, 2**63, 2**200)
NOT_ARRAYS = (None, 3, 1.5, "text", b"bytes", [], [1, 2], {}, object(), np.float32(1), np.array(1))


@dataclass(frozen=True)
class Argument:
    """One argument of a valid call.

    Parameters
    ----------
    value : array, int, float, bool or None
    out : bool
        Whether the function writes to it.
    rows : int, optional
        Its entries must be 0 to below this.
    loose : bool
        Whether other shapes, or other numbers, may be right as well.
    apart : bool
        Whether its rows may lie apart.
    optional : bool
        Whether it may be None.
    """

    value: Any
    out: bool = False
    rows: int | None = None
    loose: bool = False
    apart: bool = False
    optional: bool = False


def _of(value: Any, **options: Any) -> Argument:
    return Argument(value, **options)


def _out(value: Any, **options: Any) -> Argument:
    return Argument(value, out=True, **options)


def valid_calls() -> dict[str, list[Argument]]:
    """Arguments of one call of each function."""
    rng = np.random.default_rng(0)
    words = plain.random_words(rng, 20, 128)
    queries = plain.random_words(rng, 5, 128)
    blocks, kept = plain.to_blocks(words), plain.to_mask(np.arange(20) % 3 > 0)
    starts, listed = np.zeros(257, np.uint32), np.zeros(20, np.uint32)
    _core.list_rows(blocks, 2, 0, 8, starts, listed)
    top, margin, panel = 129, _core.margin, _core.panel

    def floats(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    def ints(*values: int) -> np.ndarray:
        return np.array(values, np.int64)

    near = np.ones(10, np.float32)
    sizes = rng.integers(0, 4, 5)
    nearest = [
        *(_of(blocks), _of(20), _of(kept, optional=True), _of(8), _of(20), _of(queries), _of(True)),
        _out(np.full(5, top), rows=top + 1),
        *(_out(np.zeros((5, 3), np.int32)), _out(np.zeros((5, 3), np.int64))),
        _out(np.zeros(5, np.int64)),
    ]
    within = [
        *(_of(blocks), _of(20), _of(kept, optional=True), _of(20), _of(queries), _of(False)),
        *(_of(np.full(5, top), rows=top + 1), _of(8), _of(0)),
        *(_out(np.zeros(margin, np.int64)), _out(np.zeros(margin, np.int64))),
        _out(np.zeros(margin, np.int32)),
    ]
    merge = [
        *(_of(np.zeros((5, 3), np.int32)), _of(np.zeros((5, 3), np.int64)), _of(sizes, rows=4)),
        *(_of(np.ones((5, 3), np.int32)), _of(np.ones((5, 3), np.int64)), _of(sizes, rows=4)),
        *(_out(np.zeros((5, 3), np.int32)), _out(np.zeros((5, 3), np.int64))),
        _out(np.zeros(5, np.int64)),
    ]
    match = [
        *(_of(blocks), _of(20), _of(queries), _out(np.full(5, top), rows=top + 1)),
        _of(np.minimum(np.arange(top + 2), top), rows=top + 1),
        *(_out(np.full(5, top), rows=top + 1), _out(np.full(5, top), rows=top + 1)),
        _out(np.zeros(5, np.int64)),
    ]
    look_up = [
        *(_of(blocks), _of(kept, optional=True), _of(ints(0), rows=121), _of(ints(8), rows=33)),
        *(_of(ints(0), rows=1), _of(starts, loose=True), _of(listed[None], loose=True)),
        *(_of(np.zeros(1, np.uint32), rows=256, loose=True), _of(ints(0), rows=1)),
        *(_of(ints(1), rows=2), _of(ints(0)), _of(3, loose=True), _of(queries)),
        *(_of(np.full(5, -1)), _of(0), _out(np.zeros(50, np.int64))),
        *(_out(np.zeros(50, np.int64)), _out(np.zeros(50, np.int32))),
    ]
    sums = [
        _out(floats(6, 12)[:, :10], apart=True, loose=True),
        _of(floats(6, 8), loose=True),
        *(_of(floats(10, 7), loose=True), _of(floats(10)), _of(near), _of(near)),
        _out(np.zeros(6, np.bool_), loose=True),
    ]
    rows = [
        _out(floats(6, 12)[:, :10], apart=True, loose=True),
        _of(ints(0, 4, 5), rows=6),
        *(_of(rng.normal(size=(3, 7))), _of(floats(10, 7)), _of(floats(10)), _of(near)),
    ]
    gram = [
        _of(rng.integers(0, 9, (6, 20)).astype(np.int16), loose=True),
        *(_of(ints(0, 1, 5), rows=6), _of(ints(3, 4, 5), rows=6), _of(-1), _of(0, loose=True)),
        _out(np.zeros((32, 32), np.int64)),
    ]
    ranks, pairs = np.array([0, 2, 1, 2, 3], np.int32), np.array([[0, 1], [3, 4]], np.int32)
    gradient = [
        *(_of(floats(6, 10)), _of(np.zeros((2, 6), np.int32), rows=6), _of(floats(2, 6))),
        *(_of(ints(4, 10), rows=11), _of(0, loose=True), _of(10), _out(floats(6, 10))),
    ]
    adam = [
        *(_out(floats(9)), _of(floats(9)), _out(floats(9)), _out(np.abs(floats(9)))),
        *(_of(0.1), _of(1.0)),
    ]
    return {
        "nearest": nearest,
        "within": within,
        "merge_nearest": merge,
        "match": match,
        "part_values": [
            *(_of(blocks), _of(2), _of(20), _of(ints(3, 19), rows=20), _of(5, loose=True)),
            *(_of(8, loose=True), _out(np.zeros(2, np.int64))),
        ],
        "list_rows": [
            *(_of(blocks), _of(2), _of(0, loose=True), _of(8), _out(np.zeros(257, np.uint32))),
            _out(np.full(20, 7, np.uint32), loose=True),  # 17 to 24 rows fit the blocks
        ],
        "look_up": look_up,
        "weight_differing": [
            *(_of(words.reshape(4, 5, 2), loose=True), _of(floats(4, 100), loose=True)),
            _out(np.zeros((4, 5), np.float32)),
        ],
        "decide": [
            *(_of(words.view(np.uint32), loose=True), _of(queries.view(np.uint32), loose=True)),
            *(_of(ints(0, 19, 3), rows=20), _of(ints(4, 0, 1), rows=5)),
            *(_of(np.array([2, 4, 6, 20], np.int32)), _of(np.array([30, 40, 50, 21], np.int32))),
            *(_out(np.zeros(3, np.bool_)), _out(np.zeros(3, np.uint16))),
        ],
        "multiply": [
            *(_of(floats(9, 7), loose=True), _of(floats(2, 6, panel), loose=True)),
            *(_of(8), _out(floats(8, 2 * panel), loose=True)),
        ],
        "squared_norms": [
            *(_of(floats(9, 7), loose=True), _of(7), _of(9)),
            _out(np.zeros(9, np.float32), loose=True),
        ],
        "exp2_of_expanded_square": [
            *(_out(floats(9, 7), loose=True), _of(floats(9), loose=True)),
            *(_of(floats(7), loose=True), _of(9)),
        ],
        "pack_above": [
            *(_of(floats(9, 12)[:, :10], apart=True, loose=True), _of(floats(10), loose=True)),
            _out(np.zeros((9, 2), np.uint8), loose=True),
        ],
        "recompute_sums": sums,
        "recompute_rows": rows,
        "gaussians": [
            *(_of(rng.normal(size=(4, 3))), _of(rng.normal(size=(5, 3))), _of(0.5)),
            _out(np.zeros((4, 5))),
        ],
        "add_gram": gram,
        "rank": [_of(floats(9)), _out(np.zeros(9, np.int32)), _out(np.zeros(9, np.float32))],
        "best_cut": [
            *(_of(ranks, rows=4, loose=True), _of(floats(4), loose=True)),
            *(_of(pairs, rows=5, loose=True), _of(pairs, rows=5, loose=True), _of(0.5), _of(0.5)),
        ],
        "best_weighted_cut": [
            *(_of(ranks, rows=4, loose=True), _of(4, loose=True)),
            *(_of(pairs, rows=5), _of(np.ones(2))),
        ],
        "soft_bits": [_of(floats(4, 10)), _of(floats(10)), _of(2.0), _out(floats(4, 10))],
        "hide_same": [_out(floats(4, 6), loose=True), _of(2, loose=True), _of(np.arange(6) // 2)],
        "find_largest": [
            *(_of(floats(4, 6), loose=True), _out(np.zeros(4, np.int32))),
            _out(np.zeros(4, np.float32)),
        ],
        "add_partners": [
            *(_of(floats(6, 10), loose=True), _of(2, loose=True), _of(9, loose=True)),
            *(_of(1, loose=True), _out(floats(4), loose=True)),
        ],
        "add_gradient": gradient,
        "adam_step": adam,
    }


@dataclass(frozen=True)
class Wrong:
    """A value in place of an argument; `may_pass` if the call may be right with it."""

    what: str
    value: Any
    may_pass: bool = False


def wrong_values(argument: Argument) -> Iterator[Wrong]:
    """Values that are not what an argument should be."""
    value = argument.value
    if isinstance(value, np.ndarray):
        yield from _not_this_array(argument)
        yield from _other_shapes(argument)
        yield from _other_layouts(argument)
        if argument.rows is not None:
            yield from _out_of_range(argument)
        return
    for other in (None, "text", [], {}, object(), np.zeros(2), 1j):
        yield Wrong(f"{other!r:.30}", other)
    if isinstance(value, bool):
        yield from (Wrong(repr(other), other) for other in (0, 2, 1.5))
    elif isinstance(value, int):
        yield from (Wrong(repr(other), other) for other in (1.5, float("nan")))
        for other in INTS:
            yield Wrong(str(other), other, argument.loose or other == value)
    else:
        for other in (float("nan"), float("inf"), -1e300, 0.0, 2**62, -(2**1000)):
            yield Wrong(f"{other:.3g}" if isinstance(other, float) else "whole", other, True)


def not_aligned(value: np.ndarray) -> np.ndarray:
    """A copy that begins at an odd byte."""
    store = np.zeros(value.nbytes + 1, np.uint8)
    askew = store[1:].view(value.dtype).reshape(value.shape)
    askew[...] = value
    return askew


def _not_this_array(argument: Argument) -> Iterator[Wrong]:
    value = argument.value
    for other in NOT_ARRAYS:
        yield Wrong(f"{other!r:.30}", other, other is None and argument.optional)
    for dtype in DTYPES:
        if np.dtype(dtype) != value.dtype:
            yield Wrong(f"as {np.dtype(dtype)}", np.zeros(value.shape, dtype))
    if value.dtype.itemsize > 1:
        swapped = value.astype(value.dtype.newbyteorder())
        yield Wrong("bytes swapped", swapped)
        yield Wrong("not aligned", not_aligned(value), not argument.out and not argument.apart)
    is_bytes = value.dtype == np.uint8 and value.ndim == 1
    yield Wrong("a memoryview of bytes", memoryview(value.tobytes()), is_bytes)
    if argument.out:
        fixed = value.copy()
        fixed.setflags(write=False)
        yield Wrong("read-only", fixed)


def _other_shapes(argument: Argument) -> Iterator[Wrong]:
    value, loose = argument.value, argument.loose
    yield Wrong("one more axis", value[None].copy())
    yield Wrong("one axis less", value.reshape(-1) if value.ndim > 1 else value[0])
    for axis, length in enumerate(value.shape):
        for new in (0, length - 1, length + 1, 2 * length + 3):
            shape = (*value.shape[:axis], new, *value.shape[axis + 1 :])
            yield Wrong(f"shape {shape}", np.zeros(shape, value.dtype), loose)
        for new in (2**31, 2**40, 2**58):  # with no entries at all
            if value.ndim > 1:
                shape = tuple(new if i == axis else 0 for i in range(value.ndim))
                try:
                    empty = np.zeros(shape, value.dtype)
                except (ValueError, MemoryError):
                    continue
                yield Wrong(f"shape {shape}", empty, loose)
    many = np.lib.stride_tricks.as_strided(value, (2**40, *value.shape[1:]), (0,) * value.ndim)
    yield Wrong("2**40 times the same entry", many)


def _other_layouts(argument: Argument) -> Iterator[Wrong]:
    value = argument.value
    if value.ndim > 1 and min(value.shape) > 1:
        yield Wrong("columns first", np.asfortranarray(value))
        wide = np.repeat(value, 2, axis=-1)
        yield Wrong("every second column", wide[..., ::2])
        yield Wrong("columns reversed", value[..., ::-1])
        apart = np.repeat(value, 2, axis=0)
        yield Wrong("every second row", apart[::2], argument.apart)
        yield Wrong("one row again and again", np.broadcast_to(value[:1], value.shape))
    if len(value) > 1:
        yield Wrong("reversed", value[::-1])
        if value.ndim == 1:
            yield Wrong("every second entry", np.repeat(value, 2)[::2])


def _out_of_range(argument: Argument) -> Iterator[Wrong]:
    value = argument.value
    kind = np.iinfo(value.dtype)
    for other in {argument.rows, kind.min or kind.max, kind.max, -1 if kind.min else kind.max}:
        for place in (0, -1):
            changed = value.copy()
            changed.reshape(-1)[place] = other
            yield Wrong(f"entry {place} is {other}", changed)


def main() -> None:
    """Make every wrong call; print those that were not refused, and how many were made."""
    calls = valid_calls()
    bound = {name for name in dir(_core) if callable(getattr(_core, name))}
    print("not in the table:", sorted(bound - set(calls)))
    count = 0
    for name, arguments in calls.items():
        function = getattr(_core, name)

        def run(values: list[Any], function: Any = function) -> Any:
            return function(*values)

        def fresh(arguments: list[Argument] = arguments) -> list[Any]:
            """Copies with the layout of the originals."""
            copies = []
            for one in arguments:
                value = one.value
                if isinstance(value, np.ndarray):
                    base = value if value.base is None or not one.apart else value.base
                    value = base.copy()[tuple(slice(0, n) for n in value.shape)]
                    if not one.out:
                        value.setflags(write=False)
                copies.append(value)
            return copies

        first = fresh()
        result = run(first)
        for place, argument in enumerate(arguments):
            for wrong in wrong_values(argument):
                case = f"{name}, argument {place}, {wrong.what}"
                print(case, file=sys.stderr, flush=True)  # the last one is where it crashed
                values = fresh()
                values[place] = wrong.value
                count += 1
                try:
                    run(values)
                except (TypeError, ValueError):
                    continue
                except BaseException as error:
                    print(f"{case}: {error!r}")
                    continue
                if not wrong.may_pass:
                    print(f"{case}: passed")
        for values in (fresh()[:-1], [*fresh(), 1], []):
            count += 1
            try:
                run(values)
                print(f"{name}: passed with {len(values)} arguments")
            except TypeError:
                pass
        again = fresh()
        if run(again) != result or not all(np.array_equal(a, b) for a, b in zip(again, first)):
            print(f"{name} gives something else afterwards")
    print("calls:", count)


if __name__ == "__main__":
    faulthandler.enable()
    main()
