// The Python module. It checks types, shapes and row numbers, releases the GIL, and calls the loops that were compiled
// for this CPU. Results are written to arrays that the caller passes in.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "checks.h"
#include "cpu.h"

namespace base {
extern const Loops loops;
}
#if defined(X86_LEVELS)
namespace avx2 {
extern const Loops loops;
}
namespace avx512 {
extern const Loops loops;
}
#endif

namespace {

const Loops& select_loops() {
#if defined(X86_LEVELS)
  const char* variable = std::getenv("KDIFFHASH_CPU");
  const std::string highest = variable ? variable : "avx512";
  if (highest != "base" && highest != "avx2" && highest != "avx512")
    throw std::runtime_error("KDIFFHASH_CPU must be base, avx2 or avx512, got " + highest);
  if (highest == "avx512" && detect_cpu() == Cpu::avx512) return avx512::loops;
  if (highest != "base" && detect_cpu() != Cpu::base) return avx2::loops;
#endif
  return base::loops;
}

const Loops* loops = nullptr;

// ---- search -------------------------------------------------------------------------------------

void nearest(In<uint64_t, 1> blocks, int64_t n_rows, Kept kept, int64_t start, int64_t stop, In<uint64_t, 2> queries,
             bool slices, Out<int64_t, 1> bounds, Out<int32_t, 2> distances, Out<int64_t, 2> rows,
             Out<int64_t, 1> sizes) {
  const int64_t n_words = size(queries, 1), n = size(queries), k = size(rows, 1);
  const Codes codes = codes_of(blocks, n_words, n_rows, kept, start, stop);
  require_bounds(as_const(bounds), n, n_words);
  require(size(distances) == n && size(rows) == n && size(sizes) == n && size(distances, 1) == k && k >= 1,
          "distances, rows and sizes must have shapes (n, k), (n, k) and (n,), with k at least 1");
  loops->nearest(codes, queries_of(queries, n_words), k, slices ? Kernel::slices : Kernel::lanes, bounds.data(),
                 distances.data(), rows.data(), sizes.data());
}

void nearest_by_position(In<uint64_t, 1> blocks, int64_t n_rows, Kept kept, int64_t start, int64_t stop,
                         In<int64_t, 1> starts, In<uint16_t, 1> low, In<uint64_t, 1> high, In<uint64_t, 2> queries,
                         bool slices, Out<int64_t, 1> bounds, Out<int32_t, 2> distances, Out<int64_t, 2> positions,
                         Out<int64_t, 1> sizes) {
  const int64_t n_words = size(queries, 1), n = size(queries), k = size(positions, 1);
  const Codes codes = codes_of(blocks, n_words, n_rows, kept, start, stop);
  const Cells cells = cells_of(starts, low, high, n_rows);
  require_bounds(as_const(bounds), n, n_words);
  require(size(distances) == n && size(positions) == n && size(sizes) == n && size(distances, 1) == k && k >= 1,
          "distances, positions and sizes must have shapes (n, k), (n, k) and (n,), with k at least 1");
  for (int64_t q = 0; q < n; ++q) require(bounds.data()[q] >= 1, "bounds must be at least 1");
  loops->nearest_by_position(codes, cells, queries_of(queries, n_words), k, slices ? Kernel::slices : Kernel::lanes,
                             bounds.data(), distances.data(), positions.data(), sizes.data());
}

// Checked once, because a search takes less time than checking all of these arrays.
struct SearchableCells {
  In<uint64_t, 1> blocks;
  In<int64_t, 1> starts;
  In<uint16_t, 1> low;
  In<uint64_t, 1> high;
  In<uint64_t, 4> group_planes;
  In<uint16_t, 1> group_bias;
  In<uint64_t, 4> planes;
  In<uint16_t, 1> bias;
  In<int64_t, 1> firsts;
  int64_t n_rows, n_words;
};

SearchableCells searchable_cells(In<uint64_t, 1> blocks, int64_t n_rows, In<int64_t, 1> starts, In<uint16_t, 1> low,
                                 In<uint64_t, 1> high, In<uint64_t, 4> group_planes, In<uint16_t, 1> group_bias,
                                 In<uint64_t, 4> planes, In<uint16_t, 1> bias, In<int64_t, 1> firsts) {
  const int64_t n_words = size(planes, 1);
  codes_of(blocks, n_words, n_rows, {}, 0, n_rows);
  const Cells cells = cells_of(starts, low, high, n_rows);
  require(cells.n == probe_of(group_planes, group_bias, planes, bias, firsts, 1, 1, n_words).cells.n,
          "there must be one centre per cell");
  return {blocks, starts, low, high, group_planes, group_bias, planes, bias, firsts, n_rows, n_words};
}

// Returns the number of queries with fewer than k results, and the highest position.
std::tuple<int64_t, int64_t> nearest_in_cells(const SearchableCells& s, Kept kept, int64_t n_groups, int64_t n_cells,
                                              In<uint64_t, 2> queries, Out<int32_t, 2> distances,
                                              Out<int64_t, 2> positions, Out<int64_t, 1> sizes,
                                              Out<int64_t, 1> compared) {
  const int64_t n = size(queries), k = size(positions, 1);
  const Codes codes = codes_of(s.blocks, s.n_words, s.n_rows, kept, 0, s.n_rows);
  const Cells cells = cells_of(s.starts, s.low, s.high, s.n_rows);
  const Centres groups = centres_of(s.group_planes, s.group_bias, s.n_words);
  require(n_groups >= 1 && n_cells >= 1, "n_groups and n_cells must be at least 1");
  const Probe probe = {groups, centres_of(s.planes, s.bias, s.n_words), s.firsts.data(), std::min(n_groups, groups.n),
                       n_cells};
  require(size(distances) == n && size(positions) == n && size(sizes) == n && size(distances, 1) == k && k >= 1 &&
              size(compared) == n,
          "distances, positions, sizes and compared must have shapes (n, k), (n, k), (n,) and (n,), with k at least 1");
  loops->nearest_in_cells(codes, cells, probe, queries_of(queries, s.n_words), k, distances.data(), positions.data(),
                          sizes.data(), compared.data());
  int64_t n_short = 0, highest = -1;
  for (int64_t q = 0; q < n; ++q) {
    n_short += sizes.data()[q] < k;
    for (int64_t i = 0; i < sizes.data()[q]; ++i) highest = std::max(highest, positions.data()[q * k + i]);
  }
  return {n_short, highest};
}

void positions_of(In<int64_t, 1> starts, In<uint16_t, 1> low, In<uint64_t, 1> high, In<int64_t, 1> rows,
                  Out<int64_t, 1> positions) {
  const Cells cells = cells_of(starts, low, high, size(low));
  require_size(positions, size(rows), "positions must have one entry per row");
  require_in_range(rows, size(low), "rows must be row numbers");
  loops->positions_of(cells, rows.data(), size(rows), positions.data());
}

void order_rows(In<int64_t, 1> starts, Out<uint32_t, 1> cells_to_rows, Out<uint16_t, 1> low, Out<uint64_t, 1> high) {
  const int64_t n = size(low);
  require_size(cells_to_rows, n, "cells_to_rows and low must have the same length");
  const Cells cells = cells_of(starts, as_const(low), as_const(high), n);
  require_in_range(cells_to_rows, cells.n, "cells_to_rows must hold cells");
  std::vector<int64_t> next(cells.n);
  for (int64_t i = 0; i < n; ++i) ++next[cells_to_rows.data()[i]];
  int64_t first = 0;
  for (int64_t c = 0; c <= cells.n; ++c) {
    require(cells.starts[c] == first, "starts must be where the rows of each cell begin");
    if (c < cells.n) first += std::exchange(next[c], first);
  }
  loops->order_rows(cells, n, cells_to_rows.data(), next.data(), low.data(), high.data());
}

void score_centres(In<uint64_t, 4> planes, In<uint16_t, 1> bias, In<uint64_t, 2> codes, Out<uint16_t, 2> scores) {
  const int64_t n_words = size(codes, 1);
  const Centres centres = centres_of(planes, bias, n_words);
  require(size(scores) == size(codes) && size(scores, 1) == centres.n, "scores must have shape (n, n_centres)");
  loops->score_centres(centres, queries_of(codes, n_words), n_words, scores.data());
}

void assign_cells(In<uint64_t, 4> group_planes, In<uint16_t, 1> group_bias, In<uint64_t, 4> planes,
                  In<uint16_t, 1> bias, In<int64_t, 1> firsts, int64_t n_groups, In<uint64_t, 2> codes,
                  Out<uint32_t, 1> cells) {
  const int64_t n_words = size(codes, 1);
  const Probe probe = probe_of(group_planes, group_bias, planes, bias, firsts, n_groups, 1, n_words);
  require_size(cells, size(codes), "cells must have one entry per code");
  loops->assign_cells(queries_of(codes, n_words), n_words, probe, cells.data());
}

void add_bits(In<uint64_t, 2> codes, In<uint32_t, 1> cells, Out<int32_t, 2> sums) {
  const int64_t n_words = size(codes, 1);
  require_size(cells, size(codes), "cells must have one entry per code");
  require_in_range(cells, size(sums), "cells must be rows of sums");
  require(size(sums, 1) == 64 * n_words, "sums must have one column per bit");
  loops->add_bits(queries_of(codes, n_words), n_words, cells.data(), sums.data());
}

void scatter(In<uint64_t, 2> codes, In<uint32_t, 1> rows, int64_t start, Out<uint64_t, 3> blocks) {
  const int64_t n_words = size(codes, 1);
  require(size(blocks, 1) == n_words && size(blocks, 2) == BLOCK, "blocks must have shape (n_blocks, n_words, 8)");
  require_size(rows, size(codes), "rows must have one entry per code");
  require(start >= 0 && start <= UINT32_MAX, "start must be a row number");
  loops->scatter(queries_of(codes, n_words), n_words, rows.data(), start, start + size(blocks) * BLOCK, blocks.data());
}

std::tuple<int64_t, int64_t, int64_t> range_search(In<uint64_t, 1> blocks, int64_t n_rows, Kept kept, int64_t stop,
                                                   In<uint64_t, 2> queries, bool slices, In<int64_t, 1> bounds,
                                                   int64_t row, int64_t query, Out<int64_t, 1> query_index,
                                                   Out<int64_t, 1> rows, Out<int32_t, 1> distances) {
  const int64_t n_words = size(queries, 1), n = size(queries);
  const Codes codes = codes_of(blocks, n_words, n_rows, kept, row, stop);
  require_bounds(bounds, n, n_words);
  require(0 <= query && query <= n, "query, where to resume, must be from 0 to the number of queries");
  Hits hits = hits_of(query_index, rows, distances);
  require(hits.capacity >= loops->max_hits_per_step,
          "the arrays for results must have at least max_hits_per_step entries");
  const Position position = loops->range_search(
      codes, queries_of(queries, n_words), slices ? Kernel::slices : Kernel::lanes, bounds.data(), {row, query}, hits);
  return {position.row, position.query, hits.size};
}

void merge_nearest(In<int32_t, 2> a_distances, In<int64_t, 2> a_ids, In<int64_t, 1> a_sizes, In<int32_t, 2> b_distances,
                   In<int64_t, 2> b_ids, In<int64_t, 1> b_sizes, Out<int32_t, 2> distances, Out<int64_t, 2> ids,
                   Out<int64_t, 1> sizes) {
  const int64_t n = size(ids), k = size(ids, 1);
  const char* const same_shape = "all distances and ids must have the same shape (n, k)";
  for (const auto* list : {&a_distances, &b_distances}) require(size(*list) == n && size(*list, 1) == k, same_shape);
  for (const auto* list : {&a_ids, &b_ids}) require(size(*list) == n && size(*list, 1) == k, same_shape);
  for (const auto* list : {&a_sizes, &b_sizes}) {
    require_size(*list, n, "sizes must have one entry per query");
    require_in_range(*list, k + 1, "sizes must be from 0 to k");
  }
  require(size(distances) == n && size(distances, 1) == k, same_shape);
  require_size(sizes, n, "sizes must have one entry per query");
  const int32_t* const distances_of[] = {a_distances.data(), b_distances.data()};
  const int64_t* const ids_of[] = {a_ids.data(), b_ids.data()};
  const int64_t* const sizes_of[] = {a_sizes.data(), b_sizes.data()};
  loops->merge_nearest(n, k, distances_of, ids_of, sizes_of, distances.data(), ids.data(), sizes.data());
}

void match(In<uint64_t, 1> blocks, int64_t n_rows, In<uint64_t, 2> queries, bool exact_second, Out<int64_t, 1> bounds,
           In<int64_t, 1> bound_of, Out<int64_t, 1> best, Out<int64_t, 1> second, Out<int64_t, 1> rows) {
  const int64_t n_words = size(queries, 1), n = size(queries);
  const Codes codes = codes_of(blocks, n_words, n_rows, {}, 0, n_rows);
  const int64_t max_bound = 64 * n_words + 1;
  require_bounds(as_const(bounds), n, n_words);
  require_size(bound_of, max_bound + 2, "bound_of must have one entry per distance, plus two");
  require_in_range(bound_of, max_bound + 1, "bound_of must be from 0 to the number of bits plus 1");
  for (const auto* result : {&best, &second}) {
    require_size(*result, n, "best and second must have one entry per query");
    require_in_range(*result, max_bound + 1, "best and second must be from 0 to the number of bits plus 1");
  }
  require_size(rows, n, "rows must have one entry per query");
  loops->match(codes, queries_of(queries, n_words), exact_second, bounds.data(), bound_of.data(), best.data(),
               second.data(), rows.data());
}

void find_rivals(In<uint64_t, 1> blocks, int64_t n_rows, In<uint64_t, 2> queries, In<int64_t, 1> excluded,
                 Out<int64_t, 1> bounds) {
  const int64_t n_words = size(queries, 1), n = size(queries);
  const Codes codes = codes_of(blocks, n_words, n_rows, {}, 0, n_rows);
  require_bounds(as_const(bounds), n, n_words);
  require_size(excluded, n, "excluded must have one entry per query");
  loops->find_rivals(codes, queries_of(queries, n_words), excluded.data(), bounds.data());
}

void require_substring(int64_t begin, int64_t width, int64_t n_words) {
  require(0 <= begin && 1 <= width && width <= 32 && begin <= 64 * n_words - width,
          "a substring must lie in the code and have 1 to 32 bits");
}

void substring_values(In<uint64_t, 1> blocks, int64_t n_words, int64_t n_rows, In<int64_t, 1> rows, int64_t begin,
                      int64_t width, Out<int64_t, 1> out) {
  const Codes codes = codes_of(blocks, n_words, n_rows, {}, 0, n_rows);
  require_substring(begin, width, n_words);
  require_in_range(rows, n_rows, "rows must lie in the blocks");
  require_size(out, size(rows), "out must have one entry per row");
  loops->substring_values(codes, rows.data(), size(rows), begin, width, out.data());
}

void build_table(In<uint64_t, 1> blocks, int64_t n_words, int64_t begin, int64_t width, Out<uint32_t, 1> starts,
                 Out<uint32_t, 1> rows) {
  const Codes codes = codes_of(blocks, n_words, size(rows), {}, 0, size(rows));
  require_substring(begin, width, n_words);
  require_size(starts, (int64_t(1) << width) + 1, "starts must have 2**width + 1 entries");
  loops->build_table(codes, begin, width, starts.data(), rows.data());
}

std::tuple<int64_t, int64_t> look_up(In<uint64_t, 1> blocks, Kept kept, In<int64_t, 1> begins, In<int64_t, 1> widths,
                                     In<int64_t, 1> firsts, In<uint32_t, 1> starts, In<uint32_t, 2> rows,
                                     In<uint32_t, 1> masks, In<int64_t, 1> mask_firsts, In<int64_t, 1> mask_counts,
                                     In<int64_t, 1> radii, int64_t radius, In<uint64_t, 2> queries,
                                     In<int64_t, 1> after, int64_t first, Out<int64_t, 1> query_index,
                                     Out<int64_t, 1> found_rows, Out<int32_t, 1> distances) {
  const int64_t n_words = size(queries, 1), n_rows = size(rows, 1), n_substrings = size(begins);
  const Codes codes = codes_of(blocks, n_words, n_rows, kept, 0, n_rows);
  for (const auto* array : {&widths, &firsts, &mask_firsts, &mask_counts, &radii})
    require_size(*array, n_substrings, "tables and masks must have one entry per substring");
  require_size(rows, n_substrings, "rows must have shape (n_substrings, n_rows)");
  require_size(after, size(queries), "after must have one entry per query");
  require(0 <= first && first <= size(queries), "first must be from 0 to the number of queries");
  for (int64_t s = 0; s < n_substrings; ++s) {
    const int64_t at = firsts.data()[s], mask = mask_firsts.data()[s], count = mask_counts.data()[s];
    require_substring(begins.data()[s], widths.data()[s], n_words);
    const int64_t n_values = int64_t(1) << widths.data()[s];
    require(at >= 0 && at < size(starts) - n_values, "starts must have 2**width + 1 entries per substring");
    require(mask >= 0 && count >= 0 && count <= size(masks) && mask <= size(masks) - count,
            "mask_firsts and mask_counts must be ranges of masks");
    for (int64_t i = mask; i < mask + count; ++i)
      require(int64_t(masks.data()[i]) < n_values, "masks must not have more bits than their substring");
  }
  Hits hits = hits_of(query_index, found_rows, distances);
  const Tables tables = {n_substrings, begins.data(), widths.data(), firsts.data(), starts.data(), rows.data(), n_rows};
  const Flips flips = {masks.data(), mask_firsts.data(), mask_counts.data(), radii.data()};
  const int64_t next =
      loops->look_up(codes, tables, flips, radius, queries_of(queries, n_words), after.data(), first, hits);
  return {next, hits.size};
}

void nearest_weighted(In<uint64_t, 1> blocks, int64_t n_rows, Kept kept, int64_t start, int64_t stop,
                      std::optional<In<int64_t, 1>> starts, std::optional<In<uint16_t, 1>> low,
                      std::optional<In<uint64_t, 1>> high, In<float, 2> projections, In<float, 1> bounds,
                      Out<float, 2> distances, Out<int64_t, 2> rows, Out<int64_t, 1> sizes) {
  const int64_t n = size(projections), n_bits = size(projections, 1), k = size(rows, 1);
  const Codes codes = codes_of(blocks, (n_bits + 63) / 64, n_rows, kept, start, stop);
  require(starts.has_value() == low.has_value() && low.has_value() == high.has_value(),
          "starts, low and high must be given together");
  Cells cells = {};
  if (starts) cells = cells_of(*starts, *low, *high, n_rows);
  for (int64_t i = 0; i < n * n_bits; ++i) require(std::isfinite(projections.data()[i]), "projections must be finite");
  require_size(bounds, n, "bounds must have one entry per query");
  for (int64_t q = 0; q < n; ++q) require(bounds.data()[q] >= 0, "bounds must be at least 0");
  require(size(distances) == n && size(rows) == n && size(sizes) == n && size(distances, 1) == k && k >= 1,
          "distances, rows and sizes must have shapes (n, k), (n, k) and (n,), with k at least 1");
  loops->nearest_weighted(codes, starts ? &cells : nullptr, projections.data(), n, n_bits, k, bounds.data(),
                          distances.data(), rows.data(), sizes.data());
}

void weighted_distances(In<uint64_t, 3> words, In<float, 2> projections, Out<float, 2> out) {
  const int64_t n = size(words), m = size(words, 1), n_words = size(words, 2), n_bits = size(projections, 1);
  require(size(projections) == n && (n_bits + 63) / 64 <= n_words,
          "projections must have one row per query and at most 64 columns per word");
  require(size(out) == n && size(out, 1) == m, "out must have shape (n, m)");
  loops->weighted_distances(words.data(), projections.data(), n, m, n_words, n_bits, out.data());
}

void decide(In<uint32_t, 2> a, In<uint32_t, 2> b, In<int64_t, 1> left, In<int64_t, 1> right, In<int32_t, 1> accept,
            In<int32_t, 1> reject, Out<bool, 1> similar, Out<uint16_t, 1> words_read) {
  const int64_t n = size(left), n_words = size(a, 1);
  require(n_words <= UINT16_MAX, "codes must have at most 65,535 words of 32 bits");
  require(size(b, 1) == n_words && size(accept) == n_words && size(reject) == n_words,
          "a, b, accept and reject must have the same number of words");
  require(size(right) == n && size(similar) == n && size(words_read) == n,
          "left, right, similar and words_read must have one entry per pair");
  require_in_range(left, size(a), "left must hold row numbers of a");
  require_in_range(right, size(b), "right must hold row numbers of b");
  loops->decide(a.data(), b.data(), left.data(), right.data(), n, n_words, accept.data(), reject.data(), similar.data(),
                words_read.data());
}

// ---- encoding -----------------------------------------------------------------------------------

void multiply(In<float, 2> a, In<float, 3> panels, int64_t n_rows, Out<float, 2> out) {
  require(size(panels, 2) == loops->panel, "panels must have shape (n_panels, depth, panel)");
  require(0 <= n_rows && n_rows <= size(a) && n_rows <= size(out), "a and out must have at least n_rows rows");
  require(size(a, 1) >= size(panels, 1), "a must have at least as many columns as the panels are deep");
  require(size(out, 1) % loops->panel == 0 && size(out, 1) / loops->panel == size(panels),
          "out must have n_panels * panel columns");
  loops->multiply(a.data(), size(a, 1), n_rows, panels.data(), size(panels), size(panels, 1), out.data());
}

void squared_norms(In<float, 2> rows, int64_t width, int64_t n_rows, Out<float, 1> out) {
  require(0 <= n_rows && n_rows <= size(rows) && n_rows <= size(out), "rows and out must have at least n_rows entries");
  require(0 <= width && width <= size(rows, 1), "width must be from 0 to the number of columns");
  loops->squared_norms(rows.data(), size(rows, 1), n_rows, width, out.data());
}

void exp2_of_expanded_square(Out<float, 2> products, In<float, 1> row_terms, In<float, 1> column_terms,
                             int64_t n_rows) {
  require(0 <= n_rows && n_rows <= size(products) && n_rows <= size(row_terms),
          "products and row_terms must have at least n_rows entries");
  require(size(column_terms) <= size(products, 1), "products must have at least one column per column term");
  loops->exp2_of_expanded_square(products.data(), size(products, 1), n_rows, size(column_terms), row_terms.data(),
                                 column_terms.data());
}

void pack_above(Rows<const float> values, In<float, 1> thresholds, Out<uint8_t, 2> codes) {
  const int64_t n = size(codes), n_bits = size(thresholds);
  require(size(values) >= n && size(values, 1) >= n_bits,
          "values must have at least one row per code and one column per threshold");
  require(size(codes, 1) == (n_bits + 7) / 8, "codes must have one bit per threshold");
  loops->pack_above(values.data(), stride(values, "the rows of values must be contiguous"), n, thresholds.data(),
                    n_bits, codes.data());
}

Directions directions_of(const In<float, 2>& directions, const In<float, 1>& thresholds, const In<float, 1>& bound) {
  require(size(thresholds) == size(directions) && size(bound) == size(directions),
          "there must be one threshold and one error bound per direction");
  return {directions.data(), thresholds.data(), size(directions)};
}

int64_t recompute_sums(Rows<float> projections, In<float, 2> features, In<float, 2> directions, In<float, 1> thresholds,
                       In<float, 1> sum_bound, In<float, 1> feature_bound, Out<bool, 1> ambiguous) {
  const int64_t n = size(ambiguous), n_features = size(directions, 1);
  const Directions learned = directions_of(directions, thresholds, sum_bound);
  require_size(feature_bound, learned.n_bits, "there must be one error bound per direction");
  require(size(projections) >= n && size(projections, 1) >= learned.n_bits,
          "projections must have at least one row per entry of ambiguous and one column per direction");
  require(size(features) >= n && size(features, 1) >= n_features,
          "features must have at least one row per entry of ambiguous and as many columns as directions");
  return loops->recompute_sums(projections.data(), stride(projections, "the rows of projections must be contiguous"), n,
                               features.data(), n_features, size(features, 1), learned, sum_bound.data(),
                               feature_bound.data(), ambiguous.data());
}

void recompute_rows(Rows<float> projections, In<int64_t, 1> rows, In<double, 2> features, In<float, 2> directions,
                    In<float, 1> thresholds, In<float, 1> feature_bound) {
  const Directions learned = directions_of(directions, thresholds, feature_bound);
  require_in_range(rows, size(projections), "rows must be row numbers of projections");
  require(size(projections, 1) >= learned.n_bits, "projections must have at least one column per direction");
  require(size(features) == size(rows) && size(features, 1) == size(directions, 1),
          "features must have one row per entry of rows and as many columns as directions");
  loops->recompute_rows(projections.data(), stride(projections, "the rows of projections must be contiguous"),
                        rows.data(), size(rows), features.data(), size(features, 1), learned, feature_bound.data());
}

void gaussians(In<double, 2> rows, In<double, 2> basis, double factor, Out<double, 2> out) {
  require(size(rows, 1) == size(basis, 1), "rows and basis must have the same number of columns");
  require(size(out) == size(rows) && size(out, 1) == size(basis), "out must have shape (n_rows, n_basis)");
  loops->gaussians(rows.data(), size(rows), basis.data(), size(basis), size(rows, 1), factor, out.data());
}

// ---- learning -----------------------------------------------------------------------------------

void add_gram(In<int16_t, 2> features, In<int64_t, 1> left, In<int64_t, 1> right, int sign, int shift,
              Out<int64_t, 2> out) {
  const int64_t width = (size(features, 1) + GRAM_PANEL - 1) / GRAM_PANEL * GRAM_PANEL;
  require(sign == 1 || sign == -1, "sign must be 1 or -1");
  require(shift >= 0 && shift <= INT16_MAX, "shift must be from 0 to 32,767");
  require(size(left) == size(right), "left and right must have the same length");
  require_in_range(left, size(features), "left must hold row numbers of features");
  require_in_range(right, size(features), "right must hold row numbers of features");
  require(size(out) == width && size(out, 1) == width,
          "out must be square, with a multiple of gram_panel columns that holds all features");
  loops->add_gram(features.data(), size(features, 1), left.data(), right.data(), size(left), sign, shift, out.data());
}

int64_t rank(In<float, 1> values, Out<int32_t, 1> ranks, Out<float, 1> distinct) {
  require(size(values) < int64_t(1) << 31, "there must be fewer than 2**31 values");
  require(size(ranks) == size(values) && size(distinct) == size(values),
          "ranks and distinct must be as long as values");
  return loops->rank(values.data(), size(values), ranks.data(), distinct.data());
}

Members members_of(const In<int32_t, 2>& pairs, int64_t n_rows) {
  require_size(pairs, 2, "pairs must have shape (2, p)");
  require_in_range(pairs, n_rows, "pairs must hold indexes into ranks");
  return {pairs.data(), pairs.data() + size(pairs, 1), size(pairs, 1)};
}

std::tuple<int64_t, int64_t, int64_t> best_threshold(In<int32_t, 1> ranks, In<float, 1> distinct,
                                                     In<int32_t, 2> positives, In<int32_t, 2> negatives,
                                                     double positive_weight, double negative_weight) {
  require_in_range(ranks, size(distinct), "ranks must be indexes into distinct");
  require(size(distinct) > 0, "there must be at least one value");
  const Threshold best =
      loops->best_threshold(ranks.data(), distinct.data(), size(distinct), members_of(positives, size(ranks)),
                            members_of(negatives, size(ranks)), positive_weight, negative_weight);
  return {best.rank, best.positives, best.negatives};
}

std::tuple<int64_t, double> best_weighted_threshold(In<int32_t, 1> ranks, int64_t n_distinct, In<int32_t, 2> pairs,
                                                    In<double, 1> weights) {
  require(n_distinct > 0, "there must be at least one value");
  require(n_distinct <= size(ranks), "n_distinct must not exceed the number of ranks");
  require_in_range(ranks, n_distinct, "ranks must be from 0 to n_distinct - 1");
  require_size(weights, size(pairs, 1), "there must be one weight per pair");
  int64_t best = 0;
  const double loss =
      loops->best_weighted_threshold(ranks.data(), n_distinct, members_of(pairs, size(ranks)), weights.data(), &best);
  return {best, loss};
}

// ---- refinement ---------------------------------------------------------------------------------

void soft_bits(In<float, 2> projections, In<float, 1> thresholds, float factor, Out<float, 2> out) {
  require_size(thresholds, size(projections, 1), "there must be one threshold per bit");
  require(size(out) == size(projections) && size(out, 1) == size(projections, 1),
          "out must have the same shape as projections");
  loops->soft_bits(projections.data(), size(projections), size(projections, 1), thresholds.data(), factor, out.data());
}

void mask_same_label(Out<float, 2> similarity, int64_t first, In<int64_t, 1> labels) {
  require(size(similarity, 1) == size(labels), "there must be one label per column");
  require(0 <= first && first <= size(labels) - size(similarity), "the rows from first on must be items");
  loops->mask_same_label(similarity.data(), size(similarity), size(labels), first, labels.data());
}

void find_largest(In<float, 2> similarity, Out<int32_t, 1> where, Out<float, 1> value) {
  require(size(where) == size(similarity) && size(value) == size(similarity),
          "where and value must have one entry per row");
  require(size(similarity, 1) > 0, "similarity must have at least one column");
  loops->find_largest(similarity.data(), size(similarity), size(similarity, 1), where.data(), value.data());
}

void add_partner_similarity(In<float, 2> soft, int64_t low, int64_t high, int64_t first, Out<float, 1> out) {
  require(0 <= low && low <= high && high <= size(soft, 1), "low and high must be a range of bits");
  require(0 <= first && first <= size(soft) - size(out), "the rows from first on must be items");
  loops->add_partner_similarity(soft.data(), size(soft), size(soft, 1), low, high, first, size(out), out.data());
}

void add_gradient(In<float, 2> soft, In<int32_t, 2> nearest, In<float, 2> slopes, In<int64_t, 1> prefixes, int64_t low,
                  int64_t high, Out<float, 2> out) {
  const int64_t n = size(soft), n_bits = size(soft, 1), n_prefixes = size(prefixes);
  require(size(nearest) == n_prefixes && size(slopes) == n_prefixes && size(nearest, 1) == n && size(slopes, 1) == n,
          "nearest and slopes must have one row per prefix and one column per item");
  require_in_range(nearest, n, "nearest must hold item numbers");
  require_in_range(prefixes, n_bits + 1, "prefixes must be from 0 to the number of bits");
  require(0 <= low && low <= high && high <= n_bits, "low and high must be a range of bits");
  require(size(out) == n && size(out, 1) == n_bits, "out must have the same shape as soft");
  loops->add_gradient(soft.data(), n, n_bits, nearest.data(), slopes.data(), prefixes.data(), n_prefixes, low, high,
                      out.data());
}

void adam_step(Out<float, 1> values, In<float, 1> gradient, Out<float, 1> mean, Out<float, 1> square, float step,
               float scale) {
  const int64_t n = size(values);
  require(size(gradient) == n && size(mean) == n && size(square) == n,
          "values, gradient, mean and square must have the same length");
  loops->adam_step(values.data(), gradient.data(), mean.data(), square.data(), n, step, scale);
}

// ---- binding ------------------------------------------------------------------------------------

template <class T>
struct IsArray : std::false_type {};
template <class... T>
struct IsArray<nb::ndarray<T...>> : std::true_type {};
template <class T>
struct IsArray<std::optional<T>> : IsArray<T> {};

// Arrays of another type or layout are refused: nanobind would convert them, and results would go into the copy.
template <class T>
auto argument() {
  if constexpr (IsArray<T>::value)
    return nb::arg().noconvert();
  else
    return nb::arg();
}

template <class T>
void align(T&) {}

// Arrays that were received over a network may start at any byte. Inputs that are not aligned are copied.
template <class... T>
void align(nb::ndarray<T...>& array) {
  using Array = nb::ndarray<T...>;
  using Scalar = typename Array::Scalar;
  if (array.size() == 0 || uintptr_t(array.data()) % alignof(Scalar) == 0) return;
  if constexpr (std::is_const_v<Scalar> && (std::is_same_v<T, nb::c_contig> || ...)) {
    using Value = std::remove_const_t<Scalar>;
    Value* copy = new Value[array.size()];
    const nb::capsule owner(copy, [](void* at) noexcept { delete[] static_cast<Value*>(at); });
    std::memcpy(copy, array.data(), array.nbytes());
    size_t shape[4];
    for (size_t axis = 0; axis < array.ndim(); ++axis) shape[axis] = array.shape(axis);
    array = Array(copy, array.ndim(), shape, owner);
  } else {
    require(false, "arrays that results are written to must be aligned");
  }
}

template <class Result, class... T>
void bind(nb::module_& m, const char* name, Result (*function)(T...)) {
  const auto aligned = [function](T... values) {
    (align(values), ...);
    const nb::gil_scoped_release release;
    return function(values...);
  };
  m.def(name, aligned, argument<T>()...);
}

}  // namespace

NB_MODULE(_core, m) {
  loops = &select_loops();
  nb::set_leak_warnings(false);  // an index may live until the interpreter exits
  m.attr("level") = loops->name;
  m.attr("panel") = loops->panel;
  m.attr("max_hits_per_step") = loops->max_hits_per_step;
  m.attr("gram_panel") = GRAM_PANEL;
#define BIND(name) bind(m, #name, &name)
  BIND(nearest);
  BIND(nearest_by_position);
  nb::class_<SearchableCells>(m, "SearchableCells");
  BIND(searchable_cells);
  BIND(nearest_in_cells);
  BIND(positions_of);
  BIND(order_rows);
  BIND(score_centres);
  BIND(assign_cells);
  BIND(add_bits);
  BIND(scatter);
  BIND(range_search);
  BIND(merge_nearest);
  BIND(match);
  BIND(find_rivals);
  BIND(substring_values);
  BIND(build_table);
  BIND(look_up);
  BIND(nearest_weighted);
  BIND(weighted_distances);
  BIND(decide);
  BIND(multiply);
  BIND(squared_norms);
  BIND(exp2_of_expanded_square);
  BIND(pack_above);
  BIND(recompute_sums);
  BIND(recompute_rows);
  BIND(gaussians);
  BIND(add_gram);
  BIND(rank);
  BIND(best_threshold);
  BIND(best_weighted_threshold);
  BIND(soft_bits);
  BIND(mask_same_label);
  BIND(find_largest);
  BIND(add_partner_similarity);
  BIND(add_gradient);
  BIND(adam_step);
}
