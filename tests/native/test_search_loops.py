"""The loops of search, against plain NumPy."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import plain
import pytest
from plain import BITS, ROWS

from kdiffhash import _core


def run_nearest(words, queries, k, *, slices, kept=None, first=0, last=None, limits=None):
    n = len(queries)
    last = len(words) if last is None else last
    limits = np.full(n, 64 * words.shape[1] + 1, np.int64) if limits is None else limits.copy()
    distances, rows = np.full((n, k), -7, np.int32), np.full((n, k), -7, np.int64)
    sizes = np.full(n, -7, np.int64)
    mask = None if kept is None else plain.to_mask(kept)
    blocks = plain.to_blocks(words)
    _core.nearest(
        *(blocks, len(words), mask, first, last, queries, slices, limits, distances, rows, sizes)
    )
    return [
        list(zip(d[:size].tolist(), r[:size].tolist()))
        for d, r, size in zip(distances, rows, sizes)
    ]


def run_within(words, queries, limits, *, slices, kept=None, first=0, last=None, room=0):
    """All hits, and how many calls that took."""
    last = len(words) if last is None else last
    found, rows = (np.empty(_core.margin + room, np.int64) for _ in range(2))
    distances = np.empty(_core.margin + room, np.int32)
    mask = None if kept is None else plain.to_mask(kept)
    blocks, place, hits, calls = plain.to_blocks(words), (first, 0), [], 0
    while place[0] < last:
        *place, size = _core.within(
            *(blocks, len(words), mask, last, queries, slices, limits, *place),
            *(found, rows, distances),
        )
        hits += zip(found[:size].tolist(), rows[:size].tolist(), distances[:size].tolist())
        calls += 1
    return hits, calls


# -- nearest --------------------------------------------------------------------------------------


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("n", ROWS)
def test_nearest_of_any_number_of_rows(n, slices):
    rng = np.random.default_rng(n)
    for n_bits, n_queries in ((64, 0), (64, 1), (128, 65), (256, 3)):
        words = plain.random_words(rng, n, n_bits)
        queries = plain.random_words(rng, n_queries, n_bits)
        distances, counted = plain.distances_of(queries, words), np.ones(n, bool)
        for k in (1, 5, 600):  # 600 is above the number of rows
            wanted = plain.nearest(distances, counted, np.full(n_queries, n_bits + 1), k)
            assert run_nearest(words, queries, k, slices=slices) == wanted


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("n_bits", BITS)
def test_nearest_of_any_length_with_ties_kept_bits_pieces_and_limits(n_bits, slices):
    rng = np.random.default_rng(n_bits)
    for n, n_different in ((513, 9), (530, None), (700, 1)):
        words = plain.random_words(rng, n, n_bits, n_different)
        queries = plain.random_words(rng, 20, n_bits)
        queries[::3] = words[rng.integers(0, n, len(queries[::3]))]
        distances = plain.distances_of(queries, words)
        kept = rng.random(n) < 0.7
        first, last = 8 * int(rng.integers(0, 20)), int(rng.integers(300, n + 1))
        inside = (np.arange(n) >= first) & (np.arange(n) < last)
        top = 64 * words.shape[1] + 1
        for limits in (np.full(20, top), rng.integers(0, n_bits + 2, 20), np.zeros(20, np.int64)):
            wanted = plain.nearest(distances, kept & inside, limits, 11)
            options = {"kept": kept, "first": first, "last": last, "limits": limits}
            assert run_nearest(words, queries, 11, slices=slices, **options) == wanted
        wanted = plain.nearest(distances, inside, np.full(20, top), 100)
        assert run_nearest(words, queries, 100, slices=slices, first=first, last=last) == wanted


@pytest.mark.parametrize("slices", [False, True])
def test_nearest_of_codes_in_falling_distance(slices):
    """Every row is nearer than all before it, so that what was found is dropped again and again."""
    bits = np.tril(np.ones((256, 256), np.uint8))[::-1]
    words = np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
    queries = np.zeros((17, 4), np.uint64)
    wanted = [[(d + 1, 255 - d) for d in range(9)]] * 17
    assert run_nearest(words, queries, 9, slices=slices) == wanted


# -- within ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("n", ROWS)
def test_within_for_any_number_of_rows(n, slices):
    rng = np.random.default_rng(n)
    for n_bits, n_queries in ((64, 1), (128, 65), (192, 3), (256, 0)):
        words = plain.random_words(rng, n, n_bits)
        queries = plain.random_words(rng, n_queries, n_bits)
        distances = plain.distances_of(queries, words)
        limits = rng.integers(0, n_bits + 2, n_queries)
        hits, _ = run_within(words, queries, limits, slices=slices)
        assert sorted(hits) == plain.within(distances, np.ones(n, bool), limits)


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("n_bits", BITS)
def test_within_goes_on_where_the_room_was_full(n_bits, slices):
    rng = np.random.default_rng(n_bits)
    n, n_queries = 1100, 130
    words = plain.random_words(rng, n, n_bits, 40)
    queries = plain.random_words(rng, n_queries, n_bits)
    distances = plain.distances_of(queries, words)
    kept = rng.random(n) < 0.9
    inside = (np.arange(n) >= 16) & (np.arange(n) < 1093)
    limits = rng.choice([0, n_bits // 2, n_bits + 1, n_bits + 1], n_queries)
    options = {"kept": kept, "first": 16, "last": 1093}
    hits, calls = run_within(words, queries, limits, slices=slices, room=100, **options)
    assert sorted(hits) == plain.within(distances, kept & inside, limits)
    assert calls > 1


# -- merge_nearest --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", ROWS)
def test_merge_nearest(n):
    rng = np.random.default_rng(n)
    k = 6
    lists = []
    for which in range(2):
        distances, ids = np.zeros((n, k), np.int32), np.zeros((n, k), np.int64)
        sizes = rng.integers(0, k + 1, n)
        for q, size in enumerate(sizes):
            chosen = 2 * rng.choice(50, size, replace=False) + which
            pairs = sorted(zip(rng.integers(0, 4, size).tolist(), chosen.tolist()))
            for place, (d, i) in enumerate(pairs):
                distances[q, place], ids[q, place] = d, i
        lists.append((distances, ids, sizes))
    out = (np.full((n, k), -7, np.int32), np.full((n, k), -7, np.int64), np.full(n, -7, np.int64))
    _core.merge_nearest(*lists[0], *lists[1], *out)
    for q in range(n):
        both = [
            pair
            for distances, ids, sizes in lists
            for pair in zip(distances[q, : sizes[q]].tolist(), ids[q, : sizes[q]].tolist())
        ]
        size = min(k, len(both))
        assert out[2][q] == size
        assert list(zip(out[0][q, :size].tolist(), out[1][q, :size].tolist())) == sorted(both)[:k]


# -- match ----------------------------------------------------------------------------------------


def limits_of(n_bits, ratio):
    """For each distance of the nearest code: the least that the second may have."""
    wanted = np.full(n_bits + 3, n_bits + 1)
    for best in range(n_bits + 3):
        passing = (s for s in range(n_bits + 2) if best < ratio * s)
        wanted[best] = next(passing, n_bits + 1)
    return wanted


@pytest.mark.parametrize("n_bits", [64, 128, 192, 256, 512, 1024])
@pytest.mark.parametrize("n", [1, 7, 8, 255, 256, 257, 511, 513, 1500])
def test_match_finds_the_nearest_and_whether_the_second_is_near(n, n_bits):
    rng = np.random.default_rng(n + n_bits)
    words = plain.random_words(rng, n, n_bits, n_different=max(1, n - n // 8))
    queries = plain.random_words(rng, 90, n_bits)
    noise = plain.random_words(rng, 60, n_bits) & plain.random_words(rng, 60, n_bits)
    noise &= plain.random_words(rng, 60, n_bits)
    queries[:60] = words[rng.integers(0, n, 60)] ^ noise
    queries[:5] = words[rng.integers(0, n, 5)]
    distances = np.sort(plain.distances_of(queries, words), axis=1)
    first_row = plain.distances_of(queries, words).argmin(axis=1)
    best = distances[:, 0]
    second = distances[:, 1] if n > 1 else np.full(90, n_bits + 1)
    nothing = n_bits + 1
    for ratio in (0.7, 0.9, 1.0):
        limit_of = limits_of(n_bits, ratio)
        for most in (n_bits, n_bits // 3, 0):
            limits = np.full(90, limit_of[most])
            out = [np.full(90, nothing), np.full(90, nothing), np.full(90, -1)]
            _core.match(plain.to_blocks(words), n, queries, limits, limit_of, *out)
            good = (out[0] <= most) & (out[1] >= limit_of[np.minimum(out[0], n_bits)])
            wanted = (best <= most) & (second >= limit_of[best])
            np.testing.assert_array_equal(good, wanted)
            np.testing.assert_array_equal(out[0][good], best[good])
            np.testing.assert_array_equal(out[2][good], first_row[good])
    # Without a ratio: the nearest of all, up to a limit that one of them reaches.
    limit_of = np.minimum(np.arange(n_bits + 3), n_bits + 1)
    for limits in (np.full(90, nothing), best + 1):
        out = [np.full(90, nothing), np.full(90, nothing), np.full(90, -1)]
        _core.match(plain.to_blocks(words), n, queries, limits.copy(), limit_of, *out)
        np.testing.assert_array_equal(out[0], best)
        np.testing.assert_array_equal(out[2], first_row)


def test_match_without_rows_or_queries():
    limit_of = np.minimum(np.arange(67), 65)
    for n_rows, n_queries in ((0, 3), (9, 0), (0, 0)):
        words, queries = np.zeros((n_rows, 1), np.uint64), np.zeros((n_queries, 1), np.uint64)
        out = [np.full(n_queries, 65), np.full(n_queries, 65), np.full(n_queries, -1)]
        limits = np.full(n_queries, 65)
        _core.match(plain.to_blocks(words), n_rows, queries, limits, limit_of, *out)
        assert (out[0] == 65).all()
        assert (out[2] == -1).all()


# -- lookup tables --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", ROWS)
def test_part_values_and_list_rows(n):
    rng = np.random.default_rng(n)
    for n_bits, begin, width in ((64, 0, 1), (64, 41, 23), (128, 55, 16), (192, 120, 13)):
        words = plain.random_words(rng, n, n_bits)
        blocks, n_words = plain.to_blocks(words), words.shape[1]
        wanted = plain.part_of(words, begin, width)
        chosen = rng.integers(0, n, 40) if n else np.empty(0, np.int64)
        out = np.full(len(chosen), -7, np.int64)
        _core.part_values(blocks, n_words, n, chosen, begin, width, out)
        np.testing.assert_array_equal(out, wanted[chosen])
        starts, rows = np.full(2**width + 1, 7, np.uint32), np.full(n, 7, np.uint32)
        _core.list_rows(blocks, n_words, begin, width, starts, rows)
        np.testing.assert_array_equal(rows, np.argsort(wanted, kind="stable"))
        np.testing.assert_array_equal(starts[1:] - starts[:-1], np.bincount(wanted, None, 2**width))
        assert starts[0] == 0


def test_part_values_of_all_places_of_a_long_code():
    words = plain.random_words(np.random.default_rng(0), 5, 4096)
    blocks, rows, out = plain.to_blocks(words), np.arange(5), np.empty(5, np.int64)
    for width in (1, 24, 32):
        for begin in (*range(130), 4096 - width):
            _core.part_values(blocks, 64, 5, rows, begin, width, out)
            np.testing.assert_array_equal(out, plain.part_of(words, begin, width))


@pytest.mark.parametrize("n", ROWS)
def test_look_up_finds_what_a_pass_finds(n):
    rng = np.random.default_rng(n)
    for n_bits, radius in ((64, 0), (64, 7), (128, 9), (256, 3)):
        n_parts, width = n_bits // 16, 16
        words = plain.random_words(rng, n, n_bits, 30)
        near = words[rng.integers(0, n, 20)] if n else plain.random_words(rng, 20, n_bits)
        queries = near.copy()
        for q in queries:  # turn up to 9 bits
            for bit in rng.choice(n_bits, rng.integers(0, 10), replace=False):
                q[bit // 64] ^= np.uint64(1) << np.uint64(bit % 64)
        blocks, kept = plain.to_blocks(words), rng.random(n) < 0.8
        begins = np.arange(n_parts) * width
        widths = np.full(n_parts, width)
        firsts = np.arange(n_parts) * (2**width + 1)
        starts = np.empty(n_parts * (2**width + 1), np.uint32)
        rows = np.empty((n_parts, n), np.uint32)
        for p in range(n_parts):
            some = starts[firsts[p] : firsts[p] + 2**width + 1]
            _core.list_rows(blocks, words.shape[1], int(begins[p]), width, some, rows[p])
        # Of n_parts parts, one of the first ones differs in at most radius // n_parts bits.
        most, rest = divmod(radius, n_parts)
        radii = [most if p <= rest else most - 1 for p in range(n_parts)]
        cases = [
            [sum(1 << b for b in some) for r in range(m + 1) for some in combinations(range(16), r)]
            for m in radii
        ]
        counts = np.array([len(some) for some in cases])
        flips = np.array([value for some in cases for value in some], np.uint32)
        flip_firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        after = rng.integers(-1, max(1, n // 2), len(queries))
        distances = plain.distances_of(queries, words)
        wanted = [
            hit
            for hit in plain.within(distances, kept, np.full(20, radius + 1))
            if hit[1] > after[hit[0]]
        ]
        for room in (max(1, n), 10_000):  # with little room it stops and goes on
            found, found_rows = np.empty(room, np.int64), np.empty(room, np.int64)
            found_distances, first, hits = np.empty(room, np.int32), 0, []
            while first < len(queries):
                first, size = _core.look_up(
                    *(blocks, plain.to_mask(kept), begins, widths, firsts, starts, rows),
                    *(flips, flip_firsts, counts, np.array(radii), radius, queries, after),
                    *(first, found, found_rows, found_distances),
                )
                hits += zip(
                    *(some[:size].tolist() for some in (found, found_rows, found_distances))
                )
            assert sorted(hits) == wanted


def test_look_up_without_room_says_so():
    """A query with more hits than there is room for gives its own number, and no hits."""
    words = np.zeros((9, 1), np.uint64)
    blocks, starts, rows = plain.to_blocks(words), np.empty(257, np.uint32), np.empty(9, np.uint32)
    _core.list_rows(blocks, 1, 0, 8, starts, rows)
    one, none = np.array([8]), np.array([0])
    room = [np.empty(5, np.int64), np.empty(5, np.int64), np.empty(5, np.int32)]
    assert _core.look_up(
        *(blocks, None, none, one, none, starts, rows[None], np.zeros(1, np.uint32), none),
        *(np.array([1]), none, 3, words[:2], np.full(2, -1), 0, *room),
    ) == (0, 0)


# -- comparing one by one -------------------------------------------------------------------------


@pytest.mark.parametrize("n_bits", BITS)
def test_weight_differing(n_bits):
    rng = np.random.default_rng(n_bits)
    for n, m in ((0, 3), (3, 0), (1, 1), (7, 9)):
        bits = rng.integers(0, 2, (n, m, n_bits), dtype=np.uint8)
        packed = np.zeros((n, m, -(-n_bits // 64) * 8), np.uint8)
        packed[..., : -(-n_bits // 8)] = np.packbits(bits, axis=2)
        projections = rng.normal(size=(n, n_bits)).astype(np.float32)
        out = np.full((n, m), -7, np.float32)
        _core.weight_differing(packed.view(np.uint64), projections, out)
        differ = bits != (projections > 0)[:, None]
        wanted = (differ * np.abs(projections)[:, None].astype(float)).sum(axis=2)
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", ROWS)
def test_decide(n):
    rng = np.random.default_rng(n)
    for n_parts in (1, 2, 16, 128):
        a, b = (rng.integers(0, 2**32, (rows, n_parts), dtype=np.uint32) for rows in (9, 11))
        b[:5] = a[:5] ^ (rng.integers(0, 2**32, (5, n_parts), dtype=np.uint32) & 0x10101)
        left, right = rng.integers(0, 9, n), rng.integers(0, 11, n)
        right[::2] = left[::2] % 5
        left[::2] %= 5
        whole = 32 * np.arange(1, n_parts + 1)
        accept = (whole // 16 - 2).astype(np.int32)
        reject = (whole // 2 + 4).astype(np.int32)
        accept[-1] = 3 * n_parts
        reject[-1] = accept[-1] + 1
        similar, parts = np.zeros(n, bool), np.zeros(n, np.uint16)
        _core.decide(a, b, left, right, accept, reject, similar, parts)
        so_far = np.bitwise_count(a[left] ^ b[right]).astype(int).cumsum(axis=1)
        for i in range(n):
            sure = (so_far[i] <= accept) | (so_far[i] >= reject)
            part = int(sure.argmax())
            assert parts[i] == part + 1
            assert similar[i] == (so_far[i, part] <= accept[part])
