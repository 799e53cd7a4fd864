// A step of refinement, apart from its matrix products.
//
// Items are the members of the pairs of a batch: the first members of all pairs, then the second members in the same
// order. The partner of an item is the other member of its pair.

#include "exp2.h"
#include "loops.h"

namespace {

constexpr float MASKED = -1e30f;  // below any similarity

// Adds the gradient with respect to the soft bits of an item, of its partner and of its nearest negative.
template <bool DISTINCT>
INLINE void add_item_gradient(const float* item, const float* partner, const float* negative, float slope, int64_t low,
                              int64_t high, float* by_item, float* by_partner, float* by_negative) {
  const auto add = [&](int64_t j) __attribute__((always_inline)) {
    const float change = slope * item[j];
    by_item[j] += slope * (negative[j] - partner[j]);
    by_partner[j] -= change;
    by_negative[j] += change;
  };
  if constexpr (DISTINCT) {
#pragma GCC ivdep
    for (int64_t j = low; j < high; ++j) add(j);
  } else {
    for (int64_t j = low; j < high; ++j) add(j);
  }
}

}  // namespace

namespace LEVEL {

void soft_bits(const float* projections, int64_t n_rows, int64_t n_bits, const float* thresholds, float factor,
               float* out) {
  for (int64_t i = 0; i < n_rows; ++i) {
    const float* row = projections + i * n_bits;
    float* bits = out + i * n_bits;
    for (int64_t j = 0; j < n_bits; j += FLOATS) {
      // tanh(u) from d = exp(-2 |u|): (1 - d) / (1 + d) with the sign of u.
      Floats p = {}, t = {};
      const int64_t n = min(int64_t(FLOATS), n_bits - j);
      std::memcpy(&p, row + j, n * sizeof(float));
      std::memcpy(&t, thresholds + j, n * sizeof(float));
      const Floats gap = p - t, magnitude = gap < 0 ? -gap : gap;
      const Floats d = exp2_nonpositive(broadcast(-factor) * magnitude);
      const Floats tanh = (broadcast(1.0f) - d) / (broadcast(1.0f) + d);
      const Floats bit = p > t ? tanh : -tanh;
      std::memcpy(bits + j, &bit, n * sizeof(float));
    }
  }
}

void mask_same_label(float* similarity, int64_t n_rows, int64_t n, int64_t first, const int64_t* labels) {
  for (int64_t r = 0; r < n_rows; ++r)
    for (int64_t j = 0; j < n; ++j)
      if (labels[j] == labels[first + r]) similarity[r * n + j] = MASKED;
}

void find_largest(const float* similarity, int64_t n_rows, int64_t n, int32_t* where, float* value) {
  for (int64_t r = 0; r < n_rows; ++r) {
    const float* row = similarity + r * n;
    Floats largest = broadcast(row[0]);
    int64_t j = 0;
    for (; j + FLOATS <= n; j += FLOATS) {
      const Floats values = load(row + j);
      largest = values > largest ? values : largest;
    }
    float top = row[0];
    for (int i = 0; i < FLOATS; ++i) top = max(top, largest[i]);
    for (; j < n; ++j) top = max(top, row[j]);
    int32_t column = 0;
    while (row[column] < top) ++column;
    where[r] = column, value[r] = top;
  }
}

void add_partner_similarity(const float* soft, int64_t n, int64_t n_bits, int64_t low, int64_t high, int64_t first,
                            int64_t n_rows, float* out) {
  for (int64_t r = 0; r < n_rows; ++r) {
    const float* item = soft + (first + r) * n_bits;
    const float* partner = soft + (first + r + n / 2) % n * n_bits;
    float lanes[16] = {};
    int64_t c = low;
    for (; c + 16 <= high; c += 16)
      for (int i = 0; i < 16; ++i) lanes[i] = fma(item[c + i], partner[c + i], lanes[i]);
    for (int i = 0; c < high; ++c, ++i) lanes[i] = fma(item[c], partner[c], lanes[i]);
    out[r] += sum_of_16(lanes);
  }
}

void add_gradient(const float* soft, int64_t n, int64_t n_bits, const int32_t* nearest, const float* slopes,
                  const int64_t* prefixes, int64_t n_prefixes, int64_t low, int64_t high, float* out) {
  for (int64_t k = 0; k < n_prefixes; ++k) {
    if (prefixes[k] <= low) continue;
    const int64_t end = min(high, prefixes[k]);
    for (int64_t i = 0; i < n; ++i) {
      const float slope = slopes[k * n + i];
      const int64_t a = i * n_bits, b = (i + n / 2) % n * n_bits, c = int64_t(nearest[k * n + i]) * n_bits;
      if (a != c && b != c)
        add_item_gradient<true>(soft + a, soft + b, soft + c, slope, low, end, out + a, out + b, out + c);
      else  // the batch has no negatives: all its items have the same label
        add_item_gradient<false>(soft + a, soft + b, soft + c, slope, low, end, out + a, out + b, out + c);
    }
  }
}

void adam_step(float* values, const float* gradient, float* mean, float* square, int64_t n, float step, float scale) {
  const float beta1 = 0.9f, beta2 = 0.999f, one_minus_beta1 = float(1 - 0.9), one_minus_beta2 = float(1 - 0.999);
  for (int64_t i = 0; i < n; ++i) {
    const float g = gradient[i];
    mean[i] = beta1 * mean[i] + one_minus_beta1 * g;
    square[i] = beta2 * square[i] + one_minus_beta2 * g * g;
    values[i] -= step * mean[i] / (__builtin_sqrtf(scale * square[i]) + 1e-12f);
  }
}

}  // namespace LEVEL
