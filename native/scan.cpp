// The k nearest codes of each query, or all codes below its bound. Exact; at equal distance the lower row comes first.
//
// Two kernels give the same results. `by_lanes`, for few queries, is limited only by memory bandwidth. `by_slices`, for
// many queries, transposes a slab of codes into bit planes that all queries share.

#include "cells.h"

namespace {

// The nearest rows so far. Rows are offered in ascending order, so among equal distances the first ones are kept.
class Nearest {
 public:
  Nearest(int64_t n_queries, int64_t n_words, int64_t k, int64_t* bounds)
      : bounds(bounds),
        k_(k),
        n_distances_(64 * n_words + 2),
        capacity_(2 * k + 64),
        below_(n_queries),
        sizes_(n_queries),
        counts_(n_queries * n_distances_),
        hits_(n_queries * capacity_) {}

  bool is_full() const { return false; }

  void offer(int64_t q, int distance, int64_t row) {
    if (distance >= bounds[q]) return;
    if (sizes_[q] == capacity_) drop_superseded(q);
    hits_[q * capacity_ + sizes_[q]++] = {distance, row};
    ++counts_[q * n_distances_ + distance];
    ++below_[q];
    while (below_[q] >= k_) below_[q] -= counts_[q * n_distances_ + --bounds[q]];
  }

  // Writes the k nearest rows, ordered by distance, then row, and returns their number.
  int64_t write(int64_t q, int32_t* distances, int64_t* rows) const {
    Array<int64_t> offsets(n_distances_ + 1);
    const Hit* hits = hits_ + q * capacity_;
    for (int64_t i = 0; i < sizes_[q]; ++i) ++offsets[hits[i].distance + 1];
    for (int64_t d = 1; d < n_distances_; ++d) offsets[d] += offsets[d - 1];
    for (int64_t i = 0; i < sizes_[q]; ++i) {
      const int64_t at = offsets[hits[i].distance]++;
      if (at < k_) distances[at] = hits[i].distance, rows[at] = hits[i].row;
    }
    return min(sizes_[q], k_);
  }

  int64_t* bounds;  // by query: only rows below the bound are accepted

 private:
  struct Hit {
    int32_t distance;
    int64_t row;
  };

  // Drops hits that have been superseded: those above the bound, and all but the first ties at the bound.
  void drop_superseded(int64_t q) {
    int64_t ties = k_ - below_[q], size = 0;
    Hit* hits = hits_ + q * capacity_;
    for (int64_t i = 0; i < sizes_[q]; ++i) {
      const bool tie = hits[i].distance == bounds[q];
      if (hits[i].distance < bounds[q] || (tie && ties-- > 0)) hits[size++] = hits[i];
    }
    sizes_[q] = size;
  }

  const int64_t k_, n_distances_, capacity_;
  Array<int64_t> below_;  // number of rows below the bound, always less than k
  Array<int64_t> sizes_;
  Array<int32_t> counts_;  // number of rows at each distance
  Array<Hit> hits_;
};

// All rows below the bounds.
class BelowBound {
 public:
  BelowBound(const int64_t* bounds, Hits& hits) : bounds(bounds), hits_(hits) {}

  bool is_full() const { return hits_.capacity - hits_.size < SLAB * QUERY_BATCH; }

  void offer(int64_t q, int distance, int64_t row) {
    if (distance >= bounds[q]) return;
    hits_.queries[hits_.size] = q;
    hits_.rows[hits_.size] = row;
    hits_.distances[hits_.size++] = distance;
  }

  const int64_t* bounds;

 private:
  Hits& hits_;
};

// ---- few queries: the codes of a block in parallel, one per lane --------------------------------

constexpr int64_t TILE = 16384;  // bytes of codes that all queries are compared with before the next ones are read
constexpr int PREFETCH = 8192;   // bytes to prefetch ahead

// W is the number of words of a code, or 0 for any number.
template <int W, class Results>
Position by_lanes(const Codes& codes, const Queries& queries, Position position, Results& results) {
  constexpr int STEP = W == 1 ? 4 : 2;  // blocks compared at a time
  const int64_t n_words = W ? W : codes.n_words;
  const int64_t end = (codes.stop + BLOCK - 1) / BLOCK, size = n_words * BLOCK;
  const int64_t tile = max(TILE / (8 * size * STEP), int64_t(1)) * STEP;
  for (int64_t first = position.row / BLOCK; first < end; first += tile) {
    const int64_t stop = min(first + tile, end);
    for (int64_t q = position.query; q < queries.n; ++q) {
      if (results.is_full()) return {first * BLOCK, q};
      const Word* query = queries.words + q * n_words;
      Plane bound = broadcast(Word(results.bounds[q]));
      for (int64_t block = first; block < stop; block += STEP) {
        const int n = stop - block < STEP ? int(stop - block) : STEP;
        Plane is_below = {};
        const auto compare = [&](int i) __attribute__((always_inline)) {
          const Word* at = codes.blocks + (block + i) * size;
          for (int v = 0; v < VECTORS; ++v) {
            Plane sum = {};
            for (int64_t w = 0; w < n_words; ++w)
              sum += count_ones(*(const UnalignedPlane*)(at + w * BLOCK + v * LANES) ^ broadcast(query[w]));
            is_below |= (Plane)(sum < bound);
          }
        };
        for (int64_t i = 0; i < STEP * n_words; ++i)
          __builtin_prefetch((const char*)(codes.blocks + block * size + i * BLOCK) + PREFETCH, 0, 3);
        if (n == STEP) {
#pragma GCC unroll 4
          for (int i = 0; i < STEP; ++i) compare(i);
        } else {
          for (int i = 0; i < n; ++i) compare(i);
        }
        if (!any(is_below)) continue;
        for (int64_t row = block * BLOCK; row < (block + n) * BLOCK; ++row)
          if (is_kept(codes, row)) results.offer(q, distance(codes, row, query), row);
        bound = broadcast(Word(results.bounds[q]));
      }
    }
    position.query = 0;
  }
  return {codes.stop, 0};
}

// ---- many queries: bit-sliced counting ----------------------------------------------------------

template <class Results>
Position by_slices(const Codes& codes, const Queries& queries, Position position, Results& results) {
  Position result = {codes.stop, 0};
  with_filter(codes, queries, [&](auto& filter) {
    for (int64_t base = position.row; base < codes.stop; base += SLAB) {
      filter.load_slab(base);
      for (int64_t first = position.query; first < queries.n; first += QUERY_BATCH) {
        if (results.is_full()) {
          result = {base, first};
          return;
        }
        const auto offer = [&](int64_t q, int64_t row) {
          if (is_kept(codes, row)) results.offer(q, distance(codes, row, queries.words + q * codes.n_words), row);
        };
        filter.find_candidates(base, first, min(QUERY_BATCH, queries.n - first), results.bounds, offer);
      }
      position.query = 0;
    }
  });
  return result;
}

template <class Results>
Position scan(const Codes& codes, const Queries& queries, Kernel kernel, Position position, Results& results) {
  if (kernel == Kernel::slices) return by_slices(codes, queries, position, results);
  switch (codes.n_words) {
    case 1: return by_lanes<1>(codes, queries, position, results);
    case 2: return by_lanes<2>(codes, queries, position, results);
    case 4: return by_lanes<4>(codes, queries, position, results);
    case 8: return by_lanes<8>(codes, queries, position, results);
    default: return by_lanes<0>(codes, queries, position, results);
  }
}

}  // namespace

namespace LEVEL {

void nearest(const Codes& codes, const Queries& queries, int64_t k, Kernel kernel, int64_t* bounds, int32_t* distances,
             int64_t* rows, int64_t* sizes) {
  Nearest results(queries.n, codes.n_words, k, bounds);
  scan(codes, queries, kernel, {codes.start, 0}, results);
  for (int64_t q = 0; q < queries.n; ++q) sizes[q] = results.write(q, distances + q * k, rows + q * k);
}

void nearest_by_position(const Codes& codes, const Cells& cells, const Queries& queries, int64_t k, Kernel kernel,
                         int64_t* bounds, int32_t* distances, int64_t* positions, int64_t* sizes) {
  NearestByPosition results(cells, queries.n, codes.n_words, k, bounds);
  scan(codes, queries, kernel, {codes.start, 0}, results);
  for (int64_t q = 0; q < queries.n; ++q) sizes[q] = results.write(q, distances + q * k, positions + q * k);
}

Position range_search(const Codes& codes, const Queries& queries, Kernel kernel, const int64_t* bounds,
                      Position position, Hits& hits) {
  BelowBound results(bounds, hits);
  return scan(codes, queries, kernel, position, results);
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
