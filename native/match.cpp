// The nearest code of each query, and whether the second nearest passes a ratio test.
//
// A second nearest code that is far enough from the nearest passes whatever its distance, so codes beyond that can be
// skipped. If the test uses nothing else, the distance of a second that fails is not needed either: once the test has
// failed, only a code nearer than the nearest so far can make it pass. With such bounds, counting stops early (see
// planes.h). A test in both directions needs the distance of the second, and then whether its match has a rival: a code
// below a bound that depends on both distances.

#include "planes.h"

namespace {

constexpr int64_t SAMPLE = 16;  // rows that every query is compared with in advance

// Lowers the bounds with the distances of a few rows, so that not every row of the first slab is a candidate.
void lower_bounds(const Codes& codes, const Queries& queries, int64_t* bounds, const int64_t* bound_of) {
  const int64_t step = max(int64_t(1), codes.stop / SAMPLE), no_distance = 64 * codes.n_words + 2;
  for (int64_t q = 0; q < queries.n; ++q) {
    int64_t best = no_distance, second = no_distance;
    for (int64_t row = 0; row < codes.stop; row += step) {
      const int64_t d = distance(codes, row, queries.words + q * codes.n_words);
      second = min(second, max(d, best));
      best = min(best, d);
    }
    // Both rows must still be found by the scan: the nearest, and the second nearest if it can fail the test.
    bounds[q] = min(min(bounds[q], max(bound_of[best], best + 1)), second + 1);
  }
}

}  // namespace

namespace LEVEL {

void match(const Codes& codes, const Queries& queries, bool exact_second, int64_t* bounds, const int64_t* bound_of,
           int64_t* best, int64_t* second, int64_t* rows) {
  lower_bounds(codes, queries, bounds, bound_of);
  with_filter(codes, queries, [&](auto& filter) {
    const auto offer = [&](int64_t q, int64_t row) {
      if (row >= codes.stop) return;
      const int64_t d = distance(codes, row, queries.words + q * codes.n_words);
      if (d < best[q])
        second[q] = best[q], best[q] = d, rows[q] = row;
      else if (d < second[q])
        second[q] = d;
      const bool passes = second[q] >= bound_of[best[q]];
      bounds[q] = min(bounds[q], passes ? bound_of[best[q]] : exact_second ? second[q] : best[q]);
    };
    for (int64_t base = 0; base < codes.stop; base += SLAB) {
      filter.load_slab(base);
      for (int64_t first = 0; first < queries.n; first += QUERY_BATCH)
        filter.find_candidates(base, first, min(QUERY_BATCH, queries.n - first), bounds, offer);
    }
  });
}

void find_rivals(const Codes& codes, const Queries& queries, const int64_t* excluded, int64_t* bounds) {
  with_filter(codes, queries, [&](auto& filter) {
    const auto offer = [&](int64_t q, int64_t row) {
      if (row >= codes.stop || row == excluded[q]) return;
      if (distance(codes, row, queries.words + q * codes.n_words) < bounds[q]) bounds[q] = 0;
    };
    for (int64_t base = 0; base < codes.stop; base += SLAB) {
      filter.load_slab(base);
      for (int64_t first = 0; first < queries.n; first += QUERY_BATCH)
        filter.find_candidates(base, first, min(QUERY_BATCH, queries.n - first), bounds, offer);
    }
  });
}

}  // namespace LEVEL
