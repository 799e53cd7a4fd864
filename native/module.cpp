// The Python module: typed arrays in, shapes and row numbers checked, the GIL released, and the loops that fit the
// CPU. Nothing is allocated for the caller: results are written to arrays that are passed in.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

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

const Loops& choose() {
#if defined(X86_LEVELS)
  const char* wanted = std::getenv("KDIFFHASH_CPU");
  const std::string most = wanted ? wanted : "avx512";
  if (most != "base" && most != "avx2" && most != "avx512")
    throw std::runtime_error("KDIFFHASH_CPU must be base, avx2 or avx512, got " + most);
  if (most == "avx512" && cpu() == Cpu::avx512) return avx512::loops;
  if (most != "base" && cpu() != Cpu::base) return avx2::loops;
#endif
  return base::loops;
}

const Loops* loops = nullptr;

// ---- search -------------------------------------------------------------------------------------

void nearest(In<uint64_t, 1> blocks, int64_t n_rows, Kept kept, int64_t first, int64_t last, In<uint64_t, 2> queries,
             bool slices, Out<int64_t, 1> limits, Out<int32_t, 2> distances, Out<int64_t, 2> rows,
             Out<int64_t, 1> sizes) {
  const int64_t n_words = size(queries, 1), n = size(queries), k = size(rows, 1);
  const Codes codes = codes_of(blocks, n_words, n_rows, kept, first, last);
  need_limits(constant(limits), n, n_words);
  need(size(distances) == n && size(rows) == n && size(sizes) == n && size(distances, 1) == k && k >= 1,
       "results must have shapes (n, k), (n, k) and (n,)");
  loops->nearest(codes, queries_of(queries, n_words), k, slices ? Way::slices : Way::lanes, limits.data(),
                 distances.data(), rows.data(), sizes.data());
}

std::tuple<int64_t, int64_t, int64_t> within(In<uint64_t, 1> blocks, int64_t n_rows, Kept kept, int64_t last,
                                             In<uint64_t, 2> queries, bool slices, In<int64_t, 1> limits, int64_t row,
                                             int64_t query, Out<int64_t, 1> found, Out<int64_t, 1> rows,
                                             Out<int32_t, 1> distances) {
  const int64_t n_words = size(queries, 1), n = size(queries);
  const Codes codes = codes_of(blocks, n_words, n_rows, kept, row, last);
  need_limits(limits, n, n_words);
  need(0 <= query && query <= n, "there is no such query to go on with");
  Hits hits = hits_of(found, rows, distances);
  need(hits.room >= loops->margin, "there must be room for `margin` hits");
  const Place place = loops->within(codes, queries_of(queries, n_words), slices ? Way::slices : Way::lanes,
                                    limits.data(), {row, query}, hits);
  return {place.row, place.query, hits.size};
}

void merge_nearest(In<int32_t, 2> a_distances, In<int64_t, 2> a_ids, In<int64_t, 1> a_sizes, In<int32_t, 2> b_distances,
                   In<int64_t, 2> b_ids, In<int64_t, 1> b_sizes, Out<int32_t, 2> distances, Out<int64_t, 2> ids,
                   Out<int64_t, 1> sizes) {
  const int64_t n = size(ids), k = size(ids, 1);
  for (const auto* one : {&a_distances, &b_distances})
    need(size(*one) == n && size(*one, 1) == k, "lists differ in shape");
  for (const auto* one : {&a_ids, &b_ids}) need(size(*one) == n && size(*one, 1) == k, "lists differ in shape");
  for (const auto* one : {&a_sizes, &b_sizes}) {
    need_size(*one, n, "sizes must have one entry for each list");
    need_rows(*one, k + 1, "sizes must lie in 0..k");
  }
  need(size(distances) == n && size(distances, 1) == k && size(sizes) == n, "lists differ in shape");
  const int32_t* const distances_of[] = {a_distances.data(), b_distances.data()};
  const int64_t* const ids_of[] = {a_ids.data(), b_ids.data()};
  const int64_t* const sizes_of[] = {a_sizes.data(), b_sizes.data()};
  loops->merge_nearest(n, k, distances_of, ids_of, sizes_of, distances.data(), ids.data(), sizes.data());
}

void match(In<uint64_t, 1> blocks, int64_t n_rows, In<uint64_t, 2> queries, Out<int64_t, 1> limits,
           In<int64_t, 1> limit_of, Out<int64_t, 1> best, Out<int64_t, 1> second, Out<int64_t, 1> rows) {
  const int64_t n_words = size(queries, 1), n = size(queries);
  const Codes codes = codes_of(blocks, n_words, n_rows, {}, 0, n_rows);
  const int64_t nothing = 64 * n_words + 1;
  need_limits(constant(limits), n, n_words);
  need_size(limit_of, nothing + 2, "limit_of must have an entry for each distance, and two more");
  need_rows(limit_of, nothing + 1, "limits must lie in 0 to one above all bits");
  for (const auto* one : {&best, &second}) {
    need_size(*one, n, "results must have one entry for each query");
    need_rows(*one, nothing + 1, "distances must lie in 0 to one above all bits");
  }
  need_size(rows, n, "results must have one entry for each query");
  loops->match(codes, queries_of(queries, n_words), limits.data(), limit_of.data(), best.data(), second.data(),
               rows.data());
}

void need_part(int64_t begin, int64_t width, int64_t n_words) {
  need(0 <= begin && 1 <= width && width <= 32 && begin <= 64 * n_words - width, "a part must lie in the code");
}

void part_values(In<uint64_t, 1> blocks, int64_t n_words, int64_t n_rows, In<int64_t, 1> rows, int64_t begin,
                 int64_t width, Out<int64_t, 1> out) {
  const Codes codes = codes_of(blocks, n_words, n_rows, {}, 0, n_rows);
  need_part(begin, width, n_words);
  need_rows(rows, n_rows, "rows must lie in the blocks");
  need_size(out, size(rows), "there must be room for one value for each row");
  loops->part_values(codes, rows.data(), size(rows), begin, width, out.data());
}

void list_rows(In<uint64_t, 1> blocks, int64_t n_words, int64_t begin, int64_t width, Out<uint32_t, 1> starts,
               Out<uint32_t, 1> rows) {
  const Codes codes = codes_of(blocks, n_words, size(rows), {}, 0, size(rows));
  need_part(begin, width, n_words);
  need_size(starts, (int64_t(1) << width) + 1, "starts must have 2**width + 1 entries");
  loops->list_rows(codes, begin, width, starts.data(), rows.data());
}

std::tuple<int64_t, int64_t> look_up(In<uint64_t, 1> blocks, Kept kept, In<int64_t, 1> begins, In<int64_t, 1> widths,
                                     In<int64_t, 1> firsts, In<uint32_t, 1> starts, In<uint32_t, 2> rows,
                                     In<uint32_t, 1> flips, In<int64_t, 1> flip_firsts, In<int64_t, 1> flip_counts,
                                     In<int64_t, 1> flip_most, int64_t radius, In<uint64_t, 2> queries,
                                     In<int64_t, 1> after, int64_t first, Out<int64_t, 1> found,
                                     Out<int64_t, 1> found_rows, Out<int32_t, 1> distances) {
  const int64_t n_words = size(queries, 1), n_rows = size(rows, 1), n_parts = size(begins);
  const Codes codes = codes_of(blocks, n_words, n_rows, kept, 0, n_rows);
  for (const auto* one : {&widths, &firsts, &flip_firsts, &flip_counts, &flip_most})
    need_size(*one, n_parts, "tables and flips must have one entry for each part");
  need_size(rows, n_parts, "rows must have one line for each part");
  need_size(after, size(queries), "after must have one entry for each query");
  need(0 <= first && first <= size(queries), "there is no such query to go on with");
  for (int64_t p = 0; p < n_parts; ++p) {
    const int64_t at = firsts.data()[p], flip = flip_firsts.data()[p], count = flip_counts.data()[p];
    need_part(begins.data()[p], widths.data()[p], n_words);
    const int64_t n_values = int64_t(1) << widths.data()[p];
    need(at >= 0 && at < size(starts) - n_values, "starts must have an entry for each value of each part");
    need(flip >= 0 && count >= 0 && count <= size(flips) && flip <= size(flips) - count,
         "flips of a part must lie in flips");
    for (int64_t i = flip; i < flip + count; ++i)
      need(int64_t(flips.data()[i]) < n_values, "flips must lie in their part");
  }
  Hits hits = hits_of(found, found_rows, distances);
  const Tables tables = {n_parts, begins.data(), widths.data(), firsts.data(), starts.data(), rows.data(), n_rows};
  const Flips to_flip = {flips.data(), flip_firsts.data(), flip_counts.data(), flip_most.data()};
  const int64_t next =
      loops->look_up(codes, tables, to_flip, radius, queries_of(queries, n_words), after.data(), first, hits);
  return {next, hits.size};
}

void weight_differing(In<uint64_t, 3> words, In<float, 2> projections, Out<float, 2> out) {
  const int64_t n = size(words), m = size(words, 1), n_words = size(words, 2), n_bits = size(projections, 1);
  need(size(projections) == n && (n_bits + 63) / 64 <= n_words,
       "projections must have one row for each query, a column for each bit");
  need(size(out) == n && size(out, 1) == m, "out must have shape (n, m)");
  loops->weight_differing(words.data(), projections.data(), n, m, n_words, n_bits, out.data());
}

void decide(In<uint32_t, 2> a, In<uint32_t, 2> b, In<int64_t, 1> left, In<int64_t, 1> right, In<int32_t, 1> accept,
            In<int32_t, 1> reject, Out<bool, 1> similar, Out<uint16_t, 1> parts) {
  const int64_t n = size(left), n_parts = size(a, 1);
  need(n_parts <= UINT16_MAX, "codes have more parts than can be counted");
  need(size(b, 1) == n_parts && size(accept) == n_parts && size(reject) == n_parts,
       "codes and limits differ in length");
  need(size(right) == n && size(similar) == n && size(parts) == n, "pairs and results differ in length");
  need_rows(left, size(a), "pairs must be rows of a");
  need_rows(right, size(b), "pairs must be rows of b");
  loops->decide(a.data(), b.data(), left.data(), right.data(), n, n_parts, accept.data(), reject.data(), similar.data(),
                parts.data());
}

// ---- encoding -----------------------------------------------------------------------------------

void multiply(In<float, 2> a, In<float, 3> panels, int64_t n_rows, Out<float, 2> out) {
  need(size(panels, 2) == loops->panel, "panels must be as wide as `panel`");
  need(0 <= n_rows && n_rows <= size(a) && n_rows <= size(out), "there are fewer rows than n_rows");
  need(size(a, 1) >= size(panels, 1), "rows are shorter than the columns of panels");
  need(size(out, 1) % loops->panel == 0 && size(out, 1) / loops->panel == size(panels),
       "out must have a column for each one of panels");
  loops->multiply(a.data(), size(a, 1), n_rows, panels.data(), size(panels), size(panels, 1), out.data());
}

void squared_norms(In<float, 2> rows, int64_t width, int64_t n_rows, Out<float, 1> out) {
  need(0 <= n_rows && n_rows <= size(rows) && n_rows <= size(out), "there are fewer rows than n_rows");
  need(0 <= width && width <= size(rows, 1), "rows are shorter than width");
  loops->squared_norms(rows.data(), size(rows, 1), n_rows, width, out.data());
}

void exp2_of_expanded_square(Out<float, 2> products, In<float, 1> row_terms, In<float, 1> column_terms,
                             int64_t n_rows) {
  need(0 <= n_rows && n_rows <= size(products) && n_rows <= size(row_terms), "there are fewer rows than n_rows");
  need(size(column_terms) <= size(products, 1), "there are more column terms than columns");
  loops->exp2_of_expanded_square(products.data(), size(products, 1), n_rows, size(column_terms), row_terms.data(),
                                 column_terms.data());
}

void pack_above(Rows<const float> values, In<float, 1> thresholds, Out<uint8_t, 2> codes) {
  const int64_t n = size(codes), n_bits = size(thresholds);
  need(size(values) >= n && size(values, 1) >= n_bits, "there are fewer values than codes");
  need(size(codes, 1) == (n_bits + 7) / 8, "codes must have a bit for each threshold");
  loops->pack_above(values.data(), stride(values, "values must be rows"), n, thresholds.data(), n_bits, codes.data());
}

Directions directions_of(const In<float, 2>& directions, const In<float, 1>& thresholds, const In<float, 1>& near) {
  need(size(thresholds) == size(directions) && size(near) == size(directions),
       "there must be one threshold for each direction");
  return {directions.data(), thresholds.data(), size(directions)};
}

int64_t recompute_sums(Rows<float> projections, In<float, 2> features, In<float, 2> directions, In<float, 1> thresholds,
                       In<float, 1> near, In<float, 1> very_near, Out<bool, 1> ambiguous) {
  const int64_t n = size(ambiguous), n_features = size(directions, 1);
  const Directions learned = directions_of(directions, thresholds, near);
  need_size(very_near, learned.n_bits, "there must be one bound for each direction");
  need(size(projections) >= n && size(projections, 1) >= learned.n_bits, "there are fewer projections than rows");
  need(size(features) >= n && size(features, 1) >= n_features, "there are fewer features than rows");
  return loops->recompute_sums(projections.data(), stride(projections, "projections must be rows"), n, features.data(),
                               n_features, size(features, 1), learned, near.data(), very_near.data(), ambiguous.data());
}

void recompute_rows(Rows<float> projections, In<int64_t, 1> places, In<double, 2> features, In<float, 2> directions,
                    In<float, 1> thresholds, In<float, 1> very_near) {
  const Directions learned = directions_of(directions, thresholds, very_near);
  need_rows(places, size(projections), "places must be rows of projections");
  need(size(projections, 1) >= learned.n_bits, "there are fewer projections than directions");
  need(size(features) == size(places) && size(features, 1) == size(directions, 1),
       "features must have one row for each place");
  loops->recompute_rows(projections.data(), stride(projections, "projections must be rows"), places.data(),
                        size(places), features.data(), size(features, 1), learned, very_near.data());
}

void gaussians(In<double, 2> rows, In<double, 2> basis, double factor, Out<double, 2> out) {
  need(size(rows, 1) == size(basis, 1), "rows and basis differ in width");
  need(size(out) == size(rows) && size(out, 1) == size(basis), "out must have shape (rows, basis)");
  loops->gaussians(rows.data(), size(rows), basis.data(), size(basis), size(rows, 1), factor, out.data());
}

// ---- learning -----------------------------------------------------------------------------------

void add_gram(In<int16_t, 2> features, In<int64_t, 1> left, In<int64_t, 1> right, int sign, int shift,
              Out<int64_t, 2> out) {
  const int64_t width = (size(features, 1) + GRAM_PANEL - 1) / GRAM_PANEL * GRAM_PANEL;
  need(sign == 1 || sign == -1, "sign must be 1 or -1");
  need(shift >= 0 && shift <= INT16_MAX, "shift must be a number that features can have");
  need(size(left) == size(right), "pairs must have two members");
  need_rows(left, size(features), "pairs must be rows of features");
  need_rows(right, size(features), "pairs must be rows of features");
  need(size(out) == width && size(out, 1) == width, "out must be square, with whole panels of columns");
  loops->add_gram(features.data(), size(features, 1), left.data(), right.data(), size(left), sign, shift, out.data());
}

int64_t rank(In<float, 1> values, Out<int32_t, 1> ranks, Out<float, 1> distinct) {
  need(size(values) < int64_t(1) << 31, "there are more values than a rank can count");
  need(size(ranks) == size(values) && size(distinct) == size(values), "results must be as long as values");
  return loops->rank(values.data(), size(values), ranks.data(), distinct.data());
}

Members members_of(const In<int32_t, 2>& pairs, int64_t n_rows) {
  need_size(pairs, 2, "pairs must have shape (2, p)");
  need_rows(pairs, n_rows, "pairs must be rows of ranks");
  return {pairs.data(), pairs.data() + size(pairs, 1), size(pairs, 1)};
}

std::tuple<int64_t, int64_t, int64_t> best_cut(In<int32_t, 1> ranks, In<float, 1> distinct, In<int32_t, 2> positives,
                                               In<int32_t, 2> negatives, double positive_weight,
                                               double negative_weight) {
  need_rows(ranks, size(distinct), "ranks must be places in distinct");
  need(size(distinct) > 0, "there are no values");
  const Cut cut = loops->best_cut(ranks.data(), distinct.data(), size(distinct), members_of(positives, size(ranks)),
                                  members_of(negatives, size(ranks)), positive_weight, negative_weight);
  return {cut.place, cut.positives, cut.negatives};
}

std::tuple<int64_t, double> best_weighted_cut(In<int32_t, 1> ranks, int64_t n_distinct, In<int32_t, 2> pairs,
                                              In<double, 1> weights) {
  need(n_distinct > 0, "there are no values");
  need(n_distinct <= size(ranks), "there are fewer ranks than values");
  need_rows(ranks, n_distinct, "ranks must be places in distinct");
  need_size(weights, size(pairs, 1), "there must be one weight for each pair");
  int64_t cut = 0;
  const double loss =
      loops->best_weighted_cut(ranks.data(), n_distinct, members_of(pairs, size(ranks)), weights.data(), &cut);
  return {cut, loss};
}

// ---- refinement ---------------------------------------------------------------------------------

void soft_bits(In<float, 2> projections, In<float, 1> thresholds, float factor, Out<float, 2> out) {
  need_size(thresholds, size(projections, 1), "there must be one threshold for each bit");
  need(size(out) == size(projections) && size(out, 1) == size(projections, 1),
       "out must have the shape of projections");
  loops->soft_bits(projections.data(), size(projections), size(projections, 1), thresholds.data(), factor, out.data());
}

void hide_same(Out<float, 2> similarity, int64_t first, In<int64_t, 1> labels) {
  need(size(similarity, 1) == size(labels), "there must be one label for each column");
  need(0 <= first && first <= size(labels) - size(similarity), "rows must be items");
  loops->hide_same(similarity.data(), size(similarity), size(labels), first, labels.data());
}

void find_largest(In<float, 2> similarity, Out<int32_t, 1> where, Out<float, 1> value) {
  need(size(where) == size(similarity) && size(value) == size(similarity), "results must have one entry for each row");
  need(size(similarity, 1) > 0, "there are no columns");
  loops->find_largest(similarity.data(), size(similarity), size(similarity, 1), where.data(), value.data());
}

void add_partners(In<float, 2> soft, int64_t low, int64_t high, int64_t first, Out<float, 1> out) {
  need(0 <= low && low <= high && high <= size(soft, 1), "bits must lie in the code");
  need(0 <= first && first <= size(soft) - size(out), "rows must be items");
  loops->add_partners(soft.data(), size(soft), size(soft, 1), low, high, first, size(out), out.data());
}

void add_gradient(In<float, 2> soft, In<int32_t, 2> nearest_items, In<float, 2> slopes, In<int64_t, 1> prefixes,
                  int64_t low, int64_t high, Out<float, 2> out) {
  const int64_t n = size(soft), n_bits = size(soft, 1), n_prefixes = size(prefixes);
  need(size(nearest_items) == n_prefixes && size(slopes) == n_prefixes && size(nearest_items, 1) == n &&
           size(slopes, 1) == n,
       "nearest and slopes must have one row for each prefix, one column for each item");
  need_rows(nearest_items, n, "nearest must be items");
  need_rows(prefixes, n_bits + 1, "prefixes must lie in the code");
  need(0 <= low && low <= high && high <= n_bits, "bits must lie in the code");
  need(size(out) == n && size(out, 1) == n_bits, "out must have the shape of soft");
  loops->add_gradient(soft.data(), n, n_bits, nearest_items.data(), slopes.data(), prefixes.data(), n_prefixes, low,
                      high, out.data());
}

void adam_step(Out<float, 1> values, In<float, 1> gradient, Out<float, 1> mean, Out<float, 1> square, float step,
               float scale) {
  const int64_t n = size(values);
  need(size(gradient) == n && size(mean) == n && size(square) == n, "arrays differ in length");
  loops->adam_step(values.data(), gradient.data(), mean.data(), square.data(), n, step, scale);
}

// ---- binding ------------------------------------------------------------------------------------

template <class T>
struct IsArray : std::false_type {};
template <class... T>
struct IsArray<nb::ndarray<T...>> : std::true_type {};
template <class T>
struct IsArray<std::optional<T>> : IsArray<T> {};

// An array of another type or layout is an error: a result would be written to its copy.
template <class T>
auto argument() {
  if constexpr (IsArray<T>::value)
    return nb::arg().noconvert();
  else
    return nb::arg();
}

template <class T>
void align(T&) {}

// Arrays that were received over a network may begin at any byte. What is read is copied, then.
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
    size_t shape[3];
    for (size_t axis = 0; axis < array.ndim(); ++axis) shape[axis] = array.shape(axis);
    array = Array(copy, array.ndim(), shape, owner);
  } else {
    need(false, "arrays that are written to must be aligned");
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
  loops = &choose();
  m.attr("level") = loops->name;
  m.attr("panel") = loops->panel;
  m.attr("margin") = loops->margin;
  m.attr("gram_panel") = GRAM_PANEL;
#define BIND(name) bind(m, #name, &name)
  BIND(nearest);
  BIND(within);
  BIND(merge_nearest);
  BIND(match);
  BIND(part_values);
  BIND(list_rows);
  BIND(look_up);
  BIND(weight_differing);
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
  BIND(best_cut);
  BIND(best_weighted_cut);
  BIND(soft_bits);
  BIND(hide_same);
  BIND(find_largest);
  BIND(add_partners);
  BIND(add_gradient);
  BIND(adam_step);
}
