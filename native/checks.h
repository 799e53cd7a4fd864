// Arrays as the module takes them, and what is checked of them before the loops see their pointers.
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
using Rows = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;  // neighbours in a row, rows maybe apart
using Kept = std::optional<In<uint8_t, 1>>;

void need(bool good, const char* what) {
  if (!good) throw nb::value_error(what);
}

template <class A>
int64_t size(const A& array, int axis = 0) {
  return int64_t(array.shape(axis));
}

template <class A>
void need_size(const A& array, int64_t wanted, const char* what) {
  need(size(array) == wanted, what);
}

// Row numbers must lie in 0..n-1.
template <class A>
void need_rows(const A& rows, int64_t n, const char* what) {
  const auto* data = rows.data();
  bool good = true;
  for (size_t i = 0; i < rows.size(); ++i) good &= data[i] >= 0 && int64_t(data[i]) < n;
  need(good, what);
}

template <class T>
int64_t stride(const Rows<T>& rows, const char* what) {
  if (rows.size() == 0) return int64_t(rows.shape(1));  // NumPy gives such arrays any strides
  need(rows.shape(1) <= 1 || rows.stride(1) == 1, what);
  need(rows.shape(0) <= 1 || rows.stride(0) >= int64_t(rows.shape(1)), what);
  return rows.shape(0) <= 1 ? int64_t(rows.shape(1)) : rows.stride(0);
}

// At most 131,008 bits: with more, counting by slices would overflow.
constexpr int64_t MAX_WORDS = 2047, MAX_ROWS = int64_t(1) << 48;

Codes codes_of(const In<uint64_t, 1>& blocks, int64_t n_words, int64_t n_rows, const Kept& kept, int64_t first,
               int64_t last) {
  need(n_words >= 1 && n_words <= MAX_WORDS, "codes must have 1 to 2,047 words");
  need(n_rows >= 0 && n_rows <= MAX_ROWS && size(blocks) == (n_rows + 7) / 8 * 8 * n_words,
       "blocks must hold whole blocks of eight codes");
  need(0 <= first && first <= last && last <= n_rows && first % 8 == 0, "rows must lie in the blocks");
  need(!kept || size(*kept) == (n_rows + 7) / 8, "kept must have one bit for each row");
  return {blocks.data(), n_words, kept ? kept->data() : nullptr, first, last};
}

Queries queries_of(const In<uint64_t, 2>& queries, int64_t n_words) {
  need(size(queries, 1) == n_words, "queries have another width than the codes");
  return {queries.data(), size(queries)};
}

template <class T>
void need_limits(const In<T, 1>& limits, int64_t n, int64_t n_words) {
  need_size(limits, n, "there must be one limit for each query");
  need_rows(limits, 64 * n_words + 2, "limits must lie in 0 to one above all bits");
}

Hits hits_of(Out<int64_t, 1>& queries, Out<int64_t, 1>& rows, Out<int32_t, 1>& distances) {
  need(size(queries) == size(rows) && size(rows) == size(distances), "room for hits must be of one size");
  return {queries.data(), rows.data(), distances.data(), size(rows), 0};
}

template <class T>
In<T, 1> constant(const Out<T, 1>& array) {
  return In<T, 1>(array);
}

}  // namespace
