// Rows that are grouped by cell: their positions, and the nearest of them ordered by distance, then position.
#pragma once

#include "planes.h"

namespace {

struct RowRun {
  int64_t start, stop;
};

// The rows of a cell; none if the starts are damaged.
INLINE RowRun rows_of(const Cells& cells, int64_t cell) {
  const int64_t start = cells.starts[cell], stop = cells.starts[cell + 1];
  if (start < 0 || start > stop || stop > cells.n_rows) return {0, 0};
  return {start, stop};
}

// The cell that a row belongs to.
INLINE int64_t cell_of(const Cells& cells, int64_t row) {
  int64_t low = 0, high = cells.n;  // starts[low] <= row < starts[high]
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (cells.starts[middle] <= row ? low : high) = middle;
  }
  return low;
}

// The position of a row of a cell. If the data are damaged, some number, which may be too large.
INLINE int64_t position_of(const Cells& cells, int64_t cell, int64_t row) {
  const auto [start, stop] = rows_of(cells, cell);
  const int64_t first = start + cell * cells.n_high, last = stop + (cell + 1) * cells.n_high - 1, number = row - start;
  if (row < start || row >= stop) return cells.n_high << 16;
  int64_t word = first >> 6, n_before = 0;
  Word bits = cells.high[word] >> (first & 63) << (first & 63);
  for (int64_t ones; n_before + (ones = __builtin_popcountll(bits)) <= number; bits = cells.high[word]) {
    n_before += ones;
    if (++word > last >> 6) return cells.n_high << 16;
  }
  const int64_t bit = word * 64 + find_set_bit(bits, number - n_before);
  return (bit - first - number) << 16 | cells.low[row];
}

INLINE int64_t position_of(const Cells& cells, int64_t row) { return position_of(cells, cell_of(cells, row), row); }

// The k nearest rows so far. At equal distance the lower position comes first, whatever the order of the offers; only
// the rows of a cell must be offered in ascending order.
class NearestByPosition {
 public:
  NearestByPosition(const Cells& cells, int64_t n_queries, int64_t n_words, int64_t k, int64_t* bounds)
      : bounds(bounds),
        cells_(cells),
        k_(k),
        n_distances_(64 * n_words + 2),
        capacity_(2 * k + 64),
        states_(n_queries),
        counts_(n_queries * n_distances_),
        hits_(n_queries * capacity_, Content::undefined) {}

  bool is_full() const { return false; }

  // If the cell is not known, it is found when it is needed.
  INLINE void offer(int64_t q, int distance, int64_t row, int64_t cell = UNKNOWN) {
    if (distance >= bounds[q]) return;
    State& state = states_[q];
    if (state.n_below >= k_ && distance == bounds[q] - 1 && !accepts_tie(state, row, cell)) return;
    if (state.size == capacity_) {
      drop_superseded(q);
      if (distance >= bounds[q]) return;
    }
    hits_[q * capacity_ + state.size++] = {distance, int32_t(cell), row};
    int32_t* counts = counts_ + q * n_distances_;
    ++counts[distance];
    ++state.n_below;
    while (state.n_below - counts[bounds[q] - 1] >= k_) {
      state.n_below -= counts[--bounds[q]];
      state.tie_stop = 0;
    }
  }

  // Writes the k nearest, ordered by distance, then position, and returns their number.
  int64_t write(int64_t q, int32_t* distances, int64_t* positions) {
    drop_superseded(q);
    const int64_t n = sort(q);
    for (int64_t i = 0; i < n; ++i) {
      distances[i] = hits_[q * capacity_ + i].distance;
      positions[i] = hits_[q * capacity_ + i].row;
    }
    return n;
  }

  int64_t* bounds;  // by query: only rows below the bound, the k-th distance plus 1, are accepted

 private:
  static constexpr int UNKNOWN = -1, RESOLVED = -2;  // instead of a cell

  struct Hit {
    int32_t distance, cell;
    int64_t row;  // or the position, if it is resolved
  };

  struct State {
    int64_t n_below, size;                   // number of hits below the bound, and of all hits
    int64_t tie_start, tie_stop, ties_left;  // rows of the cell of the last tie
  };

  // Whether a row at the k-th distance can be among the nearest: after k such rows of a cell, its others cannot.
  bool accepts_tie(State& state, int64_t row, int64_t cell) const {
    if (row < state.tie_start || row >= state.tie_stop) {
      if (cell == UNKNOWN) cell = cell_of(cells_, row);
      const RowRun rows = rows_of(cells_, cell);
      state.tie_start = rows.start, state.tie_stop = rows.stop;
      state.ties_left = k_;
    }
    return state.ties_left > 0 && state.ties_left-- > 0;
  }

  void drop_superseded(int64_t q) {
    State& state = states_[q];
    Hit* hits = hits_ + q * capacity_;
    int64_t size = 0;
    for (int64_t i = 0; i < state.size; ++i)
      if (hits[i].distance < bounds[q]) hits[size++] = hits[i];
    state.size = size;
    if (size <= k_ + 16) return;  // else keep only the first ties
    const int64_t n = sort(q), n_ties = counts_[q * n_distances_ + bounds[q] - 1] - (size - n);
    counts_[q * n_distances_ + bounds[q] - 1] = int32_t(n_ties);
    state.size = state.n_below = n;
  }

  static bool is_nearer(const Hit& a, const Hit& b) {
    return a.distance < b.distance || (a.distance == b.distance && a.row < b.row);
  }

  // Sorts the hits by distance, then position, and returns how many of them are among the k nearest.
  int64_t sort(int64_t q) {
    Hit* hits = hits_ + q * capacity_;
    const int64_t n = states_[q].size;
    for (int64_t i = 0; i < n; ++i)
      if (hits[i].cell != RESOLVED) __builtin_prefetch(cells_.low + hits[i].row);
    for (int64_t i = 0; i < n; ++i) {
      Hit& hit = hits[i];
      if (hit.cell == RESOLVED) continue;
      hit.row = position_of(cells_, hit.cell == UNKNOWN ? cell_of(cells_, hit.row) : hit.cell, hit.row);
      hit.cell = RESOLVED;
    }
    for (int64_t gap = n > 60 ? 121 : n > 20 ? 13 : 1; gap > 0; gap /= 3)  // Shell sort with gaps 1, 4, 13, 40, 121
      for (int64_t i = gap; i < n; ++i) {
        const Hit hit = hits[i];
        int64_t at = i;
        for (; at >= gap && is_nearer(hit, hits[at - gap]); at -= gap) hits[at] = hits[at - gap];
        hits[at] = hit;
      }
    return min(n, k_);
  }

  const Cells& cells_;
  const int64_t k_, n_distances_, capacity_;
  Array<State> states_;
  Array<int32_t> counts_;  // number of hits at each distance
  Array<Hit> hits_;
};

// ---- centres ------------------------------------------------------------------------------------

constexpr int CENTRE_PLANES = 3;

// The scores of N queries for the centres `first` to `stop`, which are multiples of 8.
template <int N>
INLINE void score_some(const Centres& centres, int64_t n_words, int64_t first, int64_t stop, const Word* const* queries,
                       uint16_t* const* scores) {
  typedef uint16_t LaneShorts __attribute__((vector_size(2 * LANES)));
  const int64_t size = n_words * CENTRE_PLANES * BLOCK;
  for (int64_t c = first; c < stop; c += LANES) {
    const Word* at = centres.planes + c / BLOCK * size + c % BLOCK;
    Plane once[N] = {}, twice[N] = {};
    for (int64_t word = 0; word < n_words; word += 16) {  // so that sums of bytes do not overflow
      OnesCounter one[N], two[N];
      const int64_t end = min(n_words, word + 16);
#pragma GCC unroll 4
      for (int64_t w = word; w < end; ++w, at += CENTRE_PLANES * BLOCK) {
        const Plane majority = *(const UnalignedPlane*)at;
        const Plane weight_1 = *(const UnalignedPlane*)(at + BLOCK),
                    weight_2 = *(const UnalignedPlane*)(at + 2 * BLOCK);
#pragma GCC unroll 4
        for (int i = 0; i < N; ++i) {
          const Plane query = broadcast(queries[i][w]);
          one[i].add(differing_in(query, majority, weight_1));
          two[i].add(differing_in(query, majority, weight_2));
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) once[i] += one[i].total(), twice[i] += two[i].total();
    }
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      const LaneShorts sums = __builtin_convertvector((once[i] + (twice[i] << 1)) << centres.shift, LaneShorts);
      LaneShorts total;
      std::memcpy(&total, centres.bias + c, sizeof total);
      total += sums;
      std::memcpy(scores[i] + c - first, &total, sizeof total);
    }
  }
}

// `scores[i]` are those of query i, from centre `first` on.
INLINE void score(const Centres& centres, int64_t n_words, int64_t first, int64_t stop, int64_t n,
                  const Word* const* queries, uint16_t* const* scores) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) score_some<4>(centres, n_words, first, stop, queries + i, scores + i);
  for (; i < n; ++i) score_some<1>(centres, n_words, first, stop, queries + i, scores + i);
}

constexpr uint16_t UNUSED = 65535;  // the score of an unused centre, larger than any other

// The number of scores to store for n centres: whole vectors, the last filled up with `UNUSED`.
INLINE int64_t score_capacity(int64_t n) { return (n + SHORTS - 1) / SHORTS * SHORTS; }

INLINE Shorts load_scores(const uint16_t* at) { return *(const UnalignedShorts*)at; }

INLINE uint16_t lowest_score(const uint16_t* scores, int64_t n) {
  Shorts lowest = load_scores(scores);
  for (int64_t i = SHORTS; i < n; i += SHORTS) {
    const Shorts values = load_scores(scores + i);
    lowest = values < lowest ? values : lowest;
  }
  for (int shift = 16; shift <= 32; shift += 16) {  // the lowest of the four scores of a word
    const Plane words = (Plane)lowest;
    const Shorts rotated = (Shorts)(words >> shift | words << (64 - shift));
    lowest = rotated < lowest ? rotated : lowest;
  }
  uint16_t out = lowest[0];
  for (int i = 4; i < SHORTS; i += 4) out = min(out, uint16_t(lowest[i]));
  return out;
}

// The index of the lowest score, among equal ones the first.
INLINE int64_t find_lowest(const uint16_t* scores, int64_t n) {
  const Shorts lowest = lowest_score(scores, n) - Shorts{};
  for (int64_t first = 0;; first += SHORTS) {
    const uint32_t mask = mask_of_lanes((Shorts)(load_scores(scores + first) == lowest));
    if (mask) return first + __builtin_ctz(mask) / SHORT_BITS;
  }
}

INLINE int64_t count_up_to(const uint16_t* scores, int64_t n, uint16_t limit) {
  const Shorts limits = limit - Shorts{};
  int64_t total = 0;
  for (int64_t first = 0; first < n;) {
    Shorts sums = {};
    const int64_t end = min(n, first + int64_t(SHORTS) * 60000);
    for (; first < end; first += SHORTS) sums -= (Shorts)(load_scores(scores + first) <= limits);
    Plane words = (Plane)sums;
    words = (words & broadcast(Word(0x0000FFFF0000FFFF))) + (words >> 16 & broadcast(Word(0x0000FFFF0000FFFF)));
    words = (words & broadcast(Word(0xFFFFFFFF))) + (words >> 32);
    for (int i = 0; i < LANES; ++i) total += int64_t(words[i]);
  }
  return total;
}

// Calls visit(i) for each score equal to, or at most, the limit.
template <bool EQUAL, class Visit>
INLINE void visit_scores(const uint16_t* scores, int64_t n, uint16_t limit, Visit visit) {
  const Shorts limits = limit - Shorts{};
  for (int64_t first = 0; first < n; first += SHORTS) {
    const Shorts values = load_scores(scores + first);
    uint32_t mask = mask_of_lanes(EQUAL ? (Shorts)(values == limits) : (Shorts)(values <= limits));
    for (; mask; mask &= mask - 1) {
      visit(first + __builtin_ctz(mask) / SHORT_BITS);
      if (SHORT_BITS == 2) mask &= mask - 1;
    }
  }
}

// Calls visit(i) for the `wanted` lowest scores, among equal ones the first, but never for unused centres.
template <class Visit>
INLINE void visit_lowest(const uint16_t* scores, int64_t n, int64_t wanted, Visit visit) {
  int64_t below = int64_t(lowest_score(scores, n)) - 1, limit = UNUSED - 1, n_below = 0;
  if (below == limit || wanted == 0) return;
  int64_t n_limit = n;                           // number of scores that are at most `limit`, or more
  for (int64_t i = 0; limit - below > 1; ++i) {  // fewer than wanted are at most `below`
    const int64_t width = limit - below;
    int64_t at = below + width / 2;  // in turn with an estimate, so that few steps are needed
    if (limit == UNUSED - 1)
      at = min(below + (int64_t(128) << i), limit - 1);
    else if (i % 2)
      at = below + 1 + (width - 2) * (wanted - n_below) / (n_limit - n_below);
    const int64_t count = count_up_to(scores, n, uint16_t(at));
    if (count == wanted) return visit_scores<false>(scores, n, uint16_t(at), visit);
    if (count < wanted)
      below = at, n_below = count;
    else
      limit = at, n_limit = count;
  }
  if (n_below) visit_scores<false>(scores, n, uint16_t(below), visit);
  visit_scores<true>(scores, n, uint16_t(limit), [&](int64_t i) {
    if (n_below++ < wanted) visit(i);
  });
}

}  // namespace
