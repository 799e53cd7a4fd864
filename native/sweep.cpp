// The exact search for the best threshold over one column of projections.
//
// Candidate threshold c lies between the values of rank c and c + 1. It separates a pair if c is at least the lower
// rank of its two members and below the higher one. So each pair adds one at the lower rank and subtracts one at the
// higher, and a running sum gives the number of separated pairs at every candidate.

#include "loops.h"

namespace {

constexpr int DIGIT = 11;  // bits per pass of the radix sort: three passes over keys of 32 bits
constexpr uint32_t MASK = (1u << DIGIT) - 1;

// An unsigned key with the same order as the floats; -0.0 and 0.0 have the same key.
INLINE uint32_t key_of(float value) {
  value += 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

}  // namespace

namespace LEVEL {

int64_t rank(const float* values, int64_t n, int32_t* ranks, float* distinct) {
  Array<uint32_t> keys(n), sorted_keys(n);
  Array<int32_t> order(n), sorted_order(n);
  Array<int64_t> counts(3 << DIGIT);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t key = key_of(values[i]);
    keys[i] = key;
    order[i] = int32_t(i);
    for (int d = 0; d < 3; ++d) ++counts[(int64_t(d) << DIGIT) + (key >> d * DIGIT & MASK)];
  }
  uint32_t *from = keys.data(), *to = sorted_keys.data();
  int32_t *from_order = order.data(), *to_order = sorted_order.data();
  for (int d = 0; d < 3; ++d) {
    int64_t* offsets = counts + (int64_t(d) << DIGIT);
    int64_t total = 0;
    for (uint32_t c = 0; c <= MASK; ++c) {
      const int64_t count = offsets[c];
      offsets[c] = total;
      total += count;
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = offsets[from[i] >> d * DIGIT & MASK]++;
      to[at] = from[i];
      to_order[at] = from_order[i];
    }
    uint32_t* previous_keys = from;
    int32_t* previous_order = from_order;
    from = to, to = previous_keys;
    from_order = to_order, to_order = previous_order;
  }
  int64_t k = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (i == 0 || from[i] != from[i - 1]) distinct[++k] = values[from_order[i]];
    ranks[from_order[i]] = int32_t(k);
  }
  return k + 1;
}

Threshold best_threshold(const int32_t* ranks, const float* distinct, int64_t n_distinct, const Members& positives,
                         const Members& negatives, double positive_weight, double negative_weight) {
  Array<int32_t> steps(2 * n_distinct);  // changes in the number of separated positive and negative pairs
  const Members* kinds[] = {&positives, &negatives};
  for (int kind = 0; kind < 2; ++kind) {
    for (int64_t i = 0; i < kinds[kind]->n; ++i) {
      const int32_t a = ranks[kinds[kind]->left[i]], b = ranks[kinds[kind]->right[i]];
      ++steps[2 * int64_t(min(a, b)) + kind];
      --steps[2 * int64_t(max(a, b)) + kind];
    }
  }
  Threshold best = {n_distinct - 1, 0, 0};  // above all values: separates no pairs
  double best_loss = 0;
  float best_gap = 0;
  int64_t separated[2] = {};
  for (int64_t c = 0; c < n_distinct - 1; ++c) {
    for (int kind = 0; kind < 2; ++kind) separated[kind] += steps[2 * c + kind];
    const double loss = positive_weight * double(separated[0]) - negative_weight * double(separated[1]);
    const float gap = distinct[c + 1] - distinct[c];
    if (loss < best_loss || (loss == best_loss && gap > best_gap)) {
      best = {c, separated[0], separated[1]};
      best_loss = loss, best_gap = gap;
    }
  }
  return best;
}

double best_weighted_threshold(const int32_t* ranks, int64_t n_distinct, const Members& pairs, const double* weights,
                               int64_t* rank) {
  Array<double> steps(n_distinct);
  for (int64_t i = 0; i < pairs.n; ++i) {
    const int32_t a = ranks[pairs.left[i]], b = ranks[pairs.right[i]];
    steps[min(a, b)] += weights[i];
    steps[max(a, b)] -= weights[i];
  }
  double best = __builtin_inf(), loss = 0;
  *rank = 0;
  for (int64_t c = 0; c < n_distinct - 1; ++c) {
    loss += steps[c];
    if (loss < best) best = loss, *rank = c;
  }
  return best;
}

}  // namespace LEVEL
