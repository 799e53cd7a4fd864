"""A valid call of every function of the core, and invalid calls derived from them."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import reference

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
    limit : int, optional
        Its entries must be at least 0 and less than this.
    flexible : bool
        Whether other shapes or numbers may be valid as well.
    strided : bool
        Whether there may be gaps between its rows.
    optional : bool
        Whether it may be None.
    """

    value: Any
    out: bool = False
    limit: int | None = None
    flexible: bool = False
    strided: bool = False
    optional: bool = False


def _of(value: Any, **options: Any) -> Argument:
    return Argument(value, **options)


def _out(value: Any, **options: Any) -> Argument:
    return Argument(value, out=True, **options)


def valid_calls() -> dict[str, list[Argument]]:
    """Return the arguments of one valid call of each function."""
    rng = np.random.default_rng(0)
    words = reference.random_words(rng, 20, 128)
    queries = reference.random_words(rng, 5, 128)
    blocks, kept = reference.to_blocks(words), reference.to_mask(np.arange(20) % 3 > 0)
    starts, listed = np.zeros(257, np.uint32), np.zeros(20, np.uint32)
    _core.build_table(blocks, 2, 0, 8, starts, listed)
    max_bound, capacity, panel = 129, _core.max_hits_per_step, _core.panel

    def floats(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    def ints(*values: int) -> np.ndarray:
        return np.array(values, np.int64)

    error_bound = np.ones(10, np.float32)
    sizes = rng.integers(0, 4, 5)
    nearest = [
        *(_of(blocks), _of(20), _of(kept, optional=True), _of(8), _of(20), _of(queries), _of(True)),
        _out(np.full(5, max_bound), limit=max_bound + 1),
        *(_out(np.zeros((5, 3), np.int32)), _out(np.zeros((5, 3), np.int64))),
        _out(np.zeros(5, np.int64)),
    ]
    range_search = [
        *(_of(blocks), _of(20), _of(kept, optional=True), _of(20), _of(queries), _of(False)),
        *(_of(np.full(5, max_bound), limit=max_bound + 1), _of(8), _of(0)),
        *(_out(np.zeros(capacity, np.int64)), _out(np.zeros(capacity, np.int64))),
        _out(np.zeros(capacity, np.int32)),
    ]
    merge = [
        *(_of(np.zeros((5, 3), np.int32)), _of(np.zeros((5, 3), np.int64)), _of(sizes, limit=4)),
        *(_of(np.ones((5, 3), np.int32)), _of(np.ones((5, 3), np.int64)), _of(sizes, limit=4)),
        *(_out(np.zeros((5, 3), np.int32)), _out(np.zeros((5, 3), np.int64))),
        _out(np.zeros(5, np.int64)),
    ]
    match = [
        *(_of(blocks), _of(20), _of(queries), _of(True)),
        _out(np.full(5, max_bound), limit=max_bound + 1),
        _of(np.minimum(np.arange(max_bound + 2), max_bound), limit=max_bound + 1),
        *(
            _out(np.full(5, max_bound), limit=max_bound + 1),
            _out(np.full(5, max_bound), limit=max_bound + 1),
        ),
        _out(np.zeros(5, np.int64)),
    ]
    look_up = [
        *(_of(blocks), _of(kept, optional=True), _of(ints(0), limit=121), _of(ints(8), limit=33)),
        *(_of(ints(0), limit=1), _of(starts, flexible=True), _of(listed[None], flexible=True)),
        *(_of(np.zeros(1, np.uint32), limit=256, flexible=True), _of(ints(0), limit=1)),
        *(_of(ints(1), limit=2), _of(ints(0)), _of(3, flexible=True), _of(queries)),
        *(_of(np.full(5, -1)), _of(0), _out(np.zeros(50, np.int64))),
        *(_out(np.zeros(50, np.int64)), _out(np.zeros(50, np.int32))),
    ]
    sums = [
        _out(floats(6, 12)[:, :10], strided=True, flexible=True),
        _of(floats(6, 8), flexible=True),
        *(_of(floats(10, 7), flexible=True), _of(floats(10)), _of(error_bound), _of(error_bound)),
        _out(np.zeros(6, np.bool_), flexible=True),
    ]
    rows = [
        _out(floats(6, 12)[:, :10], strided=True, flexible=True),
        _of(ints(0, 4, 5), limit=6),
        *(_of(rng.normal(size=(3, 7))), _of(floats(10, 7)), _of(floats(10)), _of(error_bound)),
    ]
    gram = [
        _of(rng.integers(0, 9, (6, 20)).astype(np.int16), flexible=True),
        *(_of(ints(0, 1, 5), limit=6), _of(ints(3, 4, 5), limit=6), _of(-1), _of(0, flexible=True)),
        _out(np.zeros((32, 32), np.int64)),
    ]
    ranks, pairs = np.array([0, 2, 1, 2, 3], np.int32), np.array([[0, 1], [3, 4]], np.int32)
    gradient = [
        *(_of(floats(6, 10)), _of(np.zeros((2, 6), np.int32), limit=6), _of(floats(2, 6))),
        *(_of(ints(4, 10), limit=11), _of(0, flexible=True), _of(10), _out(floats(6, 10))),
    ]
    adam = [
        *(_out(floats(9)), _of(floats(9)), _out(floats(9)), _out(np.abs(floats(9)))),
        *(_of(0.1), _of(1.0)),
    ]
    return {
        "nearest": nearest,
        "range_search": range_search,
        **_calls_with_cells(rng, words, queries, kept),
        "merge_nearest": merge,
        "match": match,
        "find_rivals": [
            *(_of(blocks), _of(20), _of(queries), _of(np.array([0, 3, 19, -1, 7]), flexible=True)),
            _out(np.full(5, max_bound), limit=max_bound + 1),
        ],
        "substring_values": [
            *(_of(blocks), _of(2), _of(20), _of(ints(3, 19), limit=20), _of(5, flexible=True)),
            *(_of(8, flexible=True), _out(np.zeros(2, np.int64))),
        ],
        "build_table": [
            *(_of(blocks), _of(2), _of(0, flexible=True), _of(8), _out(np.zeros(257, np.uint32))),
            _out(np.full(20, 7, np.uint32), flexible=True),  # the blocks hold 17 to 24 rows
        ],
        "look_up": look_up,
        "nearest_weighted": [
            *(_of(blocks), _of(20), _of(kept, optional=True), _of(8), _of(20)),
            *(_of(None), _of(None), _of(None)),
            *(_of(floats(5, 100), flexible=True), _of(np.full(5, np.inf, np.float32))),
            *(_out(np.zeros((5, 3), np.float32)), _out(np.zeros((5, 3), np.int64))),
            _out(np.zeros(5, np.int64)),
        ],
        "weighted_distances": [
            *(_of(words.reshape(4, 5, 2), flexible=True), _of(floats(4, 100), flexible=True)),
            _out(np.zeros((4, 5), np.float32)),
        ],
        "decide": [
            *(
                _of(words.view(np.uint32), flexible=True),
                _of(queries.view(np.uint32), flexible=True),
            ),
            *(_of(ints(0, 19, 3), limit=20), _of(ints(4, 0, 1), limit=5)),
            *(_of(np.array([2, 4, 6, 20], np.int32)), _of(np.array([30, 40, 50, 21], np.int32))),
            *(_out(np.zeros(3, np.bool_)), _out(np.zeros(3, np.uint16))),
        ],
        "multiply": [
            *(_of(floats(9, 7), flexible=True), _of(floats(2, 6, panel), flexible=True)),
            *(_of(8), _out(floats(8, 2 * panel), flexible=True)),
        ],
        "squared_norms": [
            *(_of(floats(9, 7), flexible=True), _of(7), _of(9)),
            _out(np.zeros(9, np.float32), flexible=True),
        ],
        "exp2_of_expanded_square": [
            *(_out(floats(9, 7), flexible=True), _of(floats(9), flexible=True)),
            *(_of(floats(7), flexible=True), _of(9)),
        ],
        "pack_above": [
            *(
                _of(floats(9, 12)[:, :10], strided=True, flexible=True),
                _of(floats(10), flexible=True),
            ),
            _out(np.zeros((9, 2), np.uint8), flexible=True),
        ],
        "recompute_sums": sums,
        "recompute_rows": rows,
        "gaussians": [
            *(_of(rng.normal(size=(4, 3))), _of(rng.normal(size=(5, 3))), _of(0.5)),
            _out(np.zeros((4, 5))),
        ],
        "add_gram": gram,
        "rank": [_of(floats(9)), _out(np.zeros(9, np.int32)), _out(np.zeros(9, np.float32))],
        "best_threshold": [
            *(_of(ranks, limit=4, flexible=True), _of(floats(4), flexible=True)),
            *(
                _of(pairs, limit=5, flexible=True),
                _of(pairs, limit=5, flexible=True),
                _of(0.5),
                _of(0.5),
            ),
        ],
        "best_weighted_threshold": [
            *(_of(ranks, limit=4, flexible=True), _of(4, flexible=True)),
            *(_of(pairs, limit=5), _of(np.ones(2))),
        ],
        "soft_bits": [_of(floats(4, 10)), _of(floats(10)), _of(2.0), _out(floats(4, 10))],
        "mask_same_label": [
            _out(floats(4, 6), flexible=True),
            _of(2, flexible=True),
            _of(np.arange(6) // 2),
        ],
        "find_largest": [
            *(_of(floats(4, 6), flexible=True), _out(np.zeros(4, np.int32))),
            _out(np.zeros(4, np.float32)),
        ],
        "add_partner_similarity": [
            *(_of(floats(6, 10), flexible=True), _of(2, flexible=True), _of(9, flexible=True)),
            *(_of(1, flexible=True), _out(floats(4), flexible=True)),
        ],
        "add_gradient": gradient,
        "adam_step": adam,
    }


def _calls_with_cells(
    rng: np.random.Generator, words: np.ndarray, queries: np.ndarray, kept: np.ndarray
) -> dict[str, list[Argument]]:
    """Return valid calls of the functions for rows that are ordered by cell."""
    cell_of = rng.integers(0, 16, 20).astype(np.uint32)
    starts = np.append(0, np.cumsum(np.bincount(cell_of, minlength=16)))
    low, high, rows = np.zeros(20, np.uint16), np.zeros(1, np.uint64), cell_of.copy()
    _core.order_rows(starts, rows, low, high)
    blocks = np.zeros((3, 2, 8), np.uint64)
    _core.scatter(words, rows, 0, blocks)
    group_planes, planes = (rng.integers(0, 2**63, (n, 2, 3, 8), np.uint64) for n in (1, 2))
    group_bias = np.array([5, 6, *[65535] * 6], np.uint16)
    firsts = np.array([0, 8, *[16] * 7])
    order = [_of(starts, flexible=True), _of(low), _of(high)]
    codes = [_of(blocks.reshape(-1)), _of(20), _of(kept, optional=True)]
    groups = [_of(group_planes), _of(group_bias)]
    centres = [_of(planes), _of(np.arange(16, dtype=np.uint16)), _of(firsts, limit=17)]
    parts = [*codes[:2], *order, *groups, *centres]
    searchable = _core.searchable_cells(*(part.value for part in parts))
    found = [_out(np.zeros((5, 3), np.int32)), _out(np.zeros((5, 3), np.int64))]
    return {
        "nearest_by_position": [
            *(*codes, _of(8), _of(20), *order, _of(queries), _of(True)),
            *(_out(np.full(5, 129), limit=130), *found, _out(np.zeros(5, np.int64))),
        ],
        "searchable_cells": parts,
        "nearest_in_cells": [
            *(_of(searchable), codes[2], _of(2, flexible=True), _of(3, flexible=True)),
            *(_of(queries), *found, _out(np.zeros(5, np.int64)), _out(np.zeros(5, np.int64))),
        ],
        "positions_of": [
            *(order[0], _of(low, flexible=True), order[2]),
            *(_of(np.array([3, 19]), limit=20), _out(np.zeros(2, np.int64))),
        ],
        "order_rows": [
            *(_of(starts, limit=21), _out(cell_of, limit=16)),
            *(_out(np.zeros(20, np.uint16)), _out(np.zeros(1, np.uint64))),
        ],
        "score_centres": [
            *(centres[0], centres[1], _of(queries), _out(np.zeros((5, 16), np.uint16))),
        ],
        "assign_cells": [
            *(*groups, *centres, _of(2, flexible=True), _of(words)),
            _out(np.zeros(20, np.uint32)),
        ],
        "add_bits": [
            *(_of(words), _of(cell_of, limit=16)),
            _out(np.zeros((16, 128), np.int32), flexible=True),
        ],
        "scatter": [
            *(_of(words), _of(rows), _of(0, flexible=True)),
            _out(np.zeros((3, 2, 8), np.uint64), flexible=True),
        ],
    }


@dataclass(frozen=True)
class Invalid:
    """A replacement for an argument; with `may_pass`, the call may be valid with it."""

    description: str
    value: Any
    may_pass: bool = False


def invalid_values(argument: Argument) -> Iterator[Invalid]:
    """Yield values that an argument should not have."""
    value = argument.value
    if isinstance(value, np.ndarray):
        yield from _other_types(argument)
        yield from _other_shapes(argument)
        yield from _other_layouts(argument)
        if argument.limit is not None:
            yield from _out_of_range(argument)
        return
    for other in (None, "text", [], {}, object(), np.zeros(2), 1j):
        if other is not None or value is not None:
            yield Invalid(f"{other!r:.30}", other)
    if isinstance(value, bool):
        yield from (Invalid(repr(other), other) for other in (0, 2, 1.5))
    elif isinstance(value, int):
        yield from (Invalid(repr(other), other) for other in (1.5, float("nan")))
        for other in INTS:
            yield Invalid(str(other), other, argument.flexible or other == value)
    elif value is not None:
        for other in (float("nan"), float("inf"), -1e300, 0.0, 2**62, -(2**1000)):
            yield Invalid(f"{other:.3g}" if isinstance(other, float) else "integer", other, True)


def unaligned(value: np.ndarray) -> np.ndarray:
    """Return a copy that begins at an odd address."""
    buffer = np.zeros(value.nbytes + 1, np.uint8)
    copy = buffer[1:].view(value.dtype).reshape(value.shape)
    copy[...] = value
    return copy


def _other_types(argument: Argument) -> Iterator[Invalid]:
    value = argument.value
    for other in NOT_ARRAYS:
        yield Invalid(f"{other!r:.30}", other, other is None and argument.optional)
    for dtype in DTYPES:
        if np.dtype(dtype) != value.dtype:
            yield Invalid(f"as {np.dtype(dtype)}", np.zeros(value.shape, dtype))
    if value.dtype.itemsize > 1:
        swapped = value.astype(value.dtype.newbyteorder())
        yield Invalid("byte order swapped", swapped)
        yield Invalid("unaligned", unaligned(value), not argument.out and not argument.strided)
    is_bytes = value.dtype == np.uint8 and value.ndim == 1
    yield Invalid("a memoryview of bytes", memoryview(value.tobytes()), is_bytes)
    if argument.out:
        read_only = value.copy()
        read_only.setflags(write=False)
        yield Invalid("read-only", read_only)


def _other_shapes(argument: Argument) -> Iterator[Invalid]:
    value, flexible = argument.value, argument.flexible
    yield Invalid("one more axis", value[None].copy())
    yield Invalid("one axis fewer", value.reshape(-1) if value.ndim > 1 else value[0])
    for axis, length in enumerate(value.shape):
        for new in (0, length - 1, length + 1, 2 * length + 3):
            shape = (*value.shape[:axis], new, *value.shape[axis + 1 :])
            yield Invalid(f"shape {shape}", np.zeros(shape, value.dtype), flexible)
        for new in (2**31, 2**40, 2**58):  # without any entries
            if value.ndim > 1:
                shape = tuple(new if i == axis else 0 for i in range(value.ndim))
                try:
                    empty = np.zeros(shape, value.dtype)
                except (ValueError, MemoryError):
                    continue
                yield Invalid(f"shape {shape}", empty, flexible)
    repeated = np.lib.stride_tricks.as_strided(value, (2**40, *value.shape[1:]), (0,) * value.ndim)
    yield Invalid("one entry repeated 2**40 times", repeated)


def _other_layouts(argument: Argument) -> Iterator[Invalid]:
    value = argument.value
    if value.ndim > 1 and min(value.shape) > 1:
        yield Invalid("column-major", np.asfortranarray(value))
        columns = np.repeat(value, 2, axis=-1)
        yield Invalid("every second column", columns[..., ::2])
        yield Invalid("columns reversed", value[..., ::-1])
        rows = np.repeat(value, 2, axis=0)
        yield Invalid("every second row", rows[::2], argument.strided)
        yield Invalid("one row broadcast", np.broadcast_to(value[:1], value.shape))
    if len(value) > 1:
        yield Invalid("reversed", value[::-1])
        if value.ndim == 1:
            yield Invalid("every second entry", np.repeat(value, 2)[::2])


def _out_of_range(argument: Argument) -> Iterator[Invalid]:
    value = argument.value
    kind = np.iinfo(value.dtype)
    for other in {argument.limit, kind.min or kind.max, kind.max, -1 if kind.min else kind.max}:
        for position in (0, -1):
            changed = value.copy()
            changed.reshape(-1)[position] = other
            yield Invalid(f"entry {position} is {other}", changed)


def main() -> None:
    """Make every invalid call; print those that were not refused, and the number of calls."""
    calls = valid_calls()
    bound = {name for name, value in vars(_core).items() if callable(value)} - {"SearchableCells"}
    print("functions without a test:", sorted(bound - set(calls)))
    count = 0
    for name, arguments in calls.items():
        function = getattr(_core, name)

        def run(values: list[Any], function: Any = function) -> Any:
            return function(*values)

        def fresh(arguments: list[Argument] = arguments) -> list[Any]:
            """Return copies with the same memory layout."""
            copies = []
            for argument in arguments:
                value = argument.value
                if isinstance(value, np.ndarray):
                    base = value if value.base is None or not argument.strided else value.base
                    value = base.copy()[tuple(slice(0, n) for n in value.shape)]
                    if not argument.out:
                        value.setflags(write=False)
                copies.append(value)
            return copies

        first = fresh()
        result = run(first)
        is_object = not isinstance(result, tuple | int | float | None)
        for position, argument in enumerate(arguments):
            for invalid in invalid_values(argument):
                case = f"{name}, argument {position}, {invalid.description}"
                print(
                    case, file=sys.stderr, flush=True
                )  # after a crash, the last line names the call
                values = fresh()
                values[position] = invalid.value
                count += 1
                try:
                    run(values)
                except (TypeError, ValueError):
                    continue
                except BaseException as error:
                    print(f"{case}: {error!r}")
                    continue
                if not invalid.may_pass:
                    print(f"{case}: accepted")
        for values in (fresh()[:-1], [*fresh(), 1], []):
            count += 1
            try:
                run(values)
                print(f"{name}: accepted with {len(values)} arguments")
            except TypeError:
                pass
        again = fresh()
        if (run(again) != result and not is_object) or not all(
            np.array_equal(a, b) for a, b in zip(again, first)
        ):
            print(f"{name}: different results after the invalid calls")
    print("calls:", count)


if __name__ == "__main__":
    faulthandler.enable()
    main()
