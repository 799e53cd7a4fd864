// The array types that the module accepts, and the checks made before the loops get their pointers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>

#include "loops.h"

namespace {

namespace nb = nanobind;

template <class T, int N>
using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, int N>
using Out = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T>
using Rows = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;  // rows are contiguous, but there may be gaps between them
using Kept = std::optional<In<uint8_t, 1>>;

void require(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

template <class A>
int64_t size(const A& array, int axis = 0) {
  return int64_t(array.shape(axis));
}

template <class A>
void require_size(const A& array, int64_t expected, const char* message) {
  require(size(array) == expected, message);
}

// All entries must be at least 0 and less than n.
template <class A>
void require_in_range(const A& array, int64_t n, const char* message) {
  const auto* data = array.data();
  bool in_range = true;
  for (size_t i = 0; i < array.size(); ++i) in_range &= data[i] >= 0 && int64_t(data[i]) < n;
  require(in_range, message);
}

template <class T>
int64_t stride(const Rows<T>& rows, const char* message) {
  if (rows.size() == 0) return int64_t(rows.shape(1));  // NumPy gives empty arrays arbitrary strides
  require(rows.shape(1) <= 1 || rows.stride(1) == 1, message);
  require(rows.shape(0) <= 1 || rows.stride(0) >= int64_t(rows.shape(1)), message);
  return rows.shape(0) <= 1 ? int64_t(rows.shape(1)) : rows.stride(0);
}

// At most 131,008 bits: the counters of bit-sliced counting would overflow with more.
constexpr int64_t MAX_WORDS = 2047, MAX_ROWS = int64_t(1) << 48;

Codes codes_of(const In<uint64_t, 1>& blocks, int64_t n_words, int64_t n_rows, const Kept& kept, int64_t start,
               int64_t stop) {
  require(n_words >= 1 && n_words <= MAX_WORDS, "codes must have 1 to 2,047 words of 64 bits");
  require(n_rows >= 0 && n_rows <= MAX_ROWS && size(blocks) == (n_rows + 7) / 8 * 8 * n_words,
          "blocks must hold n_rows codes in whole blocks of eight");
  require(0 <= start && start <= stop && stop <= n_rows && start % 8 == 0,
          "the rows to scan must lie in the blocks, and start must be a multiple of 8");
  require(!kept || size(*kept) == (n_rows + 7) / 8, "kept must have one bit per row");
  return {blocks.data(), n_words, kept ? kept->data() : nullptr, start, stop};
}

Queries queries_of(const In<uint64_t, 2>& queries, int64_t n_words) {
  require(size(queries, 1) == n_words, "queries must have as many words as the codes");
  return {queries.data(), size(queries)};
}

// The loops check each entry of starts that they use.
Cells cells_of(const In<int64_t, 1>& starts, const In<uint16_t, 1>& low, const In<uint64_t, 1>& high, int64_t n_rows) {
  const int64_t n = size(starts) - 1, n_high = (n_rows + 65535) >> 16;
  require(n >= 1 && n <= INT32_MAX && n_rows <= UINT32_MAX, "there must be 1 to 2**31 cells and fewer than 2**32 rows");
  require_size(low, n_rows, "low must have one entry per row");
  require(size(high) == (n_rows + n * n_high) / 64 + 1, "high must have one bit per row and value of the upper bits");
  return {n, n_rows, starts.data(), low.data(), high.data(), n_high};
}

Centres centres_of(const In<uint64_t, 4>& planes, const In<uint16_t, 1>& bias, int64_t n_words) {
  require(size(planes, 1) == n_words && size(planes, 2) == 3 && size(planes, 3) == BLOCK && size(planes) >= 1,
          "planes must have shape (n_blocks, n_words, 3, 8)");
  require_size(bias, size(planes) * BLOCK, "bias must have one entry per centre");
  return {planes.data(), bias.data(), size(bias), n_words <= 32 ? 3 : 2};
}

Probe probe_of(const In<uint64_t, 4>& group_planes, const In<uint16_t, 1>& group_bias, const In<uint64_t, 4>& planes,
               const In<uint16_t, 1>& bias, const In<int64_t, 1>& firsts, int64_t n_groups, int64_t n_cells,
               int64_t n_words) {
  const Centres groups = centres_of(group_planes, group_bias, n_words), cells = centres_of(planes, bias, n_words);
  require_size(firsts, groups.n + 1, "firsts must have one entry per group, plus one");
  const int64_t* first = firsts.data();
  bool ascending = first[0] == 0 && first[groups.n] == cells.n;
  for (int64_t g = 0; g < groups.n; ++g) ascending &= first[g] <= first[g + 1] && first[g] % BLOCK == 0;
  require(ascending, "firsts must be ascending multiples of 8, from 0 to the number of cells");
  require(n_groups >= 1 && n_cells >= 1, "n_groups and n_cells must be at least 1");
  return {groups, cells, first, n_groups < groups.n ? n_groups : groups.n, n_cells};
}

template <class T>
void require_bounds(const In<T, 1>& bounds, int64_t n, int64_t n_words) {
  require_size(bounds, n, "bounds must have one entry per query");
  require_in_range(bounds, 64 * n_words + 2, "bounds must be from 0 to the number of bits plus 1");
}

Hits hits_of(Out<int64_t, 1>& queries, Out<int64_t, 1>& rows, Out<int32_t, 1>& distances) {
  require(size(queries) == size(rows) && size(rows) == size(distances),
          "the arrays for query index, rows and distances must have the same length");
  return {queries.data(), rows.data(), distances.data(), size(rows), 0};
}

template <class T>
In<T, 1> as_const(const Out<T, 1>& array) {
  return In<T, 1>(array);
}

}  // namespace
