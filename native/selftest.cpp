// Compares search, matching, lookup tables and encoding with simple loops, without Python, so that it can run on an
// emulated CPU. It is not part of the module; `make selftest` and `make aarch64` build and run it.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

#include "loops.h"

namespace {

std::mt19937_64 random_number(1);
int n_checks = 0, n_failed = 0;

void check(bool ok, const char* name, int64_t n, int64_t width) {
  ++n_checks;
  if (ok) return;
  ++n_failed;
  std::printf("failed: %s with %lld rows, width %lld\n", name, (long long)n, (long long)width);
}

using Words = std::vector<uint64_t>;

Words random_words(int64_t n, int64_t n_words) {
  Words words(n * n_words);
  for (auto& word : words) word = random_number() & random_number();
  for (int64_t i = n_words; i < n * n_words; i += 3 * n_words)  // ties
    std::copy(words.begin(), words.begin() + n_words, words.begin() + i);
  return words;
}

std::vector<float> random_floats(int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (auto& value : values) value = normal(random_number);
  return values;
}

Words to_blocks(const Words& words, int64_t n, int64_t n_words) {
  Words blocks((n + BLOCK - 1) / BLOCK * BLOCK * n_words);
  for (int64_t row = 0; row < n; ++row)
    for (int64_t w = 0; w < n_words; ++w)
      blocks[row / BLOCK * BLOCK * n_words + w * BLOCK + row % BLOCK] = words[row * n_words + w];
  return blocks;
}

int64_t distance(const uint64_t* a, const uint64_t* b, int64_t n_words) {
  int64_t ones = 0;
  for (int64_t w = 0; w < n_words; ++w)
    for (int bit = 0; bit < 64; ++bit) ones += (a[w] ^ b[w]) >> bit & 1;
  return ones;
}

using Found = std::vector<std::pair<int64_t, int64_t>>;  // distance and row, sorted

Found sorted_rows(const Words& words, int64_t n, int64_t n_words, const uint64_t* query) {
  Found found;
  for (int64_t row = 0; row < n; ++row) found.push_back({distance(words.data() + row * n_words, query, n_words), row});
  std::sort(found.begin(), found.end());
  return found;
}

void check_search(int64_t n, int64_t n_words) {
  const int64_t n_queries = 70, k = 9, max_bound = 64 * n_words + 1;
  const Words words = random_words(n, n_words), queries = random_words(n_queries, n_words);
  const Words blocks = to_blocks(words, n, n_words);
  const Codes codes = {blocks.data(), n_words, nullptr, 0, n};
  const Queries all_queries = {queries.data(), n_queries};
  std::vector<Found> expected;
  for (int64_t q = 0; q < n_queries; ++q)
    expected.push_back(sorted_rows(words, n, n_words, queries.data() + q * n_words));

  for (const Kernel kernel : {Kernel::lanes, Kernel::slices}) {
    std::vector<int64_t> bounds(n_queries, max_bound), rows(n_queries * k), sizes(n_queries);
    std::vector<int32_t> distances(n_queries * k);
    LEVEL::loops.nearest(codes, all_queries, k, kernel, bounds.data(), distances.data(), rows.data(), sizes.data());
    bool ok = true;
    for (int64_t q = 0; q < n_queries; ++q) {
      ok &= sizes[q] == std::min(k, n);
      for (int64_t i = 0; i < sizes[q] && ok; ++i)
        ok &= distances[q * k + i] == expected[q][i].first && rows[q * k + i] == expected[q][i].second;
    }
    check(ok, "nearest", n, n_words);

    const int64_t bound = 24 * n_words, capacity = LEVEL::loops.max_hits_per_step + 1000;
    std::vector<int64_t> all_bounds(n_queries, bound), query_index(capacity), hit_rows(capacity);
    std::vector<int32_t> hit_distances(capacity);
    std::vector<Found> found(n_queries);
    for (Position position = {0, 0}; position.row < n;) {
      Hits hits = {query_index.data(), hit_rows.data(), hit_distances.data(), capacity, 0};
      position = LEVEL::loops.range_search(codes, all_queries, kernel, all_bounds.data(), position, hits);
      for (int64_t i = 0; i < hits.size; ++i) found[query_index[i]].push_back({hit_distances[i], hit_rows[i]});
    }
    ok = true;
    for (int64_t q = 0; q < n_queries; ++q) {
      std::sort(found[q].begin(), found[q].end());
      Found below;
      for (const auto& hit : expected[q])
        if (hit.first < bound) below.push_back(hit);
      ok &= found[q] == below;
    }
    check(ok, "range_search", n, n_words);
  }

  std::vector<int64_t> bound_of(max_bound + 2);
  for (int64_t d = 0; d < max_bound + 2; ++d) bound_of[d] = std::min(max_bound, d * 10 / 8 + 1);
  bool ok = true;
  for (const bool exact_second : {false, true}) {
    std::vector<int64_t> bounds(n_queries, max_bound);
    std::vector<int64_t> best(n_queries, max_bound), second(n_queries, max_bound), rows(n_queries, -1);
    LEVEL::loops.match(codes, all_queries, exact_second, bounds.data(), bound_of.data(), best.data(), second.data(),
                       rows.data());
    for (int64_t q = 0; q < n_queries && n; ++q) {
      const int64_t second_distance = n > 1 ? expected[q][1].first : max_bound;
      const bool passes = second_distance >= bound_of[expected[q][0].first];
      ok &= passes == (second[q] >= bound_of[best[q]]);
      const bool nearest = best[q] == expected[q][0].first && rows[q] == expected[q][0].second;
      ok &= nearest || !(passes || exact_second);
      ok &= passes || !exact_second || second[q] == second_distance;
    }
  }
  check(ok, "match", n, n_words);

  std::vector<int64_t> bounds(n_queries), excluded(n_queries, -1), bounds_before;
  for (int64_t q = 0; q < n_queries && n; ++q) {
    excluded[q] = expected[q][0].second;
    bounds[q] = n > 1 ? std::min(max_bound, expected[q][1].first + q % 2) : max_bound;
  }
  bounds_before = bounds;
  LEVEL::loops.find_rivals(codes, all_queries, excluded.data(), bounds.data());
  ok = true;
  for (int64_t q = 0; q < n_queries && n; ++q) {
    const bool has_rival = n > 1 && expected[q][1].first < bounds_before[q];
    ok &= bounds[q] == (has_rival ? 0 : bounds_before[q]);
  }
  check(ok, "find_rivals", n, n_words);

  std::vector<uint32_t> starts(257), listed(n);
  LEVEL::loops.build_table(codes, 60 % (64 * n_words - 8), 8, starts.data(), listed.data());
  std::vector<int64_t> all_rows(listed.begin(), listed.end()), values(n);
  LEVEL::loops.substring_values(codes, all_rows.data(), n, 60 % (64 * n_words - 8), 8, values.data());
  ok = starts[256] == n && std::is_sorted(values.begin(), values.end());
  for (int64_t i = 0; i < n; ++i) ok &= starts[values[i]] <= i && i < starts[values[i] + 1];
  check(ok, "build_table", n, n_words);
}

// Rows ordered by cell are searched, in all cells, as if they were in the order of their positions.
void check_cells(int64_t n, int64_t n_words) {
  const int64_t n_queries = 30, k = 9, n_cells = 16, n_high = (n + 65535) >> 16;
  const Words words = random_words(n, n_words), queries = random_words(n_queries, n_words);
  std::vector<uint32_t> rows(n);
  std::vector<int64_t> starts(n_cells + 1);
  for (auto& cell : rows) ++starts[1 + (cell = uint32_t(random_number() % 11))];
  for (int64_t c = 0; c < n_cells; ++c) starts[c + 1] += starts[c];
  std::vector<int64_t> next(starts.begin(), starts.end() - 1);
  std::vector<uint16_t> low(n), bias(n_cells, 3), group_bias(8, 65535);
  Words high((n + n_cells * n_high) / 64 + 1), planes(n_cells * n_words * 3), group_planes(8 * n_words * 3);
  const Cells cells = {n_cells, n, starts.data(), low.data(), high.data(), n_high};
  LEVEL::loops.order_rows(cells, n, rows.data(), next.data(), low.data(), high.data());
  Words blocks((n + BLOCK - 1) / BLOCK * BLOCK * n_words);
  LEVEL::loops.scatter({words.data(), n}, n_words, rows.data(), 0, (n + BLOCK - 1) / BLOCK * BLOCK, blocks.data());
  bool ok = true;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = rows[i];
    int64_t position = -1;
    LEVEL::loops.positions_of(cells, &row, 1, &position);
    ok &= position == i;
  }
  check(ok, "positions_of", n, n_words);

  for (auto& word : planes) word = random_number();
  group_bias[0] = 0;
  const std::vector<int64_t> firsts = {0, 16, 16, 16, 16, 16, 16, 16, 16};
  const Probe probe = {
      {group_planes.data(), group_bias.data(), 8, 3}, {planes.data(), bias.data(), 16, 3}, firsts.data(), 8, 16};
  const Codes codes = {blocks.data(), n_words, nullptr, 0, n};
  for (int method = 0; method < 3; ++method) {
    std::vector<int64_t> bounds(n_queries, 64 * n_words + 1), found(n_queries * k), sizes(n_queries),
        compared(n_queries);
    std::vector<int32_t> distances(n_queries * k);
    if (method == 2)
      LEVEL::loops.nearest_in_cells(codes, cells, probe, {queries.data(), n_queries}, k, distances.data(), found.data(),
                                    sizes.data(), compared.data());
    else
      LEVEL::loops.nearest_by_position(codes, cells, {queries.data(), n_queries}, k, Kernel(method), bounds.data(),
                                       distances.data(), found.data(), sizes.data());
    ok = true;
    for (int64_t q = 0; q < n_queries; ++q) {
      const Found expected = sorted_rows(words, n, n_words, queries.data() + q * n_words);
      ok &= sizes[q] == std::min(k, n);
      for (int64_t i = 0; i < sizes[q] && ok; ++i)
        ok &= distances[q * k + i] == expected[i].first && found[q * k + i] == expected[i].second;
    }
    check(ok, method == 2 ? "nearest_in_cells" : "nearest_by_position", n, n_words);
  }
}

bool is_close(const std::vector<float>& a, const std::vector<double>& b, double error) {
  bool ok = a.size() == b.size();
  for (size_t i = 0; i < a.size() && ok; ++i) ok &= std::fabs(a[i] - b[i]) <= error;
  return ok;
}

void check_float_queries(int64_t n, int64_t n_words) {
  const int64_t n_queries = 5, k = 9, n_bits = 64 * n_words - 3;
  const Words words = random_words(n, n_words), blocks = to_blocks(words, n, n_words);
  const std::vector<float> projections = random_floats(n_queries * n_bits), bounds(n_queries, INFINITY);
  std::vector<float> distances(n_queries * k);
  std::vector<int64_t> rows(n_queries * k), sizes(n_queries);
  LEVEL::loops.nearest_weighted({blocks.data(), n_words, nullptr, 0, n}, nullptr, projections.data(), n_queries, n_bits,
                                k, bounds.data(), distances.data(), rows.data(), sizes.data());
  bool ok = true;
  for (int64_t q = 0; q < n_queries; ++q) {
    std::vector<std::pair<float, int64_t>> expected;
    for (int64_t row = 0; row < n; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < n_bits; ++i) {
        const bool bit = words[row * n_words + i / 64] >> (i % 64 ^ 7) & 1;  // most significant bit of a byte first
        const float value = projections[q * n_bits + i];
        if (bit != (value > 0)) sum += std::fabs(value);
      }
      expected.push_back({float(sum), row});
    }
    std::sort(expected.begin(), expected.end());
    ok &= sizes[q] == std::min(k, n);
    for (int64_t i = 0; i < sizes[q] && ok; ++i)
      ok &= distances[q * k + i] == expected[i].first && rows[q * k + i] == expected[i].second;
  }
  check(ok, "nearest_weighted", n, n_words);
}

void check_encoding(int64_t n, int64_t depth) {
  const int64_t n_panels = 3, width = n_panels * PANEL;
  const auto a = random_floats(n * depth), panels = random_floats(width * depth), terms = random_floats(n + width);
  std::vector<float> out(n * width), single(width);
  LEVEL::loops.multiply(a.data(), depth, n, panels.data(), n_panels, depth, out.data());
  std::vector<double> products(n * width);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < width; ++c)
      for (int64_t d = 0; d < depth; ++d)
        products[i * width + c] += double(a[i * depth + d]) * panels[(c / PANEL * depth + d) * PANEL + c % PANEL];
  check(is_close(out, products, 1e-5 * double(depth + 1)), "multiply", n, depth);
  bool ok = true;
  for (int64_t i = 0; i < n; ++i) {
    LEVEL::loops.multiply(a.data() + i * depth, depth, 1, panels.data(), n_panels, depth, single.data());
    ok &= std::equal(single.begin(), single.end(), out.begin() + i * width);
  }
  check(ok, "multiply, row by row,", n, depth);

  std::vector<uint8_t> codes(n * width / 8);
  LEVEL::loops.pack_above(out.data(), width, n, terms.data() + n, width, codes.data());
  ok = true;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < width; ++c)
      ok &= (codes[i * width / 8 + c / 8] >> (7 - c % 8) & 1) == (out[i * width + c] > terms[n + c]);
  check(ok, "pack_above", n, depth);

  std::vector<double> powers(n * width);
  for (int64_t i = 0; i < n * width; ++i) {
    const double t = double(out[i]) - (double(terms[i / width]) + terms[n + i % width]);
    powers[i] = std::exp2(std::max(-126.0, std::min(0.0, t)));
  }
  LEVEL::loops.exp2_of_expanded_square(out.data(), width, n, width, terms.data(), terms.data() + n);
  check(is_close(out, powers, 1e-5), "exp2_of_expanded_square", n, depth);
}

void check_gram(int64_t n, int64_t width) {
  const int64_t n_rows = 30, padded = (width + GRAM_PANEL - 1) / GRAM_PANEL * GRAM_PANEL;
  std::vector<int16_t> features(n_rows * width);
  for (auto& value : features) value = int16_t(random_number() % 4097);
  std::vector<int64_t> left(n), right(n), out(padded * padded);
  for (int64_t i = 0; i < n; ++i)
    left[i] = int64_t(random_number() % n_rows), right[i] = int64_t(random_number() % n_rows);
  LEVEL::loops.add_gram(features.data(), width, left.data(), right.data(), n, -1, 0, out.data());
  bool ok = true;
  for (int64_t r = 0; r < width; ++r)
    for (int64_t c = r; c < width; ++c) {
      int64_t sum = 0;
      for (int64_t i = 0; i < n; ++i)
        sum += int64_t(features[left[i] * width + r] - features[right[i] * width + r]) *
               (features[left[i] * width + c] - features[right[i] * width + c]);
      ok &= out[r * padded + c] == sum;
    }
  check(ok, "add_gram", n, width);
}

}  // namespace

int main() {
  for (const int64_t n : {0, 1, 7, 8, 255, 256, 257, 511, 513})
    for (const int64_t n_words : {1, 2, 3, 4, 8, 16, 64}) check_search(n, n_words);
  for (const int64_t n : {1, 8, 513, 66000})
    for (const int64_t n_words : {1, 2, 3, 4, 8, 40}) check_cells(n, n > 1000 ? 1 : n_words);
  for (const int64_t n : {0, 1, 7, 8, 255, 257, 513})
    for (const int64_t n_words : {1, 2, 3, 8, 64}) check_float_queries(n, n_words);
  for (const int64_t n : {0, 1, 5, 6, 7, 13})
    for (const int64_t depth : {1, 8, 255, 257}) check_encoding(n, depth);
  for (const int64_t n : {0, 1, 127, 128, 1025})
    for (const int64_t width : {1, 16, 40}) check_gram(n, width);
  std::printf("%s: %d checks, %d failed\n", LEVEL::loops.name, n_checks, n_failed);
  return n_failed != 0;
}
