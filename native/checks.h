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
