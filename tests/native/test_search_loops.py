"""The loops of search, compared with NumPy."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import reference
from reference import BITS, ROWS

from kdiffhash import _core


def run_nearest(words, queries, k, *, slices, kept=None, start=0, stop=None, bounds=None):
    """Return a list of (distance, row) per query."""
    n = len(queries)
    stop = len(words) if stop is None else stop
    bounds = np.full(n, 64 * words.shape[1] + 1, np.int64) if bounds is None else bounds.copy()
    distances, rows = np.full((n, k), -7, np.int32), np.full((n, k), -7, np.int64)
    sizes = np.full(n, -7, np.int64)
    mask = None if kept is None else reference.to_mask(kept)
    blocks = reference.to_blocks(words)
    _core.nearest(
        *(blocks, len(words), mask, start, stop, queries, slices, bounds, distances, rows, sizes)
    )
    return [
        list(zip(d[:size].tolist(), r[:size].tolist()))
        for d, r, size in zip(distances, rows, sizes)
    ]


def run_range_search(words, queries, bounds, *, slices, kept=None, start=0, stop=None, extra=0):
    """Return all (query, row, distance), and the number of calls that were needed."""
    stop = len(words) if stop is None else stop
    capacity = _core.max_hits_per_step + extra
    query_index, rows = np.empty((2, capacity), np.int64)
    distances = np.empty(capacity, np.int32)
    mask = None if kept is None else reference.to_mask(kept)
    blocks, position, hits, n_calls = reference.to_blocks(words), (start, 0), [], 0
    while position[0] < stop:
        *position, size = _core.range_search(
            *(blocks, len(words), mask, stop, queries, slices, bounds, *position),
            *(query_index, rows, distances),
        )
        hits += zip(query_index[:size].tolist(), rows[:size].tolist(), distances[:size].tolist())
        n_calls += 1
    return hits, n_calls


# -- nearest --------------------------------------------------------------------------------------


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("n", ROWS)
def test_nearest_for_any_number_of_rows(n, slices):
    rng = np.random.default_rng(n)
    for n_bits, n_queries in ((64, 0), (64, 1), (128, 65), (256, 3)):
        words = reference.random_words(rng, n, n_bits)
        queries = reference.random_words(rng, n_queries, n_bits)
        distances, kept_rows = reference.distances_of(queries, words), np.ones(n, bool)
        for k in (1, 5, 600):  # 600 exceeds the number of rows
            expected = reference.nearest(distances, kept_rows, np.full(n_queries, n_bits + 1), k)
            assert run_nearest(words, queries, k, slices=slices) == expected


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("n_bits", BITS)
def test_nearest_for_any_length_with_ties_removed_rows_row_ranges_and_bounds(n_bits, slices):
    rng = np.random.default_rng(n_bits)
    for n, n_distinct in ((513, 9), (530, None), (700, 1)):
        words = reference.random_words(rng, n, n_bits, n_distinct)
        queries = reference.random_words(rng, 20, n_bits)
        queries[::3] = words[rng.integers(0, n, len(queries[::3]))]
        distances = reference.distances_of(queries, words)
        kept = rng.random(n) < 0.7
        start, stop = 8 * int(rng.integers(0, 20)), int(rng.integers(300, n + 1))
        inside = (np.arange(n) >= start) & (np.arange(n) < stop)
        max_bound = 64 * words.shape[1] + 1
        for bounds in (
            np.full(20, max_bound),
            rng.integers(0, n_bits + 2, 20),
            np.zeros(20, np.int64),
        ):
            expected = reference.nearest(distances, kept & inside, bounds, 11)
            options = {"kept": kept, "start": start, "stop": stop, "bounds": bounds}
            assert run_nearest(words, queries, 11, slices=slices, **options) == expected
        expected = reference.nearest(distances, inside, np.full(20, max_bound), 100)
        assert run_nearest(words, queries, 100, slices=slices, start=start, stop=stop) == expected


@pytest.mark.parametrize("slices", [False, True])
def test_nearest_of_codes_in_descending_distance(slices):
    """Every row is nearer than all before it, so the results are superseded again and again."""
    bits = np.tril(np.ones((256, 256), np.uint8))[::-1]
    words = np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
    queries = np.zeros((17, 4), np.uint64)
    expected = [[(d + 1, 255 - d) for d in range(9)]] * 17
    assert run_nearest(words, queries, 9, slices=slices) == expected


# -- range_search ---------------------------------------------------------------------------------


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("n", ROWS)
def test_range_search_for_any_number_of_rows(n, slices):
    rng = np.random.default_rng(n)
    for n_bits, n_queries in ((64, 1), (128, 65), (192, 3), (256, 0)):
        words = reference.random_words(rng, n, n_bits)
        queries = reference.random_words(rng, n_queries, n_bits)
        distances = reference.distances_of(queries, words)
        bounds = rng.integers(0, n_bits + 2, n_queries)
        hits, _ = run_range_search(words, queries, bounds, slices=slices)
        assert sorted(hits) == reference.range_search(distances, np.ones(n, bool), bounds)


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("n_bits", BITS)
def test_range_search_resumes_when_the_buffers_were_full(n_bits, slices):
    rng = np.random.default_rng(n_bits)
    n, n_queries = 1100, 130
    words = reference.random_words(rng, n, n_bits, 40)
    queries = reference.random_words(rng, n_queries, n_bits)
    distances = reference.distances_of(queries, words)
    kept = rng.random(n) < 0.9
    inside = (np.arange(n) >= 16) & (np.arange(n) < 1093)
    bounds = rng.choice([0, n_bits // 2, n_bits + 1, n_bits + 1], n_queries)
    options = {"kept": kept, "start": 16, "stop": 1093}
    hits, n_calls = run_range_search(words, queries, bounds, slices=slices, extra=100, **options)
    assert sorted(hits) == reference.range_search(distances, kept & inside, bounds)
    assert n_calls > 1


# -- merge_nearest --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", ROWS)
def test_merge_nearest_equals_sorting_both_lists(n):
    rng = np.random.default_rng(n)
    k = 6
    lists = []
    for which in range(2):
        distances, ids = np.zeros((n, k), np.int32), np.zeros((n, k), np.int64)
        sizes = rng.integers(0, k + 1, n)
        for q, size in enumerate(sizes):
            chosen = 2 * rng.choice(50, size, replace=False) + which
            pairs = sorted(zip(rng.integers(0, 4, size).tolist(), chosen.tolist()))
            for rank, (d, i) in enumerate(pairs):
                distances[q, rank], ids[q, rank] = d, i
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


def bounds_of(n_bits, ratio):
    """Return, per distance of the nearest code, the least distance of the second that passes."""
    result = np.full(n_bits + 3, n_bits + 1)
    for best in range(n_bits + 3):
        passing = (s for s in range(n_bits + 2) if best < ratio * s)
        result[best] = next(passing, n_bits + 1)
    return result


@pytest.mark.parametrize("n_bits", [64, 128, 192, 256, 512, 1024])
@pytest.mark.parametrize("n", [1, 7, 8, 255, 256, 257, 511, 513, 1500])
def test_match_finds_the_nearest_and_applies_the_ratio_test(n, n_bits):
    rng = np.random.default_rng(n + n_bits)
    words = reference.random_words(rng, n, n_bits, n_distinct=max(1, n - n // 8))
    queries = reference.random_words(rng, 90, n_bits)
    noise = reference.random_words(rng, 60, n_bits) & reference.random_words(rng, 60, n_bits)
    noise &= reference.random_words(rng, 60, n_bits)
    queries[:60] = words[rng.integers(0, n, 60)] ^ noise
    queries[:5] = words[rng.integers(0, n, 5)]
    distances_of = reference.distances_of(queries, words)
    distances = np.sort(distances_of, axis=1)
    first_row = distances_of.argmin(axis=1)
    best = distances[:, 0]
    second = distances[:, 1] if n > 1 else np.full(90, n_bits + 1)
    max_bound = n_bits + 1
    for ratio in (0.7, 0.9, 1.0):
        bound_of = bounds_of(n_bits, ratio)
        for max_distance in (n_bits, n_bits // 3, 0):
            bounds = np.full(90, bound_of[max_distance])
            blocks = reference.to_blocks(words)
            out = [np.full(90, max_bound), np.full(90, max_bound), np.full(90, -1)]
            _core.match(blocks, n, queries, True, bounds.copy(), bound_of, *out)
            below = best < bounds
            np.testing.assert_array_equal(out[0][below], best[below])
            needed = below & (second < np.minimum(bounds, bound_of[best]))
            np.testing.assert_array_equal(out[1][needed], second[needed])
            assert (
                out[1][below & ~needed] >= np.minimum(bounds, bound_of[best])[below & ~needed]
            ).all()
            out = [np.full(90, max_bound), np.full(90, max_bound), np.full(90, -1)]
            _core.match(blocks, n, queries, False, bounds, bound_of, *out)
            passes_ratio = out[1] >= bound_of[np.minimum(out[0], n_bits)]
            matched = (out[0] <= max_distance) & passes_ratio
            expected = (best <= max_distance) & (second >= bound_of[best])
            np.testing.assert_array_equal(matched, expected)
            np.testing.assert_array_equal(out[0][matched], best[matched])
            np.testing.assert_array_equal(out[2][matched], first_row[matched])
    # Without a ratio test: the nearest of all codes, also with the tightest possible bounds.
    bound_of = np.minimum(np.arange(n_bits + 3), n_bits + 1)
    for bounds in (np.full(90, max_bound), best + 1):
        out = [np.full(90, max_bound), np.full(90, max_bound), np.full(90, -1)]
        _core.match(reference.to_blocks(words), n, queries, False, bounds.copy(), bound_of, *out)
        np.testing.assert_array_equal(out[0], best)
        np.testing.assert_array_equal(out[2], first_row)
    # Rivals: codes below a bound, without one row.
    for excluded in (first_row, np.full(90, -1)):
        rest = np.where(np.arange(n) == excluded[:, None], max_bound, distances_of)
        for bounds in (best, best + 1, second, np.minimum(second + 1, max_bound)):
            left = bounds.copy()
            _core.find_rivals(reference.to_blocks(words), n, queries, excluded, left)
            has_rival = (rest < bounds[:, None]).any(axis=1)
            np.testing.assert_array_equal(left, np.where(has_rival, 0, bounds))


def test_match_without_rows_or_queries():
    bound_of = np.minimum(np.arange(67), 65)
    for n_rows, n_queries in ((0, 3), (9, 0), (0, 0)):
        words, queries = np.zeros((n_rows, 1), np.uint64), np.zeros((n_queries, 1), np.uint64)
        out = [np.full(n_queries, 65), np.full(n_queries, 65), np.full(n_queries, -1)]
        bounds = np.full(n_queries, 65)
        _core.match(reference.to_blocks(words), n_rows, queries, False, bounds, bound_of, *out)
        assert (out[0] == 65).all()
        assert (out[2] == -1).all()


# -- lookup tables --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", ROWS)
def test_substring_values_and_build_table(n):
    rng = np.random.default_rng(n)
    for n_bits, begin, width in ((64, 0, 1), (64, 41, 23), (128, 55, 16), (192, 120, 13)):
        words = reference.random_words(rng, n, n_bits)
        blocks, n_words = reference.to_blocks(words), words.shape[1]
        expected = reference.substring(words, begin, width)
        chosen = rng.integers(0, n, 40) if n else np.empty(0, np.int64)
        out = np.full(len(chosen), -7, np.int64)
        _core.substring_values(blocks, n_words, n, chosen, begin, width, out)
        np.testing.assert_array_equal(out, expected[chosen])
        starts, rows = np.full(2**width + 1, 7, np.uint32), np.full(n, 7, np.uint32)
        _core.build_table(blocks, n_words, begin, width, starts, rows)
        np.testing.assert_array_equal(rows, np.argsort(expected, kind="stable"))
        np.testing.assert_array_equal(
            starts[1:] - starts[:-1], np.bincount(expected, None, 2**width)
        )
        assert starts[0] == 0


def test_substring_values_at_all_positions_of_a_long_code():
    words = reference.random_words(np.random.default_rng(0), 5, 4096)
    blocks, rows, out = reference.to_blocks(words), np.arange(5), np.empty(5, np.int64)
    for width in (1, 24, 32):
        for begin in (*range(130), 4096 - width):
            _core.substring_values(blocks, 64, 5, rows, begin, width, out)
            np.testing.assert_array_equal(out, reference.substring(words, begin, width))


@pytest.mark.parametrize("n", ROWS)
def test_look_up_equals_a_range_search(n):
    rng = np.random.default_rng(n)
    for n_bits, radius in ((64, 0), (64, 7), (128, 9), (256, 3)):
        n_substrings, width = n_bits // 16, 16
        words = reference.random_words(rng, n, n_bits, 30)
        rows = words[rng.integers(0, n, 20)] if n else reference.random_words(rng, 20, n_bits)
        queries = rows.copy()
        for q in queries:  # flip up to 9 bits
            for bit in rng.choice(n_bits, rng.integers(0, 10), replace=False):
                q[bit // 64] ^= np.uint64(1) << np.uint64(bit % 64)
        blocks, kept = reference.to_blocks(words), rng.random(n) < 0.8
        begins = np.arange(n_substrings) * width
        widths = np.full(n_substrings, width)
        firsts = np.arange(n_substrings) * (2**width + 1)
        starts = np.empty(n_substrings * (2**width + 1), np.uint32)
        rows = np.empty((n_substrings, n), np.uint32)
        for s in range(n_substrings):
            table = starts[firsts[s] : firsts[s] + 2**width + 1]
            _core.build_table(blocks, words.shape[1], int(begins[s]), width, table, rows[s])
        # One of the first substrings differs in at most radius // n_substrings bits, or one of the
        # others in fewer.
        quotient, remainder = divmod(radius, n_substrings)
        radii = [quotient - (s > remainder) for s in range(n_substrings)]
        masks_of = [
            [
                sum(1 << b for b in bits)
                for n in range(most + 1)
                for bits in combinations(range(16), n)
            ]
            for most in radii
        ]
        counts = np.array([len(masks) for masks in masks_of])
        masks = np.array([mask for masks in masks_of for mask in masks], np.uint32)
        mask_firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        after = rng.integers(-1, max(1, n // 2), len(queries))
        distances = reference.distances_of(queries, words)
        expected = [
            hit
            for hit in reference.range_search(distances, kept, np.full(20, radius + 1))
            if hit[1] > after[hit[0]]
        ]
        for capacity in (max(1, n), 10_000):  # with small buffers it stops and is resumed
            query_index, found_rows = np.empty((2, capacity), np.int64)
            found_distances, first, hits = np.empty(capacity, np.int32), 0, []
            while first < len(queries):
                first, size = _core.look_up(
                    *(blocks, reference.to_mask(kept), begins, widths, firsts, starts, rows),
                    *(masks, mask_firsts, counts, np.array(radii), radius, queries, after),
                    *(first, query_index, found_rows, found_distances),
                )
                hits += zip(
                    *(x[:size].tolist() for x in (query_index, found_rows, found_distances))
                )
            assert sorted(hits) == expected


def test_look_up_returns_the_query_whose_hits_exceed_the_buffers():
    """It returns the number of that query, and no hits."""
    words = np.zeros((9, 1), np.uint64)
    blocks, starts, rows = (
        reference.to_blocks(words),
        np.empty(257, np.uint32),
        np.empty(9, np.uint32),
    )
    _core.build_table(blocks, 1, 0, 8, starts, rows)
    width, zero = np.array([8]), np.array([0])
    buffers = [np.empty(5, np.int64), np.empty(5, np.int64), np.empty(5, np.int32)]
    assert _core.look_up(
        *(blocks, None, zero, width, zero, starts, rows[None], np.zeros(1, np.uint32), zero),
        *(np.array([1]), zero, 3, words[:2], np.full(2, -1), 0, *buffers),
    ) == (0, 0)


# -- comparing codes one by one -------------------------------------------------------------------


@pytest.mark.parametrize("n", ROWS)
def test_decide_stops_at_the_first_word_that_accepts_or_rejects(n):
    rng = np.random.default_rng(n)
    for n_words in (1, 2, 16, 128):
        a, b = (rng.integers(0, 2**32, (rows, n_words), dtype=np.uint32) for rows in (9, 11))
        b[:5] = a[:5] ^ (rng.integers(0, 2**32, (5, n_words), dtype=np.uint32) & 0x10101)
        left, right = rng.integers(0, 9, n), rng.integers(0, 11, n)
        right[::2] = left[::2] % 5
        left[::2] %= 5
        n_bits = 32 * np.arange(1, n_words + 1)
        accept = (n_bits // 16 - 2).astype(np.int32)
        reject = (n_bits // 2 + 4).astype(np.int32)
        accept[-1] = 3 * n_words
        reject[-1] = accept[-1] + 1
        similar, words_read = np.zeros(n, bool), np.zeros(n, np.uint16)
        _core.decide(a, b, left, right, accept, reject, similar, words_read)
        distances = np.bitwise_count(a[left] ^ b[right]).astype(int).cumsum(axis=1)
        for i in range(n):
            decided = (distances[i] <= accept) | (distances[i] >= reject)
            word = int(decided.argmax())
            assert words_read[i] == word + 1
            assert similar[i] == (distances[i, word] <= accept[word])
