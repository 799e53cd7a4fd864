// The nearest code of each query, and whether another one is nearly as near.
//
// For a ratio test it does not matter how far the second nearest is, only whether it is too near. So what is
// farther than the nearest code by the ratio is not looked at; and once another is too near, only what is nearer
// than both can still pass. With such limits counting stops early; see planes.h.

#include "planes.h"

namespace {

constexpr int64_t SAMPLE = 16;  // rows that every query is compared with beforehand

// Lowers the limits by what a few rows tell, so that not all rows of the first slab are hits.
void lower(const Codes& codes, const Queries& queries, int64_t* limits, const int64_t* limit_of) {
  const int64_t step = most(int64_t(1), codes.last / SAMPLE), nothing = 64 * codes.n_words + 2;
  for (int64_t q = 0; q < queries.n; ++q) {
    int64_t best = nothing, second = nothing;
    for (int64_t row = 0; row < codes.last; row += step) {
      const int64_t d = distance(codes, row, queries.words + q * codes.n_words);
      second = least(second, most(d, best));
      best = least(best, d);
    }
    // The nearest row is still to be found, and so is the second nearest if it matters.
    limits[q] = least(least(limits[q], most(limit_of[best], best + 1)), second + 1);
  }
}

}  // namespace

namespace LEVEL {

void match(const Codes& codes, const Queries& queries, int64_t* limits, const int64_t* limit_of, int64_t* best,
           int64_t* second, int64_t* rows) {
  lower(codes, queries, limits, limit_of);
  with_counting(codes, queries, [&](auto& counting) {
    const auto offer = [&](int64_t q, int64_t row) {
      if (row >= codes.last) return;
      const int64_t d = distance(codes, row, queries.words + q * codes.n_words);
      if (d < best[q])
        second[q] = best[q], best[q] = d, rows[q] = row;
      else if (d < second[q])
        second[q] = d;
      const bool is_clear = second[q] >= limit_of[best[q]];
      limits[q] = least(limits[q], is_clear ? limit_of[best[q]] : best[q]);
    };
    for (int64_t base = 0; base < codes.last; base += SLAB) {
      counting.turn(base);
      for (int64_t first = 0; first < queries.n; first += GROUP)
        counting.find(base, first, least(GROUP, queries.n - first), limits, offer);
    }
  });
}

}  // namespace LEVEL
