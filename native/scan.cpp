// The k nearest codes of each query, or all within its limit; exact, equal distances by the lower row.
//
// There are two ways with the same results: `by_lanes` for few queries reads memory as fast as it comes,
// `by_slices` for many turns a slab of codes into planes that all queries share.

#include "planes.h"

namespace {

// The nearest rows so far. Rows come in rising order, so of equal distances the first ones stay.
class Nearest {
 public:
  Nearest(int64_t n_queries, int64_t n_words, int64_t k, int64_t* limits)
      : limits(limits),
        k_(k),
        n_distances_(64 * n_words + 2),
        room_(2 * k + 64),
        below_(n_queries),
        sizes_(n_queries),
        counts_(n_queries * n_distances_),
        hits_(n_queries * room_) {}

  bool is_full() const { return false; }

  void offer(int64_t q, int distance, int64_t row) {
    if (distance >= limits[q]) return;
    if (sizes_[q] == room_) drop_far(q);
    hits_[q * room_ + sizes_[q]++] = {distance, row};
    ++counts_[q * n_distances_ + distance];
    ++below_[q];
    while (below_[q] >= k_) below_[q] -= counts_[q * n_distances_ + --limits[q]];
  }

  // Writes the k nearest by distance, then row; how many there are.
  int64_t write(int64_t q, int32_t* distances, int64_t* rows) const {
    Array<int64_t> places(n_distances_ + 1);
    const Hit* hits = hits_ + q * room_;
    for (int64_t i = 0; i < sizes_[q]; ++i) ++places[hits[i].distance + 1];
    for (int64_t d = 1; d < n_distances_; ++d) places[d] += places[d - 1];
    for (int64_t i = 0; i < sizes_[q]; ++i) {
      const int64_t place = places[hits[i].distance]++;
      if (place < k_) distances[place] = hits[i].distance, rows[place] = hits[i].row;
    }
    return least(sizes_[q], k_);
  }

  int64_t* limits;  // of each query: only what is closer counts

 private:
  struct Hit {
    int32_t distance;
    int64_t row;
  };

  void drop_far(int64_t q) {  // what has come to lie above the limit
    int64_t ties = k_ - below_[q], size = 0;
    Hit* hits = hits_ + q * room_;
    for (int64_t i = 0; i < sizes_[q]; ++i) {
      const bool tie = hits[i].distance == limits[q];
      if (hits[i].distance < limits[q] || (tie && ties-- > 0)) hits[size++] = hits[i];
    }
    sizes_[q] = size;
  }

  const int64_t k_, n_distances_, room_;
  Array<int64_t> below_;  // rows closer than the limit, less than k
  Array<int64_t> sizes_;
  Array<int32_t> counts_;  // rows at each distance
  Array<Hit> hits_;
};

// All rows within the limits.
class Within {
 public:
  Within(const int64_t* limits, Hits& hits) : limits(limits), hits_(hits) {}

  bool is_full() const { return hits_.room - hits_.size < SLAB * GROUP; }

  void offer(int64_t q, int distance, int64_t row) {
    if (distance >= limits[q]) return;
    hits_.queries[hits_.size] = q;
    hits_.rows[hits_.size] = row;
    hits_.distances[hits_.size++] = distance;
  }

  const int64_t* limits;

 private:
  Hits& hits_;
};

// ---- few queries: eight codes of a block, one in each lane ----------------------------------------

constexpr int64_t TILE = 16384;  // bytes of codes that one query after the other is compared with
constexpr int AHEAD = 8192;      // bytes ahead of which memory is asked for

// W words of a code; 0: any number.
template <int W, class Found>
Place by_lanes(const Codes& codes, const Queries& queries, Place place, Found& found) {
  constexpr int STEP = W == 1 ? 4 : 2;  // blocks at once
  const int64_t n_words = W ? W : codes.n_words;
  const int64_t end = (codes.last + BLOCK - 1) / BLOCK, size = n_words * BLOCK;
  const int64_t tile = most(TILE / (8 * size * STEP), int64_t(1)) * STEP;
  for (int64_t first = place.row / BLOCK; first < end; first += tile) {
    const int64_t stop = least(first + tile, end);
    for (int64_t q = place.query; q < queries.n; ++q) {
      if (found.is_full()) return {first * BLOCK, q};
      const Word* query = queries.words + q * n_words;
      Plane limit = all(Word(found.limits[q]));
      for (int64_t block = first; block < stop; block += STEP) {
        const int n = stop - block < STEP ? int(stop - block) : STEP;
        Plane some = {};
        const auto look = [&](int i) __attribute__((always_inline)) {
          const Word* at = codes.blocks + (block + i) * size;
          for (int piece = 0; piece < PIECES; ++piece) {
            Plane sum = {};
            for (int64_t w = 0; w < n_words; ++w)
              sum += count_ones(*(const LoosePlane*)(at + w * BLOCK + piece * LANES) ^ all(query[w]));
            some |= (Plane)(sum < limit);
          }
        };
        for (int64_t i = 0; i < STEP * n_words; ++i)
          __builtin_prefetch((const char*)(codes.blocks + block * size + i * BLOCK) + AHEAD, 0, 3);
        if (n == STEP) {
#pragma GCC unroll 4
          for (int i = 0; i < STEP; ++i) look(i);
        } else {
          for (int i = 0; i < n; ++i) look(i);
        }
        if (!any(some)) continue;
        for (int64_t row = block * BLOCK; row < (block + n) * BLOCK; ++row)
          if (counts(codes, row)) found.offer(q, distance(codes, row, query), row);
        limit = all(Word(found.limits[q]));
      }
    }
    place.query = 0;
  }
  return {codes.last, 0};
}

// ---- many queries ---------------------------------------------------------------------------------

template <class Found>
Place by_slices(const Codes& codes, const Queries& queries, Place place, Found& found) {
  Place result = {codes.last, 0};
  with_counting(codes, queries, [&](auto& counting) {
    for (int64_t base = place.row; base < codes.last; base += SLAB) {
      counting.turn(base);
      for (int64_t first = place.query; first < queries.n; first += GROUP) {
        if (found.is_full()) {
          result = {base, first};
          return;
        }
        const auto offer = [&](int64_t q, int64_t row) {
          if (counts(codes, row)) found.offer(q, distance(codes, row, queries.words + q * codes.n_words), row);
        };
        counting.find(base, first, least(GROUP, queries.n - first), found.limits, offer);
      }
      place.query = 0;
    }
  });
  return result;
}

template <class Found>
Place scan(const Codes& codes, const Queries& queries, Way way, Place place, Found& found) {
  if (way == Way::slices) return by_slices(codes, queries, place, found);
  switch (codes.n_words) {
    case 1: return by_lanes<1>(codes, queries, place, found);
    case 2: return by_lanes<2>(codes, queries, place, found);
    case 4: return by_lanes<4>(codes, queries, place, found);
    case 8: return by_lanes<8>(codes, queries, place, found);
    default: return by_lanes<0>(codes, queries, place, found);
  }
}

}  // namespace

namespace LEVEL {

void nearest(const Codes& codes, const Queries& queries, int64_t k, Way way, int64_t* limits, int32_t* distances,
             int64_t* rows, int64_t* sizes) {
  Nearest found(queries.n, codes.n_words, k, limits);
  scan(codes, queries, way, {codes.first, 0}, found);
  for (int64_t q = 0; q < queries.n; ++q) sizes[q] = found.write(q, distances + q * k, rows + q * k);
}

Place within(const Codes& codes, const Queries& queries, Way way, const int64_t* limits, Place place, Hits& hits) {
  Within found(limits, hits);
  return scan(codes, queries, way, place, found);
}

void merge_nearest(int64_t n, int64_t k, const int32_t* const distances[2], const int64_t* const ids[2],
                   const int64_t* const sizes[2], int32_t* out_distances, int64_t* out_ids, int64_t* out_sizes) {
  for (int64_t q = 0; q < n; ++q) {
    int64_t at[2] = {q * k, q * k}, size = 0;
    const int64_t ends[2] = {q * k + sizes[0][q], q * k + sizes[1][q]};
    while (size < k && (at[0] < ends[0] || at[1] < ends[1])) {
      int from = at[0] == ends[0];
      if (at[0] < ends[0] && at[1] < ends[1]) {
        const int32_t a = distances[0][at[0]], b = distances[1][at[1]];
        from = b < a || (a == b && ids[1][at[1]] < ids[0][at[0]]);
      }
      out_distances[q * k + size] = distances[from][at[from]];
      out_ids[q * k + size++] = ids[from][at[from]++];
    }
    out_sizes[q] = size;
  }
}

}  // namespace LEVEL
