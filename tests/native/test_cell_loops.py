"""The loops of cells, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from reference import BITS

from kdiffhash import _core

UNUSED = 65535


def random_cells(rng, n, n_cells):
    """Return the cell of each position; some cells are empty, and one is large."""
    cells = rng.integers(0, max(1, n_cells - 3), n)
    cells[rng.random(n) < 0.3] = 1 % n_cells
    return cells.astype(np.uint32)


def order(cell_of, n_cells):
    """Return starts, low and high as the core orders rows, and the row of each position."""
    n = len(cell_of)
    starts = np.append(0, np.cumsum(np.bincount(cell_of, minlength=n_cells)))
    low = np.zeros(n, np.uint16)
    high = np.zeros((n + n_cells * -(-n // 65536)) // 64 + 1, np.uint64)
    rows = cell_of.copy()
    _core.order_rows(starts, rows, low, high)
    return (starts, low, high), rows


def random_centres(rng, n, n_words, n_used):
    """Return planes and bias of n centres (a multiple of 8), and majority and weight of bits."""
    majority = rng.integers(0, 2, (n, 64 * n_words))
    weights = rng.integers(0, 4, (n, 64 * n_words))
    majority[n_used:], weights[n_used:] = 0, 0
    bias = rng.integers(0, 400, n).astype(np.uint16)
    bias[n_used:] = UNUSED
    bits = np.stack([majority, weights & 1, weights >> 1], axis=1).astype(np.uint8)
    words = np.packbits(bits, axis=2, bitorder="little").view(np.uint64)  # (n, 3, n_words)
    planes = words.reshape(-1, 8, 3, n_words).transpose(0, 3, 2, 1)
    return (np.ascontiguousarray(planes), bias), majority, weights


def scores_of(queries, centres, majority, weights):
    """Return the score of each centre for each query."""
    bits = np.unpackbits(queries.view(np.uint8), axis=1, bitorder="little")
    scale = 8 if queries.shape[1] <= 32 else 4
    differing = bits[:, None] != majority[None]
    return centres[1] + scale * (differing * weights[None]).sum(axis=2)


def expected_nearest(distances, allowed, k):
    """Return (distance, position) of the k nearest allowed positions of each query."""
    result = []
    for own, mask in zip(distances, np.broadcast_to(allowed, distances.shape)):
        positions = np.flatnonzero(mask)
        chosen = positions[np.lexsort((positions, own[positions]))][:k]
        result.append(list(zip(own[chosen].tolist(), chosen.tolist())))
    return result


def as_lists(distances, positions, sizes):
    return [
        list(zip(d[:size].tolist(), p[:size].tolist()))
        for d, p, size in zip(distances, positions, sizes)
    ]


def room(n, k):
    return np.zeros((n, k), np.int32), np.zeros((n, k), np.int64), np.zeros(n, np.int64)


@pytest.mark.parametrize(("n", "n_cells"), [(1, 1), (9, 3), (1000, 40), (70_000, 7), (200_000, 90)])
def test_rows_are_ordered_by_cell_then_position(n, n_cells):
    cell_of = random_cells(np.random.default_rng(n), n, n_cells)
    arrays, rows = order(cell_of, n_cells)
    by_row = np.argsort(cell_of, kind="stable")
    np.testing.assert_array_equal(rows[by_row], np.arange(n))
    positions = np.zeros(n, np.int64)
    _core.positions_of(*arrays, np.arange(n), positions)
    np.testing.assert_array_equal(positions, by_row)


@pytest.mark.parametrize("n_bits", BITS)
def test_nearest_by_position_for_any_length_with_ties_and_removed_rows(n_bits):
    rng = np.random.default_rng(n_bits)
    for n, n_distinct, k in ((700, 9, 5), (530, None, 20), (400, 1, 3), (30, 4, 50)):
        words = reference.random_words(rng, n, n_bits, n_distinct)
        queries = np.concatenate([reference.random_words(rng, 20, n_bits), words[:5]])
        arrays, rows = order(random_cells(rng, n, 12), 12)
        stored, kept = np.empty_like(words), rng.random(n) < 0.8
        stored[rows] = words
        mask = np.zeros(n, bool)
        mask[rows] = kept
        distances = reference.distances_of(queries, words)
        for slices in (False, True):
            found = room(len(queries), k)
            bounds = np.full(len(queries), 64 * words.shape[1] + 1)
            codes = (reference.to_blocks(stored), n, reference.to_mask(mask), 0, n)
            _core.nearest_by_position(*codes, *arrays, queries, slices, bounds, *found)
            assert as_lists(*found) == expected_nearest(distances, kept, k)


def test_nearest_by_position_in_a_range_of_rows_below_a_bound():
    rng = np.random.default_rng(0)
    words, queries = (reference.random_words(rng, n, 64, 9) for n in (500, 10))
    arrays, rows = order(random_cells(rng, 500, 5), 5)
    stored = np.empty_like(words)
    stored[rows] = words
    distances = reference.distances_of(queries, words)
    bounds = rng.integers(20, 40, 10)
    there = (rows >= 80) & (rows < 333) & (distances < bounds[:, None])
    found = room(10, 7)
    codes = (reference.to_blocks(stored), 500, None, 80, 333)
    _core.nearest_by_position(*codes, *arrays, queries, False, bounds.copy(), *found)
    assert as_lists(*found) == expected_nearest(distances, there, 7)


@pytest.mark.parametrize("n_bits", [64, 128, 192, 256, 512, 1088, 4096])
def test_the_nearest_cells_are_searched(n_bits):
    rng = np.random.default_rng(n_bits)
    n, width, k = 900, n_bits // 64, 6
    words = reference.random_words(rng, n, n_bits, 300)
    queries = np.concatenate([reference.random_words(rng, 40, n_bits), words[:9]])
    firsts = np.array([0, 16, 16, 40, 48, 48, 48, 48, 48])  # groups of 16, 0, 24 and 8 cells
    groups, *group_bits = random_centres(rng, 8, width, 4)
    centres, *cell_bits = random_centres(rng, 48, width, 45)
    arrays, rows = order(random_cells(rng, n, 48), 48)
    stored = np.empty_like(words)
    stored[rows] = words
    cells = np.searchsorted(arrays[0], rows, "right") - 1
    distances = reference.distances_of(queries, words)
    group_order = np.argsort(scores_of(queries, groups, *group_bits), axis=1, kind="stable")
    cell_scores = scores_of(queries, centres, *cell_bits)
    codes = (reference.to_blocks(stored), n)
    group_of = np.repeat(np.arange(8), np.diff(firsts))
    for n_groups, n_cells in ((1, 1), (2, 5), (3, 20), (8, 48)):
        considered = (group_order[:, :n_groups, None] == group_of).any(axis=1)
        ranked = np.argsort(np.where(considered, cell_scores, UNUSED), axis=1, kind="stable")
        searched = np.zeros(cell_scores.shape, bool)
        np.put_along_axis(searched, ranked[:, :n_cells], True, axis=1)
        searched &= considered & (np.arange(48) < 45)
        there = searched[:, cells]
        for batch in (slice(None), slice(3, 4)):
            found, compared = room(len(queries[batch]), k), np.zeros(len(queries[batch]), np.int64)
            searchable = _core.searchable_cells(*codes, *arrays, *groups, *centres, firsts)
            arguments = (None, n_groups, n_cells, queries[batch], *found, compared)
            _core.nearest_in_cells(searchable, *arguments)
            assert as_lists(*found) == expected_nearest(distances[batch], there[batch], k)
            np.testing.assert_array_equal(compared, there[batch].sum(axis=1))


def test_damaged_starts_and_positions_are_survived():
    rng = np.random.default_rng(1)
    words = reference.random_words(rng, 100, 64)
    groups, *_ = random_centres(rng, 8, 1, 1)
    centres, *_ = random_centres(rng, 16, 1, 16)
    firsts = np.array([0, *[16] * 8])
    for _ in range(200):
        (starts, low, high), _ = order(random_cells(rng, 100, 16), 16)
        starts[rng.integers(0, 17, 3)] = rng.choice([-1, -(2**63), 2**40, 2**63 - 1, 50, 0], 3)
        high[:] = rng.integers(0, 2**63, len(high), np.uint64) * rng.integers(0, 2)
        codes = (reference.to_blocks(words), 100)
        for n_cells in (1, 16):
            found, compared = room(5, 4), np.zeros(5, np.int64)
            cells = _core.searchable_cells(*codes, starts, low, high, *groups, *centres, firsts)
            _core.nearest_in_cells(cells, None, 1, n_cells, words[:5], *found, compared)
        bounds = np.full(5, 65)
        _core.nearest_by_position(
            *(*codes, None, 0, 100, starts, low, high, words[:5], False, bounds, *room(5, 4))
        )
        _core.positions_of(starts, low, high, np.arange(100), np.zeros(100, np.int64))


def test_codes_are_assigned_to_the_nearest_cell_of_the_nearest_groups():
    rng = np.random.default_rng(2)
    words = reference.random_words(rng, 300, 192)
    firsts = np.array([0, 16, 24, 24, 48, 48, 48, 48, 48])
    groups, *group_bits = random_centres(rng, 8, 3, 4)
    centres, *cell_bits = random_centres(rng, 48, 3, 45)
    scores = np.zeros((300, 48), np.uint16)
    _core.score_centres(*centres, words, scores)
    np.testing.assert_array_equal(scores, scores_of(words, centres, *cell_bits))
    group_order = np.argsort(scores_of(words, groups, *group_bits), axis=1, kind="stable")
    group_of = np.repeat(np.arange(8), np.diff(firsts))
    for look in (1, 2, 8):
        considered = (group_order[:, :look, None] == group_of).any(axis=1)
        found = np.zeros(300, np.uint32)
        _core.assign_cells(*groups, *centres, firsts, look, words, found)
        expected = np.where(considered, scores, UNUSED).argmin(axis=1)
        np.testing.assert_array_equal(found, expected)


def test_bits_are_added_and_codes_scattered():
    rng = np.random.default_rng(3)
    words = reference.random_words(rng, 50, 128)
    cells = rng.integers(0, 4, 50).astype(np.uint32)
    sums = np.zeros((4, 128), np.int32)
    _core.add_bits(words, cells, sums)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    np.testing.assert_array_equal(sums, [bits[cells == c].sum(axis=0) for c in range(4)])
    rows = rng.permutation(50).astype(np.uint32)
    stored = np.empty_like(words)
    stored[rows] = words
    blocks = np.zeros((2, 2, 8), np.uint64)
    _core.scatter(words, rows, 16, blocks)
    np.testing.assert_array_equal(blocks.reshape(-1), reference.to_blocks(stored[16:32]))
